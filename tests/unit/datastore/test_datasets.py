"""File datasets: what is in them, parts of them, versions."""

from pathlib import Path

import pytest

from rayjobs.datastore import (
    Dataset,
    DatasetConsumptionConfig,
    Datastore,
    FileDataset,
    MemoryCatalogue,
)
from rayjobs.datastore.errors import (
    DataChanged,
    DataNotFound,
    DatasetExists,
    DatasetNotFound,
    InvalidReference,
)
from rayjobs.datastore.kept import KeptOtherFile
from rayjobs.datastore.refs import DataPath


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


@pytest.fixture
def store(catalogue: MemoryCatalogue, tmp_path: Path) -> Datastore:
    root = tmp_path / "store"
    for number in range(10):
        folder = root / "pets" / ("cats" if number % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_text(f"pet {number}")
    return Datastore.register_folder(catalogue, "images", root)


@pytest.fixture
def pets(store: Datastore) -> FileDataset:
    return Dataset.File.from_files((store, "pets"))


def test_paths_are_relative_with_a_slash(pets: FileDataset, store: Datastore) -> None:
    assert pets.to_path()[:2] == ["/cats/1.jpg", "/cats/3.jpg"]
    assert len(pets.to_path()) == 10
    glob = Dataset.File.from_files(path=DataPath(store, "pets/*/1.jpg"))
    assert glob.to_path() == ["/cats/1.jpg"]
    one = Dataset.File.from_files((store, "pets/cats/1.jpg"), is_file=True)
    assert one.to_path() == ["/1.jpg"]


def test_all_ways_to_name_files(store: Datastore, pets: FileDataset, tmp_path: Path) -> None:
    ways = [
        store.path("pets"),
        DataPath(store, "pets"),
        (store, "pets/**"),
        [(store, "pets")],
        tmp_path / "store" / "pets",
        str(tmp_path / "store" / "pets" / "**" / "*.jpg"),
    ]
    for way in ways:
        assert Dataset.File.from_files(way).to_path() == pets.to_path(), way


def test_list_keeps_distinguishing_path_parts(store: Datastore) -> None:
    both = Dataset.File.from_files([(store, "pets/cats/1.jpg"), (store, "pets/dogs/0.jpg")])
    assert both.to_path() == ["/cats/1.jpg", "/dogs/0.jpg"]


def test_missing_files_are_reported_immediately_unless_validation_is_off(store: Datastore) -> None:
    with pytest.raises(DataNotFound):
        Dataset.File.from_files((store, "pest"))
    late = Dataset.File.from_files((store, "pest"), validate=False)
    with pytest.raises(DataNotFound):
        late.to_path()


def test_a_datastore_given_by_name_only_is_explained() -> None:
    with pytest.raises(InvalidReference, match=r"Datastore\.get"):
        Dataset.File.from_files(("images", "pets"))


def test_unsupported_arguments_are_refused(store: Datastore) -> None:
    with pytest.raises(InvalidReference, match="partition_format"):
        Dataset.File.from_files((store, "pets"), partition_format="/{label}/x.jpg")
    with pytest.raises(InvalidReference, match="is_file"):
        Dataset.File.from_files((store, "pets"), is_file=True)


def test_download_keeps_the_structure(pets: FileDataset, tmp_path: Path) -> None:
    paths = pets.download(tmp_path / "d", show_progress=False)
    assert paths[0] == str(tmp_path / "d" / "cats" / "1.jpg")
    assert Path(paths[0]).read_text() == "pet 1"
    Path(paths[0]).write_text("mine")
    with pytest.warns(KeptOtherFile, match="1 of them differs"):
        pets.download(tmp_path / "d", show_progress=False)
    assert Path(paths[0]).read_text() == "mine"
    pets.download(tmp_path / "d", overwrite=True, show_progress=False)
    assert Path(paths[0]).read_text() == "pet 1"


@pytest.mark.long
def test_a_dataset_is_mounted_during_a_with_block(
    pets: FileDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATASTORE_CACHE", str(tmp_path / "cache"))
    with pets.mount() as where:
        assert (Path(where) / "cats" / "1.jpg").read_text() == "pet 1"
    assert not Path(where).exists()
    mount = pets.mount(tmp_path / "here")
    mount.start()
    assert mount.mount_point == str(tmp_path / "here")
    assert (tmp_path / "here" / "dogs" / "0.jpg").read_text() == "pet 0"
    mount.stop()
    mount.stop()
    assert not (tmp_path / "here").exists()


def test_parts(pets: FileDataset) -> None:
    assert pets.take(3).to_path() == pets.to_path()[:3]
    assert pets.skip(3).to_path() == pets.to_path()[3:]
    assert pets.take_sample(0.5, seed=7).to_path() == pets.take_sample(0.5, seed=7).to_path()
    first, rest = pets.random_split(0.6, seed=1)
    assert sorted(first.to_path() + rest.to_path()) == pets.to_path()
    assert first.to_path()
    assert rest.to_path()
    with pytest.raises(InvalidReference):
        pets.take_sample(1.5)
    with pytest.raises(InvalidReference):
        pets.take(-1)


def test_versions(
    pets: FileDataset, catalogue: MemoryCatalogue, caplog: pytest.LogCaptureFixture
) -> None:
    first = pets.register(catalogue, "pets", description="small", tags={"kind": "toy"})
    assert (first.name, first.version, first.description) == ("pets", 1, "small")
    assert first.tags == {"kind": "toy"}
    assert pets.register(catalogue, "pets").version == 1  # the files are unchanged
    with pytest.raises(DatasetExists):
        pets.take(4).register(catalogue, "pets")
    same = pets.register(catalogue, "pets", tags={"seen": "twice"}, create_new_version=True)
    assert (same.version, same.tags) == (1, {"kind": "toy", "seen": "twice"})
    assert not caplog.messages
    same = pets.register(catalogue, "pets", description="large", tags={"seen": "often"})
    assert (same.version, same.description) == (1, "small")
    assert same.tags == {"kind": "toy", "seen": "twice"}
    (warning,) = caplog.messages
    assert "pets:1 has exactly these files, so its description and tags stay as they are" in warning
    fewer = pets.take(4).register(catalogue, "pets", create_new_version=True)
    assert fewer.version == 2
    assert len(Dataset.get_by_name(catalogue, "pets").manifest) == 4
    old = Dataset.get_by_name(catalogue, "pets", version=1)
    assert isinstance(old, FileDataset)
    assert old.to_path() == pets.to_path()
    assert old.id == first.id
    assert Dataset.get_by_id(catalogue, first.id).name == "pets"
    assert list(Dataset.get_all(catalogue)) == ["pets"]
    with pytest.raises(DatasetNotFound, match="it has: 1, 2"):
        Dataset.get_by_name(catalogue, "pets", 3)
    with pytest.raises(InvalidReference):
        Dataset.get_by_name(catalogue, "pets", "newest")
    assert first.add_tags({"more": "1"}).tags == {"kind": "toy", "more": "1"}
    fewer.unregister_all_versions()
    with pytest.raises(DatasetNotFound):
        Dataset.get_by_name(catalogue, "pets")


def test_a_version_keeps_its_files_when_more_arrive(
    pets: FileDataset, catalogue: MemoryCatalogue, tmp_path: Path
) -> None:
    pets.register(catalogue, "pets")
    (tmp_path / "store" / "pets" / "cats" / "new.jpg").write_text("new")
    found = Dataset.get_by_name(catalogue, "pets")
    assert isinstance(found, FileDataset)
    assert "/cats/new.jpg" not in found.to_path()


def test_a_version_holds_its_bytes_digest(
    pets: FileDataset, catalogue: MemoryCatalogue, tmp_path: Path
) -> None:
    registered = pets.register(catalogue, "pets")
    assert all(entry.digest.startswith("sha256:") for entry in registered.manifest)
    changed = tmp_path / "store" / "pets" / "cats" / "1.jpg"
    changed.write_text("tep 1")
    with pytest.raises(DataChanged, match=r"1\.jpg"):
        registered.download(tmp_path / "d", show_progress=False)


@pytest.mark.parametrize("name", ["", " ", "a/b", "a:1"])
def test_a_name_that_cannot_be_written_elsewhere_is_refused(
    name: str, pets: FileDataset, catalogue: MemoryCatalogue
) -> None:
    with pytest.raises(InvalidReference):
        pets.register(catalogue, name)


def test_a_dataset_as_input(pets: FileDataset, catalogue: MemoryCatalogue) -> None:
    named = pets.as_named_input("pets")
    assert (named.name, named.mode) == ("pets", "direct")
    assert named.as_mount("/data").path_on_compute == "/data"
    assert named.as_download().mode == "download"
    assert str(named.as_mount()) == "$AZUREML_DATAREFERENCE_pets"
    assert pets.as_mount().mode == "mount"
    assert pets.as_download().name == pets.as_mount().name
    with pytest.raises(InvalidReference, match="letters, digits"):
        pets.as_named_input("my pets")
    pets.register(catalogue, "registered")
    config = DatasetConsumptionConfig("data", (catalogue, "registered", 1), "mount")
    assert config.definition.version == 1
    with pytest.raises(InvalidReference):
        DatasetConsumptionConfig("data", "pets")


def test_upload_directory(store: Datastore, tmp_path: Path) -> None:
    (tmp_path / "new" / "sub").mkdir(parents=True)
    (tmp_path / "new" / "a.csv").write_text("1")
    (tmp_path / "new" / "sub" / "b.csv").write_text("2")
    (tmp_path / "new" / "c.txt").write_text("3")
    dataset = Dataset.File.upload_directory(
        tmp_path / "new", (store, "up"), pattern="**/*.csv", show_progress=False
    )
    assert dataset.to_path() == ["/a.csv", "/sub/b.csv"]


def test_damaged_version_is_refused_with_the_recorded_content(
    catalogue: MemoryCatalogue, store: Datastore, pets: FileDataset, tmp_path: Path
) -> None:
    registered = pets.register(catalogue, "pets")
    (file, *_) = sorted((Path(store.container_name) / "pets").rglob("*.jpg"))
    file.write_text("damaged")
    with pytest.raises(DataChanged, match=r"dataset pets:1 recorded \(registered 20.*Recorded: "):
        registered.download(tmp_path / "got", show_progress=False)
    assert not (tmp_path / "got").exists()
