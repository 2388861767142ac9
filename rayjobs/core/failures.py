"""Why a job failed: classes, and the record that `show`, `wait` and the API print."""

from __future__ import annotations

import signal as signals
from dataclasses import asdict, field
from enum import StrEnum
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass


class FailureClass(StrEnum):
    """The kind of a failure; each class has its own retry budget."""

    USER = "user"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    STALLED = "stalled"
    ENVIRONMENT = "environment"
    DATA = "data"
    STORAGE = "storage"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    SYSTEM = "system"


@dataclass(frozen=True)
class Failure:
    """The root cause of a failure in one line, with its evidence.

    Attributes:
        message: One sentence for people.
        rank: First failing rank; None when no rank failed (a node could not prepare).
        exit_code: That rank's exit code; None when a signal ended it.
        signal: Number of that signal.
        lines: The lines of the log that matter, oldest first.
        is_outage: Storage that holds the job's data did not answer; a later attempt may succeed.
        is_permanent: Another attempt would fail in the same way until a user fixes the cause, such
            as a missing file or credential.
        is_out_of_files: A process of rayjobs could not open more files. The script is not at fault.
    """

    failure_class: FailureClass
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    lines: tuple[str, ...] = field(default=())
    is_outage: bool = False
    is_permanent: bool = False
    is_out_of_files: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return {**asdict(self), "failure_class": str(self.failure_class), "lines": [*self.lines]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Failure:
        """Return the record written by `to_dict`; unknown keys of later versions are dropped."""
        return cls(
            failure_class=FailureClass(data["failure_class"]),
            message=data["message"],
            rank=data.get("rank"),
            exit_code=data.get("exit_code"),
            signal=data.get("signal"),
            lines=tuple(data.get("lines", ())),
            is_outage=bool(data.get("is_outage", False)),
            is_permanent=bool(data.get("is_permanent", False)),
            is_out_of_files=bool(data.get("is_out_of_files", False)),
        )


def signal_name(number: int) -> str:
    """Return the signal's name, e.g. ``SIGKILL``; ``signal 70`` if it has none."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
