"""Models of local files: copied into the workspace, with their uploader and origin."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from rayjobs import Dataset, Model
from rayjobs.core.errors import NotFoundError, UsageError
from tests.unit.models.conftest import Runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bert"
    (made / "vocab").mkdir(parents=True)
    (made / "weights.bin").write_bytes(b"weights")
    (made / "vocab" / "words.txt").write_text("a b")
    return made


def test_a_file_of_this_machine_becomes_a_model_with_its_origin(
    runs: Runs, folder: Path, tmp_path: Path
) -> None:
    model = Model.register(
        runs.workspace,
        model_path=str(folder / "weights.bin"),
        model_name="bert",
        tags={"area": "text"},
        properties={"p": 1},
        description="a copy",
        model_framework=Model.Framework.PYTORCH,
        model_framework_version="2.1",
    )
    assert (model.id, model.run_id, model.run) == ("bert:1", None, None)
    facts = model.lineage["uploaded"]
    assert (facts["by"], facts["from"]) == (getpass.getuser(), str(folder / "weights.bin"))
    user, path = getpass.getuser(), folder / "weights.bin"
    assert model.lineage_text.startswith(f"uploaded by {user} from {path} on ")
    (digest,) = model.lineage["files"].values()
    assert digest.startswith("sha256:")
    # The workspace has its own copy.
    (folder / "weights.bin").unlink()
    assert Path(model.download(tmp_path / "there")).read_bytes() == b"weights"


def test_same_files_are_one_version_and_different_ones_the_next(runs: Runs, folder: Path) -> None:
    first = Model.register(runs.workspace, folder, "bert", tags={"a": "1"})
    again = Model.register(runs.workspace, folder, "bert", tags={"b": "2"})
    assert (again.version, again.tags) == (first.version, {"a": "1", "b": "2"})
    (folder / "weights.bin").write_bytes(b"better")
    assert Model.register(runs.workspace, folder, "bert").version == 2


def test_children_of_a_folder_are_chosen(runs: Runs, folder: Path, tmp_path: Path) -> None:
    model = Model.register(runs.workspace, folder, "bert", child_paths=["vocab"])
    assert [one.name for one in model.record.files] == ["vocab/words.txt"]
    got = Path(model.download(tmp_path / "there"))
    assert (got.name, (got / "vocab" / "words.txt").read_text()) == ("bert", "a b")
    with pytest.raises(NotFoundError, match="which child_paths names"):
        Model.register(runs.workspace, folder, "bert", child_paths=["weights.pt"])
    with pytest.raises(UsageError, match="is a file"):
        Model.register(runs.workspace, folder / "weights.bin", "bert", child_paths=["x"])


def test_folder_that_cannot_be_stored_completely_is_refused(runs: Runs, folder: Path) -> None:
    (folder / "gone").symlink_to("nowhere")
    with pytest.raises(UsageError, match="1 item that cannot be stored"):
        Model.register(runs.workspace, folder, "bert")
    with pytest.raises(NotFoundError, match="no file or folder"):
        Model.register(runs.workspace, folder / "nothing", "bert")
    with pytest.raises(UsageError, match="has no files"):
        (folder.parent / "empty").mkdir()
        Model.register(runs.workspace, folder.parent / "empty", "bert")
    assert Model.list(runs.workspace) == []


def test_datasets_are_kept_in_the_lineage_and_found_by_their_id(runs: Runs, folder: Path) -> None:
    store = runs.workspace.get_default_datastore()
    store.upload(folder, "words", show_progress=False)
    words = Dataset.File.from_files((store, "words"))
    with pytest.raises(UsageError, match="is not registered"):
        Model.register(runs.workspace, folder, "bert", datasets=[("training", words)])
    words = words.register(runs.workspace, "words")
    model = Model.register(runs.workspace, folder, "bert", datasets=[("training", words)])
    assert model.datasets[0]["version"] == "words:1"
    other = Model.register(runs.workspace, folder / "weights.bin", "other")
    found = Model.list(runs.workspace, dataset_id=words.id)
    assert [one.id for one in found] == ["bert:1"]
    other.add_dataset_references([("test", words)])
    other.add_dataset_references([("test", words)])
    assert [one["name"] for one in Model(runs.workspace, "other").datasets] == ["test"]
    with pytest.raises(UsageError, match="not a pair"):
        other.add_dataset_references([words])


def test_model_has_a_readable_repr_and_finds_its_sample_datasets(runs: Runs, folder: Path) -> None:
    store = runs.workspace.get_default_datastore()
    store.upload(folder, "words", show_progress=False)
    words = Dataset.File.from_files((store, "words")).register(runs.workspace, "words")
    model = Model.register(
        runs.workspace, folder / "weights.bin", "one", sample_input_dataset=words
    )
    assert model.sample_input_dataset is not None
    assert model.sample_input_dataset.id == words.id
    assert model.sample_output_dataset is None
    assert (model.mime_type, model.unpack) == ("application/octet-stream", False)
    assert model.experiment_name is None
    assert Model.register(runs.workspace, folder, "all").mime_type == "inode/directory"


def test_frameworks_filter_and_a_model_survives_writing(runs: Runs, folder: Path) -> None:
    Model.register(runs.workspace, folder, "bert", model_framework="PyTorch")
    Model.register(runs.workspace, folder / "weights.bin", "bert", model_framework="Onnx")
    found = Model.list(runs.workspace, "bert", model_framework="PyTorch")
    assert [one.version for one in found] == [1]
    assert Model(runs.workspace, "bert", model_framework="PyTorch").version == 1
    again = Model.deserialize(runs.workspace, found[0].serialize())
    assert again.serialize() == found[0].serialize()
    again.update_tags_properties(add_tags={"a": 1, "b": 2}, add_properties={"p": 3})
    again.update_tags_properties(remove_tags=["a"])
    assert (again.tags, again.properties) == ({"b": "2"}, {"p": "3"})


def test_model_serving_is_refused_in_one_sentence(runs: Runs, folder: Path) -> None:
    model = Model.register(runs.workspace, folder, "bert")
    for name in ("deploy", "package", "profile", "print_configuration", "get_sas_urls"):
        with pytest.raises(UsageError, match=f"Model.{name} is not supported"):
            getattr(model, name)(runs.workspace)
    with pytest.raises(UsageError, match=r"only Model\.register can set"):
        model.update(resource_configuration=object())
