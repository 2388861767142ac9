"""A rank's output is read byte for byte: live, in parts, and without its omitted middle."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from rayjobs.injob.log_cap import LogCap
from rayjobs.results import driver_log

ODD = b"caf\xe9 \xff\xfe\x00 \x1b[31mred\x1b[0m \r 50%\r100%\nlast without newline"


def note_hole(path: Path, start: int, length: int) -> None:
    note = {"version": 1, "holes": [{"offset": start, "length": length}]}
    path.with_name(path.stem + ".holes.json").write_text(json.dumps(note))


def test_log_bytes_match_the_output(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    path.write_bytes(ODD)
    assert driver_log.read(path) == ODD
    with pytest.raises(FileNotFoundError):
        driver_log.read(tmp_path / "none.log")


def test_long_line_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    path.write_bytes(b"x" * (3 * driver_log.CHUNK_BYTES + 1))
    parts = list(driver_log.chunks(path))
    assert [len(part) for part in parts] == [driver_log.CHUNK_BYTES] * 3 + [1]


def test_a_hole_is_reported_and_never_shown_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    path.write_bytes(b"start" + b"\0" * 1000 + b"end")
    note_hole(path, 5, 1000)
    assert driver_log.read(path) == b"start" + driver_log.marker(1000) + b"end"
    assert b"1000 bytes were left out" in driver_log.read(path)
    assert driver_log.read_tail(path, 100) == b"end"
    assert driver_log.read_tail(path, 2) == b"nd"
    with driver_log.compact(path) as whole:
        assert whole != path
        assert whole.read_bytes() == driver_log.read(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["driver_0.holes.json", path.name]


def test_the_host_and_the_reader_agree_about_holes(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    lines = b"".join(b"line %06d\n" % number for number in range(20_000))
    path.write_bytes(lines)
    cap = LogCap(str(path), 40_000)
    cap.enforce(at_end=True)
    if not cap.dropped:
        pytest.skip("this file system cannot punch holes")
    text = driver_log.read(path)
    start, missing, end = text.partition(driver_log.marker(cap.dropped))
    assert missing
    assert lines.startswith(start)
    assert lines.endswith(end)
    assert len(start) + cap.dropped + len(end) == len(lines)


def test_damaged_notes_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    path.write_bytes(b"text")
    for note in (
        "",
        "{",
        "[]",
        '{"holes": [{"offset": 1}]}',
        '{"holes": [{"offset": 2, "length": 0}]}',
    ):
        (tmp_path / "driver_0.holes.json").write_text(note)
        assert driver_log.read(path) == b"text"


def test_following_yields_everything_until_stopped(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    wrote = threading.Event()
    read_some = threading.Event()

    def write() -> None:
        path.write_bytes(b"one\n")
        assert read_some.wait(150)
        with path.open("ab") as file:
            file.write(b"tw")
            file.flush()
            file.write(b"o")
        wrote.set()

    writer = threading.Thread(target=write)
    following = driver_log.follow(path, wrote.is_set, poll_s=0.01)
    assert next(following) == (b"", 0)  # there is no file yet
    writer.start()
    seen = b""
    for part, end in following:
        seen += part
        assert end == len(seen)
        if seen == b"one\n":
            read_some.set()
    writer.join()
    assert seen == b"one\ntwo"


def test_following_survives_the_removal_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    path.write_bytes(b"all")
    over = threading.Event()
    following = driver_log.follow(path, over.is_set, poll_s=0.01)
    assert next(following) == (b"all", 3)
    path.unlink()
    over.set()
    assert list(following) == []


@pytest.mark.parametrize(
    ("text", "count", "last"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"", 3, b""),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a\nb\n", 0, b""),
    ],
)
def test_the_last_lines(text: bytes, count: int, last: bytes) -> None:
    assert driver_log.last_lines(text, count) == last
    assert driver_log.last_lines(iter([text[i : i + 1] for i in range(len(text))]), count) == last
