"""SQLite connections of one process: transactions, waits for the lock, our own errors.

Statements go to the driver of the standard library: importing SQLAlchemy alone would take half of
the time that a command may take (docs/decisions/0002-store-statements.md).
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rayjobs.core.durable import sync_folder
from rayjobs.core.errors import StoreBusyError, StoreError, StoreFullError, StoreLostError
from rayjobs.core.folder_handle import FolderHandle
from rayjobs.core.text import duration_text
from rayjobs.store.schema import bring_up_to_date, check_version
from rayjobs.store.witness import Witness, events_of

_OLDEST_SQLITE = (3, 35, 0)  # RETURNING
_FULL_BYTES = 64 * 1024  # less free space than this explains a failed write

_FORK_WAIT_S = 10.0  # how long a fork waits for other threads' transactions to end


class Database:
    """The transactions of one SQLite file (or of one in memory, with `path` None).

    Thread-safe, and safe in both processes after a fork. Every transaction checks the schema's
    version, so a store that was upgraded while a client had it open refuses this client.

    Attributes:
        is_shared: Whether several machines may use the store.
    """

    is_shared = False

    def __init__(self, path: Path | None, *, busy_timeout_s: float) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreError(
                f"the SQLite library of this Python has version {sqlite3.sqlite_version}; "
                f"3.35 or later is needed. Use another Python."
            )
        self.path = path
        self.where = str(path) if path is not None else ":memory:"
        self.busy_timeout_s = busy_timeout_s
        self._witness = Witness(path) if path is not None else None
        self._file: tuple[int, int] | None = None  # device and inode of the opened file
        self._folder: FolderHandle | None = None  # the folder of that file
        self._closed = False
        self._broken_by_fork = False
        self._note_is_old = False  # True: the open note is that of a store that was replaced
        self._watchers = 0  # how many there have been so far
        self._renew()
        with self._errors():
            self._give(self._take())
        _DATABASES.add(self)

    def _renew(self) -> None:
        """Start with no connections and free locks; also in a child after a fork."""
        self._pid = os.getpid()
        self._idle: list[sqlite3.Connection] = []
        self._users: list[int] = []  # threads with a connection
        self._guard = threading.Condition()  # for the two lists
        self._watcher: sqlite3.Connection | None = None  # never writes
        self._watching = threading.Lock()
        # Threads of this process wait for each other here, in order and without polling. A store in
        # memory has one connection, so this also keeps readers out of an unfinished write.
        self._writing = threading.Lock()

    # -- transactions ----------------------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the store throughout, without waiting."""
        if self.path is None:
            with self._held(), self._transaction("BEGIN") as connection:
                yield connection
        else:
            with self._transaction("BEGIN") as connection:
                yield connection

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction in which no other process writes.

        Args:
            durable: Survives a power failure once this returns (fsync). Otherwise the transaction
                survives the death of any process, but may be lost in a power failure.

        Raises:
            StoreBusyError: another process kept the lock for longer than the busy timeout.
            StoreFullError: the disk is full; nothing was changed.
        """
        with self._held(), self._transaction("BEGIN IMMEDIATE", durable=durable) as connection:
            yield connection

    def notify(self, payload: str) -> None:
        """Do nothing: all users of a file are on this machine, and are reached by a socket."""

    def watch(self, name: str, *, key: str, epoch: str, wake: Callable[[], None]) -> None:
        """Do nothing; see `notify`."""

    def change(self) -> tuple[int, int]:
        """Return a value that changes with every commit of any connection and process.

        SQLite's data_version changes only with the commits of other connections, so a connection
        that never writes is kept for this. The first number changes when it is replaced.
        """
        if self.path is None:
            with self._held(), self._errors():
                connection = self._take()
                try:
                    return 0, connection.total_changes
                finally:
                    self._give(connection)
        with self._watching, self._errors():
            self._check_process()
            self._check_file()
            with self._guard:
                self._users.append(threading.get_ident())  # a fork waits for the answer
                watcher, self._watcher = self._watcher, None
            try:
                if watcher is None:
                    watcher = self._open()
                    self._watchers += 1
                answer = watcher.execute("PRAGMA data_version").fetchall()
            except BaseException:
                if watcher is not None:
                    watcher.close()
                raise
            else:
                with self._guard:
                    self._watcher = watcher
                    if self._closed:
                        self._close_idle()
                return self._watchers, int(answer[0][0])
            finally:
                self._left()

    @contextmanager
    def plain(self) -> Iterator[sqlite3.Connection]:
        """A connection outside of any transaction (for SQLite's backup)."""
        with self._errors():
            connection = self._take()
            try:
                yield connection
            finally:
                self._give(connection)

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._check_process()
        if not self._writing.acquire(timeout=self.busy_timeout_s):
            self._busy()
        try:
            yield
        finally:
            self._writing.release()
            if self._note_is_old:
                self._close_note()

    @contextmanager
    def _transaction(self, begin: str, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._errors():
            connection = self._take(writes=begin != "BEGIN")
            healthy = False
            try:
                if begin != "BEGIN":
                    # Cannot be changed inside a transaction.
                    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                connection.execute(begin)
                check_version(connection, self.where)
                yield connection
                events = 0
                if begin != "BEGIN" and self._witness is not None:
                    events = events_of(connection)
                connection.execute("COMMIT")
                healthy = True
                if events and self._witness is not None and not self._note_is_old:
                    self._witness.note(events, synced=durable)
            finally:
                try:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    healthy = True
                except sqlite3.Error:
                    healthy = False  # the next caller gets a new connection
                if healthy or self.path is None:
                    self._give(connection)
                else:
                    connection.close()
                    self._give(None)

    # -- connections -------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.where} was closed; open it again")
        if self.path is None and os.getpid() != self._pid:
            raise StoreError("a store in memory belongs to the process that created it")
        if self._broken_by_fork:
            raise StoreError(
                f"this process was forked in the middle of a transaction of the store "
                f"{self.where}, and cannot use it; fork when no call is under way, or start a "
                f"new program"
            )

    def _check_file(self, *, writes: bool = False) -> None:
        """Close a file that was replaced; refuse one that was deleted.

        SQLite would continue in the unlinked file, and its writes would be lost.

        Args:
            writes: The caller holds the writers' lock.
        """
        if self.path is None or self._file is None:
            return
        try:
            found = self.path.stat()
        except FileNotFoundError as error:
            if not self.path.parent.is_dir():
                raise StoreError(
                    self._folder_gone(), path=self.where, moved_to=self._moved_to()
                ) from error
            if self._witness is not None and self._witness.read() is not None:
                self._witness.refuse_deleted()
            raise StoreError(f"the store {self.where} was deleted", path=self.where) from error
        if (found.st_dev, found.st_ino) != self._file:
            with self._guard:
                self._close_idle()
                self._file = None
            if self._witness is not None and writes:
                self._witness.close()
                self._note_is_old = False
            else:
                self._close_note()

    def _own_folder(self) -> Path:
        return self.path.parent if self.path is not None else Path()

    def _moved_to(self) -> str | None:
        """Return the folder's current path; None if it was not moved, or its path is unknown."""
        moved = None if self._folder is None else self._folder.path()
        return None if moved == str(self._own_folder()) else moved

    def _folder_gone(self) -> str:
        folder, moved = self._own_folder(), self._moved_to()
        if moved is None:
            return f"the folder {folder} of the store cannot be seen"
        return (
            f"the workspace {folder} was moved to {moved} in the meantime. Its jobs continue; "
            f"repeat the command there, or with `--workspace {shlex.quote(moved)}`"
        )

    def _close_note(self) -> None:
        """Close the note's file, or leave that to the writer that may be using it now.

        The descriptor of a closed file is reused by the next opened one, such as the store.
        """
        self._note_is_old = True
        if self._writing.acquire(blocking=False):  # otherwise its holder does so after the release
            try:
                if self._witness is not None:
                    self._witness.close()
                self._note_is_old = False
            finally:
                self._writing.release()

    def _take(self, *, writes: bool = False) -> sqlite3.Connection:
        self._check_process()
        self._check_file(writes=writes)
        with self._guard:
            self._users.append(threading.get_ident())
            if self._idle:
                return self._idle.pop()
        try:
            return self._open()
        except BaseException:
            self._left()
            raise

    def _give(self, connection: sqlite3.Connection | None) -> None:
        """Take back a connection; None if it was closed."""
        with self._guard:
            if connection is not None:
                self._idle.append(connection)
            if self._closed:
                self._close_idle()
        self._left()

    def _left(self) -> None:
        with self._guard:
            self._users.remove(threading.get_ident())
            self._guard.notify_all()

    def _open(self) -> sqlite3.Connection:
        """Open a connection; the first one of all creates or upgrades the schema."""
        note = None if self._witness is None else self._witness.read()
        if self.path is not None and not self.path.exists():
            if note is not None and note.expected and self._witness is not None:
                self._witness.refuse_deleted()
            _create_private(self.path)
        deadline = time.monotonic() + self.busy_timeout_s
        while True:
            connection = sqlite3.connect(
                self.path if self.path is not None else ":memory:",
                timeout=self.busy_timeout_s,
                isolation_level=None,  # only our code begins and ends transactions
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                connection.row_factory = sqlite3.Row
                if self.path is not None:
                    connection.execute("PRAGMA journal_mode = WAL")
                if self._witness is not None:
                    self._witness.check(connection, note)
                bring_up_to_date(connection, self.path)
                if self.path is not None and self._file is None:
                    found = self.path.stat()
                    self._file = found.st_dev, found.st_ino
                    self._keep_folder()
                return connection
            except sqlite3.OperationalError as error:
                connection.close()
                # SQLite's busy timeout covers neither the switch to WAL mode nor the closing of the
                # last connection to a store.
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - not a secret
            except BaseException:
                connection.close()
                raise

    def _keep_folder(self) -> None:
        """Keep the folder open: only its descriptor reveals the path after a move."""
        assert self.path is not None
        with contextlib.suppress(OSError):
            before, self._folder = self._folder, FolderHandle(self.path.parent)
            if before is not None:
                before.close()

    def close(self) -> None:
        """Close all unused connections; the others are closed after their use."""
        self._closed = True
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()
        with self._guard:
            self._close_idle()
        self._close_note()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    # -- forks -------------------------------------------------------------------------------
    # SQLite keeps its locks in the process's memory: a child that inherits an open connection
    # assumes locks that it does not hold, and the parent may delete the -wal file under it. Source:
    # sqlite.org/howtocorrupt.html, section 2.6. So no connection is open at a fork.

    def before_fork(self) -> None:
        """Wait for the transactions of other threads, close all connections, keep new ones out."""
        me = threading.get_ident()
        self._guard.acquire()
        self._guard.wait_for(lambda: all(user == me for user in self._users), timeout=_FORK_WAIT_S)
        self._close_idle()

    def after_fork(self) -> None:
        """In the parent: continue."""
        self._guard.release()

    def after_fork_in_child(self) -> None:
        """Start again, unless a connection was in use at the fork."""
        self._broken_by_fork = self._broken_by_fork or bool(self._users)
        self._renew()

    # -- errors ------------------------------------------------------------------------------

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # the code that runs the statement handles it
        except sqlite3.Error as error:
            self._raise(error)

    def _raise(self, error: sqlite3.Error) -> NoReturn:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (
            code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and self._disk_is_full()
        ):
            folder = self.path.parent if self.path is not None else "memory"
            raise StoreFullError(
                f"the disk of the store {self.where} is full, so nothing was changed. "
                f"Free space in {folder} (try `df -h {folder}`), then repeat the command.",
                path=self.where,
            ) from error
        if _is_busy(error):
            self._busy(error)
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreError(
                f"{self.where} is not a store: it is not a SQLite database; name another path, or "
                f"put the file's backup in its place",
                path=self.where,
            ) from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise StoreError(
                f"the store {self.where} is damaged ({error}); put a backup in its place with "
                f"`rayjobs db restore FILE`",
                path=self.where,
            ) from error
        # The -wal file was removed while processes had it open, so they expect data that is gone.
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ:
            raise StoreLostError(
                f"the store {self.where} lacks the contents of its -wal file, which was removed or "
                f"cut ({error}). End the processes that have it open (`rayjobs target stop "
                "local`), then restore a backup with `rayjobs db restore FILE`; without one, "
                "`rayjobs db restore --as-is` accepts what is left",
                path=self.where,
            ) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise StoreError(
                f"the store {self.where} cannot be written by this user ({error}); check the owner "
                "and the permissions of the file and its folder",
                path=self.where,
            ) from error
        raise StoreError(f"the store {self.where} failed: {error}", path=self.where) from error

    def _busy(self, error: sqlite3.Error | None = None) -> NoReturn:
        raise StoreBusyError(
            f"the store {self.where} has been locked by another process for longer than "
            f"{duration_text(self.busy_timeout_s)}, so nothing was changed. See who has it open "
            f"(`fuser -v {self.where}`): a stopped process or a backup tool must continue or end; "
            f"then repeat the command.",
            path=self.where,
        ) from error

    def _disk_is_full(self) -> bool:
        if self.path is None:
            return False
        try:
            disk = os.statvfs(self.path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _FULL_BYTES


_DATABASES: weakref.WeakSet[Database] = weakref.WeakSet()
_forking = threading.local()  # two threads may fork at once


def _before_fork() -> None:
    _forking.databases = [one for one in _DATABASES if one.path is not None]
    for one in _forking.databases:
        one.before_fork()


def _after_fork() -> None:
    for one in _forking.databases:
        one.after_fork()


def _after_fork_in_child() -> None:
    for one in _forking.databases:
        one.after_fork_in_child()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork,
    after_in_child=_after_fork_in_child,
)


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # The last one is SQLite's error after many failed attempts to open the -wal file's index.
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _create_private(path: Path) -> None:
    """Create the file for its owner only (SQLite gives its -wal and -shm the same permissions)."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except FileNotFoundError as error:
        raise StoreError(
            f"the folder {path.parent} of the store does not exist; create it first"
        ) from error
    except OSError as error:
        raise StoreError(f"the store {path} cannot be created: {error.strerror}") from error
    # The file's name must survive a power failure, like the commits in the file.
    sync_folder(path.parent)
