"""The files in which a target's actor reports its activity and the nodes that it sees."""

from __future__ import annotations

import json
from typing import Self

from rayjobs.core.files import read_message, write_atomic
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.target.answers import NodeStatus


@dataclass(frozen=True)
class Activity(Message):
    """An actor's last report of its work (`activity.json`).

    Attributes:
        busy: Whether jobs are queued or running, or clients on other machines use the target.
        at: When, in seconds on the boot clock.
        pid: The actor's process.
    """

    busy: bool
    at: float = 0.0
    pid: int = 0

    @classmethod
    def read(cls, paths: TargetPaths) -> Self | None:
        """Return the last report; None: none, or unreadable."""
        return read_message(paths.activity, cls)

    def write(self, paths: TargetPaths) -> None:
        """Replace the last report. Raises OSError."""
        write_atomic(paths.activity, json.dumps(self.to_json()))


@dataclass(frozen=True)
class CapacityReport(Message):
    """The living nodes that an actor last saw (`capacity.json`)."""

    nodes: tuple[NodeStatus, ...] = ()

    @classmethod
    def read(cls, paths: TargetPaths) -> Self:
        """Return the last report, or one without nodes if there is none or it is unreadable."""
        return read_message(paths.capacity, cls) or cls()

    def write(self, paths: TargetPaths) -> None:
        """Replace the last report. Raises OSError."""
        write_atomic(paths.capacity, json.dumps(self.to_json()))
