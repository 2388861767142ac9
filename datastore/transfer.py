"""Transfers many files in a few threads, and reports the progress."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from rayjobs.core.text import verb
from rayjobs.datastore.backends import Backend, StoredFile
from rayjobs.datastore.backends.base import Stopped
from rayjobs.datastore.errors import AccessDenied, DatastoreError, InvalidReference, TransferFailed
from rayjobs.datastore.kept import Tally, compare, tally
from rayjobs.datastore.progress import Meter, ProgressCallback
from rayjobs.injob.lazy_dataclass import dataclass

THREADS = 8
LEFT_OUT_SHOWN = 3
Item = TypeVar("Item")


def for_each(
    items: Sequence[Item], work: Callable[[Item, threading.Event], None], *, threads: int = THREADS
) -> None:
    """Call `work` on every item, `threads` at a time; the first failure stops the rest.

    `work` gets an event that is set once something failed.
    """
    if not items:
        return
    stop = threading.Event()

    def guarded(item: Item) -> None:
        if stop.is_set():
            raise Stopped
        try:
            work(item, stop)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="transfer") as pool:
        futures: list[Future[None]] = [pool.submit(guarded, item) for item in items]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C in this thread: work that has not started must not start
            stop.set()
            raise
    failures = [error for future in futures if (error := future.exception()) is not None]
    for error in failures:
        if not isinstance(error, Stopped):
            raise error


@dataclass(frozen=True)
class Upload:
    """A local file and its destination."""

    source: Path
    path: str


@dataclass(frozen=True)
class Moved:
    """The result of a transfer: the files now in place, and which of them existed before."""

    files: tuple[StoredFile, ...]
    kept: tuple[str, ...]
    tally: Tally = field(default_factory=Tally)

    @property
    def moved(self) -> int:
        """The number of files that were actually transferred."""
        return len(self.files) - len(self.kept)


def files_below(folder: Path, left_out: list[str] | None = None) -> list[Path]:
    """Return every regular file below `folder`, links followed, in order.

    Args:
        folder: Where to look.
        left_out: Collects a line for each omitted entry: broken links, links to a parent folder,
            sockets, pipes and devices.

    Raises:
        InvalidReference: `folder` is not a folder.
        AccessDenied: a folder in it cannot be listed.
    """
    if not folder.is_dir():
        raise InvalidReference(f"{folder} is not a folder; name a folder, or use upload_files.")
    found: list[Path] = []
    others: list[str] = []
    pending: list[tuple[Path, frozenset[str]]] = [(folder, frozenset())]
    while pending:
        here, above = pending.pop()
        real = os.path.realpath(here)
        if real in above:
            others.append(f"{here} (a link that leads back to a folder above it)")
            continue
        try:
            for item in os.scandir(here):
                kind = _kind(item)
                if kind == "folder":
                    pending.append((Path(item.path), above | {real}))
                elif kind == "file":
                    found.append(Path(item.path))
                else:
                    others.append(f"{item.path} ({kind})")
        except PermissionError as error:
            raise AccessDenied(f"{here} cannot be listed: {error.strerror}.") from error
    if left_out is not None:
        left_out.extend(sorted(others))
    return sorted(found)


def _kind(item: os.DirEntry[str]) -> str:
    try:
        if item.is_dir():
            return "folder"
        if item.is_file():
            return "file"
    except PermissionError:
        raise
    except OSError as error:  # links that form a cycle
        return f"a broken link: {error.strerror}" if item.is_symlink() else str(error.strerror)
    return "a broken link" if item.is_symlink() else "a socket, a pipe or a device"


def left_out_text(left_out: Sequence[str]) -> str:
    """Return, e.g., `2 entries left out: a/x (a broken link), a/up (a link that leads back …)`."""
    count = len(left_out)
    more = f" and {count - LEFT_OUT_SHOWN} more" if count > LEFT_OUT_SHOWN else ""
    return (
        f"{count} {verb(count, 'entry', 'entries')} left out: "
        f"{', '.join(left_out[:LEFT_OUT_SHOWN])}{more}"
    )


def upload(
    backend: Backend,
    uploads: Sequence[Upload],
    *,
    overwrite: bool,
    progress: ProgressCallback | None,
    threads: int = THREADS,
    compared: bool = False,
) -> Moved:
    """Store every file.

    Without `overwrite` an existing file is kept unchanged; its bytes are read for the tally only if
    `compared`.

    Raises:
        InvalidReference: two files have the same destination.
        DatastoreError: a file could not be stored; files already stored stay.
    """
    taken: dict[str, Path] = {}
    for item in uploads:
        if item.path in taken:
            raise InvalidReference(
                f"{taken[item.path]} and {item.source} would both be stored as {item.path!r}. "
                "Give relative_root to keep their folders."
            )
        taken[item.path] = item.source
    meter = Meter(
        "upload", len(uploads), sum(item.source.stat().st_size for item in uploads), progress
    )
    stored: dict[str, StoredFile] = {}
    kept: list[str] = []
    found: list[tuple[str, str]] = []

    def one(item: Upload, stop: threading.Event) -> None:
        before = None if overwrite else backend.stat(item.path)
        if before is not None:
            meter.add_bytes(item.source.stat().st_size)
            kept.append(item.path)
            how = compare(backend, before, item.source) if compared else ""
            found.append((item.path, how))
        stored[item.path] = before or backend.put(item.source, item.path, _stoppable(meter, stop))
        meter.add_file()

    _run("upload", backend, uploads, one, threads)
    meter.finish()
    files = tuple(stored[path] for path in sorted(stored))
    return Moved(files, tuple(sorted(kept)), tally(len(files) - len(kept), found))


@dataclass(frozen=True)
class Download:
    """A stored file and the local file it becomes."""

    file: StoredFile
    to: Path


def download(
    backend: Backend,
    downloads: Iterable[Download],
    *,
    overwrite: bool,
    progress: ProgressCallback | None,
    threads: int = THREADS,
) -> Tally:
    """Fetch every file, each visible only once complete; return the results.

    Without `overwrite` an existing local file is kept unchanged.

    Raises:
        TransferFailed: a local file could not be written.
        DatastoreError: a file could not be fetched; complete ones stay.
    """
    wanted: list[Download] = []
    kept: list[Download] = []
    for item in downloads:
        (kept if not overwrite and item.to.exists() else wanted).append(item)
    found: list[tuple[str, str]] = []
    meter = Meter("download", len(wanted), sum(item.file.size for item in wanted), progress)

    def one(item: Download, stop: threading.Event) -> None:
        partial = item.to.with_name(f".{item.to.name[:100]}.partial-{secrets.token_hex(6)}")
        try:
            item.to.parent.mkdir(parents=True, exist_ok=True)
            backend.fetch(item.file, partial, _stoppable(meter, stop))
            partial.replace(item.to)
        except OSError as error:
            raise TransferFailed(f"cannot write {item.to}: {error.strerror}.") from error
        finally:
            partial.unlink(missing_ok=True)
        meter.add_file()

    _run("download", backend, wanted, one, threads)

    def look(item: Download, stop: threading.Event) -> None:
        found.append((item.file.path, compare(backend, item.file, item.to)))

    for_each(kept, look, threads=threads)
    meter.finish()
    return tally(len(wanted), found)


def _run(
    doing: str,
    backend: Backend,
    items: Sequence[Item],
    work: Callable[[Item, threading.Event], None],
    threads: int,
) -> None:
    done = 0
    lock = threading.Lock()

    def counted(item: Item, stop: threading.Event) -> None:
        nonlocal done
        work(item, stop)
        with lock:
            done += 1

    try:
        for_each(items, counted, threads=threads)
    except DatastoreError as error:
        if len(items) == 1:
            raise
        # The same class and attributes as the first failure, so that callers can still check for
        # unreachable storage.
        raise error.with_message(
            f"{doing} stopped after {done} of {len(items)} files ({backend.where}): {error}"
        ) from error


def _stoppable(meter: Meter, stop: threading.Event) -> Callable[[int], None]:
    def count(size: int) -> None:
        meter.add_bytes(size)
        if stop.is_set():
            raise Stopped

    return count
