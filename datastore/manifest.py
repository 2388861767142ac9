"""The exact files of one version of data, each with its source, size and identity."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import DatasetNotFound, InvalidReference
from rayjobs.datastore.refs import clean_path
from rayjobs.injob.lazy_dataclass import dataclass

_FORMAT = "datastore-manifest"
_VERSION = 1


@dataclass(frozen=True)
class FileEntry:
    """One file: a job sees it at `path`; `datastore` and `key` locate it.

    `etag` is the storage's mark of these bytes; `digest` is the digest of the content, "" if we
    never read the bytes.
    """

    path: str
    datastore: str
    key: str
    size: int
    etag: str
    digest: str = ""


@dataclass(frozen=True)
class Manifest:
    """A version of data: its files in order of their paths, and whether it is a single file."""

    files: tuple[FileEntry, ...]
    single_file: bool = False

    @classmethod
    def of(cls, files: Iterable[FileEntry], *, single_file: bool = False) -> Manifest:
        """Return a manifest of `files`, sorted and checked.

        Raises:
            InvalidReference: two files share a path, a path is both a file and a folder, or is not
                a valid file path.
        """
        ordered = tuple(sorted(files, key=lambda entry: entry.path))
        _check_paths(ordered)
        return cls(ordered, single_file)

    def with_digests_of(self, other: Manifest) -> Manifest:
        """Return this manifest, with the digests from `other` of files with the same marks."""
        known = {entry.path: entry for entry in other if entry.digest}

        def with_digest(entry: FileEntry) -> FileEntry:
            before = known.get(entry.path)
            if entry.digest or before is None or replace(before, digest="") != entry:
                return entry
            return before

        return replace(self, files=tuple(map(with_digest, self.files)))

    @property
    def total_bytes(self) -> int:
        """The total size of all files."""
        return sum(entry.size for entry in self.files)

    @property
    def datastores(self) -> tuple[str, ...]:
        """The names of the datastores the files are in."""
        return tuple(sorted({entry.datastore for entry in self.files}))

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[FileEntry]:
        return iter(self.files)

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON lines; equal manifests give equal bytes."""
        head = {"format": _FORMAT, "version": _VERSION, "single_file": self.single_file}
        rows = [[e.path, e.datastore, e.key, e.size, e.etag, e.digest] for e in self.files]
        lines = [json.dumps(item, separators=(",", ":"), sort_keys=True) for item in (head, *rows)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Return the manifest that `to_bytes` wrote.

        Raises:
            DatasetNotFound: `content` is not a manifest, or its format is newer.
        """
        try:
            lines = content.decode().splitlines()
            head = json.loads(lines[0])
            if head["format"] != _FORMAT or head["version"] != _VERSION:
                raise DatasetNotFound(
                    f"a manifest has format {head['format']} {head['version']}; this release reads "
                    f"{_FORMAT} {_VERSION}. Upgrade the package that reads it."
                )
            files = tuple(FileEntry(*json.loads(line)) for line in lines[1:])
            return cls(files, bool(head["single_file"]))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DatasetNotFound(f"a manifest cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        """The digest that names this version's content."""
        return digest_of(self.to_bytes())


def _check_paths(ordered: tuple[FileEntry, ...]) -> None:
    seen: set[str] = set()
    folders: set[str] = set()
    for entry in ordered:
        if not entry.path or clean_path(entry.path) != entry.path:
            raise InvalidReference(
                f"object {entry.key!r} in datastore {entry.datastore!r} cannot be shown as a file: "
                "its key has empty, '.' or '..' parts."
            )
        if entry.path in seen:
            raise InvalidReference(
                f"two files would be shown as {entry.path!r}; the second is {entry.key!r} in "
                f"datastore {entry.datastore!r}. List the files so that their paths differ."
            )
        seen.add(entry.path)
        folder = entry.path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    both = seen & folders
    if both:
        raise InvalidReference(
            f"{sorted(both)[0]!r} is a file and a folder at once in this storage, which no file "
            "system can show. Rename one of them, or name the files you want."
        )
