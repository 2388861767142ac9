"""What an attempt leaves out of its stored files, as an entry of the job's history."""

from __future__ import annotations

from typing import Any, ClassVar

from rayjobs.injob.lazydataclass import dataclass
from rayjobs.jobs.records import Event


@dataclass(frozen=True)
class LeftOut:
    """Something of an attempt that is not stored.

    Attributes:
        sentence: What it is, and why it is not stored.
        file: Its name among the run's files; empty: it has none.
        has_lost_files: Part of the attempt's folder is gone, so any of its files may be missing.
    """

    KIND: ClassVar[str] = "left_out"

    sentence: str
    file: str = ""
    has_lost_files: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """The data of its event."""
        return {"file": self.file, "has_lost_files": self.has_lost_files}

    @staticmethod
    def explains(event: Event, file: str) -> bool:
        """Whether the event of something left out says why a file is missing."""
        return event.data.get("file") == file or bool(event.data.get("has_lost_files"))
