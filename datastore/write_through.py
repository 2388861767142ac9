"""An output in mount mode whose datastore is not a folder: a local folder synchronized with it.

The folder starts with the contents of the destination. From then on, `sync` stores what the script
has written since, and removes what the script has removed. A file that is still being written is
left for the next call, so the destination is at most one `sync` and `SETTLE_S` behind the script.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from rayjobs.core.files import write_atomic
from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.errors import DatastoreError, TransferFailed
from rayjobs.datastore.outputs import DataOutput
from rayjobs.datastore.progress import ProgressCallback
from rayjobs.datastore.transfer import Download, download, files_below, for_each
from rayjobs.injob.lazy_dataclass import dataclass

SETTLE_S = 1.0
"""A file written within this many seconds may be incomplete."""
Look = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds."""


@dataclass(frozen=True)
class Synced:
    """The files that one `sync` stored, removed, or left `waiting` for the next one, by path."""

    stored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class WriteThrough:
    """One output's folder on one node. `sync` and `fill` must not run concurrently for one output.

    Args:
        output: The output.
        folder: The folder that the script writes to.
        record: Our file with the stat of each stored file; it outlives the process.
    """

    def __init__(self, output: DataOutput, folder: Path, record: Path) -> None:
        self._output = output
        self._folder = folder
        self._record = record

    def fill(self, progress: ProgressCallback | None = None) -> int:
        """Fill the empty folder with the contents of the destination; return the number of files.

        Raises:
            DatastoreError: the destination cannot be read.
        """
        backend = open_backend(self._output.record)
        top = f"{self._output.path}/" if self._output.path else ""
        wanted = [
            Download(file, self._folder / file.path.removeprefix(top))
            for file in backend.walk(self._output.path)
        ]
        if wanted:
            download(backend, wanted, overwrite=True, progress=progress)
        self._write(dict(self._looks()))
        return len(wanted)

    def sync(self, *, final: bool = False, may_remove: Callable[[], bool] = lambda: True) -> Synced:
        """Store new files of the folder, and remove from the destination what is gone.

        A file that is invisible for any reason other than its removal stays in the destination.

        Args:
            final: No process writes any more, so nothing is left for a later call.
            may_remove: Called before each removal; once it returns False, the files stay.

        Raises:
            DatastoreError: a file could not be stored or removed; the others were.
        """
        folder = self._identity()
        if folder is None:
            return Synced()  # the attempt's folder is gone, which is not a removal by its script
        known = self._read()
        now = dict(self._looks())
        changed = [path for path, look in now.items() if known.get(path) != look]
        fresh_ns = time.time_ns() - round(SETTLE_S * 1e9)
        waiting = [] if final else [path for path in changed if now[path][1] > fresh_ns]
        due = [path for path in changed if path not in set(waiting)]
        gone = [path for path in known if path not in now and self._is_gone(path)]
        if self._identity() != folder:
            gone = []  # it was moved aside or replaced meanwhile
        if not due and not gone:
            return Synced(waiting=tuple(waiting))
        backend = open_backend(self._output.record)
        lock = threading.Lock()
        stored: list[str] = []
        removed: list[str] = []

        def store(path: str, _stop: threading.Event) -> None:
            try:
                backend.put(self._folder / path, self._key(path))
            except (DatastoreError, FileNotFoundError):
                if (self._folder / path).is_file():
                    raise
                return  # the script has just removed it: the next sync handles it
            with lock:
                # The earlier stat: if the file was written to since, the next sync stores it again.
                known[path] = now[path]
                stored.append(path)

        def remove(path: str, _stop: threading.Event) -> None:
            if not may_remove():
                return
            backend.remove(self._key(path))
            with lock:
                known.pop(path, None)
                removed.append(path)

        try:
            # A renamed file must exist under its new name before the old one is removed.
            for_each(due, store)
            for_each(gone, remove)
        finally:
            self._write(known)
        return Synced(tuple(sorted(stored)), tuple(sorted(removed)), tuple(waiting))

    def _key(self, path: str) -> str:
        return f"{self._output.path}/{path}".lstrip("/")

    def _identity(self) -> tuple[int, int] | None:
        """Return device and inode of the folder; None if it does not exist or is not a folder."""
        try:
            info = self._folder.stat()
        except OSError:
            return None
        return (info.st_dev, info.st_ino) if stat.S_ISDIR(info.st_mode) else None

    def _is_gone(self, path: str) -> bool:
        """Whether a file no longer exists; an error or a broken link does not prove it."""
        here = self._folder
        for part in PurePosixPath(path).parts:
            here /= part
            try:
                info = here.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return True
            except OSError:
                return False
            if stat.S_ISLNK(info.st_mode) and not here.exists():
                return False  # its target may be on a file system that is not mounted now
        return False

    def _looks(self) -> Sequence[tuple[str, Look]]:
        found = []
        for file in files_below(self._folder):
            try:
                info = file.stat()
            except OSError:
                continue  # just removed, or not visible
            found.append(
                (file.relative_to(self._folder).as_posix(), (info.st_size, info.st_mtime_ns))
            )
        return found

    def _read(self) -> dict[str, Look]:
        try:
            values = json.loads(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return {path: (size, changed) for path, (size, changed) in values.items()}

    def _write(self, known: dict[str, Look]) -> None:
        try:
            write_atomic(self._record, json.dumps(known), mode=0o600)
        except OSError as error:
            raise TransferFailed(f"cannot write {self._record}: {error.strerror}.") from error


def folder_of(output: DataOutput, backend: Backend | None = None) -> Path | None:
    """Return the destination as a folder; None if its datastore is not a folder.

    Raises:
        DatastoreError: the datastore's folder does not exist.
    """
    backend = backend or open_backend(output.record)
    folder = backend.local_path(output.path)
    if folder is None:
        return None
    backend.check()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransferFailed(f"cannot make {folder}: {error.strerror or error}.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DatastoreError(f"{folder} cannot be written to; check its permissions.")
    return folder
