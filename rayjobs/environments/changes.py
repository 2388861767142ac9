"""Detects changed files in a built environment to which jobs could write.

Jobs can write to it on nodes without mount namespaces. As for inputs, a file counts as changed if
its size, modification time or inode differs. New files in ``__pycache__`` do not count:
interpreters store compiled modules there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rayjobs.core.files import replacing, write_atomic
from rayjobs.core.text import counted

LOOKS = "rayjobs-environment.looks.json"
NAMED = 3
_PREFIX = "rayjobs-environment."  # our own records, in the top folder
_CACHE = "__pycache__"


def keep(folder: Path) -> None:
    """Record the state of the files of an unused environment."""
    write_atomic(folder / LOOKS, json.dumps(_looks(folder)))


def found(folder: Path) -> list[str]:
    """Return the differences from the state that `keep` recorded, one phrase per file.

    An environment without such a record, from an earlier version, gives a phrase too.
    """
    try:
        before = json.loads((folder / LOOKS).read_bytes())
        known = {str(path): tuple(look) for path, look in before.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return ["the original state of its files is unknown"]
    now = _looks(folder)
    phrases = [
        f"{path} {'was changed' if path in now else 'is missing'}"
        for path, look in known.items()
        if now.get(path) != look
    ]
    return phrases + [
        f"{path} is new" for path in now if path not in known and f"/{_CACHE}/" not in path
    ]


def sentence(phrases: list[str]) -> str:
    """Return the first phrases, and the number of the others."""
    more = len(phrases) - NAMED
    return "; ".join(phrases[:NAMED]) + (f"; and {counted(more, 'more file')}" if more > 0 else "")


def unshare(folder: Path) -> None:
    """Replace an environment's hard links with copies, so that changes stay in it.

    Raises:
        OSError: they cannot be copied.
    """
    for path, info in _files(folder):
        if info.st_nlink > 1 and not os.path.islink(path):  # noqa: PTH114 - many
            with replacing(path) as draft:
                shutil.copy2(path, draft)


def _looks(folder: Path) -> dict[str, tuple[int, int, int]]:
    start = len(str(folder)) + 1
    return {
        path[start:]: (info.st_size, info.st_mtime_ns, info.st_ino)
        for path, info in _files(folder)
        if not path[start:].startswith(_PREFIX)
    }


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files and links below a folder; links are not followed."""
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.path, entry.stat(follow_symlinks=False)
