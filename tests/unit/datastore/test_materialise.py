"""Inputs and outputs on a node, with local data."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.datastore import (
    DataInput,
    DataReference,
    Dataset,
    Datastore,
    FileDataset,
    Materialised,
    MemoryCatalogue,
    TabularDataset,
)
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import DataChanged, DataNotFound, DatasetNotFound, InvalidReference
from rayjobs.datastore.inputs import open_input, resolve_input
from rayjobs.datastore.materialise import materialise, release, start_node, trouble
from rayjobs.datastore.outputs import DataOutput, OutputFileDatasetConfig, prepare, store
from rayjobs.datastore.protection import Protection


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


# The protection that a host provides with namespaces.
JOB = Protection(read_only=True, overlay=True, why="")


def listing(path: str) -> list[str]:
    root = Path(path)
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_a_local_folder_is_linked_for_a_job_for_which_it_can_be_read_only(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets", "pets"), catalogue)
    done = materialise(source, node, into=into, protection=JOB)
    assert done.read_only == (str(Path(images.container_name) / "pets"),)
    assert (done.files, done.bytes) == (2, 30)
    assert (done.how, done.path) == ("linked", str(into / "pets"))
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    assert Path(done.path).resolve() == Path(images.container_name) / "pets"
    assert trouble(done) is None
    release(done)
    release(done)
    assert not (into / "pets").exists()
    assert (Path(images.container_name) / "pets" / "cats" / "1.jpg").exists()


def test_single_file_input_is_its_path(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    sources: tuple[DataReference | FileDataset, ...] = (
        images.path("table.csv"),
        Dataset.File.from_files((images, "table.csv")),
    )
    for number, source in enumerate(sources):
        done = materialise(
            resolve_input(source, catalogue, name=f"t{number}"),
            node,
            into=into,
            protection=JOB,
        )
        assert done.path == str(into / f"t{number}" / "table.csv")
        assert Path(done.path).read_text() == "id\n1\n"


def test_a_glob_shows_the_matching_files_only(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    dataset = Dataset.File.from_files((images, "pets/**/1.jpg"))
    done = materialise(
        resolve_input(dataset.as_named_input("some").as_mount(), catalogue),
        node,
        into=into,
        protection=JOB,
    )
    assert listing(done.path) == ["cats/1.jpg"]
    assert (done.how, done.bytes, done.files) == ("linked", 15, 1)
    assert set(done.read_only) == {str(Path(images.container_name) / "pets" / "cats"), done.path}


@pytest.mark.parametrize("mode", ["mount", "download"])
def test_a_glob_as_a_path_shows_the_matching_files_only(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, mode: str
) -> None:
    source = resolve_input(f"x=images/pets/**/1.jpg:{mode}", catalogue)
    done = materialise(source, node, into=into, protection=JOB)
    assert listing(done.path) == ["cats/1.jpg"]
    with pytest.raises(DataNotFound, match=r"there is nothing at 'pets/\*\.png'"):
        resolve_input(f"x=images/pets/*.png:{mode}", catalogue)


def test_a_folder_whose_name_looks_like_a_glob_is_shown_in_place(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    folder = Path(images.container_name) / "run[1]"
    folder.mkdir()
    (folder / "a").write_text("a")
    done = materialise(resolve_input("x=images/run[1]", catalogue), node, into=into, protection=JOB)
    assert Path(done.path).resolve() == folder


@pytest.mark.parametrize("mode", ["mount", "download"])
@pytest.mark.parametrize("text", ["images/pets", "dataset:pets"])
def test_files_of_an_unfinished_upload_are_not_in_an_input(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, mode: str, text: str
) -> None:
    """A killed `data put` leaves them."""
    Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    (Path(images.container_name) / "pets" / "cats" / ".3.jpg.partial-0a1b").write_text("half")
    source = resolve_input(text, catalogue, name="x", mode=mode)
    done = materialise(source, node, into=into, protection=JOB)
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    if mode == "mount" and text == "images/pets":
        assert done.said == ("input 'x': 1 file of unfinished uploads left out",)


@pytest.mark.parametrize("mode", ["mount", "download"])
def test_a_version_shows_its_files_and_no_others(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, mode: str
) -> None:
    Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    (Path(images.container_name) / "pets" / "new.jpg").write_text("new")
    source = resolve_input("dataset:pets:1", catalogue, name="pets", mode=mode)
    assert source.version == "pets:1"
    done = materialise(source, node, into=into, protection=JOB)
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    assert done.version == "pets:1"


def test_a_touched_file_is_the_same_and_a_changed_one_is_refused(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    source = resolve_input("dataset:pets", catalogue, name="pets")
    file = Path(images.container_name) / "pets" / "cats" / "1.jpg"
    os.utime(file, ns=(1, 1))
    materialise(source, node, into=into, protection=JOB)
    file.write_text("gpj.1/stac/step")
    with pytest.raises(DataChanged, match=r"1\.jpg"):
        materialise(source, node, into=into, protection=JOB)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("protection", [JOB, Protection()], ids=["namespaces", "without"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_download_is_a_private_copy_that_can_be_written_to(
    images: Datastore,
    catalogue: MemoryCatalogue,
    node: Path,
    into: Path,
    exact: bool,
    protection: Protection,
) -> None:
    stored = Path(images.container_name) / "pets" / "cats" / "1.jpg"
    stored.chmod(0o444)
    before = stored.stat()
    dataset = Dataset.File.from_files((images, "pets"))
    what = dataset.as_named_input("pets").as_download() if exact else images.path("pets", "pets")
    source = resolve_input(what, catalogue, mode="download")
    done = materialise(source, node, into=into, protection=protection)
    mine = Path(done.path, "cats", "1.jpg")
    assert (done.how, mine.is_symlink(), mine.stat().st_nlink) == ("copied", False, 1)
    assert mine.stat().st_mtime_ns == before.st_mtime_ns
    assert mine.stat().st_mode & 0o200
    mine.write_bytes(b"x")
    Path(done.path, "extracted").write_text("mine")
    assert stored.read_text() == "pets/cats/1.jpg"
    assert not (Path(images.container_name) / "pets" / "extracted").exists()
    release(done)
    assert not Path(done.path).exists()
    now = stored.stat()  # only the access time may differ
    assert (now.st_ino, now.st_mtime_ns, now.st_mode) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_mode,
    )


@pytest.mark.parametrize("exact", [True, False])
def test_mount_without_namespaces_or_fuse_becomes_a_reported_copy(
    images: Datastore,
    catalogue: MemoryCatalogue,
    node: Path,
    into: Path,
    exact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """File modes do not stop root, so check only that no write reaches the store."""
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    stored = Path(images.container_name) / "pets" / "cats" / "1.jpg"
    dataset = Dataset.File.from_files((images, "pets"))
    what = dataset.as_named_input("pets").as_mount() if exact else images.path("pets", "pets")
    done = materialise(
        resolve_input(what, catalogue), node, into=into, protection=Protection(why="no way")
    )
    mine = Path(done.path, "cats", "1.jpg")
    assert (done.how, done.read_only, mine.stat().st_mode & 0o222) == ("copied", (), 0)
    assert "no way" in done.said[0] and "copied instead" in done.said[0]
    mine.chmod(0o644)
    mine.write_bytes(b"x")
    assert stored.read_text() == "pets/cats/1.jpg"
    release(done)


def test_targets_of_links_in_a_folder_are_read_only(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "file").write_text("file")
    pets = Path(images.container_name) / "pets"
    (pets / "cats" / "2.jpg").symlink_to(tmp_path / "elsewhere" / "file")
    (pets / "more").symlink_to(tmp_path / "elsewhere" / "deep")
    whole = resolve_input(images.path("pets", "pets"), catalogue)
    done = materialise(whole, node, into=into, protection=JOB)
    assert done.read_only[0] == str(pets)
    assert set(done.read_only[1:]) == {
        str(tmp_path / "elsewhere" / "file"),
        str(tmp_path / "elsewhere" / "deep"),
    }
    assert done.why_open == ""


@pytest.mark.parametrize("mode", ["mount", "download"])
def test_single_file_input_protects_only_itself(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, mode: str
) -> None:
    """Even if its folder has no other file: a script may write its results there."""
    Dataset.File.from_files((images, "table.csv")).register(catalogue, "table")
    Dataset.File.from_files((images, "pets/cats/1.jpg")).register(catalogue, "cat")
    root = Path(images.container_name)
    for name, file in (("table", root / "table.csv"), ("cat", root / "pets/cats/1.jpg")):
        source = resolve_input(f"dataset:{name}", catalogue, name=name, mode=mode)
        done = materialise(source, node, into=into, protection=JOB)
        assert set(done.read_only) - {str(into / name)} == {str(file)}
        live = resolve_input(f"images/{file.relative_to(root)}", catalogue, name="a", mode=mode)
        done = materialise(live, node, into=into, protection=JOB)
        assert done.read_only == (str(file),)


def test_download_protects_only_its_files(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets", "pets"), catalogue, mode="download")
    done = materialise(source, node, into=into, protection=JOB)
    pets = Path(images.container_name) / "pets"
    assert set(done.read_only) == {str(pets / "cats" / "1.jpg"), str(pets / "dogs" / "2.jpg")}


def test_link_that_a_download_cannot_keep_is_reported(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("file")
    link = Path(images.container_name) / "pets" / "cats" / "2.jpg"
    link.symlink_to(tmp_path / "file")
    source = resolve_input(images.path("pets", "pets"), catalogue, mode="download")
    done = materialise(source, node, into=into, protection=JOB)
    assert str(tmp_path / "file") in done.read_only
    assert str(link) in done.why_open


def test_folder_with_the_users_home_is_shown_read_only_but_not_protected(
    catalogue: MemoryCatalogue,
    node: Path,
    into: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (home / "data.csv").write_text("1")
    store = Datastore.register_folder(catalogue, "home", home)
    source = resolve_input(store.path("", "data").as_mount(), catalogue)
    done = materialise(source, node, into=into, protection=JOB)
    assert (done.read_only, done.shown) == ((), ((str(home), str(into / "data")),))
    assert str(home) in done.why_open and done.why_open in done.said[0]
    release(done)
    assert not (into / "data").exists() and (home / "data.csv").exists()


def test_link_to_a_folder_with_the_users_home_protects_neither(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    pets = Path(images.container_name) / "pets"
    (pets / "home").symlink_to(into.parent)  # contains the folder of the attempt
    (into.parent).mkdir()
    source = resolve_input(images.path("pets", "pets"), catalogue)
    done = materialise(source, node, into=into, protection=JOB)
    assert set(done.read_only) == {str(pets)}
    assert str(pets / "home") in done.why_open


def test_a_folder_with_the_users_home_is_not_made_read_only_for_one_file(
    catalogue: MemoryCatalogue,
    node: Path,
    into: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "home" / "data.csv").write_text("1")
    store = Datastore.register_folder(catalogue, "homes", tmp_path / "home")
    dataset = Dataset.File.from_files((store, "data.csv"))
    source = resolve_input(dataset.as_named_input("data").as_mount(), catalogue)
    done = materialise(source, node, into=into, protection=JOB)
    assert set(done.read_only) == {str(tmp_path / "home" / "data.csv"), str(into / "data")}


def test_only_too_many_files_are_protected_by_the_folders_that_hold_them(
    catalogue: MemoryCatalogue,
    node: Path,
    into: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "store"
    for number in range(20):
        (root / "all" / f"class{number}").mkdir(parents=True)
        (root / "all" / f"class{number}" / "1.jpg").write_text("1")
    (root / "all" / "class0" / "2.jpg").write_text("2")
    store = Datastore.register_folder(catalogue, "many", root)
    dataset = Dataset.File.from_files((store, "all/*/1.jpg"))
    source = resolve_input(dataset.as_named_input("data").as_mount(), catalogue)
    done = materialise(source, node, into=into, protection=JOB)
    whole = {str(root / "all" / f"class{number}") for number in range(1, 20)}
    assert set(done.read_only) == {str(root / "all" / "class0" / "1.jpg"), done.path, *whole}
    monkeypatch.setattr("rayjobs.datastore.materialise.MOST_CLOSED", 10)
    done = materialise(source, node, into=into, protection=JOB)
    assert set(done.read_only) == {str(root / "all"), done.path}


def test_damaged_version_reports_recorded_and_found_content_and_a_remedy(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    Dataset.File.from_files((images, "pets")).register(catalogue, "pets")
    file = Path(images.container_name) / "pets" / "cats" / "1.jpg"
    file.write_bytes(b"x")
    source = resolve_input("dataset:pets", catalogue, name="pets")
    with pytest.raises(DataChanged) as caught:
        materialise(source, node, into=into, protection=JOB)
    message = str(caught.value)
    assert str(file) in message and "dataset pets:1 recorded (registered 20" in message
    assert f"15 bytes, {digest_of(b'pets/cats/1.jpg')[:19]}" in message
    assert f"1 byte, {digest_of(b'x')[:19]}" in message
    assert "rayjobs data put COPY/1.jpg images/pets/cats --overwrite" in message
    assert "rayjobs data register pets images/pets --new-version" in message
    file.unlink()
    with pytest.raises(DataChanged, match="Now: it is gone"):
        materialise(source, node, into=into, protection=JOB)
    images.upload_files(
        [_written(into.parent / "1.jpg", b"pets/cats/1.jpg")],
        target_path="pets/cats",
        show_progress=False,
    )
    materialise(source, node, into=into, protection=JOB)


def _written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_restarted_attempt_finds_its_folder_free(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets", "pets"), catalogue)
    mounted = replace(source, mode="mount")
    materialise(mounted, node, into=into, protection=JOB)
    assert materialise(mounted, node, into=into, protection=JOB).path == str(into / "pets")


def test_missing_path_is_reported_immediately(
    images: Datastore, catalogue: MemoryCatalogue
) -> None:
    with pytest.raises(DataNotFound, match="pest"):
        resolve_input("images/pest", catalogue)
    with pytest.raises(DatasetNotFound):
        resolve_input("dataset:pest", catalogue)


def test_folder_missing_on_this_node_is_reported(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    source = resolve_input(images.path("pets"), catalogue)
    Path(images.container_name).rename(Path(images.container_name).with_name("gone"))
    with pytest.raises(DataNotFound, match="every node"):
        materialise(source, node, into=into, protection=JOB)


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
        done = materialise(again, node, into=into, protection=JOB)
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
    done = materialise(source, node, into=into, protection=JOB)
    assert done.path == str(at)
    assert listing(done.path) == ["cats/1.jpg", "dogs/2.jpg"]
    with pytest.raises(InvalidReference, match="already exists"):
        materialise(source, node, into=into, protection=JOB)
    release(done)
    assert not at.exists()
    relative = resolve_input(images.path("table.csv", "t"), catalogue, path_on_compute="in/t")
    work = tmp_path / "work"
    done = materialise(relative, node, into=into, working_directory=work, protection=JOB)
    assert done.path == str(work / "in" / "t" / "table.csv")
    assert Path(done.path).read_text() == "id\n1\n"


def test_direct_mode_makes_no_files(
    images: Datastore, catalogue: MemoryCatalogue, node: Path, into: Path
) -> None:
    table = Dataset.Tabular.from_delimited_files((images, "table.csv"))
    registered = table.register(catalogue, "table")
    done = materialise(resolve_input(registered.as_named_input("t"), catalogue), node, into=into)
    assert (done.how, done.path) == ("direct", registered.id)
    assert not into.exists()
    source = resolve_input(registered.as_named_input("t"), catalogue)
    again = open_input(DataInput.from_json(json.loads(json.dumps(source.to_json()))))
    assert isinstance(again, TabularDataset)
    assert list(again) == [{"id": 1}]
    assert (again.name, again.version, again.id) == ("table", 1, registered.id)
    with pytest.raises(InvalidReference, match="not a dataset"):
        open_input(resolve_input(images.path("pets"), catalogue))


def test_new_node_has_no_mounts_to_remove(node: Path) -> None:
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
    with pytest.raises(InvalidReference, match="already exists"):
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
