"""A node's warm interpreter: found or started, and the folder that its ranks import us from."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datastore
import rayjobs
from rayjobs.errors import RayjobsError
from rayjobs.launch import hostclient
from rayjobs.launch.plan import inherited
from rayjobs.paths import short_socket

log = logging.getLogger(__name__)

WARM_IDLE_S = 1800.0


class NodeWarm:
    """The warm interpreter of one node for this interpreter's packages.

    It outlives whoever started it: the next agent of the node finds it at the same socket.
    """

    def __init__(self, root: Path, log_file: Path) -> None:
        """Serve the node whose scratch is `root`; imports print into `log_file`."""
        self._root = root
        self._log_file = log_file
        self._warm: asyncio.Task[hostclient.WarmInterpreter] | None = None

    @property
    def socket(self) -> Path:
        """Where this interpreter's warm copy listens."""
        return short_socket("warm", f"{sys.executable}:{sys.version}:{self._root}")

    def warm_up(self, *, again: bool = False) -> asyncio.Task[hostclient.WarmInterpreter]:
        """Return the start of the warm interpreter; `again` when it was seen to be gone."""
        task = self._warm
        if task is None or (task.done() and (again or task.exception() is not None)):
            task = asyncio.ensure_future(self._ensure_warm())
            task.add_done_callback(_note_warm)
            self._warm = task
        return task

    async def _ensure_warm(self) -> hostclient.WarmInterpreter:
        preload = os.environ.get("RAYJOBS_PRELOAD")
        return await hostclient.ensure_warm(
            str(self.socket),
            python=sys.executable,
            env=inherited(os.environ),
            log_file=str(self._log_file),
            preload=preload.split(",") if preload else hostclient.DEFAULT_PRELOAD,
            idle_s=float(os.environ.get("RAYJOBS_WARM_IDLE_S", WARM_IDLE_S)),
        )

    def injob_path(self) -> Path:
        """Return a folder that holds nothing but the packages `rayjobs` and `datastore`.

        Appended to a rank's sys.path, it makes ``from rayjobs import Run`` work in any
        environment without shadowing what is installed there. The second one is imported only
        by a script that takes a dataset itself from `run.input_datasets`.
        """
        folder = self._root / "injob"
        folder.mkdir(exist_ok=True)
        for module in (rayjobs, datastore):
            package = Path(str(module.__file__)).resolve().parent
            link = folder / package.name
            if not link.is_symlink() or link.resolve() != package:
                fresh = folder / f".{package.name}.{os.getpid()}"
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(package)
                fresh.replace(link)
        return folder

    async def why_not(self, plan: Mapping[str, Any]) -> str | None:
        """Return why a plan cannot be started warm; None when the interpreter is ready for it."""
        if Path(plan["python"]) != Path(sys.executable):
            return f"the job has an interpreter of its own ({plan['python']})"
        if plan["kind"] == "command":
            return "the job is a command"
        try:
            await asyncio.shield(self.warm_up())
            # It may have ended since (idle, killed): asked again, started again.
            if await hostclient.ping_warm(str(self.socket)) is None:
                await asyncio.shield(self.warm_up(again=True))
        except RayjobsError as error:
            return f"no warm interpreter: {error}"
        return None


def _note_warm(task: asyncio.Task[hostclient.WarmInterpreter]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("no warm interpreter: %s", error)
