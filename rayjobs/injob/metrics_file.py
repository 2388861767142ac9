"""The file that a rank logs to: one JSON line per record, appended by one write, read in batches.

A line: ``{"k": kind, "name": text, "value": data, "step": int or null, "t": epoch seconds}``.
Nothing is buffered: once `append` returns, the record survives a kill -9 of the rank.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, TypeVar

from rayjobs.injob import record_files
from rayjobs.injob.log_values import number_of

One = TypeVar("One")
METRIC_KINDS = ("metric", "list", "row", "table", "image", "chart")
READ_BYTES = 1 << 20
MAX_LINE = 4 << 20  # a longer line is damage, not a record
MOST_RANK_FILES = 10_000  # of one attempt on one node
MOST_BYTES = 1 << 30  # of one file: bytes that a script appends beyond this are not read
# A number's line, in a third of the time of `LoggedRecord.line`. The name is in JSON.
NUMBER_LINE = '{"k":"metric","name":%s,"value":%r,"step":%s,"t":%.6f}\n'
_decode = json.JSONDecoder().raw_decode  # faster than json.loads


class LoggedRecord(NamedTuple):  # a frozen dataclass takes three times as long to make
    """One line of a rank's file.

    Attributes:
        kind: metric, list, row, table, image, chart (these are metrics), tag, property, upload,
            fail or dropped.
        value: JSON data, whose form depends on the kind; a dropped record's is the number of
            records that could not be written.
        name: What the script calls it; None if the kind has no names.
        step: The script's own step, if it gave one.
        at_s: When it was logged, in seconds since 1970.
        position: The byte position of its line: unique and growing within the file, so that a
            record may be sent twice.
    """

    kind: str
    value: Any
    name: Optional[str] = None
    step: Optional[int] = None
    at_s: float = 0.0
    position: int = 0

    @classmethod
    def from_line(cls, line: bytes, position: int) -> "Optional[LoggedRecord]":
        """Return a line's record; None if the line is damaged.

        A script can write the file as well: an entry of another type counts as missing.
        """
        values = json_object(line)
        if values is None:
            return None
        get = values.get
        kind, name, step, at_s = values["k"], get("name"), get("step"), get("t")
        if "value" not in values and kind in METRIC_KINDS:
            return None
        return cls(
            kind,
            get("value"),
            name if type(name) is str else None,
            step if type(step) is int else None,
            at_s if type(at_s) is float or type(at_s) is int else 0.0,
            position,
        )

    def line(self) -> bytes:
        """Return the record as a line of the file.

        Raises:
            ValueError: The value holds NaN or an infinity.
        """
        values: Dict[str, Any] = {"k": self.kind, "value": self.value}
        if self.name is not None:
            values = {"k": self.kind, "name": self.name, "value": self.value}
            values.update(step=self.step, t=self.at_s)
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


class Appender:
    """Appends lines to one file. Thread-safe and fork-safe; never raises because of the disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.dropped = 0
        self._reported = 0
        self._fd = -1
        self._identity: Optional[Tuple[int, int]] = None
        self._torn = False
        self._warned = False

    def append(self, line: bytes) -> bool:
        """Append `line` (with its newline) by one write; return False if it could not be written.

        The first loss is reported on stderr; losses are counted in `dropped` and noted in the file
        once there is space again.
        """
        try:
            if self._torn:
                line = b"\n" + line  # ends the half line that a full disk left
            if self.dropped != self._reported:
                line = line + LoggedRecord("dropped", self.dropped).line()
            written = os.write(self._open(), line)
            if written != len(line):
                self._torn = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as exc:
            self.dropped += 1
            self.warn(exc)
            return False
        self._torn = False
        self._reported = self.dropped
        return True

    def touch(self) -> None:
        """Touch the file; never raises because of the disk."""
        try:
            os.utime(self._open())
        except OSError as exc:
            self.warn(exc)

    def _open(self) -> int:
        # A script may close all descriptors, and another file may then get the number. So check
        # that the number still refers to our file.
        if self._fd >= 0:
            try:
                info = os.fstat(self._fd)
                if (info.st_dev, info.st_ino) == self._identity:
                    return self._fd
            except OSError:
                pass  # closed under us: opened again below
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            os.mkdir(os.path.dirname(self.path), 0o700)  # a clean-up removed the folder
            descriptor = os.open(self.path, flags, 0o600)
        info = os.fstat(descriptor)
        self._fd, self._identity = descriptor, (info.st_dev, info.st_ino)
        return descriptor

    def warn(self, exc: OSError) -> None:
        """Report the first loss on stderr."""
        if self._warned:
            return
        self._warned = True
        text = (
            "rayjobs: a record could not be written (%s); the script continues; further "
            "losses are only counted\n" % (exc.strerror or exc)
        )
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass  # stderr is full, closed or None as well: the loss cannot be reported


def read_batch(path: str, offset: int = 0, limit: int = 10000) -> Tuple[List[LoggedRecord], int]:
    """Return up to `limit` records from byte `offset` on, and the next offset; see `read_lines`."""
    return read_lines(path, LoggedRecord.from_line, offset, limit)


def read_lines(
    path: str, parse: Callable[[bytes, int], Optional[One]], offset: int = 0, limit: int = 10000
) -> Tuple[List[One], int]:
    """Return the contents of up to `limit` lines from byte `offset` on, and the next offset.

    A last line without its newline is left for the next call. A missing file has no lines. Reads
    about 1 MiB a call, more only for a longer line: call again until the offset stays the same.
    From an `offset` of `MOST_BYTES` on, nothing is read.

    Args:
        parse: Given a line without its newline and its byte position, returns the line's content.
            None: the line is damaged, and skipped.

    Raises:
        UnusableFileError: a link, FIFO, folder or device is in its place.
        OSError: it cannot be read.
    """
    found: List[One] = []
    if offset >= MOST_BYTES:
        return found, offset
    folder, name = os.path.split(path)
    root, folder = os.path.split(folder)
    try:
        with record_files.open_file(root, "%s/%s" % (folder, name)) as file:
            file.seek(offset)
            data = file.read(READ_BYTES)
            while data and b"\n" not in data and len(data) < MAX_LINE:
                more = file.read(READ_BYTES)
                if not more:
                    break
                data += more
    except FileNotFoundError:
        return found, offset
    if b"\n" not in data and len(data) >= MAX_LINE:
        return found, offset + len(data)  # too long for a record: damaged, skipped
    start = 0
    while len(found) < limit:
        end = data.find(b"\n", start)
        if end < 0:
            break
        one = parse(data[start:end], offset + start)
        if one is not None:
            found.append(one)
        start = end + 1
    return found, offset + start


def json_object(line: bytes, position: int = 0) -> Optional[Dict[str, Any]]:
    """Return a line's JSON object; None if it is damaged or has no kind ``k``."""
    if not line.startswith(b"{"):
        return None
    try:
        text = line.decode("utf-8")
        values, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    if end != len(text) and text[end:].strip(" \t\r"):
        return None
    return values if type(values.get("k")) is str else None


def read_all(path: str) -> List[LoggedRecord]:
    """Return the complete records of a file; see `read_lines`."""
    return read_all_lines(path, LoggedRecord.from_line)


def read_all_lines(
    path: str, parse: Callable[[bytes, int], Optional[One]], most_bytes: int = MOST_BYTES
) -> List[One]:
    """Return the contents of the complete lines in the first `most_bytes` of a file.

    See `read_lines`.

    Raises:
        UnusableFileError: a link, FIFO, folder or device is in its place.
        OSError: it cannot be read.
    """
    found: List[One] = []
    offset = 0
    while True:
        batch, next_offset = read_lines(path, parse, offset)
        found.extend(batch)
        if next_offset == offset or next_offset >= most_bytes:
            return found
        offset = next_offset


def stored_value(kind: str, value: Any) -> Any:
    """Return a metric's value as it is stored: a scalar, else ``{"kind", "value"}``."""
    return value if kind == "metric" else {"kind": kind, "value": value}


def combine(values: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return the result of ``get_metrics`` for stored values in the order they were logged.

    A name that was logged once becomes a scalar, otherwise a list; lists are joined; rows and
    tables become ``{column: values}``; an image is its file's name.

    Source: Azure ML SDK v1, ``Run.get_metrics``.
    """
    by_name: Dict[str, List[Any]] = {}
    for name, value in values:
        by_name.setdefault(name, []).append(value)
    return {name: _combined(logged) for name, logged in by_name.items()}


def _combined(logged: List[Any]) -> Any:
    kinds = [value["kind"] if _is_wrapped(value) else "metric" for value in logged]
    plain = [number_of(value["value"] if _is_wrapped(value) else value) for value in logged]
    if all(kind in ("row", "table") for kind in kinds):
        return _columns(plain)
    if "list" in kinds:
        joined: List[Any] = []
        for kind, value in zip(kinds, plain):
            joined.extend(value if kind == "list" else [value])
        return joined
    return plain[0] if len(plain) == 1 else plain


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and "kind" in value and "value" in value


def _columns(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    if len(rows) == 1:
        return dict(rows[0])
    columns: Dict[str, List[Any]] = {}
    for row in rows:
        for column in row:
            columns.setdefault(column, [])
    for row in rows:
        length = max((len(v) for v in row.values() if isinstance(v, list)), default=1)
        for column, values in columns.items():
            cell = row.get(column)
            values.extend(cell if isinstance(cell, list) else [cell] * length)
    return dict(columns)
