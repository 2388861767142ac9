"""Caches the snapshot of an unchanged tree, so that it need not be read again.

A tree counts as unchanged when its list of paths, and every file's size, times and inode, are
the same. A file that changed within 2 s before the scan is not trusted: on a file system with
coarse timestamps it could change again unnoticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from rayjobs.core.files import write_atomic
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.scan import Scan

FORMAT = 1
SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class Remembered:
    """The cached result of one scan and pack.

    Attributes:
        rules: Fingerprint of the ignore file.
        decisions: The decisions of its lines by path.
        signature: The tree's signature; empty if the tree changed too recently to be trusted.
        suspects: Files that hold what looks like a secret.
    """

    rules: str
    decisions: dict[str, int]
    signature: str
    digest: str
    suspects: tuple[str, ...] = ()


def signature(found: Scan) -> str:
    """Return a hash that identifies the state of the tree."""
    hashed = hashlib.sha256()
    stats = found.stats
    for entry in found.entries:
        line = (entry.path, entry.kind.value, entry.executable, entry.target, stats.get(entry.path))
        hashed.update(repr(line).encode(errors="surrogateescape"))
    return hashed.hexdigest()


class StatCache:
    """The cache of one source directory, a small JSON file."""

    def __init__(self, folder: Path, root: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self._path = folder / f"{name}.json"

    def load(self) -> Remembered | None:
        """Return the cached result; None if there is no valid one."""
        try:
            data = json.loads(self._path.read_bytes())
            if data.pop("format") != FORMAT:
                return None
            data["suspects"] = tuple(data["suspects"])
            return Remembered(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # whatever is wrong with the cache, reading the tree is correct

    def save(self, remembered: Remembered) -> None:
        """Store the result; a failure only costs the next submit time."""
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps({"format": FORMAT, **asdict(remembered)}))

    @staticmethod
    def is_settled(found: Scan, began_ns: int) -> bool:
        """Return whether every file was last changed at least 2 s before the scan began.

        A change time in the future does not count as settled: it follows the machine's clock, so
        the clock has stepped back.
        """
        for _, modified, changed, _ in found.stats.values():
            if began_ns - changed < SETTLED_NS or 0 <= began_ns - modified < SETTLED_NS:
                return False
        return True
