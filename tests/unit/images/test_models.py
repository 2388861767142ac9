"""Model directories, scores and ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
import torchvision

from rayjobs.images.component.imagemodels import networks, onnx
from rayjobs.images.component.imagemodels.decoding import Preprocessing
from rayjobs.images.component.imagemodels.directory import open_any
from rayjobs.images.component.imagemodels.errors import ImageModelError, InvalidModelDirectoryError
from rayjobs.images.component.imagemodels.scoring import score

pytestmark = pytest.mark.long

CLASSES = ("blue", "green", "red")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    module = networks.build("resnet18", 3)
    networks.save_trained(
        str(folder),
        module.state_dict(),
        network="resnet18",
        classes=CLASSES,
        preprocessing=Preprocessing(image_size=32),
        facts={"epoch": 1},
    )
    return folder


def test_a_trained_model_has_classes_preprocessing_and_signature(folder: Path) -> None:
    model = networks.read_trained(str(folder))
    assert (model.network, model.classes) == ("resnet18", CLASSES)
    assert model.preprocessing.image_size == 32
    assert model.signature["inputs"][0]["shape"] == ["batch", 3, 32, 32]
    assert model.signature["outputs"][0]["shape"] == ["batch", 3]


def test_weights_may_be_the_only_file_of_a_folder(folder: Path, tmp_path: Path) -> None:
    given = tmp_path / "inputs" / "weights"
    given.mkdir(parents=True)
    with pytest.raises(InvalidModelDirectoryError, match="folder with 0 entries"):
        networks.build("resnet18", 3, str(given))
    (given / "own.pt").write_bytes((folder / networks.WEIGHTS).read_bytes())
    (given / ".hidden").write_text("x")
    kept = torch.load(given / "own.pt", weights_only=True)["conv1.weight"]
    networks.save_untrained(str(tmp_path / "u"), "resnet18", str(given))
    for weights in (str(given), networks.read_untrained(str(tmp_path / "u"))[1]):
        assert torch.equal(
            networks.build("resnet18", 3, weights).state_dict()["conv1.weight"], kept
        )
    (given / "other.pt").write_bytes(b"x")
    with pytest.raises(InvalidModelDirectoryError, match="folder with 2 entries"):
        networks.build("resnet18", 3, str(given))


def test_an_untrained_model_names_network_and_weights(folder: Path, tmp_path: Path) -> None:
    networks.save_untrained(str(tmp_path / "a"), "densenet121")
    assert networks.read_untrained(str(tmp_path / "a")) == ("densenet121", None)
    weights = folder / networks.WEIGHTS
    networks.save_untrained(str(tmp_path / "b"), "resnet18", str(weights))
    network, path = networks.read_untrained(str(tmp_path / "b"))
    module = networks.build(network, 5, path)  # the last layer of the file is for 3 classes
    kept = torch.load(weights, weights_only=True)["conv1.weight"]
    assert torch.equal(module.state_dict()["conv1.weight"], kept)


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_torchvision_has_every_network(network: str) -> None:
    assert callable(getattr(torchvision.models, network))


@pytest.mark.parametrize("network", ["densenet121", "resnext50_32x4d", "wide_resnet50_2"])
def test_a_network_has_an_output_for_each_class(network: str) -> None:
    with torch.device("meta"):  # shapes without data
        module = networks.build(network, 7)
        assert module.eval()(torch.empty(1, 3, 64, 64)).shape == (1, 7)


def test_file_that_is_not_a_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelDirectoryError, match=r"has no untrained_model\.json"):
        networks.read_untrained(str(folder))
    with pytest.raises(InvalidModelDirectoryError, match=r"has no model\.json"):
        networks.read_trained(str(tmp_path))
    with pytest.raises(InvalidModelDirectoryError, match="is not a network"):
        networks.build("vgg16", 3)
    with pytest.raises(InvalidModelDirectoryError, match="not those of resnet34"):
        networks.build("resnet34", 3, str(folder / networks.WEIGHTS))
    (tmp_path / "w.pt").write_bytes(b"no weights")
    with pytest.raises(InvalidModelDirectoryError, match="does not hold weights alone"):
        networks.build("resnet18", 3, str(tmp_path / "w.pt"))


def test_scores_are_a_row_for_each_image(folder: Path, data: Path, tmp_path: Path) -> None:
    model = networks.read_trained(str(folder))
    images = open_any(str(data / "val"))
    target = tmp_path / "scores.parquet"
    assert score(model, images, str(target), batch_size=4, threads=2) == 15
    table: Any = pq.read_table(target).to_pydict()
    assert table["image"] == list(images.files)
    assert table["label"][0] == "blue"
    for row in range(15):
        shares = {name: table[f"Scored Probabilities_{name}"][row] for name in CLASSES}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert table["Scored Labels"][row] == max(shares, key=lambda name: shares[name])
    other = tmp_path / "scores.csv"
    score(model, images, str(other), batch_size=15, threads=1)
    assert pacsv.read_csv(other)["Scored Labels"].to_pylist() == table["Scored Labels"]


def test_a_table_of_another_kind_is_refused(folder: Path, data: Path, tmp_path: Path) -> None:
    model = networks.read_trained(str(folder))
    with pytest.raises(ImageModelError, match=r"write a \.parquet or a \.csv"):
        score(model, open_any(str(data / "val")), str(tmp_path / "a.xlsx"))


def test_onnx_matches_pytorch(folder: Path, tmp_path: Path) -> None:
    path, difference = onnx.export(networks.read_trained(str(folder)), str(tmp_path))
    assert Path(path).is_file()
    assert difference <= 1e-4
