"""Environments of attempts on one node: realised for an attempt, ended, and what building said."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.core.paths import ENVIRONMENT_LOCK, AttemptPaths
from rayjobs.environments.building import Control
from rayjobs.environments.realise import Environments, Work
from rayjobs.node.build_logs import store_build_log
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode, LaunchRequest

log = logging.getLogger(__name__)

EVENT = "environment"


class NodeEnvironments:
    """Makes the environments of the attempts of one node. Its methods run on one event loop."""

    def __init__(self, root: Path, workspaces: Workspaces) -> None:
        """Keep environments below `root`; tell of them in the workspaces of their jobs."""
        self._environments = Environments(root, sys.executable)
        self._workspaces = workspaces
        self._controls: dict[str, Control] = {}

    async def bring(self, request: LaunchRequest) -> str | None:
        """Return the interpreter of an attempt's environment; None where it asks for no packages.

        Raises:
            PrepareError: see `Environments.realise`. What building said is stored with the run.
        """
        if request.environment is None:
            return None
        on = request.on
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
            tell=partial(self._tell, on),
            known_lock=await asyncio.to_thread(self._known_lock, on),
        )
        try:
            found = await self._environments.realise(request.environment.to_json(), work)
        except BaseException:
            await asyncio.to_thread(store_build_log, self._workspaces, on, paths)
            raise
        finally:
            self._controls.pop(control.marker, None)
        if not found.built:
            self._tell(on, "the environment was built before", {"step": "found", "key": found.key})
        return found.python

    def stop(self, on: AttemptOnNode) -> None:
        """Let `bring` of this attempt end soon; harmless when it is over."""
        control = self._controls.get(on.marker)
        if control is not None:
            control.stopped.set()

    def _tell(self, on: AttemptOnNode, text: str, data: Mapping[str, Any]) -> None:
        if on.node == 0:
            self._workspaces.note(on, EVENT, text, data)

    def _known_lock(self, on: AttemptOnNode) -> str | None:
        """Return the packages that an earlier attempt had: a retry runs with the same."""
        if on.attempt <= 1:
            return None
        try:
            workspace = self._workspaces.of(on)
            for file in workspace.store.files(on.job):
                if file.name == ENVIRONMENT_LOCK:
                    with workspace.blobs.open(file.blob) as stream:
                        return stream.read().decode()
        except (StoreError, NotFoundError, OSError) as error:
            log.info("the packages of the attempt before are not known: %s", error)
        return None
