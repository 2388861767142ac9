"""An ONNX file and its external weights are one model, whose path is that of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import Model
from rayjobs.core.errors import StoreError, UsageError
from rayjobs.models import companions
from tests.unit.models.conftest import Runs


@pytest.fixture
def model(runs: Runs) -> Model:
    job = runs.begin()
    runs.write(job, net__onnx=b"graph", net__onnx__data=b"weights", other__txt=b"other")
    runs.publish(job)
    runs.end(job)
    return runs.workspace.get_run(job.id).register_model("net", "outputs/net.onnx")


def test_a_run_registers_the_weights_with_the_file(model: Model, tmp_path: Path) -> None:
    assert sorted(model.lineage["files"]) == ["net.onnx", "net.onnx.data"]
    assert model.mime_type != "inode/directory"
    path = Path(model.download(tmp_path / "there"))
    assert path == tmp_path / "there" / "net.onnx"
    assert (path.read_bytes(), path.with_name("net.onnx.data").read_bytes()) == (
        b"graph",
        b"weights",
    )
    assert sorted(one.name for one in path.parent.iterdir()) == ["net.onnx", "net.onnx.data"]


def test_neither_file_is_replaced_without_a_request(model: Model, tmp_path: Path) -> None:
    (tmp_path / "net.onnx.data").write_text("mine")
    with pytest.raises(UsageError, match=r"net\.onnx\.data exists"):
        model.download(tmp_path)
    assert Path(model.download(tmp_path, exist_ok=True)).read_bytes() == b"graph"
    assert (tmp_path / "net.onnx.data").read_bytes() == b"weights"


def test_damaged_file_prevents_both_files(model: Model, runs: Runs, tmp_path: Path) -> None:
    graph = next(one for one in model.record.files if one.name == "net.onnx")
    (path,) = runs.workspace.opened.path.rglob(Path(graph.blob).name)
    path.chmod(0o600)
    path.write_bytes(b"other")
    with pytest.raises(StoreError):
        model.download(tmp_path / "there")
    assert not list((tmp_path / "there").iterdir())


def test_a_script_finds_the_file_in_its_folder_of_models(
    model: Model, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fetched = Model.get_model_path("net", _workspace=runs.workspace)
    assert fetched == Model.get_model_path("net") == "azureml-models/net/1/net.onnx"


def test_local_file_includes_its_weights(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"graph")
    (tmp_path / "m.onnx.data").write_bytes(b"weights")
    made = Model.register(runs.workspace, tmp_path / "m.onnx", "m")
    assert sorted(made.lineage["files"]) == ["m.onnx", "m.onnx.data"]


def test_single_file_models() -> None:
    assert companions.main_of(["a.pt"]) == "a.pt"
    assert companions.main_of(["a.onnx.data", "a.onnx"]) == "a.onnx"
    assert companions.main_of(["a.pt", "a.pt.data"]) is None
    assert companions.main_of([]) is None
