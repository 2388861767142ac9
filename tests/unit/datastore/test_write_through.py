"""A folder that is kept equal to an output's destination while a script writes to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.datastore import transfer, write_through
from rayjobs.datastore.backends.local import LocalBackend
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import AccessDenied, DataNotFound
from rayjobs.datastore.outputs import DataOutput
from rayjobs.datastore.write_through import WriteThrough, folder_of


class Case:
    """An output in a local folder that is written through as if the folder were a bucket."""

    def __init__(self, top: Path) -> None:
        self.store, self.folder, self.top = top / "store", top / "folder", top
        self.store.mkdir()
        self.folder.mkdir()
        record = DatastoreRecord("st", "local", {"root": str(self.store)})
        self.output = DataOutput("out", record, "runs/one", mode="mount")

    @property
    def through(self) -> WriteThrough:
        return WriteThrough(self.output, self.folder, self.top / "record.json")

    def write(self, path: str, text: str, *, age_s: float = 60.0) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        when = file.stat().st_mtime - age_s
        os.utime(file, (when, when))

    def stored(self) -> dict[str, str]:
        top = self.store / "runs" / "one"
        return {
            file.relative_to(top).as_posix(): file.read_text()
            for file in top.rglob("*")
            if file.is_file()
        }


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_files_of_the_destination_exist_at_the_start(case: Case) -> None:
    there = case.store / "runs" / "one" / "deep"
    there.mkdir(parents=True)
    (there / "old.txt").write_text("old")
    (case.store / "runs" / "onetwo").mkdir()
    (case.store / "runs" / "onetwo" / "no.txt").write_text("another folder")
    assert case.through.fill() == 1
    assert (case.folder / "deep" / "old.txt").read_text() == "old"
    assert os.listdir(case.folder) == ["deep"]
    assert case.through.sync() == case.through.sync(final=True)  # no new files
    assert case.stored() == {"deep/old.txt": "old"}


def test_new_changed_and_removed_files_reach_the_destination(case: Case) -> None:
    case.through.fill()
    case.write("a.txt", "one")
    case.write("deep/b.txt", "two")
    assert case.through.sync().stored == ("a.txt", "deep/b.txt")
    case.write("a.txt", "longer", age_s=30)
    (case.folder / "deep" / "b.txt").rename(case.folder / "c.txt")
    done = case.through.sync()
    assert (done.stored, done.removed) == (("a.txt", "c.txt"), ("deep/b.txt",))
    assert case.stored() == {"a.txt": "longer", "c.txt": "two"}


def test_a_file_that_is_still_written_waits_for_its_turn_or_for_the_end(case: Case) -> None:
    case.through.fill()
    case.write("a.txt", "half", age_s=0)
    done = case.through.sync()
    assert (done.stored, done.waiting, case.stored()) == ((), ("a.txt",), {})
    assert case.through.sync(final=True).stored == ("a.txt",)
    assert case.stored() == {"a.txt": "half"}


def test_a_folder_that_is_gone_removes_nothing(case: Case) -> None:
    case.through.fill()
    case.write("a.txt", "one")
    case.through.sync()
    (case.folder / "a.txt").unlink()
    case.folder.rmdir()
    assert case.through.sync(final=True).removed == ()
    assert case.stored() == {"a.txt": "one"}


def test_a_file_that_cannot_be_seen_stays_in_the_destination(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.through.fill()
    case.write("a.txt", "one")
    case.write("deep/b.txt", "two")
    case.write("gone.txt", "three")
    case.through.sync()
    (case.folder / "gone.txt").unlink()
    # The folder of one file is a link to an unmounted path; the other file cannot be read.
    (case.folder / "deep").rename(case.top / "elsewhere")
    (case.folder / "deep").symlink_to(case.top / "not mounted")
    for name in ("stat", "lstat"):
        monkeypatch.setattr(Path, name, _failing(getattr(Path, name), "a.txt"))
    assert case.through.sync(final=True).removed == ("gone.txt",)
    monkeypatch.undo()
    assert case.stored() == {"a.txt": "one", "deep/b.txt": "two"}
    (case.folder / "deep").unlink()
    (case.folder / "a.txt").unlink()
    assert case.through.sync().removed == ("a.txt", "deep/b.txt")


def _failing(real: Callable[..., os.stat_result], name: str) -> Callable[..., os.stat_result]:
    def look(path: Path, **more: bool) -> os.stat_result:
        if path.name == name and path.parent.name == "folder":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, **more)

    return look


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_folder_that_is_moved_aside_during_a_sync_removes_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    case.through.fill()
    case.write("a.txt", "one")
    case.through.sync()
    listed = transfer.files_below

    def moving(folder: Path) -> list[Path]:
        found = listed(folder)
        case.folder.rename(case.top / "aside")
        if is_replaced:
            case.folder.mkdir()
        return found

    monkeypatch.setattr(write_through, "files_below", moving)
    assert case.through.sync().removed == ()
    assert case.stored() == {"a.txt": "one"}


def test_files_stay_once_nothing_may_be_removed(case: Case) -> None:
    case.through.fill()
    case.write("a.txt", "one")
    case.through.sync()
    (case.folder / "a.txt").unlink()
    assert case.through.sync(may_remove=lambda: False).removed == ()
    assert case.stored() == {"a.txt": "one"}


def test_one_unstorable_file_does_not_block_others(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.through.fill()
    put = LocalBackend.put

    def refusing(self: LocalBackend, source: Path, path: str, *more: object) -> object:
        if path.endswith("b.txt"):
            raise AccessDenied("no")
        return put(self, source, path)

    case.write("a.txt", "one")
    case.through.sync()
    case.write("b.txt", "two")
    monkeypatch.setattr(LocalBackend, "put", refusing)
    with pytest.raises(AccessDenied):
        case.through.sync()
    monkeypatch.undo()
    # Only what is missing is stored again.
    assert case.through.sync().stored == ("b.txt",)
    assert case.stored() == {"a.txt": "one", "b.txt": "two"}


def test_existing_folder_datastore_is_written_in_place(case: Case) -> None:
    folder = folder_of(case.output)
    assert folder == case.store / "runs" / "one" and folder.is_dir()
    folder.rmdir()
    folder.parent.rmdir()
    case.store.rmdir()
    # An unmounted file system must not be replaced by a folder of the same path.
    with pytest.raises(DataNotFound):
        folder_of(case.output)
    assert not case.store.exists()
