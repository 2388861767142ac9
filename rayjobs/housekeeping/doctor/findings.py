"""The findings of the doctor: each has a level, a sentence and a remedy."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass


class Level(StrEnum):
    """The severity of a finding."""

    OK = "OK"
    WARN = "WARN"  # works, but less well, or not for long
    FAIL = "FAIL"  # jobs will not run, or other users could run code here


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        topic: What was checked.
        text: What was found.
        remedy: What to do about it; empty if nothing needs to be done.
        data: The finding as JSON data, for programs.
    """

    topic: str
    level: Level
    text: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DoctorContext:
    """The folders to check."""

    home: Path
    workspace: Path | None
