"""Inputs and outputs on a node, with local data."""

import json
import os
from pathlib import Path

import pytest

from rayjobs.datastore import (
    DataInput,
    Dataset,
    Datastore,
    Materialised,
    MemoryCatalogue,
    TabularDataset,
)
from rayjobs.datastore.errors import DataChanged, DataNotFound, DatasetNotFound, InvalidReference
from rayjobs.datastore.inputs import resolve_input
from rayjobs.datastore.materialise import materialise, release, start_node, trouble
from rayjobs.datastore.outputs import DataOutput, OutputFileDatasetConfig, prepare, store


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


@pytest.fixture
def images(catalogue: MemoryCatalogue, tmp_path: Path) -> Datastore:
    root = tmp_path / "store"
    for path in ("pets/cats/1.jpg", "pets/dogs/2.jpg", "table.csv"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / "table.csv").write_text("id\n1\n")
    return Datastore.register_folder(catalogue, "images", root)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "attempt" / "inputs"


def listing(path: str) -> list[str]:
    root = Path(path)
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_a_local_folder_is_linked(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets", "pets"), catalogue)
    done = materialise(source, None, node, into=into)
    assert (done.how, done.path) == ("linked", str(into / "pets"))
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    assert Path(done.path).resolve() == Path(images.container_name) / "pets"
    assert trouble(done) is None
    release(done)
    release(done)
    assert not (into / "pets").exists()
    assert (Path(images.container_name) / "pets" / "cats" / "1.jpg").exists()


def test_one_file_is_that_files_path(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    for number, source in enumerate(
        (images.path("table.csv"), Dataset.File.from_files((images, "table.csv")))
    ):
        done = materialise(
            resolve_input(source, catalogue, name=f"t{number}"), None, node, into=into
        )
        assert done.path == str(into / f"t{number}" / "table.csv")
        assert Path(done.path).read_text() == "id\n1\n"


def test_a_glob_shows_the_matching_files_only(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    dataset = Dataset.File.from_files((images, "pets/**/1.jpg"))
    done = materialise(
        resolve_input(dataset.as_named_input("some").as_mount(), catalogue), None, node, into=into
    )
    assert listing(done.path) == ["cats/1.jpg"]
    assert (done.how, done.bytes, done.files) == ("linked", 15, 1)


@pytest.mark.parametrize("mode", ["mount", "download"])
def test_a_version_shows_its_files_and_no_others(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, mode: str
) -> None:
    Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    (Path(images.container_name) / "pets" / "new.jpg").write_text("new")
    source = resolve_input("dataset:pets:1", catalogue, name="pets", mode=mode)
    assert source.version == "pets:1"
    done = materialise(source, None, node, into=into)
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    assert done.version == "pets:1"


def test_a_touched_file_is_the_same_and_a_changed_one_is_refused(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    source = resolve_input("dataset:pets", catalogue, name="pets")
    file = Path(images.container_name) / "pets" / "cats" / "1.jpg"
    os.utime(file, ns=(1, 1))
    materialise(source, None, node, into=into)
    file.write_text("gpj.1/stac/step")
    with pytest.raises(DataChanged, match=r"1\.jpg"):
        materialise(source, None, node, into=into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_written_below_a_download_stays_private(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, exact: bool
) -> None:
    dataset = Dataset.File.from_files((images, "pets"))
    what = dataset.as_named_input("pets").as_download() if exact else images.path("pets", "pets")
    source = resolve_input(what, catalogue, mode="download")
    done = materialise(source, None, node, into=into)
    Path(done.path, "extracted").write_text("mine")
    assert not (Path(images.container_name) / "pets" / "extracted").exists()
    release(done)
    assert not Path(done.path).exists()
    assert (Path(images.container_name) / "pets" / "cats" / "1.jpg").exists()


def test_an_attempt_that_begins_again_finds_its_place_free(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets", "pets"), catalogue)
    materialise(source, "mount", node, into=into)
    assert materialise(source, "mount", node, into=into).path == str(into / "pets")


def test_a_missing_path_is_said_at_once(images: Datastore, catalogue: MemoryCatalogue) -> None:
    with pytest.raises(DataNotFound, match="pest"):
        resolve_input("images/pest", catalogue)
    with pytest.raises(DatasetNotFound):
        resolve_input("dataset:pest", catalogue)


def test_a_folder_that_this_node_lacks_is_said(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets"), catalogue)
    Path(images.container_name).rename(Path(images.container_name).with_name("gone"))
    with pytest.raises(DataNotFound, match="every node"):
        materialise(source, None, node, into=into)


def test_an_input_travels_as_json(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    dataset = Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    for source in (
        resolve_input(dataset.as_named_input("pets").as_mount(), catalogue),
        resolve_input("data=images/pets:download", catalogue),
    ):
        again = DataInput.from_json(json.loads(json.dumps(source.to_json())))
        assert again == source
        done = materialise(again, None, node, into=into)
        assert Materialised.from_json(json.loads(json.dumps(done.to_json()))) == done


def test_names_and_variables(images: Datastore, catalogue: MemoryCatalogue) -> None:
    source = resolve_input("data=images/pets:download", catalogue)
    assert (source.name, source.mode) == ("data", "download")
    assert source.environment_variables == ("AZUREML_DATAREFERENCE_data",)
    named = Dataset.File.from_files((images, "pets")).as_named_input("pets").as_mount()
    assert resolve_input(named, catalogue).environment_variables == (
        "AZUREML_DATAREFERENCE_pets",
        "pets",
    )
    with pytest.raises(InvalidReference, match="upload"):
        resolve_input(images.path("pets").as_upload(), catalogue)


def test_path_on_compute(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, tmp_path: Path
) -> None:
    at = tmp_path / "data" / "here"
    source = resolve_input(images.path("pets", "p").as_download(str(at)), catalogue)
    done = materialise(source, None, node, into=into)
    assert done.path == str(at)
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    with pytest.raises(InvalidReference, match="something is there"):
        materialise(source, None, node, into=into)
    release(done)
    assert not at.exists()
    relative = resolve_input(images.path("table.csv", "t"), catalogue, path_on_compute="in/t")
    work = tmp_path / "work"
    done = materialise(relative, None, node, into=into, working_directory=work)
    assert done.path == str(work / "in" / "t" / "table.csv")
    assert Path(done.path).read_text() == "id\n1\n"


def test_direct_mode_makes_no_files(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    table = Dataset.Tabular.from_delimited_files((images, "table.csv"))
    registered = table.register(catalogue, "table")
    done = materialise(
        resolve_input(registered.as_named_input("t"), catalogue), None, node, into=into
    )
    assert (done.how, done.path) == ("direct", registered.id)
    assert not into.exists()
    source = resolve_input(registered.as_named_input("t"), catalogue)
    again = DataInput.from_json(json.loads(json.dumps(source.to_json()))).open()
    assert isinstance(again, TabularDataset)
    assert list(again) == [{"id": 1}]
    assert (again.name, again.version, again.id) == ("table", 1, registered.id)
    with pytest.raises(InvalidReference, match="not a dataset"):
        resolve_input(images.path("pets"), catalogue).open()


def test_a_fresh_node_has_no_mounts_to_take_away(node: Path) -> None:
    assert start_node(node) == []


def test_an_output_is_stored_below_its_path(images: Datastore, tmp_path: Path) -> None:
    reference = images.path("results/1", "out").as_upload()
    output = DataOutput.of_reference(reference, images.record)
    assert DataOutput.from_json(json.loads(json.dumps(output.to_json()))) == output
    folder = prepare(output, tmp_path / "outputs")
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("a")
    assert store(output, folder).moved == 1
    assert store(output, folder).moved == 0
    assert [file.path for file in images.files("results")] == ["results/1/sub/a.txt"]
    with pytest.raises(InvalidReference, match="as_upload"):
        DataOutput.of_reference(images.path("results"), images.record)
    with pytest.raises(InvalidReference, match="something is there"):
        prepare(output, tmp_path / "outputs")


def test_an_output_config(images: Datastore, tmp_path: Path) -> None:
    config = OutputFileDatasetConfig("model", (images, "runs/{run-id}/{output-name}"))
    assert (str(config), config.mode) == ("$AZUREML_DATAREFERENCE_model", "mount")
    uploaded = config.as_upload(overwrite=True, source_globs="**/*.pt")
    output = uploaded.output_for("run_7", images.record)
    assert (output.path, output.overwrite) == ("runs/run_7/model", True)
    folder = prepare(output, tmp_path / "outputs")
    (folder / "a.pt").write_text("a")
    (folder / "a.log").write_text("a")
    assert [file.path for file in store(output, folder).files] == ["runs/run_7/model/a.pt"]
    assert OutputFileDatasetConfig("o").path("r") == "dataset/r/o"
    assert config.register_on_complete("m", tags={"a": "b"}).register_as == (
        "m",
        None,
        (("a", "b"),),
    )
    with pytest.raises(InvalidReference, match="run-id"):
        OutputFileDatasetConfig("o", (images, "{run}/x"))
