"""What the doctor says: one line, how bad it is, and what to do."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rayjobs.injob.lazydataclass import dataclass


class Level(StrEnum):
    """How bad it is."""

    OK = "OK"
    WARN = "WARN"  # works, but less well, or not for long
    FAIL = "FAIL"  # jobs will not run, or another user could run some


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        topic: What was looked at.
        text: What is so.
        remedy: What to do about it; empty where nothing needs to be done.
        data: The same for programs.
    """

    topic: str
    level: Level
    text: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DoctorContext:
    """Where to look."""

    home: Path
    workspace: Path | None
