"""Image directories: classes, hidden files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.images.component.imagemodels.directory import (
    check_same_classes,
    open_any,
    open_labeled,
)
from rayjobs.images.component.imagemodels.errors import InvalidDatasetError, NotLabeledDatasetError
from tests.unit.images.conftest import save_images


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def test_each_folder_is_a_class_in_order_of_the_names(data: Path) -> None:
    found = open_labeled(str(data / "train"))
    assert found.classes == ("blue", "green", "red")
    assert len(found) == 36
    assert found.labels == tuple([0] * 12 + [1] * 12 + [2] * 12)


def test_hidden_and_other_files_are_ignored(tmp_path: Path) -> None:
    names = ("cat/a.png", "cat/.b.png", ".cache/c.png", "__MACOSX/d.png", "cat/notes.txt", "x.png")
    found = open_labeled(str(touch(tmp_path, *names)))
    assert (found.classes, found.files) == (("cat",), ("cat/a.png",))


def test_a_folder_without_classes_is_not_labeled(tmp_path: Path) -> None:
    with pytest.raises(NotLabeledDatasetError, match="no folder per class"):
        open_labeled(str(touch(tmp_path, "a.png")))
    assert open_any(str(tmp_path)).classes == ()


def test_a_class_without_an_image_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.png", "dog/notes.txt")
    with pytest.raises(InvalidDatasetError, match=r"class 'dog' of .* has no image"):
        open_labeled(str(tmp_path))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match="is not a folder"):
        open_labeled(str(tmp_path / "none"))


def test_training_and_validation_have_the_same_categories(tmp_path: Path) -> None:
    first = open_labeled(str(touch(tmp_path / "a", "cat/1.png", "dog/1.png")))
    second = open_labeled(str(touch(tmp_path / "b", "cat/1.png", "emu/1.png")))
    check_same_classes(first, first)
    with pytest.raises(InvalidDatasetError, match=r"'dog'.*'emu'"):
        check_same_classes(first, second)


@pytest.mark.long
def test_ten_thousand_classes(tmp_path: Path) -> None:
    touch(tmp_path, *(f"c{number:05}/1.png" for number in range(10_000)))
    found = open_labeled(str(tmp_path))
    assert len(found.classes) == len(found) == 10_000
    assert found.labels[-1] == 9_999


def test_names_in_any_script(tmp_path: Path) -> None:
    save_images(tmp_path / "t", 1)
    (tmp_path / "t" / "blue").rename(tmp_path / "t" / "Größe 猫")
    (tmp_path / "t" / "green" / "0.png").rename(tmp_path / "t" / "green" / "éa\n🙂.png")
    found = open_labeled(str(tmp_path / "t"))
    assert "Größe 猫" in found.classes
    assert all(found.read(number) for number in range(3))
