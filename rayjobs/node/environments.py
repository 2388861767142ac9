"""Environments of attempts on one node: builds, cancels and logs them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs import snapshots
from rayjobs.core.errors import NotFoundError, PrepareError, SnapshotError, StoreError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked
from rayjobs.core.paths import ENVIRONMENT_LOCK, AttemptPaths
from rayjobs.environments import locks
from rayjobs.environments.attempt_files import UsedEnvironment
from rayjobs.environments.building import Control
from rayjobs.environments.cache import Cache
from rayjobs.environments.horovod import in_image, required
from rayjobs.environments.inside import Image
from rayjobs.environments.realise import Environments
from rayjobs.environments.work import Work
from rayjobs.node.build_logs import store_build_log, store_file, stream_build_log
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode, LaunchRequest

log = logging.getLogger(__name__)

EVENT = "environment"


class NodeEnvironments:
    """Builds the environments of one node's attempts. Its methods run on one event loop."""

    def __init__(
        self,
        root: Path,
        workspaces: Workspaces,
        shared: snapshots.NodeSnapshots,
        is_open: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keep environments below `root`; report on them in the workspaces of their jobs.

        Args:
            shared: Where to unpack packages that travel with a job.
            is_open: Whether jobs can write to their environments on this node.
        """
        self._root = root
        self._snapshots = shared
        self._environments = Environments(root, sys.executable, is_open)
        self._horovod = in_image.HorovodInImages(root)
        self._workspaces = workspaces
        self._controls: dict[str, Control] = {}

    async def bring(self, request: LaunchRequest, image: Image | None = None) -> str | None:
        """Return the interpreter of an attempt's environment; None if it requests no packages.

        Args:
            image: The image in which the attempt runs and to which its packages are added.

        Raises:
            PrepareError: see `Environments.realise`. The build output is stored with the run.
        """
        if request.environment is None:
            return None
        on = request.on
        async with self._working(on, image) as work:
            work.known_lock = await asyncio.to_thread(self._known_lock, on)
            work.uses_horovod = await asyncio.to_thread(required.is_wanted, request.plan)
            if on.node_count > 1:
                if on.node == 0:
                    work.publish = partial(self._publish_lock, on, work.paths)
                else:
                    work.first_lock = partial(self._stored_lock, on, on.attempt)
            with ExitStack() as stack:
                if carried := request.environment.sources:
                    # Protected from pruning before the build begins.
                    lock = locked(Cache(self._root).builds, shared=True)
                    await asyncio.to_thread(stack.enter_context, lock)
                    await asyncio.to_thread(self._bring_sources, on, carried)
                found = await self._environments.realise(request.environment.to_json(), work)
        if not found.built:
            self._report(on, "the environment exists already", {"step": "found", "key": found.key})
        return found.python

    async def bring_horovod(
        self, request: LaunchRequest, image: Image, python: str, *, is_added: bool
    ) -> bool:
        """Provide Horovod to an attempt in an image, if its script uses it and the image has torch.

        Args:
            python: The attempt's Python, as a path in the image.
            is_added: Whether it belongs to an environment that is added to the image.

        Returns:
            Whether a Horovod built for the image is used.

        Raises:
            PrepareError: see `HorovodInImages.realise`.
        """
        plan = request.plan
        if not await asyncio.to_thread(required.is_wanted, plan):
            return False
        asked = in_image.Asked(
            python=python,
            variables={name: plan.env[name] for name in required.MATTERS if name in plan.env},
            environment=Path(python).parents[1] if is_added else None,
            needs_mpi=plan.is_mpi,
            on_gpus=required.exchanges_on_gpus(plan),
        )
        async with self._working(request.on, image) as work:
            return await self._horovod.realise(asked, work) is not None

    @asynccontextmanager
    async def _working(self, on: AttemptOnNode, image: Image | None) -> AsyncIterator[Work]:
        """Yield an attempt's work, which `stop` ends; store its log in the meantime."""
        limit_s = on.max_duration_s
        control = Control(
            marker=on.marker,
            deadline_s=asyncio.get_running_loop().time() + limit_s if limit_s else None,
            limit_s=limit_s,
        )
        paths = AttemptPaths(Path(on.root))
        self._controls[control.marker] = control
        work = Work(
            paths=paths,
            control=control,
            tell=partial(self._report, on),
            image=image,
        )
        done = asyncio.Event()
        streaming = asyncio.ensure_future(stream_build_log(self._workspaces, on, paths, done))
        try:
            yield work
        except BaseException:
            done.set()
            await streaming  # an older state of the log must not overwrite the last one
            await asyncio.to_thread(store_build_log, self._workspaces, on, paths)
            raise
        finally:
            done.set()
            self._controls.pop(control.marker, None)

    def stop(self, on: AttemptOnNode) -> None:
        """Make `bring` of this attempt end soon; has no effect afterwards."""
        control = self._controls.get(on.marker)
        if control is not None:
            control.stopped.set()

    def changed_by(self, root: Path) -> str:
        """Return how the environment of the attempt in `root` has changed, or "". Blocks.

        An environment that is added to an image is read-only everywhere.
        """
        paths = AttemptPaths(root)
        if paths.image.exists():
            return ""
        try:
            used = UsedEnvironment.read(paths)
        except (OSError, ValueError):
            return ""  # its script may have damaged the record
        return "" if used is None else self._environments.changed_since(used.key)

    def _bring_sources(self, on: AttemptOnNode, sources: Mapping[str, str]) -> None:
        """Unpack the packages that travel with a job, each once for all jobs of the node. Blocks.

        Raises:
            PrepareError: one cannot be read, or is damaged.
        """
        workspace = self._workspaces.of(on) if sources else None
        for digest in sources.values():
            assert workspace is not None
            target = Cache(self._root).source(digest)
            if target.is_dir():
                os.utime(target)  # marks it as recently used
                continue
            key = snapshots.blob_key(digest)
            try:
                self._snapshots.ensure(digest, partial(workspace.blobs.open, key))
                target.parent.mkdir(parents=True, exist_ok=True)
                fresh = target.with_name(f".{target.name}.{on.job}-{on.node}")
                shutil.rmtree(fresh, ignore_errors=True)
                self._snapshots.copy_into(digest, fresh)
                try:
                    fresh.rename(target)
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
                    shutil.rmtree(fresh, ignore_errors=True)  # another attempt was faster
            except (SnapshotError, StoreError, NotFoundError, OSError) as error:
                raise PrepareError(
                    f"a package that travels with the job cannot be unpacked: {error}",
                    failure_class=FailureClass.STORAGE,
                ) from error

    def _report(self, on: AttemptOnNode, text: str, data: Mapping[str, Any]) -> None:
        if on.node == 0:
            self._workspaces.note(on, EVENT, text, data)

    def _known_lock(self, on: AttemptOnNode) -> str | None:
        """Return the packages of an earlier attempt, so that a retry runs with the same."""
        return None if on.attempt <= 1 else self._stored_lock(on, None)

    def _stored_lock(self, on: AttemptOnNode, attempt: int | None) -> str | None:
        """Return the lock that is stored with a job, for one attempt or for any."""
        try:
            workspace = self._workspaces.of(on)
        except (StoreError, NotFoundError, OSError) as error:
            log.info("the workspace of %s cannot be opened: %s", on.job, error)
            return None
        return locks.stored(workspace, on.job, attempt=attempt)

    def _publish_lock(self, on: AttemptOnNode, paths: AttemptPaths, lock: str) -> None:
        """Store the lock at once: the job's other nodes wait for it."""
        paths.environment_lock.write_text(lock)
        store_file(self._workspaces, on, paths.environment_lock, ENVIRONMENT_LOCK)
