"""A number outside a store's database that reveals lost records.

SQLite cannot know that its -wal file was removed, or that an old copy or nothing at all stands in
its place. So each process that commits notes here how many events the database had then, after
the commit and without an fsync: the note may lag behind the database and never leads it, so a
store that is whole is never accused. A commit that was not synced may be lost with the machine's
power; so after a reboot only what was synced counts.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rayjobs.core.errors import StoreLostError
from rayjobs.injob.identity import boot_id

ENDING = "-serial"
# Numbers of events are never given twice, whatever is pruned.
COUNT = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"
_LENGTH = 128
_READS = 3  # a note that is being written is read again


@dataclass(frozen=True)
class Note:
    """What is noted of a store.

    Attributes:
        boot: The boot of the machine in which `newest` was written.
        newest: Events when a process of that boot committed last.
        synced: Events when a transaction was last synced to the disk.
    """

    boot: str
    newest: int
    synced: int

    @property
    def expected(self) -> int:
        """How many events the database has at least."""
        return max(self.newest, self.synced) if self.boot == _boot() else self.synced


class Witness:
    """The note next to one store. Safe from threads, processes and forks: it may only lag."""

    def __init__(self, store: Path) -> None:
        """Find the note of the store in the file `store`; nothing is opened yet."""
        self.path = store.with_name(store.name + ENDING)
        self._store = store
        self._descriptor: int | None = None

    def read(self) -> Note | None:
        """Return the note; None where there is none, or it cannot be read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return _read(descriptor)
        finally:
            os.close(descriptor)

    def note(self, events: int, *, synced: bool) -> None:
        """Note how many events were committed. A disk that refuses it does no harm: it lags."""
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
        """Compare an open database with the note that was read before it was opened.

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
            f"events. Its -wal file was removed, or an older copy was put in its place. Put a "
            f"backup back with `rayjobs db restore FILE`; if this file is the one you want, accept "
            f"it with `rayjobs db restore --as-is`",
            path=str(self._store),
        )

    def refuse_deleted(self) -> None:
        """Say that the store was deleted. Raises StoreLostError."""
        raise StoreLostError(
            f"the store {self._store} was deleted. Restore a backup with `rayjobs db restore "
            f"FILE` (`rayjobs db backup` makes one); without a backup, `rayjobs db restore "
            f"--as-is` begins a new, empty store",
            path=str(self._store),
        )

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def events_of(connection: sqlite3.Connection) -> int:
    """Return how many events a database has had; 0 for a database that has none yet."""
    try:
        row = connection.execute(COUNT).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
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
