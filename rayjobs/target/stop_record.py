"""The record of a user's stop: rayjobs does not revive such a target."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from rayjobs.core import ids
from rayjobs.core.files import locked_if_free, read_message, write_message
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.target.reach import UnreachedError
from rayjobs.target.stopping import StopRefusedError


@dataclass(frozen=True)
class StopRecord(Message):
    """A user's last stop (`last-stop.json`).

    Attributes:
        id: Random name of this stop.
        at: When, in seconds since 1970.
        is_in_force: Whether the target has not been started since.
        is_unreached: Whether the target's cluster was unreachable: its processes may continue.
    """

    id: str = ""
    at: float = 0.0
    is_in_force: bool = False
    is_unreached: bool = False


def last(paths: TargetPaths) -> StopRecord:
    """Return the last stop, or one without id if there was none or its record is unreadable."""
    return read_message(paths.stop, StopRecord) or StopRecord()


def note(paths: TargetPaths) -> None:
    """Record that a user stops the target; the caller holds `starting.start_lock`."""
    _write(paths, StopRecord(ids.token(8), time.time(), is_in_force=True))


@contextlib.contextmanager
def noted(paths: TargetPaths) -> Iterator[None]:
    """Record that a user stops the target, for a block that does it; see `note`.

    Only a refusal removes the record. The keeper completes a stop whose caller was interrupted or
    gave up waiting; and the jobs of an unreachable cluster must not start when it returns.
    """
    before = last(paths)
    note(paths)
    try:
        yield
    except StopRefusedError:
        _write(paths, replace(before, is_in_force=False))
        raise
    except UnreachedError:
        _write(paths, replace(last(paths), is_unreached=True))
        raise


def lift_if_free(paths: TargetPaths, stop_id: str) -> None:
    """Clear the stop `stop_id`, unless a client is starting or stopping the target; does not wait.

    For a target that continues because its stop was refused, while the client that requested the
    stop was killed.
    """
    if not last(paths).is_in_force:
        return
    with locked_if_free(paths.lock) as is_mine:
        if is_mine and last(paths).id == stop_id:
            lift(paths)


def lift(paths: TargetPaths) -> None:
    """Record that the target may run again; the caller holds `starting.start_lock`."""
    known = last(paths)
    if known.is_in_force:
        _write(paths, replace(known, is_in_force=False))


def _write(paths: TargetPaths, stop: StopRecord) -> None:
    # Replaced atomically: readers take no lock, and a crash must not lose it.
    write_message(paths.stop, stop)
