"""The timekeeper: a small process that runs schedules when due, and ends if there are none.

Standard library only. One timekeeper serves all workspaces of a home, whether their targets run or
not: a submit starts them. ``python -P -m rayjobs.target.timekeeper HOME`` detaches from its caller.
A short-lived child reads stores and submits pipelines. Killing the timekeeper is harmless: each
keeper of a target and each command that changes a schedule restarts it.
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
from contextlib import AbstractContextManager
from pathlib import Path

from rayjobs.core.files import (
    locked,
    locked_if_free,
    read_json,
    read_message,
    write_message,
    write_private,
)
from rayjobs.injob.identity import Identity, is_alive, own_identity
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.target.keeper_state import leave_caller

# The module of the child that runs due schedules: it is in a higher layer, so it is named as text.
DUE = "rayjobs.pipelines.scheduling"
LONGEST_SLEEP_S = 600.0
AFTER_ERROR_S = 60.0
CHILD_LIMIT_S = 600.0
LOCK_PATIENCE_S = 5.0
# A missing workspace may be on a disk that is temporarily not mounted.
GONE_S = 86400.0
AWAY = "away_since"  # in a registration: since when the store has been unreachable
_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class DueReport(Message):
    """The report of the child that runs a workspace's due schedules.

    Attributes:
        count: How many schedules the workspace has.
        next: When the next one falls due, in seconds since 1970; None: none is active.
        gone: There is no workspace at the path.
        away: The workspace's store cannot be reached; the other fields are unknown.
    """

    count: int
    next: float | None = None
    gone: bool = False
    away: bool = False


def folder(home: Path) -> Path:
    """Return the folder that registers workspaces with schedules."""
    return home / "schedules"


def register(workspace: Path, *, home: Path) -> None:
    """Register a workspace's schedules, and have the timekeeper check them now."""
    registrations = folder(home)
    registrations.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
    file = registrations / f"{name}.json"
    with _registry(home):
        known = read_json(file) or {}
        away = {AWAY: known[AWAY]} if AWAY in known else {}
        write_private(file, json.dumps({"path": str(workspace), **away}))
    ensure(home=home)


def _registry(home: Path) -> AbstractContextManager[None]:
    """Return the lock that is held while a registration is written or removed."""
    return locked(folder(home) / "registry")


def registered(home: Path) -> dict[Path, Path]:
    """Return the file of each registered workspace."""
    found = {}
    for file in sorted(folder(home).glob("*.json")):
        path = (read_json(file) or {}).get("path")
        if path:
            found[file] = Path(str(path))
    return found


def ensure(*, home: Path) -> None:
    """Start a timekeeper if there are schedules; a running one checks them now."""
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
    """Restart the timekeeper if it was killed."""
    if running(home) is None:
        ensure(home=home)


def running(home: Path) -> Identity | None:
    """Return the living timekeeper, or None."""
    found = read_message(folder(home) / "timekeeper", Identity)
    return found if found is not None and is_alive(found) else None


def keep(home: Path) -> bool:
    """Run schedules until none are left (False) or until a user ends it (True)."""
    while True:
        sleep_s = look(home)
        if sleep_s is None:
            return False
        number = signal.sigtimedwait(_WAKING, sleep_s)
        if number is not None and number.si_signo in (signal.SIGTERM, signal.SIGINT):
            return True


def look(home: Path) -> float | None:
    """Run due schedules; return the seconds until the next check, or None without schedules."""
    sleeps = []
    for file, path in registered(home).items():
        mark = _mark(file)
        report = _ask(home, file, path)
        if report is None:
            sleeps.append(AFTER_ERROR_S)
        elif not report.count:
            _unregister(home, file, mark, is_gone=report.gone)
        else:
            _note_found(home, file)
            if report.next is not None:
                sleeps.append(report.next - time.time())
    if not registered(home):
        return None
    return max(0.0, min([LONGEST_SLEEP_S, *sleeps]))


def _mark(file: Path) -> tuple[int, int] | None:
    """Return a value that changes with each registration of the workspace; None: not registered."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _unregister(home: Path, file: Path, mark: tuple[int, int] | None, *, is_gone: bool) -> None:
    """Remove the registration of a workspace without schedules, unless it changed since `mark`.

    A missing workspace stays registered for `GONE_S`.
    """
    with _registry(home):
        values = read_json(file)
        if values is None or _mark(file) != mark:
            return
        if is_gone:
            since = float(values.setdefault("gone_since", time.time()))
            if time.time() - since < GONE_S:
                write_private(file, json.dumps(values))
                return
        file.unlink(missing_ok=True)


def _note_found(home: Path, file: Path) -> None:
    """Remove the notes that a workspace was missing or its store unreachable."""
    with _registry(home):
        values = read_json(file)
        if values is None:
            return
        found = {name: one for name, one in values.items() if name not in ("gone_since", AWAY)}
        if found != values:
            write_private(file, json.dumps(found))


def _note_away(home: Path, file: Path) -> None:
    """Note since when a workspace's store has been unreachable: late runs report it."""
    with _registry(home):
        values = read_json(file)
        if values is not None and AWAY not in values:
            write_private(file, json.dumps({**values, AWAY: time.time()}))


def _unblock() -> None:
    """Let a child, and the target that it starts, receive the signals that this process blocks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _ask(home: Path, file: Path, path: Path) -> DueReport | None:
    """Return the child's report on a workspace; None: nothing is known, and the log says why."""
    log = folder(home) / "log"
    since = (read_json(file) or {}).get(AWAY)
    away = () if since is None else (since,)
    with log.open("ab") as out:
        if out.tell() > 2**20:
            out.truncate(0)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", DUE, str(path), *map(str, away)],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                timeout=CHILD_LIMIT_S,
                env={**os.environ, "RAYJOBS_HOME": str(home)},
                preexec_fn=_unblock,  # this process has one thread
            )
            report = DueReport.from_json(json.loads(done.stdout.splitlines()[-1]))
            if report.away:
                _note_away(home, file)
                return None
            return report
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            out.write(f"{path}: {error}\n".encode())
            return None


def main(arguments: list[str]) -> int:
    """Detach from the caller and run; if a timekeeper already runs, have it check instead."""
    home = Path(arguments[0])
    folder(home).mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    has_left = is_over = False
    while True:
        with locked_if_free(folder(home) / "lock") as mine:
            if mine:
                if not has_left:
                    leave_caller(_WAKING)
                    has_left = True
                pid = folder(home) / "timekeeper"
                write_message(pid, own_identity())
                is_over = keep(home)
        # A process that registered a workspace while the lock was held did not start a timekeeper.
        if mine and (is_over or not registered(home)):
            return 0
        if mine:
            continue
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
