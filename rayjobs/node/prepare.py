"""Prepares an attempt on a node: folder, snapshot, checkpoint, environment, data."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from functools import partial
from pathlib import Path

from rayjobs import snapshots
from rayjobs.containers.images import ReadyImage
from rayjobs.core.errors import NotFoundError, PrepareError, SnapshotError, StoreError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import AttemptPaths
from rayjobs.datastore.digests import digest_of
from rayjobs.environments import interpreter
from rayjobs.injob.plan import LaunchPlan
from rayjobs.jobs.events import Resumed
from rayjobs.jobs.hosts import HostFacts
from rayjobs.launch import network
from rayjobs.node import gpus
from rayjobs.node.containers import NodeContainers
from rayjobs.node.data import NodeData
from rayjobs.node.environments import NodeEnvironments
from rayjobs.node.facts import NodeFacts
from rayjobs.node.scratch import Scratch
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode, LaunchRequest
from rayjobs.protocol.nodes import Prepared
from rayjobs.results import resuming

log = logging.getLogger(__name__)


class Preparing:
    """Prepares attempts on one node."""

    def __init__(
        self,
        scratch: Scratch,
        shared: snapshots.NodeSnapshots,
        data: NodeData,
        workspaces: Workspaces,
        environments: NodeEnvironments,
        containers: NodeContainers,
        facts: NodeFacts,
    ) -> None:
        """Unpack each snapshot once in `shared`, and copy it from there for each attempt."""
        self._scratch = scratch
        self._snapshots = shared
        self._data = data
        self._workspaces = workspaces
        self._environments = environments
        self._containers = containers
        self._facts = facts
        self._kept: set[tuple[str, str]] = set()  # workspace, digest of a list of packages

    async def prepare(self, request: LaunchRequest) -> Prepared:
        """Prepare this node for an attempt, and return what its host needs, with the node's facts.

        This makes the attempt's folder with a private copy of the snapshot, and brings its image or
        environment, its inputs, and its checkpoint.

        Raises:
            PrepareError: with its class.
        """
        looking = asyncio.ensure_future(self._look_at_gpus(request))
        try:
            await asyncio.to_thread(self.make_folder, request)
            image = await self._containers.bring(request)
            if image is None:
                python = await self._environments.bring(request)
            else:
                added = self._containers.building_in(request, image)
                python = await self._environments.bring(request, added)
                is_added = python is not None
                if python is not None:
                    image = await self._containers.asked_again(request, image, python)
                python = image.answer.python
                if python is not None and await self._environments.bring_horovod(
                    request, added, python, is_added=is_added
                ):
                    image = self._containers.has_horovod(image)
            loop = asyncio.get_running_loop()
            finding = loop.run_in_executor(None, self._find_facts, request, python, image)
            variables = await loop.run_in_executor(self._data.pool, self._bring_data, request)
            facts = await finding
            await looking
        finally:
            looking.cancel()
        return Prepared(request.on.root, variables, python, facts)

    def _find_facts(
        self, request: LaunchRequest, built: str | None, image: ReadyImage | None
    ) -> HostFacts:
        """Return the facts about what the attempt runs on; store each list of packages once."""
        on, plan = request.on, request.plan
        try:
            if image is not None:
                facts = self._facts.of(built or "", _devices(plan), image.answer.facts)
                container = request.container
                facts["image"] = container.image if container is not None else None
                facts["image_digest"] = image.digest
            else:
                python = built or interpreter.path_of(plan.python or sys.executable)
                facts = self._facts.of(python, _devices(plan))
            packages = facts.pop("packages", None)
            if packages is not None:
                facts["torch"] = dict(packages).get("torch")
                facts["package_count"] = len(packages)
                facts["packages"] = self._keep(on, json.dumps(packages).encode())
            return HostFacts.from_json(facts)
        except Exception as error:  # only a record: no attempt may fail because of it
            log.warning("the facts about the host of %s are unknown", on.job, exc_info=True)
            return HostFacts(why=f"unknown: {error}"[:300])

    def _keep(self, on: AttemptOnNode, content: bytes) -> str:
        digest = digest_of(content)
        key = (on.workspace, digest)
        if key not in self._kept:
            self._workspaces.of(on).store.catalogue.put_manifest(content)
            self._kept.add(key)
        return digest

    async def _look_at_gpus(self, request: LaunchRequest) -> None:
        warnings: list[str] = []
        attempts = Path(request.on.root).parents[1]
        await gpus.wait_until_free(_devices(request.plan), attempts, warnings.append)
        for sentence in warnings:
            await asyncio.to_thread(self._workspaces.note, request.on, "gpu", sentence)

    def _bring_data(self, request: LaunchRequest) -> dict[str, str]:
        on = request.on
        note = partial(self._workspaces.note, on)
        reaches = partial(self._workspaces.reaches, on)
        return self._data.bring(request, self._workspaces.of(on), note=note, reaches=reaches)

    def make_folder(self, request: LaunchRequest) -> None:
        """Make the attempt's folder without its data; see `prepare`. Blocks."""
        on = request.on
        paths = AttemptPaths(Path(on.root))
        try:
            # An attempt starts once, in a new folder; an existing folder belongs to a start that
            # was undone.
            self._data.release(paths.root)
            if kept := self._scratch.remove(paths.root):
                raise PrepareError("; ".join(kept), failure_class=FailureClass.STORAGE)
            paths.root.mkdir(mode=0o700, parents=True)
            if request.snapshot is not None:
                self._unpack(on, request.snapshot, paths.work)
            for folder in (
                paths.work / "outputs",
                paths.work / "logs",
                paths.driver_log(0).parent,
                paths.metrics(0).parent,
                paths.tmp,
            ):
                folder.mkdir(parents=True, exist_ok=True)
            self._bring_checkpoint(request, paths.resume)
            if warning := network.unknown_interface(request.plan):
                self._workspaces.note(on, "network", warning)
        except SnapshotError as error:
            raise PrepareError(str(error), failure_class=FailureClass.ENVIRONMENT) from error
        except (StoreError, NotFoundError) as error:
            raise PrepareError(str(error), failure_class=FailureClass.STORAGE) from error
        except OSError as error:
            raise PrepareError(
                f"{paths.root} cannot be created: {error.strerror}",
                failure_class=FailureClass.STORAGE,
            ) from error

    def _unpack(self, on: AttemptOnNode, digest: str, work: Path) -> None:
        workspace = self._workspaces.of(on)
        self._snapshots.ensure(digest, lambda: workspace.blobs.open(snapshots.blob_key(digest)))
        self._snapshots.copy_into(digest, work)

    def _bring_checkpoint(self, request: LaunchRequest, folder: Path) -> None:
        if request.resume is None:
            return
        on, resume = request.on, request.resume
        workspace = self._workspaces.of(on)
        brought = resuming.bring(
            workspace.store, workspace.blobs, folder, own=resume.run, path=resume.path
        )
        if brought is not None and on.node == 0:
            # A checkpoint of another run is the one that the job's first attempt started from: the
            # job's own work since then is lost.
            continues = brought.checkpoint is not None and brought.checkpoint.run == resume.run
            resumed = Resumed(continues)
            self._workspaces.note(on, Resumed.KIND, brought.sentence, resumed.to_json())


def _devices(plan: LaunchPlan) -> list[str]:
    return [one for one in plan.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
