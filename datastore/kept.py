"""What a transfer did with existing files: which it kept, and which of them differ."""

from __future__ import annotations

import filecmp
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

from rayjobs.datastore.backends import Backend, StoredFile
from rayjobs.datastore.digests import digest_of_file
from rayjobs.injob.lazy_dataclass import dataclass

MOST_NAMES = 3
"""How many differing files are named one by one."""


class KeptOtherFile(UserWarning):
    """A transfer without `overwrite` kept a file that differs from the one to transfer."""


class LeftOut(UserWarning):
    """Broken links, links to a parent folder, sockets or pipes of a folder were not stored."""


@dataclass(frozen=True)
class Tally:
    """The results of a transfer.

    Attributes:
        moved: Files that were actually transferred.
        kept: Files that existed before and were not changed.
        other_size: Kept files whose size differs from that of the file to transfer.
        other_content: Kept files of the same size whose bytes differ.
        names: The paths in the storage of the kept files that differ.
    """

    moved: int = 0
    kept: int = 0
    other_size: int = 0
    other_content: int = 0
    names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def differing(self) -> int:
        """The number of kept files that differ from the files to transfer."""
        return self.other_size + self.other_content

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.moved + other.moved,
            self.kept + other.kept,
            self.other_size + other.other_size,
            self.other_content + other.other_content,
            (*self.names, *other.names),
        )

    def sentence(self, verb: str, remedy: str) -> str:
        """Return, for example, `0 stored, 2 kept (there already), 1 of them differs in size: …`."""
        counts = f"{self.moved} {verb}, {self.kept} kept (there already)"
        if not self.differing:
            return counts
        how = "in size" if not self.other_content else "in content"
        if self.other_size and self.other_content:
            how = "in size or content"
        shown = ", ".join(self.names[:MOST_NAMES])
        shown += f" and {len(self.names) - MOST_NAMES} more" if len(self.names) > MOST_NAMES else ""
        differ = "differs" if self.differing == 1 else "differ"
        return f"{counts}, {self.differing} of them {differ} {how} ({shown}): {remedy}"

    def warn(self, verb: str) -> None:
        """Warn the caller's caller if a kept file differs."""
        if self.differing:
            warnings.warn(
                self.sentence(verb, "give overwrite=True to replace them"),
                KeptOtherFile,
                stacklevel=3,
            )


def compare(backend: Backend, stored: StoredFile, local: Path) -> str:
    """Return how a local file differs from a stored one: `size`, `content`, or "" if it does not.

    Nothing is fetched: bytes are compared only if the storage keeps a digest or is a folder. The
    result is also "" if they are not compared, or one of the files cannot be read.
    """
    try:
        if not local.is_file() or local.stat().st_size != stored.size:
            return "size"
        if stored.digest:
            return "" if digest_of_file(local) == stored.digest else "content"
        here = backend.local_path(stored.path)
        if here is None or filecmp.cmp(here, local, shallow=False):
            return ""
        return "content"
    except OSError:  # one of them is gone or unreadable: nothing is known, and nothing was lost
        return ""


def is_same(backend: Backend, stored: StoredFile, local: Path) -> bool:
    """Whether a stored file has the bytes of a local one; fetch it only if there is no other way.

    Raises:
        DatastoreError, OSError: one of them cannot be read.
    """
    if local.stat().st_size != stored.size:
        return False
    if stored.digest:
        return digest_of_file(local) == stored.digest
    here = backend.local_path(stored.path)
    if here is not None:
        return filecmp.cmp(here, local, shallow=False)
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        fetched = Path(folder) / "stored"
        backend.fetch(stored, fetched)
        return filecmp.cmp(fetched, local, shallow=False)


def tally(moved: int, found: Iterable[tuple[str, str]]) -> Tally:
    """Return the tally of a transfer, given each kept file's path and the result of `compare`."""
    kept = sorted(found)
    hows = [how for _, how in kept]
    names = tuple(path for path, how in kept if how)
    return Tally(moved, len(kept), hows.count("size"), hows.count("content"), names)
