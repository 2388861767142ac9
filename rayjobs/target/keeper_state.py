"""Shared by a local target's keeper and its clients: whether it is alive, and what it waits for.

No third-party package.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Self

from rayjobs.core.files import is_locked, locked_if_free, read_message, write_message
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.identity import Identity, OfProcess, is_alive, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


def is_kept(paths: TargetPaths) -> bool:
    """Whether a keeper is alive: it holds its lock for its lifetime."""
    try:
        return is_locked(paths.keeper_lock)
    except OSError:
        return False


@contextlib.contextmanager
def keeper_lock(paths: TargetPaths, *, patience_s: float = 0.0) -> Iterator[bool]:
    """Hold the keeper's lock for the block; yield False if a keeper has it.

    Args:
        patience_s: How long to try: a check for the keeper holds it only for an instant.
    """
    paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_s
    while True:
        with locked_if_free(paths.keeper_lock) as is_mine:
            if is_mine or time.monotonic() >= deadline:
                yield is_mine
                return
        time.sleep(0.01)


def leave_caller(blocked: Iterable[signal.Signals]) -> None:
    """Leave the caller's process tree and session; the caller sees exit code 0 immediately.

    Args:
        blocked: Signals that the process waits for from then on.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)


def keeper_of(paths: TargetPaths) -> Identity | None:
    """Return the identity of the living keeper, or None."""
    identity = read_message(paths.keeper, Identity)
    return identity if identity is not None and is_alive(identity) else None


@dataclass(frozen=True, kw_only=True)
class Pause(OfProcess, Message):
    """What a keeper waits for before it tries again (`pause.json`).

    Attributes:
        failures: How many tries in a row have failed.
        reason: Why the last one did.
        next_at: The time of the next one, as text.
        pid: The keeper's process.
        start_time: When that process started, in clock ticks since the boot.
        boot_id: Of the machine.
    """

    failures: int
    reason: str
    next_at: str
    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def read(cls, paths: TargetPaths) -> Self | None:
        """Return the last pause, even of a dead keeper; None: none, or unreadable."""
        return read_message(paths.pause, cls)

    def write(self, paths: TargetPaths) -> None:
        """Record the pause. Raises OSError."""
        write_message(paths.pause, self)

    def sentence(self, name: str) -> str:
        """Return the message for users: the reason, the time of the next try, how to try now."""
        return (
            f"{self.reason.rstrip('.')}. The next try is at {self.next_at}; "
            f"`rayjobs target start {name}` tries now"
        )


def pause_of(paths: TargetPaths) -> Pause | None:
    """Return what the living keeper waits for; None while it works."""
    pause = Pause.read(paths)
    return pause if pause is not None and is_alive(pause.identity) else None


def give_up_pause(paths: TargetPaths) -> None:
    """End a keeper that only waits, so that a new one tries at once with its caller's settings."""
    pause = pause_of(paths)
    if pause is not None:
        send_signal(pause.identity, signal.SIGTERM)
