"""A node's warm interpreters, and the folder from which their ranks import rayjobs."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from rayjobs.core.aliases import ALIASES
from rayjobs.core.errors import PrepareError, RayjobsError
from rayjobs.core.files import replacing
from rayjobs.core.paths import PACKAGE, short_socket
from rayjobs.core.text import duration_text
from rayjobs.environments import interpreter
from rayjobs.injob import open_files
from rayjobs.injob.identity import Identity
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.warm_messages import WarmRequest
from rayjobs.launch import hostclient
from rayjobs.launch.plan import inherited
from rayjobs.node import warm_limits

log = logging.getLogger(__name__)

WARM_IDLE_S = 1800.0
# After a failed start: how long jobs start cold at once, and how long a job waits for a new start.
RETRY_AFTER_S = 60.0
PATIENCE_S = 10.0


class NodeWarm:
    """The warm interpreters of one node, one per environment.

    They outlive the agent that started them: the node's next one finds them at the same sockets.
    """

    def __init__(self, root: Path, log_file: Path, *, raylet: Identity | None = None) -> None:
        """Serve the node with the scratch folder `root`; what imports print goes to `log_file`.

        Args:
            raylet: In a Ray cluster without a keeper, the process on this node whose end ends all
                warm interpreters; None if a keeper does that.
        """
        self._root = root
        self._ping = WarmRequest("ping", is_user=True, raylet=raylet)
        self._log_file = log_file
        self._warm: dict[Path, asyncio.Task[hostclient.WarmInterpreter]] = {}
        self._refused: dict[Path, str] = {}
        self._failed_at_s: dict[Path, float] = {}  # of those whose last start failed
        self._uses: dict[Path, warm_limits.Use] = {}
        self._limits = warm_limits.Limits.of(os.environ)

    def socket_of(self, python: str = sys.executable) -> Path:
        """Return the socket of an interpreter's warm copy.

        Changed packages give another socket: the old copy has imported the old packages.
        """
        kind = sys.version if python == sys.executable else stamp(python)
        return short_socket("warm", f"{python}:{kind}:{self._root}")

    def warm_up(
        self, python: str = sys.executable, *, again: bool = False
    ) -> asyncio.Task[hostclient.WarmInterpreter]:
        """Return the task that starts a warm interpreter; `again`: it was found dead.

        A failed start remains the result for a minute, so that not every job waits for a new start.
        """
        socket = self.socket_of(python)
        task = self._warm.get(socket)
        failed_at_s = self._failed_at_s.get(socket)
        if failed_at_s is not None:
            again = asyncio.get_running_loop().time() - failed_at_s >= RETRY_AFTER_S
        if task is None or (task.done() and again):
            task = asyncio.ensure_future(self._start(python, socket))
            task.add_done_callback(_note_warm)
            self._warm[socket] = task
        return task

    async def _start(self, python: str, socket: Path) -> hostclient.WarmInterpreter:
        try:
            warm = await self._ensure_warm(python, socket)
        except RayjobsError:
            self._failed_at_s[socket] = asyncio.get_running_loop().time()
            raise
        self._failed_at_s.pop(socket, None)
        return warm

    async def _ensure_warm(self, python: str, socket: Path) -> hostclient.WarmInterpreter:
        if python != sys.executable:
            await interpreter.ask(python)  # a broken interpreter would be retried for minutes
        preload = os.environ.get("RAYJOBS_PRELOAD")
        warm = await hostclient.ensure_warm(
            str(socket),
            python=python,
            env=inherited(os.environ),
            log_file=str(self._log_file),
            preload=preload.split(",") if preload else hostclient.DEFAULT_PRELOAD,
            idle_s=float(os.environ.get("RAYJOBS_WARM_IDLE_S", WARM_IDLE_S)),
        )
        await hostclient.ping_warm(str(socket), self._ping)
        return warm

    def injob_path(self) -> Path:
        """Return a folder that contains only `rayjobs` and the old names of its two packages.

        Appended to a rank's sys.path, it makes ``from rayjobs import Run`` work in any
        environment without shadowing what is installed there. `datastore` and `tuning` become
        aliases (`rayjobs.core.aliases`); a script's own modules of these names come first.
        """
        folder = self._root / "injob"
        folder.mkdir(exist_ok=True)
        ours = PACKAGE
        for package in (ours.resolve(), *((ours / name).resolve() for name in ALIASES)):
            link = folder / package.name
            if not link.is_symlink() or link.resolve() != package:
                with replacing(link) as draft:
                    Path(draft).symlink_to(package)
        return folder

    async def ready(self, plan: LaunchPlan) -> tuple[Path | None, str]:
        """Return the socket of a warm interpreter for a plan, or None and the reason."""
        if plan.kind == "command":
            return None, "the job is a command"
        python = plan.python
        socket = self.socket_of(python)
        if socket in self._refused:
            return None, self._refused[socket]
        try:
            async with asyncio.timeout(PATIENCE_S if socket in self._failed_at_s else None):
                await asyncio.shield(self.warm_up(python))
                # It may have ended since (idle, killed): ping it, and start it again.
                warm = await hostclient.ping_warm(str(socket), self._ping)
                if warm is None:
                    warm = await asyncio.shield(self.warm_up(python, again=True))
        except TimeoutError:
            waited = f"after a failed start, none came up within {duration_text(PATIENCE_S)}"
            return None, f"no warm interpreter: {waited}"
        except RayjobsError as error:
            reason = f"no warm interpreter: {error}"
            # A broken interpreter; after any other failure, a later start may succeed.
            if isinstance(error, PrepareError) and not open_files.is_exhausted(error):
                self._refused[socket] = reason  # until its packages change
            return None, reason
        if python != sys.executable:
            await self._note_use(socket, warm)
        return socket, ""

    async def _note_use(self, socket: Path, warm: hostclient.WarmInterpreter) -> None:
        """Note that a job uses an environment's interpreter; end those beyond the limits."""
        now_s = asyncio.get_running_loop().time()
        self._uses[socket] = warm_limits.Use(socket, warm.identity, now_s)
        uses = list(self._uses.values())
        for one in await asyncio.to_thread(self._limits.too_many, uses, now_s):
            if self._uses.get(one.socket) is not one:
                continue  # a job has used it meanwhile
            del self._uses[one.socket]
            self._warm.pop(one.socket, None)
            log.info("the warm interpreter at %s ends: it was used least recently", one.socket)
            await hostclient.stop_warm(str(one.socket))


def stamp(python: str) -> str:
    """Return a value that changes when packages are installed into an interpreter's environment."""
    path = Path(python)
    home = path.parent.parent
    found = [path.resolve(), home / "pyvenv.cfg", *sorted(home.glob("lib/python*/site-packages"))]
    times = []
    for one in found:
        try:
            times.append(f"{one}={one.stat().st_mtime_ns}")
        except OSError:
            continue  # an interpreter outside any virtual environment
    return ":".join(times)


def _note_warm(task: asyncio.Task[hostclient.WarmInterpreter]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("no warm interpreter: %s", error)
