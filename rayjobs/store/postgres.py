"""A store in PostgreSQL: connections of one process that behave like SQLite's.

The store's statements are written once, in the common subset of SQL; differences are translated
here (docs/decisions/0031-store-in-postgresql.md). As in SQLite there is one writer at a time: a
write takes an advisory lock at its start and releases it with its commit. So a smaller serial never
appears after a larger one, and statements need no retries.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rayjobs.core.errors import (
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
    StoreVersionError,
    UsageError,
)
from rayjobs.core.text import duration_text
from rayjobs.datastore import credentials
from rayjobs.store.postgres_address import parsed
from rayjobs.store.postgres_pool import Pool
from rayjobs.store.schema import VERSION

if TYPE_CHECKING:
    import psycopg

    from rayjobs.store.postgres_watch import Watch

CONNECT_S = 5
# A peer that accepts nothing for this long is gone; the kernel would wait for minutes.
SILENT_MS = 20_000
FIRST = 12  # the first version of the schema in PostgreSQL
# NNNN.sql upgrades from version NNNN - 1 to NNNN.
MIGRATIONS = Path(__file__).parent / "migrations" / "postgres"
MOVED = -1  # the version of a store whose rows were moved into a file
VERSION_OF = "SELECT version FROM store_state"
NUMBER_OF = "SELECT CAST(pg_current_xact_id() AS TEXT)"
# Waits until the server's disk has all commits so far. It writes something, since only a writing
# transaction waits; waits of several clients share one write to the disk.
FLUSH = "SELECT pg_logical_emit_message(true, 'rayjobs', '')"
COUNTED = f"UPDATE store_state SET changes = changes + 1; COMMIT; {FLUSH}"  # noqa: S608 - made of our own words
MANY = 200  # statements that are sent together

log = logging.getLogger(__name__)


class Row(tuple[Any, ...]):
    """A row whose values have names, as in `sqlite3.Row`; `_row_class` sets `_at`."""

    _at: Mapping[str, int] = {}

    def __getitem__(self, key: Any) -> Any:
        """Return a value by its number or its name."""
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self._at[key])
            except KeyError:
                raise IndexError(f"no column {key}") from None
        return tuple.__getitem__(self, key)

    def keys(self) -> list[str]:
        """Return the columns' names."""
        return list(self._at)


class Result:
    """The result of a statement: its rows, and how many rows it changed."""

    def __init__(self, rows: list[Row], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def fetchone(self) -> Row | None:
        """Return the next row; None after the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        """Return the remaining rows."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows


class Connection:
    """One connection, with the methods of `sqlite3.Connection` that the store uses.

    Attributes:
        total_changes: How many rows its statements have changed so far.
    """

    def __init__(self, plain: psycopg.Connection[Any]) -> None:
        self.plain = plain
        self.total_changes = 0
        self.number = ""  # for the transaction in progress, if it writes

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Result:
        """Run one statement.

        Raises:
            sqlite3.IntegrityError: it violates a constraint. The transaction continues without it.
        """
        text = translated(statement)
        return self._insert(text, values) if _may_collide(text) else self._run(text, values)

    def _insert(self, text: str, values: Sequence[Any] | Mapping[str, Any]) -> Result:
        """Run a statement and its savepoint in one message: each would take a round trip."""
        with self.plain.cursor() as cursor:
            whole = f"SAVEPOINT statement; {_bound(cursor, text, values)}; {_RELEASE}"
            try:
                with _violations():
                    cursor.execute(whole.encode())
            except sqlite3.IntegrityError:
                self._send("ROLLBACK TO SAVEPOINT statement")
                raise
            cursor.nextset()
            return self._result(cursor, is_change=True)

    def cursor(self) -> Cursor:
        """Return a cursor with plain rows."""
        return Cursor(self)

    def executemany(
        self, statement: str, rows: Iterable[Sequence[Any] | Mapping[str, Any]]
    ) -> None:
        """Run a statement for each row, many in one message.

        Raises:
            sqlite3.IntegrityError: a row violates a constraint. The transaction continues without
                all of them.
        """
        text = translated(statement)
        with self.plain.cursor() as cursor:
            bound = [_bound(cursor, text, row) for row in rows]
            if not bound:
                return
            with self._savepoint(), _violations():
                for start in range(0, len(bound), MANY):
                    cursor.execute(";\n".join(bound[start : start + MANY]).encode())
                    self.total_changes += max(0, cursor.rowcount)
                    while cursor.nextset():
                        self.total_changes += max(0, cursor.rowcount)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Let the transaction continue after a violation, as in SQLite: PostgreSQL would end it."""
        self._send("SAVEPOINT statement")
        try:
            yield
        except sqlite3.IntegrityError:
            self._send("ROLLBACK TO SAVEPOINT statement")
            raise
        self._send(_RELEASE)

    def _run(self, text: str, values: Sequence[Any] | Mapping[str, Any]) -> Result:
        with self.plain.cursor() as cursor, _violations():
            cursor.execute(_bound(cursor, text, values).encode())
            is_change = not text.lstrip().upper().startswith(("SELECT", "WITH"))
            return self._result(cursor, is_change=is_change)

    def _result(self, cursor: psycopg.Cursor[Any], *, is_change: bool) -> Result:
        found = cursor.pgresult
        if found is None or not found.nfields:
            self.total_changes += max(0, cursor.rowcount)
            return Result([], cursor.rowcount)
        # `cursor.description` would create an object per column, several times per submit.
        made = _row_class(tuple((found.fname(at) or b"").decode() for at in range(found.nfields)))
        rows = [made(row) for row in cursor.fetchall()]
        self.total_changes += len(rows) if is_change else 0
        return Result(rows, cursor.rowcount)

    def _send(self, text: str) -> None:
        with self.plain.cursor() as cursor:
            cursor.execute(text.encode())


class Cursor:
    """A cursor of `Connection`. Its rows are always tuples: `row_factory` has no effect."""

    row_factory: object = None

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Result:
        """See `Connection.execute`."""
        return self._connection.execute(statement, values)


def _bound(cursor: Any, text: str, values: Sequence[Any] | Mapping[str, Any]) -> str:
    return str(cursor.mogrify(text, values)) if values else text.replace("%%", "%")


@functools.lru_cache(maxsize=512)
def _row_class(names: tuple[str, ...]) -> type[Row]:
    return type("Row", (Row,), {"_at": {name: at for at, name in enumerate(names)}})


@contextmanager
def _violations() -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.IntegrityError as error:
        raise sqlite3.IntegrityError(str(error)) from error


# --- statements ----------------------------------------------------------------------------------

_RELEASE = "RELEASE SAVEPOINT statement"
_TOKEN = re.compile(
    r"""
    (?P<text>'(?:[^']|'')*')
    | (?P<cast>::)
    | :(?P<name>[a-z_][a-z0-9_]*)
    | (?P<mark>\?)
    | (?P<percent>%)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_GLOB = re.compile(r"GLOB\s+'((?:[^']|'')*)'", re.IGNORECASE)
_NUMBERS = re.compile(r"\bserial IN \(SELECT value FROM json_each\((:\w+)\)\)")


@functools.lru_cache(maxsize=1024)
def translated(statement: str) -> str:
    """Return an SQLite statement translated for PostgreSQL, with psycopg's placeholders."""
    text = _NUMBERS.sub(r"serial IN (SELECT CAST(value AS BIGINT) FROM store_each(\1))", statement)
    text = re.sub(r"\bINDEXED BY \w+", "", text)  # the planner needs no hint
    text = re.sub(r"\bjson_each\(", "store_each(", text)
    text = re.sub(r"\bjson_extract\(", "store_extract(", text)
    text = re.sub(r"\bjson_valid\((\w+)\)", r"(\1 IS JSON)", text)
    text = re.sub(r"\bLIMIT (:\w+)", r"LIMIT NULLIF(\1, -1)", text)  # -1: all
    text = _GLOB.sub(lambda found: f"~ '{_regular(found[1])}'", text)

    def one(found: re.Match[str]) -> str:
        if found["text"]:
            return found["text"].replace("%", "%%")
        if found["cast"]:
            return "::"
        if found["name"]:
            return f"%({found['name']})s"
        return "%s" if found["mark"] else "%%"

    return _TOKEN.sub(one, text)


def _regular(glob: str) -> str:
    return "^" + re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".") + "$"


def _may_collide(text: str) -> bool:
    start = text.lstrip()[:6].upper()
    return start == "INSERT" and "ON CONFLICT" not in text.upper()


# --- transactions --------------------------------------------------------------------------------


class PostgresDatabase:
    """The transactions of one store in a schema of a PostgreSQL database.

    Thread-safe, and safe in both processes after a fork. Every transaction checks the schema's
    version, so a store that was upgraded while a client had it open refuses this client.

    Attributes:
        where: The address for people, without a password.
        path: Always None: there is no file.
        is_shared: Whether several machines may use the store.
    """

    path: Path | None = None
    is_shared = True

    def __init__(self, url: str, *, busy_timeout_s: float, create: bool = True) -> None:
        """Open the store; create it in a schema without one, and upgrade an older one.

        Args:
            create: If False, refuse a schema without a store.

        Raises:
            UsageError: the URL is invalid, or contains a password.
            StoreError: the server cannot be reached, or refuses access.
            StoreVersionError: the store is of another version.
        """
        self._url, self._schema, self.where = parsed(url)
        self.busy_timeout_s = busy_timeout_s
        self._closed = False
        self._watch: Watch | None = None
        self._renew()
        with self._errors():
            connection = self._pool.take()
            try:
                self._create(connection, may=create)
                self._upgrade(connection)
            except BaseException:
                connection.plain.close()
                raise
            self._pool.give(connection)

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._pool = Pool(self._connect, where=self.where, wait_s=self.busy_timeout_s)
        # Threads of this process wait for each other here, each with its time limit.
        self._writing = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A transaction that sees one state of the store throughout, without waiting."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        with self._errors(), self._begun(begin) as connection:
            yield connection
            connection.plain.execute("COMMIT")

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Any]:
        """A transaction in which no other process writes; it is always durable.

        Raises:
            StoreBusyError: another process kept the lock for longer than the busy timeout.
            StoreError: the server failed. Nothing was changed, unless the message says otherwise.
        """
        self._check()
        if not self._writing.acquire(timeout=self.busy_timeout_s):
            self._busy()
        try:
            begin = f"BEGIN; SET LOCAL lock_timeout = {self.busy_timeout_s * 1000:.0f}; "
            # The next writer gets the lock at the commit; `_commit` waits for the disk after it.
            begin += "SET LOCAL synchronous_commit = off; "
            begin += f"SELECT {self._lock()}; {NUMBER_OF}"
            with self._errors(), self._begun(begin) as connection:
                yield connection
                self._commit(connection)
        finally:
            self._writing.release()

    @contextmanager
    def exclusive(self) -> Iterator[Connection]:
        """A write transaction that accepts a store of any version, for moving it.

        Raises:
            StoreBusyError: another process kept the lock for longer than the busy timeout.
            StoreError: the server failed. Nothing was changed, unless only the answer to the commit
                was lost.
        """
        self._check()
        with self._errors():
            connection = self._connect()
            try:
                for text in (
                    "BEGIN ISOLATION LEVEL REPEATABLE READ",
                    f"SET LOCAL lock_timeout = {self.busy_timeout_s * 1000:.0f}",
                    f"SELECT {self._lock()}",
                ):
                    connection.plain.execute(text.encode())
                yield connection
                connection.plain.execute("COMMIT")
            finally:
                connection.plain.close()

    def change(self) -> tuple[int, int]:
        """Return a token that changes with every commit of any connection and process."""
        with self._errors(), self._begun("BEGIN READ ONLY") as connection:
            row = connection.execute("SELECT changes FROM store_state").fetchone()
            connection.plain.execute("COMMIT")
            return 0, int(row[0]) if row else 0

    def notify(self, payload: str) -> None:
        """Wake everything that watches this schema for `payload`, on any machine.

        Raises:
            StoreError: the server cannot be reached.
        """
        from rayjobs.store.postgres_watch import CHANNEL

        with self._errors(), self._begun("BEGIN") as connection:
            connection.plain.execute(
                "SELECT pg_notify(%s, %s)", (CHANNEL, f"{self._schema} {payload}")
            )
            connection.plain.execute("COMMIT")

    def watch(self, name: str, *, key: str, epoch: str, wake: Callable[[], None]) -> None:
        """Call `wake` for each notification of `name`, and write signs of life under `key`."""
        from rayjobs.store.postgres_watch import Watch

        self._check()
        if self._watch is not None:
            self._watch.stop()
        payload = f"{self._schema} {name}"
        self._watch = Watch(
            self._connect, self.where, payload=payload, key=key, epoch=epoch, wake=wake
        )
        self._watch.start()

    @contextmanager
    def plain(self) -> Iterator[NoReturn]:
        """Refuse: PostgreSQL's own tools copy its databases."""
        raise UsageError(
            f"the store {self.where} is in PostgreSQL; copy it with `pg_dump --schema "
            f"{self._schema}`, and the workspace's folder with any copying tool"
        )
        yield  # type: ignore[unreachable]  # a context manager needs a generator

    def close(self) -> None:
        """Close all unused connections; the others are closed after their use."""
        self._closed = True
        if os.getpid() == self._pid:
            if self._watch is not None:
                self._watch.stop()
            self._pool.close()

    # -- one transaction -------------------------------------------------------------------------

    @contextmanager
    def _begun(self, begin: str) -> Iterator[Connection]:
        import psycopg

        self._check()
        pool = self._pool
        connection = pool.take()
        healthy = False
        try:
            try:
                self._begin(connection, begin)
            except psycopg.OperationalError as error:
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    raise
                # The connection was cut while idle. Nothing was done: open another one.
                connection.plain.close()
                connection = self._connect()
                self._begin(connection, begin)
            yield connection
            healthy = True
        finally:
            if not connection.plain.closed:
                try:
                    if connection.plain.info.transaction_status != 0:
                        connection.plain.execute("ROLLBACK")
                    healthy = True
                except psycopg.Error:
                    healthy = False
            if not healthy:
                connection.plain.close()
            pool.give(connection)

    def _lock(self) -> str:
        return f"pg_advisory_xact_lock(hashtext('rayjobs'), hashtext('{self._schema}'))"

    def _begin(self, connection: Connection, begin: str) -> None:
        with connection.plain.cursor() as cursor:
            cursor.execute(f"{begin}; {VERSION_OF}".encode())
            before = row = None
            while True:
                if cursor.description is not None:
                    before, row = row, cursor.fetchone()
                if not cursor.nextset():
                    break
        found = int(row[0]) if row else 0
        # For a write, the number of its transaction precedes the version.
        connection.number = str(before[0]) if before else ""
        if found != VERSION:
            self._refuse_version(found)

    def _commit(self, connection: Connection) -> None:
        """Commit durably; if the answer is lost, find out whether the commit happened.

        Others may read data that is not on the disk yet. Their writes follow it in the server's
        log, so their commit is durable only together with this one.
        """
        import psycopg

        number = connection.number
        try:
            # In one message: each message takes a round trip, while others wait for the lock.
            connection.plain.execute(COUNTED)
        except psycopg.OperationalError as error:
            if not self._was_committed(number, error):
                raise
            log.warning("%s: the answer to a commit was lost; the commit was done", self.where)

    def _was_committed(self, number: str, error: Exception) -> bool:
        import psycopg

        end = time.monotonic() + self.busy_timeout_s
        while True:
            try:
                connection = self._connect()
                try:
                    (status,) = connection.plain.execute(
                        "SELECT pg_xact_status(CAST(%s AS xid8))", (number,)
                    ).fetchone() or ("",)
                    if status == "committed":
                        connection.plain.execute(FLUSH)
                finally:
                    connection.plain.close()
                if status != "in progress":
                    return str(status) == "committed"
            except psycopg.errors.InvalidParameterValue:
                return False  # the server was restarted without it, and assigns that number again
            except psycopg.OperationalError:
                pass
            if time.monotonic() > end:
                raise StoreError(
                    f"the connection to the store {self.where} broke during a commit, and the "
                    "server does not answer: it is unknown whether the change was made. Check "
                    "with `rayjobs ls` before you repeat the command",
                    path=self.where,
                ) from error
            time.sleep(0.1)

    # -- connections -------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.where} was closed; open it again")
        if os.getpid() != self._pid:
            # The parent's connections: closing them here would end them in the parent.
            _OF_PARENTS.append(self._pool.idle)
            self._renew()

    def _connect(self) -> Connection:
        import psycopg
        from psycopg.types.numeric import FloatLoader

        from rayjobs.store.postgres_wait import LimitedConnection

        plain = LimitedConnection.connect(
            self._url,
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
            connect_timeout=CONNECT_S,
            application_name="rayjobs",
            options=f"-c search_path={self._schema}",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=2,
            tcp_user_timeout=SILENT_MS,
            password=credentials.given().get("PGPASSWORD"),  # otherwise libpq searches for it
        )
        plain.adapters.register_loader("numeric", FloatLoader)  # results of SUM and AVG
        return Connection(plain)

    def _create(self, connection: Connection, *, may: bool) -> None:
        """Create the schema, unless it has a store; safe to call from many processes at once."""
        run = connection.plain.execute
        if run("SELECT to_regclass('store_state')").fetchone() != (None,):
            return
        if not may:
            raise StoreError(
                f"there is no workspace store at {self.where}; `rayjobs workspace show` prints the "
                "address on a machine that has the workspace",
                path=self.where,
            )
        run("BEGIN")
        run(f"SELECT {self._lock()}".encode())
        if run("SELECT to_regclass('store_state')").fetchone() == (None,):
            run(f"CREATE SCHEMA IF NOT EXISTS {self._schema}".encode())
            found = run(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s LIMIT 3",
                (self._schema,),
            ).fetchall()
            if found:
                run("ROLLBACK")
                raise StoreError(
                    f"the schema {self._schema} of {self.where} has tables of other programs "
                    f"({', '.join(name for (name,) in found)}); name another one: "
                    f"?schema=NAME"
                )
            text = Path(__file__).with_name("schema_postgres.sql").read_text(encoding="utf-8")
            run(text.encode())
        run("COMMIT")

    def _upgrade(self, connection: Connection) -> None:
        """Bring an older store to this version in one transaction; its writers wait meanwhile."""
        run = connection.plain.execute
        if not _steps(self._version(connection)):
            return  # the store has this version, or the first transaction refuses it
        run("BEGIN")
        run(f"SELECT {self._lock()}".encode())
        found = self._version(connection)  # another process may have been faster
        for step in _steps(found):
            run(step.read_text(encoding="utf-8").encode())
        if _steps(found):
            run("UPDATE store_state SET version = %s", (VERSION,))
            log.warning("upgraded the store %s from version %d to %d", self.where, found, VERSION)
        run("COMMIT")

    def _version(self, connection: Connection) -> int:
        (found,) = connection.plain.execute(VERSION_OF).fetchone() or (0,)
        return int(found)

    # -- errors ------------------------------------------------------------------------------

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except sqlite3.IntegrityError:
            raise  # the code that runs the statement handles it
        except psycopg.Error as error:
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        import psycopg

        if isinstance(error, psycopg.errors.LockNotAvailable):
            self._busy(error)
        why = " ".join(str(error).split()).removesuffix("?").removesuffix(".")
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise StoreError(
                f"the store {self.where} refuses: {why}. Its owner must grant the user privileges "
                f"on schema {self._schema} (or CREATE on the database, to create a store)",
                path=self.where,
            ) from error
        if isinstance(error, psycopg.OperationalError):
            raise StoreUnreachableError(
                f"the store {self.where} cannot be reached: {why}. Check that the server is "
                "running, its address, and the user's password (PGPASSWORD or ~/.pgpass)",
                path=self.where,
            ) from error
        raise StoreError(f"the store {self.where} failed: {why}", path=self.where) from error

    def _busy(self, error: Exception | None = None) -> NoReturn:
        raise StoreBusyError(
            f"the store {self.where} has been locked by another process for longer than "
            f"{duration_text(self.busy_timeout_s)}, so nothing was changed. pg_stat_activity on "
            "the server shows which session holds it (application_name 'rayjobs'); then repeat "
            "the command.",
            path=self.where,
        ) from error

    def _refuse_version(self, found: int) -> NoReturn:
        if found == MOVED:
            raise StoreVersionError(
                f"the store {self.where} was moved into a file, or is being moved. Repeat the "
                f"command; if this error returns, `rayjobs db move --to-file` finishes the move",
                found=found,
                known=VERSION,
            )
        advice = (
            "upgrade rayjobs here (pip install --upgrade rayjobs)"
            if found > VERSION
            else "there is no upgrade from that version"
        )
        raise StoreVersionError(
            f"the store {self.where} has schema version {found}, but this rayjobs has {VERSION}: "
            f"{advice}",
            found=found,
            known=VERSION,
        )


def _steps(found: int) -> list[Path]:
    """Return the files that lead from a version to this one, in order; none if one is missing."""
    if not 0 < found < VERSION:
        return []
    steps = [MIGRATIONS / f"{number:04d}.sql" for number in range(found + 1, VERSION + 1)]
    return steps if all(step.is_file() for step in steps) else []


# Connections inherited by a child after a fork: closing them there would end them in the parent.
_OF_PARENTS: list[list[Connection]] = []
