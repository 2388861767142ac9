"""Writes a job's output to stdout: unchanged to files and pipes, sanitized on a terminal."""

from __future__ import annotations

import sys

from rayjobs.cli.settings import Settings


class Screen:
    """Writes a job's output to stdout and our own notes to stderr, without mixing lines.

    Args:
        raw: Write unchanged bytes even on a terminal.
    """

    def __init__(self, settings: Settings, *, raw: bool = False) -> None:
        self._settings = settings
        self._is_terminal = sys.stdout.isatty()
        self._shower = None
        if self._is_terminal and not raw:
            from rayjobs.core.terminal import Shower

            self._shower = Shower(colour=settings.colours())
        self._is_at_start = True

    def write(self, data: bytes) -> None:
        """Write bytes and flush them, so that a followed log shows each line at once."""
        if not data:
            return
        if self._shower is not None:
            text = self._shower.show(data)
            sys.stdout.write(text)
            sys.stdout.flush()
            self._is_at_start = text.endswith("\n") if text else self._is_at_start
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        self._is_at_start = data.endswith(b"\n")

    def end(self) -> None:
        """Write what was held back (a partial character or escape sequence)."""
        if self._shower is not None:
            sys.stdout.write(self._shower.show(b"", final=True))
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a note on stderr, on a line of its own."""
        if self._settings.quiet:
            return
        if not self._is_at_start and self._is_terminal and sys.stderr.isatty():
            sys.stderr.write("\n")
            self._is_at_start = True
        self._settings.note(text)
