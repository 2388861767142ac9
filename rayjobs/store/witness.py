"""A number outside a store's database that reveals lost records.

SQLite cannot know that its -wal file was removed, or that the store was replaced by an old copy or
deleted. So each process that commits records here, after the commit and without an fsync, how many
events the database had then: the note may lag behind the database but never leads it, so an intact
store is never refused. A commit that was not synced may be lost in a power failure; so after a
reboot only synced commits count.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from functools import lru_cache
from pathlib import Path

from rayjobs.core.errors import StoreLostError
from rayjobs.injob.identity import boot_id
from rayjobs.injob.lazy_dataclass import dataclass

ENDING = "-serial"
# Numbers of events are never reused, even after a prune.
COUNT = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"
_LENGTH = 128
_READS = 3  # reread a note that is being written


@dataclass(frozen=True)
class Note:
    """The note about a store.

    Attributes:
        boot: The boot of the machine during which `newest` was written.
        newest: The number of events at the last commit during that boot.
        synced: The number of events when a transaction was last synced to the disk.
    """

    boot: str
    newest: int
    synced: int

    @property
    def expected(self) -> int:
        """The minimum number of events in the database."""
        return max(self.newest, self.synced) if self.boot == _boot() else self.synced


class Witness:
    """The note next to one store. Safe for threads, processes and forks: it may only lag."""

    def __init__(self, store: Path) -> None:
        """Set the path of the note for the store in the file `store`, without opening it."""
        self.path = store.with_name(store.name + ENDING)
        self._store = store
        self._descriptor: int | None = None

    def read(self) -> Note | None:
        """Return the note; None if there is none or it cannot be read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return _read(descriptor)
        finally:
            os.close(descriptor)

    def note(self, events: int, *, synced: bool) -> None:
        """Record how many events were committed. If that fails, the note only lags."""
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self.path, flags, 0o600)
            before = _read(self._descriptor) or Note("", 0, 0)
            boot = _boot()
            now = Note(
                boot,
                max(events, before.newest) if before.boot == boot else events,
                max(events, before.synced) if synced else before.synced,
            )
            if now != before:
                os.pwrite(self._descriptor, _text(now), 0)

    def check(self, connection: sqlite3.Connection, note: Note | None) -> None:
        """Compare an open database with the note that was read before opening it.

        Raises:
            StoreLostError: it lacks records that it had.
        """
        expected = 0 if note is None else note.expected
        if not expected:
            return
        found = events_of(connection)
        if found >= expected:
            return
        if not found:
            self.refuse_deleted()
        raise StoreLostError(
            f"the store {self._store} lacks its newest records: it has {found} of {expected} "
            "events. Its -wal file was removed, or an older copy replaced it. Restore a backup "
            "with `rayjobs db restore FILE`; if this file is the one you want, accept "
            f"it with `rayjobs db restore --as-is`",
            path=str(self._store),
        )

    def refuse_deleted(self) -> None:
        """Raise StoreLostError for a deleted store."""
        raise StoreLostError(
            f"the store {self._store} was deleted. Restore a backup with `rayjobs db restore "
            "FILE` (`rayjobs db backup` makes one); without a backup, `rayjobs db restore "
            "--as-is` starts a new, empty store",
            path=str(self._store),
        )

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def events_of(connection: sqlite3.Connection) -> int:
    """Return how many events a database has had; 0 for one without events."""
    try:
        row = connection.execute(COUNT).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):  # SQLite has no code of its own for this
            raise
        return 0
    return 0 if row is None else int(row[0])


@lru_cache
def _boot() -> str:
    return boot_id()


def _text(note: Note) -> bytes:
    text = f"{note.boot} {note.newest} {note.synced}"
    return f"{text} {zlib.crc32(text.encode()):08x}".ljust(_LENGTH - 1).encode() + b"\n"


def _read(descriptor: int) -> Note | None:
    for _ in range(_READS):
        line = os.pread(descriptor, _LENGTH, 0).decode(errors="replace").strip()
        text, _, check = line.rpartition(" ")
        if not text:
            return None
        if check == f"{zlib.crc32(text.encode()):08x}":
            boot, newest, synced = text.split(" ")
            return Note(boot, int(newest), int(synced))
    return None
