"""The state of an attempt, as its node reports it."""

from __future__ import annotations

from enum import StrEnum

from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


class Found(StrEnum):
    """The state of an attempt on its node."""

    RUNNING = "running"
    ENDED = "ended"  # with its exit record
    GONE = "gone"  # no host, and no record
    UNKNOWN = "unknown"  # its node cannot be reached


@dataclass(frozen=True, slots=True)
class Settled(Message):
    """The state of an attempt on one node, and whether its end is certain.

    Attributes:
        proven: It is certain that no process of it is left.
        ended_now: The request for its state ended it; it had not ended by itself.
        exit: Its exit record, if it has ended.
    """

    state: Found
    proven: bool = False
    ended_now: bool = False
    exit: ExitRecord | None = None

    @classmethod
    def of_record(cls, record: ExitRecord, *, proven: bool, ended_now: bool) -> Settled:
        """Return the state of an attempt that left an exit record."""
        return cls(Found.ENDED, proven=proven, ended_now=ended_now, exit=record)
