"""Environments of attempts on one node: realised for an order, ended, and what building said."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs.clock import SystemClock
from rayjobs.compute.nodeworkspaces import Workspaces
from rayjobs.environments.building import Control
from rayjobs.environments.realise import Environments, Work
from rayjobs.errors import NotFoundError, StoreError
from rayjobs.paths import BUILD_LOG, ENVIRONMENT_LOCK, AttemptPaths
from rayjobs.records import StoredFile

log = logging.getLogger(__name__)

EVENT = "environment"


class NodeEnvironments:
    """Makes the environments of the attempts of one node. Its methods run on one event loop."""

    def __init__(self, root: Path, workspaces: Workspaces) -> None:
        """Keep environments below `root`; tell of them in the workspaces of their jobs."""
        self._environments = Environments(root, sys.executable)
        self._workspaces = workspaces
        self._controls: dict[str, Control] = {}

    async def bring(self, order: Mapping[str, Any]) -> str | None:
        """Return the interpreter of an order's environment; None where it asks for no packages.

        Raises:
            PrepareError: see `Environments.realise`. What building said is stored with the run.
        """
        asked = order.get("environment")
        if asked is None:
            return None
        plan = order["plan"]
        limit_s = plan.get("max_duration_s")
        control = Control(
            marker=str(plan["marker"]),
            deadline_s=asyncio.get_running_loop().time() + limit_s if limit_s else None,
            limit_s=limit_s,
        )
        paths = AttemptPaths(Path(plan["root"]))
        self._controls[control.marker] = control
        work = Work(
            paths=paths,
            control=control,
            tell=partial(self._tell, order),
            known_lock=await asyncio.to_thread(self._known_lock, order),
        )
        try:
            found = await self._environments.realise(asked, work)
        except BaseException:
            await asyncio.to_thread(self._store_log, order, paths)
            raise
        finally:
            self._controls.pop(control.marker, None)
        if not found.built:
            self._tell(
                order, "the environment was built before", {"step": "found", "key": found.key}
            )
        return found.python

    def stop(self, order: Mapping[str, Any]) -> None:
        """Let `bring` of this attempt end soon; harmless when it is over."""
        control = self._controls.get(str(order["plan"]["marker"]))
        if control is not None:
            control.stopped.set()

    def _tell(self, order: Mapping[str, Any], text: str, data: Mapping[str, Any]) -> None:
        if int(order["plan"].get("node", 0)) == 0:
            self._workspaces.note(order, EVENT, text, data)

    def _known_lock(self, order: Mapping[str, Any]) -> str | None:
        """Return the packages that an earlier attempt had: a retry runs with the same."""
        if int(order["plan"]["attempt"]) <= 1:
            return None
        try:
            workspace = self._workspaces.of(order)
            for file in workspace.store.files(order["plan"]["job"]):
                if file.name == ENVIRONMENT_LOCK:
                    with workspace.blobs.open(file.blob) as stream:
                        return stream.read().decode()
        except (StoreError, NotFoundError, OSError) as error:
            log.info("the packages of the attempt before are not known: %s", error)
        return None

    def _store_log(self, order: Mapping[str, Any], paths: AttemptPaths) -> None:
        """Store what building said; an attempt that does not start is not collected."""
        if not paths.build_log.is_file():
            return
        try:
            workspace = self._workspaces.of(order)
            blob = workspace.blobs.add_file(paths.build_log)
            node = int(order["plan"].get("node", 0))
            attempt = int(order["plan"]["attempt"])
            file = StoredFile(
                name=f"node-{node}/{BUILD_LOG}" if node else BUILD_LOG,
                attempt=attempt,
                size=blob.size,
                digest=blob.digest,
                blob=blob.key,
                stored_at=SystemClock().now(),
            )
            workspace.store.publish_files(order["plan"]["job"], attempt=attempt, files=[file])
        except (StoreError, NotFoundError, OSError) as error:
            log.warning("the build log of %s is not stored: %s", order["plan"]["job"], error)
