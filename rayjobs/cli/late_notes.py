"""Tells the user what a command is doing if it takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE_S = 3.0


class LateNotes:
    """Prints a note during each stage that lasts longer than `PATIENCE_S`.

    Args:
        say: Gets the note, in a thread of its own.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._timer: threading.Timer | None = None

    def on_stage(self, text: str) -> None:
        """Begin a stage; the one before it has ended."""
        self._end()
        self._timer = threading.Timer(PATIENCE_S, self._say, [f"{text} …"])
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> LateNotes:
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()
