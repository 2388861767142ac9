"""Unpacks a stored archive to a folder: fully checked, then made visible in one step."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import zstandard

from rayjobs.core.errors import PrepareError, SnapshotError
from rayjobs.core.failures import FailureClass
from rayjobs.core.text import size_text
from rayjobs.snapshots.archive import CHUNK, Content, Source, entries
from rayjobs.snapshots.limits import UNPACK_LIMITS, Limits
from rayjobs.snapshots.links import leaves_tree
from rayjobs.snapshots.pack import DISK_FULL
from rayjobs.snapshots.scan import Entry, Kind

WINDOW_LIMIT = 128 * 1024**2  # bytes: the most memory that zstd may use for an archive
RESERVE = 64 * 1024**2  # bytes left free on the disk
HEADER_ALLOWANCE = 4096  # bytes of the stream per entry that are not content


def unpack(
    archive: Path | BinaryIO, digest: str, into: Path, *, limits: Limits = UNPACK_LIMITS
) -> None:
    """Unpack a snapshot to `into`, which must not exist; it appears whole or not at all.

    Nothing is written before the whole content has the right hash. An archive is refused entirely
    if it has absolute names, ``..``, links that could lead out, duplicate names, names below a file
    or link, anything but files, folders and links, or exceeds the limits.

    Raises:
        SnapshotError: the archive is not the snapshot `digest`, or is refused.
        PrepareError: class ``storage``: the disk is full.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    if into.exists():
        raise SnapshotError(f"{into} exists already; a snapshot is unpacked to a new folder")
    partial = into.parent / f"tmp-{into.name[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        # Read twice, first for the hash, then for the files, which a stream does not allow.
        if isinstance(archive, Path):
            with _opened(archive) as file:
                _unpack(file, digest, partial, limits)
        elif archive.seekable():
            _unpack(archive, digest, partial, limits)
        else:
            with tempfile.TemporaryFile(dir=into.parent) as spool:
                _spool(archive, spool, limits)
                _unpack(spool, digest, partial, limits)
        partial.rename(into)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise PrepareError(
                f"no space left in {into.parent} for the snapshot {digest}",
                failure_class=FailureClass.STORAGE,
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise SnapshotError(f"the snapshot's archive {path} does not exist") from error


def _spool(archive: BinaryIO, spool: BinaryIO, limits: Limits) -> None:
    taken = 0
    while data := archive.read(CHUNK):
        taken += len(data)
        if taken > limits.size + HEADER_ALLOWANCE:
            raise SnapshotError(
                f"the snapshot's archive is larger than {size_text(limits.size)}, the limit here"
            )
        spool.write(data)
    spool.seek(0)


def require_digest(archive: Path, digest: str, *, limits: Limits = UNPACK_LIMITS) -> None:
    """Raise SnapshotError unless the file is the archive of the snapshot `digest`."""
    with archive.open("rb") as file:
        _check_hash(file, digest, limits)


def require_key(archive: BinaryIO, key: str) -> None:
    """Raise SnapshotError unless a stream is the archive that `key` names in the blob store."""
    _check_hash(archive, f"sha256:{Path(key).name.partition('.')[0]}", UNPACK_LIMITS)


def is_of_key(archive: BinaryIO, key: str) -> bool:
    """Return whether a stream is the archive that `key` names in the blob store."""
    try:
        require_key(archive, key)
    except SnapshotError:
        return False
    return True


def _unpack(file: BinaryIO, digest: str, partial: Path, limits: Limits) -> None:
    size = _check_hash(file, digest, limits)
    free = shutil.disk_usage(partial.parent).free
    if size + RESERVE > free:
        raise PrepareError(
            f"the snapshot {digest} needs {size_text(size)} in {partial.parent} and has to leave "
            f"{size_text(RESERVE)} of its disk free; {size_text(free)} are free. Free some space, "
            "or set RAYJOBS_HOME (on a cluster RAYJOBS_SCRATCH) to a folder of a larger disk",
            failure_class=FailureClass.STORAGE,
        )
    file.seek(0)
    partial.mkdir(mode=0o700)
    try:
        with _stream(file) as stream:
            _extract(stream, partial, limits)
    except zstandard.ZstdError as error:  # the first read succeeded, so the file has changed
        raise SnapshotError(f"the archive of {digest} changed while it was read") from error
    partial.chmod(0o755)


def _stream(file: BinaryIO) -> zstandard.ZstdDecompressionReader:
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT)
    return decompressor.stream_reader(file, closefd=False)


def _check_hash(file: BinaryIO, digest: str, limits: Limits) -> int:
    """Return the content's size in bytes; raise SnapshotError if its digest is not `digest`."""
    most = limits.size + limits.files * HEADER_ALLOWANCE
    hashed = hashlib.sha256()
    size = 0
    try:
        with _stream(file) as stream:
            while data := stream.read(CHUNK):
                size += len(data)
                if size > most:
                    raise SnapshotError(
                        f"the snapshot {digest} unpacks to more than {size_text(limits.size)}, "
                        f"the limit here; it is refused"
                    )
                hashed.update(data)
    except zstandard.ZstdError as error:
        raise SnapshotError(f"the archive of the snapshot {digest} is damaged: {error}") from error
    found = "sha256:" + hashed.hexdigest()
    if found != digest:
        raise SnapshotError(
            f"the archive of the snapshot {digest} holds something else ({found}): it was "
            f"changed or truncated in the blob store. Submit the job again to store a new one"
        )
    return size


def _extract(stream: Source, root: Path, limits: Limits) -> None:
    kinds: dict[str, Kind] = {"": Kind.FOLDER}
    links: dict[str, str] = {}
    size = 0
    for entry, content in entries(stream):
        size += entry.size
        if len(kinds) > limits.files or size > limits.size:
            raise SnapshotError(
                f"the snapshot has more than {limits.files:,} entries or "
                f"{size_text(limits.size)}, the limits here; it is refused"
            )
        _check_path(entry, kinds)
        kinds[entry.path] = entry.kind
        if entry.kind is Kind.LINK:
            links[entry.path] = entry.target  # made last: nothing is ever written through one
        else:
            _make(entry, content, root)
    for path, target in links.items():
        if "\0" in target or leaves_tree(path, links):
            raise SnapshotError(
                f"the snapshot has the link {path!r} to {target!r}, which could lead out of its "
                f"folder; it is refused"
            )
    for path, target in links.items():
        os.symlink(target, root / path)  # noqa: PTH211 - Path would normalize the text


def _check_path(entry: Entry, kinds: dict[str, Kind]) -> None:
    parts = entry.path.split("/")
    if "\0" in entry.path or any(part in ("", ".", "..") for part in parts):
        raise SnapshotError(
            f"the snapshot has the entry {entry.path!r}, which is not a place inside its folder; "
            f"it is refused"
        )
    if entry.path in kinds:
        raise SnapshotError(f"the snapshot has {entry.path!r} twice; it is refused")
    parent = kinds.get("/".join(parts[:-1]))
    if parent is not Kind.FOLDER:
        raise SnapshotError(
            f"the snapshot has {entry.path!r} where its folder is "
            f"{'missing' if parent is None else 'a ' + parent.value}; it is refused"
        )


def _make(entry: Entry, content: Content, root: Path) -> None:
    path = root / entry.path
    if entry.kind is Kind.FOLDER:
        path.mkdir(mode=0o755)
        content.copy_to(None)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o755 if entry.executable else 0o644
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        content.copy_to(file)


Opener = Callable[[], Path | BinaryIO]
