"""The timekeeper: a small process that runs schedules when they fall due, and ends without any.

Standard library only. There is one for all workspaces of a home, whether their targets run or not:
a submit starts them. ``python -P -m rayjobs.target.timekeeper HOME`` forks itself away from its
caller. Stores are read, and pipelines submitted, by a child that ends. Killing it harms nothing:
each keeper of a target and each command that changes a schedule starts it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rayjobs.core.files import locked_if_free
from rayjobs.injob.identity import Identity, is_alive, own_identity
from rayjobs.target import local_head
from rayjobs.target.keeping import leave_caller

# The child that runs what is due: a layer above, so it is named as text.
DUE = "rayjobs.pipelines.scheduling"
LONGEST_SLEEP_S = 600.0
AFTER_ERROR_S = 60.0
CHILD_LIMIT_S = 600.0
LOCK_PATIENCE_S = 5.0
_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def folder(home: Path) -> Path:
    """Return where the workspaces with schedules are registered."""
    return home / "schedules"


def register(workspace: Path, *, home: Path) -> None:
    """Have a workspace's schedules run, and the timekeeper look at them now."""
    place = folder(home)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
    local_head.write_private(place / f"{name}.json", json.dumps({"path": str(workspace)}))
    ensure(home=home)


def registered(home: Path) -> dict[Path, Path]:
    """Return the file of each registered workspace."""
    found = {}
    for file in sorted(folder(home).glob("*.json")):
        path = (local_head.read_json(file) or {}).get("path")
        if path:
            found[file] = Path(str(path))
    return found


def ensure(*, home: Path) -> None:
    """Start a timekeeper where there are schedules; one that runs looks at them now."""
    if not registered(home):
        return
    with contextlib.suppress(OSError):
        subprocess.run(
            [sys.executable, "-P", "-m", "rayjobs.target.timekeeper", str(home)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def mend(*, home: Path) -> None:
    """Start the timekeeper again if it was killed."""
    if running(home) is None:
        ensure(home=home)


def running(home: Path) -> Identity | None:
    """Return the living timekeeper, or None."""
    try:
        found = Identity.from_json(local_head.read_json(folder(home) / "timekeeper"))
    except ValueError:
        return None
    return found if is_alive(found) else None


def keep(home: Path) -> int:
    """Run schedules until there are none."""
    while True:
        sleep_s = look(home)
        if sleep_s is None:
            return 0
        number = signal.sigtimedwait(_WAKING, sleep_s)
        if number is not None and number.si_signo in (signal.SIGTERM, signal.SIGINT):
            return 0


def look(home: Path) -> float | None:
    """Run what is due; return the seconds until the next look, None: there are no schedules."""
    sleeps = []
    for file, path in registered(home).items():
        said = _ask(home, path)
        if said is None:
            sleeps.append(AFTER_ERROR_S)
        elif not said["count"]:
            file.unlink(missing_ok=True)
        elif said["next"] is not None:
            sleeps.append(float(said["next"]) - time.time())
    if not registered(home):
        return None
    return max(0.0, min([LONGEST_SLEEP_S, *sleeps]))


def _unblock() -> None:
    """Let a child, and the target that it starts, get the signals that are waited for here."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _ask(home: Path, path: Path) -> dict[str, Any] | None:
    """Return what the child says about a workspace; None: it failed, and the log says why."""
    log = folder(home) / "log"
    with log.open("ab") as out:
        if out.tell() > 2**20:
            out.truncate(0)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", DUE, str(path)],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                timeout=CHILD_LIMIT_S,
                env={**os.environ, "RAYJOBS_HOME": str(home)},
                preexec_fn=_unblock,  # this process has one thread
            )
            said = json.loads(done.stdout.splitlines()[-1])
            return {"count": int(said["count"]), "next": said["next"]}
        except (OSError, ValueError, IndexError, KeyError, subprocess.TimeoutExpired) as error:
            out.write(f"{path}: {error}\n".encode())
            return None


def main(arguments: list[str]) -> int:
    """Detach from the caller and keep time; another timekeeper is told to look instead."""
    home = Path(arguments[0])
    folder(home).mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        with locked_if_free(folder(home) / "lock") as mine:
            if mine:
                leave_caller(_WAKING)
                pid = folder(home) / "timekeeper"
                local_head.write_private(pid, json.dumps(own_identity().to_json()))
                return keep(home)
        other = running(home)
        if other is not None:
            with contextlib.suppress(OSError):
                os.kill(other.pid, signal.SIGUSR1)
            return 0
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
