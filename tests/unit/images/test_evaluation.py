"""What a training shows of its model: tables, and pictures whatever the classes are called."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayjobs.images.component.imagemodels import evaluation
from rayjobs.images.component.imagemodels.decoding import Preprocessing
from rayjobs.images.component.imagemodels.directory import open_labeled
from rayjobs.images.component.imagemodels.evaluation import Evaluation, per_class, write
from rayjobs.images.component.imagemodels.loading import Loader, make_plan

HOW = Preprocessing(image_size=8)


def loader_of(root: Path, names: list[str]) -> Loader:
    for name in names:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (9, 9), "red").save(root / name / "0.png")
    images = open_labeled(str(root))
    return Loader(images, HOW, make_plan(images, HOW, cache="none", threads=1))


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [["고양이", "犬", r"$\frac$", "plain"], [f"a rather long name {n}" for n in range(31)]]
)
def test_pictures_are_drawn_whatever_the_names_of_the_classes(
    names: list[str], tmp_path: Path
) -> None:
    loader = loader_of(tmp_path / "images", names)
    count = len(names)
    confusion = np.eye(count, dtype=np.int64) * 12_345
    found = Evaluation(confusion, [(one, 0, 1.5) for one in range(min(5, count))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as a character missing in the font
        paths = write(found, loader.images, loader, str(tmp_path / "out"))
    loader.close()
    assert [Path(one).name for one in paths] == [
        "confusion_matrix.png",
        "per_class.png",
        "worst_images.png",
    ]
    for path in paths:
        with Image.open(path) as image:
            assert len(image.convert("L").getcolors() or []) > 9  # the page is not empty
    rows = json.loads((tmp_path / "out" / "per_class.json").read_text())
    assert [row["class"] for row in rows] == sorted(names)


def test_long_names_can_be_distinguished() -> None:
    names = [f"a rather long name {n} of a class of things" for n in range(12)]
    short = evaluation._short([*names, "brief", "one whose ends differ: first"], 20)
    assert len(set(short)) == 14
    assert max(map(len, short)) == 20
    assert short[12:] == ["brief", "one whose …er: first"]


def test_the_table_counts_each_class() -> None:
    rows = per_class(np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]]), ["a", "b", "empty"])
    assert [row["images"] for row in rows] == [4, 4, 0]
    assert [row["precision"] for row in rows] == [1.0, 0.8, 0.0]
    assert [row["recall"] for row in rows] == [0.75, 1.0, 0.0]
    assert rows[1]["f1"] == pytest.approx(8 / 9)
