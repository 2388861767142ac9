"""A client's request to a keeper to stop its target, and the keeper's answer, as files."""

from __future__ import annotations

from typing import Self

from rayjobs.core.files import read_message, write_message
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class StopRequest(Message):
    """A client's request to a keeper to stop its target (`stop.json`).

    Attributes:
        id: Random name of this request, which its answer repeats.
        force: Whether to stop a target with unfinished jobs.
    """

    id: str = ""
    force: bool = False

    @classmethod
    def read(cls, paths: TargetPaths) -> Self | None:
        """Return the request that the keeper has not taken yet; None: none, or unreadable."""
        return read_message(paths.stop_request, cls)

    def write(self, paths: TargetPaths) -> None:
        """Make the request. Raises OSError."""
        write_message(paths.stop_request, self)


@dataclass(frozen=True)
class StopAnswer(Message):
    """A keeper's answer to a stop request (`stopped.json`).

    Attributes:
        id: Of the request.
        error: Why the target was not stopped; empty: it was.
        is_refused: Whether the target was left as it is, because it has unfinished jobs.
    """

    id: str = ""
    error: str = ""
    is_refused: bool = False

    @classmethod
    def read(cls, paths: TargetPaths) -> Self | None:
        """Return the last answer; None: none, or unreadable."""
        return read_message(paths.stop_answer, cls)

    def write(self, paths: TargetPaths) -> None:
        """Answer the request. Raises OSError."""
        write_message(paths.stop_answer, self)
