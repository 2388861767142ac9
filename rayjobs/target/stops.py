"""The record of a stop that a user asked for: such a target is not brought back by itself."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace

from rayjobs import ids
from rayjobs.paths import TargetPaths


@dataclass(frozen=True)
class Stop:
    """The last stop that a user asked for.

    Attributes:
        id: Random name of this stop.
        at: When, in seconds since 1970.
        is_in_force: Whether nothing has started the target since.
    """

    id: str = ""
    at: float = 0.0
    is_in_force: bool = False


def last(paths: TargetPaths) -> Stop:
    """Return the last stop; one without id when there was none.

    It stands in the file of the lock under which targets are started and stopped.
    """
    try:
        values = json.loads(paths.lock.read_text(encoding="utf-8"))
        return Stop(str(values["id"]), float(values["at"]), bool(values["is_in_force"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Stop()


def note(paths: TargetPaths) -> None:
    """Record that a user stops the target; the caller holds `starting.start_lock`."""
    _write(paths, Stop(ids.token(8), time.time(), is_in_force=True))


def lift(paths: TargetPaths) -> None:
    """Record that the target may run again; the caller holds `starting.start_lock`."""
    known = last(paths)
    if known.is_in_force:
        _write(paths, replace(known, is_in_force=False))


def _write(paths: TargetPaths, stop: Stop) -> None:
    paths.lock.write_text(json.dumps(asdict(stop)), encoding="utf-8")
