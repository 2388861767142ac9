"""Outputs: no bytes are lost silently, and jobs find their folders."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.datastore import Datastore, MemoryCatalogue
from rayjobs.datastore.errors import DataExists, InvalidReference
from rayjobs.datastore.outputs import DataOutput, hide, prepare, show, store


@pytest.fixture
def features(tmp_path: Path) -> DataOutput:
    made = Datastore.register_folder(
        MemoryCatalogue(), "st", tmp_path / "st", create_if_not_exists=True
    )
    return DataOutput("feat", made.record, "features")


def written(output: DataOutput, into: Path, **files: str) -> Path:
    folder = prepare(output, into)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_other_bytes_are_refused_before_anything_is_stored(
    features: DataOutput, tmp_path: Path
) -> None:
    assert store(features, written(features, tmp_path / "1", res="one", same="same")).moved == 2
    second = written(features, tmp_path / "2", res="two", same="same", new="new")
    with pytest.raises(DataExists, match=r"already has 1 file with other bytes: features/res\.txt"):
        store(features, second)
    stored = tmp_path / "st" / "features"
    assert sorted(path.name for path in stored.iterdir()) == ["res.txt", "same.txt"]
    assert (stored / "res.txt").read_text() == "one"
    assert (second / "res.txt").read_text() == "two"
    with pytest.raises(DataExists, match="overwrite=True"):  # also if the size differs
        store(features, written(features, tmp_path / "3", res="three, longer"))
    asked = replace(features, overwrite=True)
    assert store(asked, second).moved == 3
    assert (stored / "res.txt").read_text() == "two"
    assert len(store(features, second).kept) == 3  # a second store moves nothing


def test_concurrent_writer_is_detected(
    features: DataOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayjobs.datastore import outputs, transfer

    real = transfer.upload

    def late(*given: object, **more: object) -> object:
        (tmp_path / "st" / "features").mkdir()
        (tmp_path / "st" / "features" / "res.txt").write_text("one")
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(outputs, "upload", late)
    with pytest.raises(DataExists, match=r"res\.txt"):
        store(features, written(features, tmp_path / "2", res="two"))


def test_a_job_finds_its_folder_by_a_link_where_it_wants_it(
    features: DataOutput, tmp_path: Path
) -> None:
    place = tmp_path / "deep" / "out"
    output = replace(features, path_on_compute=str(place))
    folder = prepare(output, tmp_path / "1")
    shown = show(output, folder, working_directory=tmp_path)
    assert (shown, shown.resolve()) == (place, folder.resolve())
    other = prepare(output, tmp_path / "2")
    with pytest.raises(InvalidReference, match="in use"):
        show(output, other, working_directory=tmp_path)
    asked: list[Path] = []
    show(
        output,
        other,
        working_directory=tmp_path,
        may_replace=lambda path: not asked.append(path),  # type: ignore[func-returns-value]
    )
    assert asked == [folder]
    hide(place, folder)  # the end of the first one does not affect the second
    assert place.resolve() == other.resolve()
    shutil.rmtree(other)  # a job that no longer exists
    assert show(output, folder, working_directory=tmp_path).resolve() == folder.resolve()
    hide(place, folder)
    hide(place, folder)
    assert not place.is_symlink()
    assert folder.is_dir()


def test_relative_path_is_in_the_working_directory_and_replaces_empty_folders(
    features: DataOutput, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "made").mkdir(parents=True)
    output = replace(features, path_on_compute="made")
    folder = prepare(output, tmp_path / "1")
    assert show(output, folder, working_directory=work) == work / "made"
    assert (work / "made").is_symlink()


@pytest.mark.parametrize("kind", ["empty", "full", "file"])
def test_existing_user_files_are_refused_and_untouched(
    features: DataOutput, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "theirs"
    if kind == "file":
        place.write_text("mine")
    else:
        place.mkdir()
    if kind == "full":
        (place / "a").write_text("mine")
    output = replace(features, path_on_compute=str(place))
    folder = prepare(output, tmp_path / "1")
    with pytest.raises(InvalidReference, match="already exists"):
        show(output, folder, working_directory=tmp_path / "work", may_replace=lambda _folder: True)
    assert not place.is_symlink()
    assert place.read_text() == "mine" if kind == "file" else place.is_dir()
    assert (place / "a").exists() == (kind == "full")
