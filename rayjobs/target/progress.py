"""Stage lines of a start in progress: written by the keeper and the starter, read by clients."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class Line(Message):
    """One step of a start.

    Attributes:
        start: Which start it belongs to.
        kind: "stage", "ready", "failed", "stopped", or "late": this try did not finish in time.
        text: For people.
        advice: What to do next after a failure; empty if the text says it.
    """

    start: str
    kind: str
    text: str = ""
    advice: str = ""

    @property
    def message(self) -> str:
        """The text and the advice."""
        return f"{self.text} {self.advice}".rstrip()


class Progress:
    """Appends lines to a target's progress file; each is one write, so readers see whole lines."""

    def __init__(self, path: Path, start: str) -> None:
        self.path = path
        self.start = start

    def stage(self, text: str) -> None:
        """Report the current stage."""
        self._add("stage", text)

    def ready(self) -> None:
        """Report that the target answers."""
        self._add("ready", "")

    def failed(self, text: str, *, advice: str = "") -> None:
        """Report why the start failed, and what to do next."""
        self._add("failed", text, advice)

    def late(self, text: str) -> None:
        """Report why this try did not finish in time; the keeper decides whether to try again."""
        self._add("late", text)

    def _add(self, kind: str, text: str, advice: str = "") -> None:
        line = json.dumps(Line(self.start, kind, text, advice).to_json()) + "\n"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def read(path: Path) -> list[Line]:
    """Return the lines written so far, without an unfinished last one."""
    try:
        text = path.read_bytes()
    except OSError:
        return []
    lines = []
    for raw in text.split(b"\n")[:-1]:
        try:
            lines.append(Line.from_json(json.loads(raw)))
        except ValueError:
            continue  # not ours
    return lines
