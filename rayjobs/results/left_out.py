"""What an attempt leaves out of its stored files, as an entry of the job's history."""

from __future__ import annotations

from typing import ClassVar

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.events import EventData


@dataclass(frozen=True)
class FileLeftOut(EventData):
    """Something of an attempt is not stored; the event's text says what and why.

    Attributes:
        file: Its name among the run's files; empty: it has none.
        has_lost_files: Part of the attempt's folder is gone, so any of its files may be missing.
    """

    KIND: ClassVar[str] = "left_out"

    file: str = ""
    has_lost_files: bool = False

    def explains(self, file: str) -> bool:
        """Whether the event says why a file is missing."""
        return self.has_lost_files or self.file == file


@dataclass(frozen=True)
class LeftOut:
    """Something of an attempt that is not stored.

    Attributes:
        sentence: What it is, and why it is not stored.
        file: Its name among the run's files; empty: it has none.
        has_lost_files: Part of the attempt's folder is gone, so any of its files may be missing.
    """

    sentence: str
    file: str = ""
    has_lost_files: bool = False

    @property
    def data(self) -> FileLeftOut:
        """The data of its event."""
        return FileLeftOut(self.file, self.has_lost_files)
