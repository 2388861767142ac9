"""Caps the disk use of a rank's log: start and end stay, the middle is freed."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from rayjobs.injob import kernel
from rayjobs.injob.files import write_atomic

_BLOCK_BYTES = 4096


class LogCap:
    """Watches one append-only log file. Ranks write it directly; nothing is copied."""

    def __init__(self, path: str, cap_bytes: int | None) -> None:
        """Cap the file `path`; `cap_bytes` None only counts."""
        self.path = path
        self.cap_bytes = cap_bytes
        self.hole: tuple[int, int] | None = None
        self.is_possible = True
        self._is_note_due = False

    @property
    def size(self) -> int:
        """The bytes written so far, including freed ones."""
        try:
            info = os.lstat(self.path)
            return info.st_size if stat.S_ISREG(info.st_mode) else 0
        except OSError:
            return 0

    @property
    def dropped(self) -> int:
        """The bytes freed."""
        return 0 if self.hole is None else self.hole[1] - self.hole[0]

    def enforce(self, *, at_end: bool = False) -> None:
        """Free the middle once the log has grown beyond its cap.

        While the rank runs, this waits until another quarter of the cap is written, so that a fast
        writer does not cause a call per block.
        """
        if self._is_note_due:
            self._write_note()
        if self.cap_bytes is None or not self.is_possible:
            return
        size = self.size
        slack = 0 if at_end else self.cap_bytes // 4
        if size - self.dropped <= self.cap_bytes + slack:
            return
        half = self.cap_bytes // 2
        start = -(-half // _BLOCK_BYTES) * _BLOCK_BYTES
        end = (size - half) // _BLOCK_BYTES * _BLOCK_BYTES
        done = start if self.hole is None else self.hole[1]
        if end <= done:
            return
        # Noted first: a reader must never mistake the zeros of a hole for output.
        before, self.hole = self.hole, (start, end)
        self._write_note()
        try:
            # The script may have replaced the log with a link or a FIFO: follow none, never block.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                kernel.punch_hole(descriptor, done, end - done)
            finally:
                os.close(descriptor)
        except OSError:
            self.hole, self.is_possible = before, False
            self._is_note_due = True
        if self._is_note_due:
            self._write_note()

    def as_note(self) -> dict[str, Any]:
        """What `driver_<rank>.holes.json` holds."""
        holes = []
        if self.hole is not None:
            holes.append({"offset": self.hole[0], "length": self.dropped})
        return {"version": 1, "holes": holes, "dropped_bytes": self.dropped}

    def _write_note(self) -> None:
        name = self.path[: -len(".log")] if self.path.endswith(".log") else self.path
        try:
            write_atomic(name + ".holes.json", json.dumps(self.as_note()), mode=0o600)
        except OSError:
            # The disk is full: punching the hole frees space for the note.
            self._is_note_due = True
        else:
            self._is_note_due = False
