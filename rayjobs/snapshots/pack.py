"""Packs a source directory into a stored, content-addressed snapshot."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rayjobs.core.errors import SnapshotError, StoreFullError
from rayjobs.core.text import size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.ignore import LeftOut, read_rules
from rayjobs.snapshots.limits import Limits, limits_from_environment
from rayjobs.snapshots.own_records import read_start
from rayjobs.snapshots.scan import (
    NAMED_AT_MOST,
    Entry,
    Kind,
    Scan,
    printable,
    refuse_missing_entry,
    refuse_too_large,
    refuse_unreadable,
    scan,
    warnings_of,
)
from rayjobs.snapshots.secrets_found import holds_secret
from rayjobs.snapshots.stat_cache import Remembered, StatCache, signature

if TYPE_CHECKING:
    from rayjobs.snapshots.archive import HashingSink

TRIES = 3
LOOKED_INTO = 1024**2  # bytes: larger files are not searched for secrets
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Snapshot:
    """A stored snapshot.

    Attributes:
        digest: ``sha256:…`` of the uncompressed archive; the same tree has the same digest.
        size: Bytes of all files, before compression.
        files: Number of files.
        warnings: Sentences that the submitter should read.
        manifest: Everything in it, sorted by path.
        left_out: Paths left out, with the reason.
        is_new: Whether an archive was written; False if the blob store already had it.
    """

    digest: str
    size: int
    files: int
    warnings: tuple[str, ...]
    manifest: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]
    is_new: bool


def blob_key(digest: str) -> str:
    """Return the key of a snapshot's archive in the blob store."""
    kind, _, value = digest.partition(":")
    return f"snapshots/{kind}/{value[:2]}/{value}.tar.zst"


class _ChangedError(Exception):
    """A file became shorter, or was replaced, while it was read."""


def pack(
    source_directory: str | Path,
    *,
    blobs_put: Callable[[Path, str], object],
    blobs_has: Callable[[str], bool] | None = None,
    limits: Limits | None = None,
    cache: Path | None = None,
    entry: str | None = None,
    without: Collection[str] = (),
) -> Snapshot:
    """Pack a source directory and store its archive, unless the same one is stored.

    Symbolic links that stay inside are kept as links; those that lead out, and special files,
    are left out with a warning. No link is followed and nothing but plain files is opened.

    Args:
        blobs_put: ``BlobStore.put_file``, called with the archive's temporary file and the key;
            must store it durably before it returns, and may move the file away.
        blobs_has: ``BlobStore.exists``; without it every call writes the archive.
        limits: None: from the environment (`limits_from_environment`).
        cache: Folder of the workspace that caches the digests of unchanged trees, so that they are
            not read again.
        entry: The job's script; it must be in the snapshot.
        without: Paths of files that describe the run, and are not part of its code.

    Raises:
        SnapshotError: too large, unreadable paths (all named), the entry left out, no folder.
        StoreFullError: no space for the temporary archive.
    """
    bounds = limits_from_environment() if limits is None else limits
    root = _real_folder(source_directory)
    for _ in range(TRIES):
        try:
            return _pack(root, blobs_put, blobs_has, bounds, cache, entry, without)
        except _ChangedError as error:
            changed = error
    raise SnapshotError(
        f"{root} changed {TRIES} times while it was packed ({changed}). Stop what writes there, "
        f"or leave it out by a line in .rayjobsignore"
    )


def survey(
    source_directory: str | Path,
    *,
    limits: Limits | None = None,
    entry: str | None = None,
) -> Snapshot:
    """Return what `pack` would store, without a digest; writes nothing.

    Every file up to 1 MiB is read, since the warnings name files that contain keys or tokens.

    Raises:
        SnapshotError: too large, unreadable paths, the entry left out, no folder.
    """
    bounds = limits_from_environment() if limits is None else limits
    root = _real_folder(source_directory)
    rules = read_rules(root)
    found = scan(root, rules, bounds)
    refuse_unreadable(found.unreadable, root)
    if entry is not None:
        refuse_missing_entry(found, entry, rules)
    refuse_too_large(found, entry, rules, bounds)
    suspects = []
    for one in found.entries:
        if one.kind is Kind.FILE and one.size <= LOOKED_INTO:
            content = read_start(root / one.path, LOOKED_INTO)
            if content is not None and holds_secret(content):
                suspects.append(one.path)
    return _result(found, "", suspects, is_new=False)


def _pack(
    root: Path,
    blobs_put: Callable[[Path, str], object],
    blobs_has: Callable[[str], bool] | None,
    limits: Limits,
    cache_folder: Path | None,
    entry: str | None,
    without: Collection[str],
) -> Snapshot:
    rules = read_rules(root, without=without)
    cache = StatCache(cache_folder, root) if cache_folder is not None else None
    remembered = cache.load() if cache is not None else None
    if remembered is not None and remembered.rules == rules.fingerprint:
        rules.trust(remembered.decisions)
    began = time.time_ns()
    found = scan(root, rules, limits)
    refuse_unreadable(found.unreadable, root)
    if entry is not None:
        refuse_missing_entry(found, entry, rules)
    refuse_too_large(found, entry, rules, limits)

    seen = signature(found)
    if (
        remembered is not None
        and remembered.signature == seen
        and blobs_has is not None
        and blobs_has(blob_key(remembered.digest))
    ):
        return _result(found, remembered.digest, remembered.suspects, is_new=False)

    scratch = tempfile.gettempdir() if cache_folder is None else str(cache_folder)
    handle, name = tempfile.mkstemp(prefix="packing-", suffix=".tar.zst", dir=scratch)
    archive = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest, suspects, is_unchanged = _write(found, file)
        key = blob_key(digest)
        is_new = blobs_has is None or not blobs_has(key)
        if is_new:
            blobs_put(archive, key)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StoreFullError(
                f"no space left for the snapshot of {root} ({size_text(found.size)} before "
                f"compression) in {scratch} or in the blob store; free some and submit again"
            ) from error
        raise
    finally:
        archive.unlink(missing_ok=True)
    if cache is not None:
        is_settled = is_unchanged and found.is_complete
        result = Remembered(
            rules=rules.fingerprint,
            decisions=rules.decisions,
            signature=seen if is_settled and StatCache.is_settled(found, began) else "",
            digest=digest,
            suspects=suspects,
        )
        if result != remembered:
            cache.save(result)
    return _result(found, digest, suspects, is_new=is_new)


def _real_folder(source_directory: str | Path) -> Path:
    given = Path(source_directory).expanduser()
    root = Path(os.path.realpath(given))
    if not root.is_dir():
        state = "is not a folder" if root.exists() else "does not exist"
        raise SnapshotError(f"the source directory {given} {state}. Give the folder of your code")
    return root


def _write(found: Scan, file: BinaryIO) -> tuple[str, tuple[str, ...], bool]:
    """Write the archive; return digest, files with secrets, and whether the scan still holds."""
    import zstandard  # imported only for packing: an unchanged tree needs neither

    from rayjobs.snapshots.archive import END, LEVEL, HashingSink, header

    suspects: list[str] = []
    unreadable: list[str] = []
    is_unchanged = True
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    with compressor.stream_writer(file, closefd=False) as stream:
        sink = HashingSink(stream)
        for one in found.entries:
            if one.kind is not Kind.FILE:
                sink.write(header(one, 0))
                continue
            try:
                as_seen, is_suspect = _add_file(found, one, sink)
            except OSError as error:
                unreadable.append(f"{one.path} ({error.strerror})")
                continue
            is_unchanged = is_unchanged and as_seen
            if is_suspect:
                suspects.append(one.path)
        sink.write(END)
    refuse_unreadable(unreadable, found.root)
    return sink.digest, tuple(suspects), is_unchanged


def _add_file(found: Scan, one: Entry, sink: HashingSink) -> tuple[bool, bool]:
    """Write one file; return whether it matches the scan, and whether it contains a secret."""
    from rayjobs.snapshots.archive import CHUNK, header, padding

    # Non-blocking and not through links: it may have become a FIFO or a link since the scan.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(found.root / one.path, flags)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _ChangedError(f"{printable(one.path)} was removed") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _ChangedError(f"{printable(one.path)} is no longer a plain file") from error
        raise
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise _ChangedError(f"{printable(one.path)} is no longer a plain file")
        if info.st_size <= LOOKED_INTO:
            data = _read_all(descriptor, info.st_size)
            if len(data) < info.st_size:
                raise _ChangedError(f"{printable(one.path)} became shorter")
            sink.write(header(one, len(data)))
            sink.write(data + padding(len(data)))
            is_suspect = holds_secret(data)
        else:
            if info.st_size != one.size:
                raise _ChangedError(f"{printable(one.path)} changed its size")
            sink.write(header(one, info.st_size))
            left = info.st_size
            while left:
                data = os.read(descriptor, min(CHUNK, left))
                if not data:
                    raise _ChangedError(f"{printable(one.path)} became shorter")
                left -= len(data)
                sink.write(data)
            sink.write(padding(info.st_size))
            is_suspect = False
        seen = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        return seen == found.stats[one.path], is_suspect
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    """Return the first `size` bytes, or all if the file is shorter."""
    data = os.read(descriptor, size) if size else b""
    while 0 < len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            break
        data += more
    return data


def _result(found: Scan, digest: str, suspects: Iterable[str], *, is_new: bool) -> Snapshot:
    warnings = warnings_of(found)
    listed = sorted(suspects)
    if listed:
        more = len(listed) - NAMED_AT_MOST
        warnings.append(
            "what looks like a key or token is written in: "
            + ", ".join(printable(path) for path in listed[:NAMED_AT_MOST])
            + (f" and {more} more" if more > 0 else "")
            + "; these files are packed. Leave them out by lines in .rayjobsignore, and pass "
            "secrets by reference (`secrets:`)"
        )
    return Snapshot(
        digest=digest,
        size=found.size,
        files=found.files,
        warnings=tuple(warnings),
        manifest=tuple(found.entries),
        left_out=tuple(found.left_out),
        is_new=is_new,
    )
