"""Files that a script may have replaced are opened without waiting, and no link is followed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.injob import record_files


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


MAKERS: dict[str, Callable[[Path], object]] = {
    "is a FIFO": os.mkfifo,
    "is a folder": os.mkdir,
    "is a link, which is not followed": lambda path: path.symlink_to("/dev/zero"),
    "is a socket": make_socket,
}


@pytest.mark.parametrize("why", MAKERS)
def test_path_that_is_not_a_file_is_refused_and_named(short_path: Path, why: str) -> None:
    (short_path / "log").mkdir()
    MAKERS[why](short_path / "log" / "a.log")
    with pytest.raises(record_files.UnusableFileError) as caught:
        record_files.open_file(str(short_path), "log/a.log")
    assert str(caught.value) == f"log/a.log {why}"
    assert record_files.problem_of(str(short_path), "log/a.log") == f"log/a.log {why}"


def test_no_part_of_the_path_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "log").mkdir(parents=True)
    (tmp_path / "real" / "log" / "a.log").write_bytes(b"text")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "log").symlink_to(tmp_path / "real" / "log")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert record_files.read_file(str(tmp_path / "real"), "log/a.log") == b"text"
    for root in ("other", "root"):
        with pytest.raises(record_files.UnusableFileError, match="is a link"):
            record_files.open_file(str(tmp_path / root), "log/a.log")


def test_missing_file_is_a_distinct_error(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        with pytest.raises(FileNotFoundError):
            record_files.open_file(str(tmp_path), name)
        assert record_files.problem_of(str(tmp_path), name) == f"{name} does not exist"


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    with pytest.raises(record_files.UnusableFileError, match="log is a file, not a folder"):
        record_files.open_file(str(tmp_path), "log/a.log")


def test_a_record_has_a_size_and_a_depth(tmp_path: Path) -> None:
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(64 << 30)
    with pytest.raises(record_files.UnusableFileError, match="more than"):
        record_files.read_json(str(tmp_path), "sparse.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        record_files.read_json(str(tmp_path), "deep.json")


def test_new_file_replaces_a_fifo_or_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("fifo", "link", "none"):
        with record_files.create_file(str(tmp_path / name)) as file:
            file.write(b"new")
        assert record_files.read_file(str(tmp_path), name) == b"new"
    assert (tmp_path / "target").read_text() == "kept"
