"""Summarizes a snapshot's content, as a line of text and as data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rayjobs.core.text import MIB, counted, size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.ignore import LeftOut
from rayjobs.snapshots.scan import Kind, printable

if TYPE_CHECKING:
    from rayjobs.snapshots.pack import Snapshot

LARGE_BYTES = 20 * MIB  # from this size on, a submit reports what it packs
LARGEST = 3
_NAMED = 5


@dataclass(frozen=True)
class Summary:
    """A snapshot's size and largest files.

    Attributes:
        size: Bytes of all files, before compression.
        files: Number of files.
        largest: (path, bytes) of the largest files, largest first.
        left_out: Everything that is not in it, with the reason.
    """

    size: int
    files: int
    largest: tuple[tuple[str, int], ...]
    left_out: tuple[LeftOut, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Summary:
        """Return the summary of a snapshot."""
        least = max(1, snapshot.size // 100)  # smaller files do not matter
        files = [one for one in snapshot.manifest if one.kind is Kind.FILE and one.size >= least]
        files.sort(key=lambda one: (-one.size, one.path))
        largest = tuple((one.path, one.size) for one in files[:LARGEST])
        return cls(snapshot.size, snapshot.files, largest, snapshot.left_out)

    @property
    def is_large(self) -> bool:
        """Whether it is large enough to be mentioned at every submit."""
        return self.size >= LARGE_BYTES

    @property
    def size_line(self) -> str:
        """Number of files, size and largest files: ``2 files, 200 MiB; largest: big.bin (…)``."""
        line = f"{counted(self.files, 'file')}, {size_text(self.size)}"
        if self.largest and self.files > 1:
            line += "; largest: " + ", ".join(
                f"{printable(path)} ({size_text(size)})" for path, size in self.largest
            )
        return line

    @property
    def left_out_line(self) -> str:
        """Return a line with the first names left out for each reason; empty if there are none."""
        names: dict[str, list[str]] = {}
        for one in self.left_out:
            names.setdefault(str(one.why), []).append(printable(one.path))
        parts = []
        for why, paths in names.items():
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            parts.append(f"{', '.join(paths[:_NAMED])}{more} ({why})")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data, with the first 200 paths left out and their number by reason."""
        return {
            "text": self.size_line,
            "left_out_text": self.left_out_line,
            "size": self.size,
            "files": self.files,
            "largest": [{"path": path, "size": size} for path, size in self.largest],
            "left_out": [
                {"path": printable(one.path), "why": str(one.why), "detail": one.detail}
                for one in self.left_out[:200]
            ],
            "left_out_count": dict(Counter(str(one.why) for one in self.left_out)),
        }
