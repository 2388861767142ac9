"""What a node says has become of an attempt."""

from __future__ import annotations

from enum import StrEnum

from rayjobs.injob.exitrecord import ExitRecord
from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message


class Found(StrEnum):
    """What there is of an attempt on its node."""

    RUNNING = "running"
    ENDED = "ended"  # with its exit record
    GONE = "gone"  # no host, and no record
    UNKNOWN = "unknown"  # its node cannot be asked


@dataclass(frozen=True, slots=True)
class Settled(Message):
    """What has become of an attempt on one node.

    Attributes:
        proven: Nothing of it runs any more, for sure.
        ended_now: It was ended because it was asked about, not by itself.
        exit: Its record, where it has ended.
    """

    state: Found
    proven: bool = False
    ended_now: bool = False
    exit: ExitRecord | None = None

    @classmethod
    def of_record(cls, record: ExitRecord, *, proven: bool, ended_now: bool) -> Settled:
        """Return what is so of an attempt that left a record."""
        return cls(Found.ENDED, proven=proven, ended_now=ended_now, exit=record)
