"""The progress of a transfer, and its text for people."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from rayjobs.core.text import size_text
from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Progress:
    """The progress of a transfer. Totals are known from the start; sizes are in bytes."""

    doing: str
    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int
    finished: bool = False


ProgressCallback = Callable[[Progress], None]


class Meter:
    """Counts files and bytes from several threads and calls one callback, in order."""

    def __init__(
        self, doing: str, total_files: int, total_bytes: int, callback: ProgressCallback | None
    ) -> None:
        self._doing = doing
        self._total_files = total_files
        self._total_bytes = total_bytes
        self._callback = callback
        self._lock = threading.Lock()
        self.done_files = 0
        self.done_bytes = 0

    def add_bytes(self, count: int) -> None:
        """Report that `count` more bytes were transferred (negative: they must be sent again)."""
        with self._lock:
            self.done_bytes += count
            self._tell(finished=False)

    def add_file(self) -> None:
        """Report that one more file was transferred."""
        with self._lock:
            self.done_files += 1
            self._tell(finished=False)

    def finish(self) -> None:
        """Report the end of the transfer."""
        with self._lock:
            self._tell(finished=True)

    def _tell(self, *, finished: bool) -> None:
        if self._callback is not None:
            self._callback(
                Progress(
                    self._doing,
                    self.done_files,
                    self._total_files,
                    self.done_bytes,
                    self._total_bytes,
                    finished,
                )
            )


def line_of(progress: Progress) -> str:
    """Return `progress` as one line."""
    return (
        f"{progress.doing}: {progress.done_files}/{progress.total_files} files, "
        f"{size_text(progress.done_bytes)} of {size_text(progress.total_bytes)}"
    )


class ProgressLine:
    """A callback that updates one line on a terminal; elsewhere it prints only the last line."""

    def __init__(self, stream: TextIO | None = None, *, every_s: float = 0.1) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._every_s = every_s
        self._written_at = 0.0
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        """Write the line, unless the last one was written just before."""
        terminal = self._stream.isatty()
        now = time.monotonic()
        if not progress.finished and (not terminal or now - self._written_at < self._every_s):
            return
        self._written_at = now
        line = line_of(progress)
        padding = " " * max(0, self._width - len(line))
        self._width = len(line)
        start = "\r" if terminal else ""
        end = "\n" if progress.finished or not terminal else ""
        self._stream.write(start + line + padding + end)
        self._stream.flush()


def callback_for(
    progress: ProgressCallback | None, *, show_progress: bool
) -> ProgressCallback | None:
    """Return `progress`, or a line on standard error if only `show_progress` was given."""
    if progress is not None:
        return progress
    return ProgressLine() if show_progress else None
