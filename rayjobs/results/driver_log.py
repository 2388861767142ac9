"""Reads a rank's output byte for byte, even while it grows and after its middle was removed.

A log that grew beyond its cap has a hole (``driver_<rank>.holes.json`` next to it says where):
readers get one line there that says how much is missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rayjobs.injob import record_files

CHUNK_BYTES = 256 * 1024
POLL_S = 0.05
MOST_NOTE_BYTES = 1 << 20


def holes(path: Path) -> list[tuple[int, int]]:
    """Return the (start, end) of a log's removed parts, in order."""
    note = path.with_name(path.name.removesuffix(".log") + ".holes.json")
    try:
        listed = record_files.read_json(*_below(note), MOST_NOTE_BYTES)["holes"]
        found = [(int(one["offset"]), int(one["offset"]) + int(one["length"])) for one in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return sorted(hole for hole in found if hole[1] > hole[0])


def _below(path: Path) -> tuple[str, str]:
    """Split a log's path into a trusted folder and the rest, which must not contain links."""
    return str(path.parent.parent), f"{path.parent.name}/{path.name}"


def open_log(path: Path) -> BinaryIO:
    """Open a log, which the script may have replaced.

    Raises:
        FileNotFoundError: there is none.
        UnusableFileError: the log, its folder or the folder's parent is a link, or the log is not
            a file.
        OSError: it cannot be read.
    """
    return record_files.open_file(*_below(path))


def problem_of(path: Path) -> str:
    """Return why a log cannot be read, without a full stop; "" when it can."""
    return record_files.problem_of(*_below(path))


def first_gap(path: Path) -> int | None:
    """Return the position of a hole without a note in a log; None if there is none.

    Ranks only append, which makes no holes. Such a file was made by hand, and may appear to have
    terabytes.
    """
    if holes(path):
        return None
    with open_log(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if not size:
            return None
        try:
            gap = os.lseek(descriptor, 0, os.SEEK_HOLE)
        except OSError:
            return None  # this file system does not report it
    return gap if gap < size else None


def marker(missing_bytes: int) -> bytes:
    """Return the line that replaces missing bytes."""
    return (
        f"\n[rayjobs: {missing_bytes} bytes were left out here: the log reached its size limit]\n"
    ).encode()


def read(path: Path) -> bytes:
    """Return a whole log. Raises like `open_log`."""
    return b"".join(chunks(path))


def chunks(path: Path, end: int | None = None) -> Iterator[bytes]:
    """Yield a log in parts, up to byte `end` or completely. Raises like `open_log`."""
    with open_log(path) as file:
        position = 0
        while end is None or position < end:
            before = position
            data, position = _next(file, path, position)
            if not data:
                return
            yield data if end is None else data[: max(0, end - before)]


def read_from(path: Path, position: int) -> tuple[bytes, int]:
    """Return bytes of a log from a position on (none at its end), and the position after them.

    Raises as `open_log` does.
    """
    with open_log(path) as file:
        return _next(file, path, position)


def _next(file: BinaryIO, path: Path, position: int) -> tuple[bytes, int]:
    """Return the bytes at a position (none at the end) and the position after them."""
    file.seek(position)
    data = file.read(CHUNK_BYTES)
    if not data:
        return b"", position
    # Checked after the read: a hole is noted before it is made, so zeros are never mistaken for
    # output.
    for start, end in holes(path):
        if start <= position < end:
            return marker(end - start), end
        if position < start < position + len(data):
            return data[: start - position], start
    return data, position + len(data)


def follow(
    path: Path, stop: Callable[[], bool], *, poll_s: float = POLL_S
) -> Iterator[tuple[bytes, int]]:
    """Yield a log's content and then its additions, until `stop` reports the end.

    Output written before `stop` first returned true is still yielded. Each poll without news yields
    an empty part, so that the caller keeps control of the loop. The file may not exist yet; once
    open, it may be removed.

    Yields:
        Bytes, and the position in the file after them.
    """
    file: BinaryIO | None = None
    position = 0
    try:
        while True:
            is_last = stop()
            if file is None:
                try:
                    file = open_log(path)
                except OSError:
                    file = None
            data = b""
            if file is not None:
                data, position = _next(file, path, position)
            if data:
                yield data, position
            elif is_last:
                return
            else:
                yield b"", position
                time.sleep(poll_s)
    finally:
        if file is not None:
            file.close()


def read_tail(path: Path, most_bytes: int) -> bytes:
    """Return the last bytes of a log, none from before a hole; empty when there is no log."""
    try:
        with open_log(path) as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - most_bytes)
            file.seek(start)
            data = file.read(most_bytes)
    except OSError:
        return b""
    for hole_start, hole_end in holes(path):
        if hole_start < start + len(data) and hole_end > start:
            data = data[max(0, hole_end - start) :]
            start = hole_end
    return data


def last_lines(data: Iterator[bytes] | bytes, count: int) -> bytes:
    """Return the last `count` lines of a log; a last line without its newline counts."""
    if count <= 0:
        return b""
    if isinstance(data, bytes):
        data = iter((data,))
    kept: list[bytes] = []
    newlines = 0
    for part in data:
        kept.append(part)
        newlines += part.count(b"\n")
        # Parts that no longer hold any of the last lines are dropped: memory stays small.
        while len(kept) > 1 and newlines - kept[0].count(b"\n") > count:
            newlines -= kept[0].count(b"\n")
            kept.pop(0)
    whole = b"".join(kept)
    body = whole[:-1] if whole.endswith(b"\n") else whole
    start = len(body)
    for _ in range(count):
        start = body.rfind(b"\n", 0, start)
        if start < 0:
            return whole
    return whole[start + 1 :]


@contextmanager
def compact(path: Path) -> Iterator[Path]:
    """Yield a file with the log in its stored form: without the zeros of holes.

    The file ends where the log ended at this call, or at a hole without a note.
    """
    gap = first_gap(path)
    if gap is None and not holes(path):
        yield path
        return
    end = path.lstat().st_size if gap is None else gap
    temporary = path.with_name(f".{path.name}.{os.getpid()}.compact")
    try:
        with record_files.create_file(str(temporary)) as file:
            for part in chunks(path, end):
                file.write(part)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
