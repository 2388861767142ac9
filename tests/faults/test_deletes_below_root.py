"""Pruning removes only files below rayjobs folders, despite links, mounts and swaps."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.core import safe_delete
from rayjobs.core.safe_delete import OwnFolder, Removed, UnsafeDeletionError

CONTENT = {"thesis.txt": b"four years", "deep/er/model.pt": b"weights"}


def fill(folder: Path) -> Path:
    """Write files that must not be removed."""
    for name, data in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def is_untouched(folder: Path) -> bool:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    } == CONTENT


@pytest.fixture
def important(tmp_path: Path) -> Path:
    """A folder outside the rayjobs folders."""
    return fill(tmp_path / "important")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A rayjobs folder that holds one run."""
    fill(tmp_path / "ours" / "run" / "5")
    return tmp_path / "ours"


def remove(root: Path, relative: str) -> Removed:
    with OwnFolder(root) as folder:
        return folder.remove(relative)


# -- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["run/5/ckpt", "run/5/deep/ckpt"])
def test_link_in_a_run_is_removed_but_not_its_target(
    place: str, root: Path, important: Path
) -> None:
    (root / place).symlink_to(important)
    removed = remove(root, "run/5")
    assert list((root / "run").iterdir()) == []
    assert is_untouched(important)
    assert (removed.files, removed.kept) == (len(CONTENT) + 1, [])


def test_a_run_that_is_itself_a_link_is_unlinked(root: Path, important: Path) -> None:
    (root / "run" / "6").symlink_to(important)
    remove(root, "run/6")
    assert not (root / "run" / "6").is_symlink()
    assert is_untouched(important)


def test_nothing_is_removed_through_a_link(root: Path, important: Path) -> None:
    (root / "elsewhere").symlink_to(important)
    removed = remove(root, "elsewhere/deep")
    assert is_untouched(important)
    assert "is a link" in removed.kept[0]


def test_a_root_that_is_a_link_is_refused(tmp_path: Path, important: Path) -> None:
    (tmp_path / "blobs").symlink_to(important)
    with pytest.raises(UnsafeDeletionError, match="is a link"):
        OwnFolder(tmp_path / "blobs")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "run/../..", "/etc/passwd", "run//5", "run/5/", "run/\0"]
)
def test_names_that_lead_outside_are_refused(name: str, root: Path) -> None:
    assert remove(root, name).kept != []
    assert is_untouched(root / "run" / "5")


def test_a_file_with_another_name_elsewhere_keeps_its_bytes(root: Path, important: Path) -> None:
    os.link(important / "thesis.txt", root / "run" / "5" / "linked.txt")
    removed = remove(root, "run/5")
    assert is_untouched(important)
    assert removed.bytes == sum(map(len, CONTENT.values()))  # the linked file frees nothing


# -- races ---------------------------------------------------------------------------------------


def at_each_call(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[str], None]) -> None:
    """Run `act` with the call's first argument right before each `os.<name>`."""
    real = getattr(os, name)
    acting: list[bool] = []

    def called(first: object, *arguments: object, **more: object) -> object:
        if not acting:  # what `act` does calls the same functions
            acting.append(True)
            try:
                act(str(first))
            finally:
                acting.pop()
        return real(first, *arguments, **more)

    monkeypatch.setattr(os, name, called)


@pytest.mark.parametrize("call", ["open", "stat", "unlink", "rename", "rmdir", "listdir"])
def test_folder_swapped_for_a_link_at_any_step_is_not_followed(
    call: str, root: Path, important: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before each step, the folder in the run becomes a link to the important folder."""
    victim = root / "run" / "5" / "deep"
    swaps: list[Path] = []

    def swap(_first: str) -> None:
        for folder in root.rglob("deep"):
            if folder.is_dir() and not folder.is_symlink():
                shutil.move(folder, tmp_path / f"moved-{len(swaps)}")
                folder.symlink_to(important)
                swaps.append(folder)

    with OwnFolder(root) as folder:
        at_each_call(monkeypatch, call, swap)
        folder.remove("run/5")
        monkeypatch.undo()
    assert swaps or call == "rmdir"
    assert is_untouched(important)
    assert not victim.exists()


def test_run_swapped_between_check_and_deletion_is_not_followed(
    root: Path, important: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    swapped: list[str] = []

    def swap(first: str) -> None:
        if first == "5" and not swapped:
            swapped.append(first)
            (root / "run" / "5").rename(tmp_path / "moved")
            (root / "run" / "5").symlink_to(important)

    with OwnFolder(root) as folder:
        at_each_call(monkeypatch, "rename", swap)
        folder.remove("run/5")
        monkeypatch.undo()
    assert swapped == ["5"]
    assert is_untouched(important)
    assert is_untouched(tmp_path / "moved")


def test_deletion_is_safe_against_a_concurrent_swapper(tmp_path: Path, important: Path) -> None:
    root, stop = tmp_path / "ours", threading.Event()
    root.mkdir()

    def swap() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                (root / "victim").rename(tmp_path / f"away-{number}")
                (root / "victim").symlink_to(important)
            except OSError:
                continue

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        with OwnFolder(root) as folder:
            for number in range(100):
                made = fill(tmp_path / f"made-{number}")
                try:
                    made.rename(root / "victim")
                except OSError:
                    pass  # the swapper's link is there
                folder.remove("victim")
    finally:
        stop.set()
        swapper.join()
    assert is_untouched(important)


def test_folder_used_during_its_removal_is_restored(root: Path) -> None:
    blob = root / "run" / "5" / "thesis.txt"
    with OwnFolder(root) as folder:
        removed = folder.remove("run/5/thesis.txt", only_if=lambda info: info.st_mtime < 0)
    assert blob.read_bytes() == CONTENT["thesis.txt"]
    assert (removed.files, removed.spared, removed.kept) == (0, 1, [])
    assert sorted(path.name for path in blob.parent.iterdir()) == ["deep", "thesis.txt"]


def test_next_removal_finishes_a_killed_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(_first: str) -> None:
        raise Killed

    with OwnFolder(root) as folder:
        at_each_call(monkeypatch, "unlink", die)
        with pytest.raises(Killed):
            folder.remove("run/5")
        monkeypatch.undo()
        [(left, _)] = folder.entries("run")
        assert safe_delete.original_name(left) == "5"
        folder.remove(f"run/{left}")
        assert folder.entries("run") == []


# -- mounts --------------------------------------------------------------------------------------


def test_a_run_with_a_mount_in_it_is_left_alone(
    root: Path, important: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = str(root / "run" / "5" / "deep")
    monkeypatch.setattr(safe_delete, "_mount_points", lambda: iter(["/", point]))
    removed = remove(root, "run/5")
    assert is_untouched(root / "run" / "5")
    assert f"something is mounted at {point}" in removed.kept[0]


def test_mount_appearing_during_removal_is_not_entered(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = safe_delete._mount_of

    def mount_of(handle: int) -> str:
        inside = os.readlink(f"/proc/self/fd/{handle}").endswith("/deep")
        return "another" if inside else real(handle)

    monkeypatch.setattr(safe_delete, "_mount_of", mount_of)
    removed = remove(root, "run/5")
    assert "something is mounted" in removed.kept[0]
    [left] = (root / "run").iterdir()
    assert (left / "deep" / "er" / "model.pt").read_bytes() == CONTENT["deep/er/model.pt"]


# -- trees as jobs leave them --------------------------------------------------------------------


def test_folders_without_rights_and_of_any_depth_are_removed(root: Path) -> None:
    here = os.open(root / "run" / "5", os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 40, dir_fd=here)
        below = os.open("d" * 40, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.fchmod(here, 0)
    os.close(here)
    (root / "run" / "5" / "deep").chmod(0o500)
    removed = remove(root, "run/5")
    assert (removed.kept, list((root / "run").iterdir())) == ([], [])
    assert removed.folders == 303


def test_measurement_matches_the_removal(root: Path) -> None:
    with OwnFolder(root) as folder:
        measured = folder.measure("run/5")
        assert is_untouched(root / "run" / "5")
        removed = folder.remove("run/5")
    assert measured == removed
    assert (removed.files, removed.folders) == (2, 3)


def test_missing_folder_is_not_an_error(root: Path) -> None:
    assert remove(root, "run/7") == Removed()
    assert remove(root, "no/such/folder") == Removed()
