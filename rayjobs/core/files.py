"""Files written whole or not at all, small JSON files, and locks between processes.

What attempt hosts need in every environment is in `rayjobs.injob`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rayjobs.injob.files import (
    is_locked,
    locked,
    locked_if_free,
    replacing,
    try_lock,
    write_atomic,
)

if TYPE_CHECKING:
    from rayjobs.injob.messages import Message

__all__ = [
    "is_locked",
    "locked",
    "locked_if_free",
    "read_json",
    "read_message",
    "replacing",
    "try_lock",
    "write_atomic",
    "write_message",
    "write_private",
]

_One = TypeVar("_One", bound="Message")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a small file, or None if it is missing or incomplete."""
    try:
        decoded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return decoded if isinstance(decoded, dict) else None


def write_private(path: Path, text: str) -> None:
    """Replace a small file atomically, readable only by its owner (0600); makes its folder.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, text, mode=0o600)


def read_message(path: Path, kind: type[_One]) -> _One | None:
    """Return the message in a small file, or None if it is missing, incomplete or malformed."""
    values = read_json(path)
    if values is None:
        return None
    try:
        return kind.from_json(values)
    except ValueError:
        return None


def write_message(path: Path, message: Message) -> None:
    """Write a message as a file of its own; see `write_private`.

    Raises:
        OSError: It cannot be written.
    """
    write_private(path, json.dumps(message.to_json()))
