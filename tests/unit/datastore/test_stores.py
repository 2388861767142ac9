"""Datastores: registration, transfer, progress."""

import pickle
from pathlib import Path

import pytest

from rayjobs.datastore import Datastore, MemoryCatalogue
from rayjobs.datastore.catalogue import DEFAULT_DATASTORE, DatastoreRecord
from rayjobs.datastore.dataset_factory import Dataset
from rayjobs.datastore.errors import (
    DataNotFound,
    DatastoreExists,
    DatastoreInUse,
    DatastoreNotFound,
    InvalidReference,
)
from rayjobs.datastore.kept import KeptOtherFile, LeftOut
from rayjobs.datastore.progress import Progress
from rayjobs.datastore.sources import record_of_url
from rayjobs.datastore.stores import ensure_default


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


@pytest.fixture
def store(catalogue: MemoryCatalogue, tmp_path: Path) -> Datastore:
    return Datastore.register_folder(
        catalogue, "images", tmp_path / "store", create_if_not_exists=True
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("aaa")
    (folder / "sub" / "b.txt").write_text("bb")
    return folder


def test_the_default_is_workspaceblobstore(catalogue: MemoryCatalogue, tmp_path: Path) -> None:
    with pytest.raises(DatastoreNotFound):
        Datastore(catalogue)
    first = ensure_default(
        catalogue, DatastoreRecord("x", "local", {"root": str(tmp_path / "blobs")})
    )
    again = ensure_default(catalogue, DatastoreRecord("x", "local", {"root": "/elsewhere"}))
    assert first == again == Datastore(catalogue) == Datastore.get_default(catalogue)
    assert first.name == DEFAULT_DATASTORE
    assert (tmp_path / "blobs").is_dir()


def test_a_registered_datastore_is_found(catalogue: MemoryCatalogue, store: Datastore) -> None:
    found = Datastore.get(catalogue, "images")
    assert found == store
    assert (found.datastore_type, found.account_name) == ("local", "")
    assert pickle.loads(pickle.dumps(found)) == store


def test_a_datastore_can_become_the_default_and_be_forgotten(
    catalogue: MemoryCatalogue, store: Datastore
) -> None:
    store.set_as_default()
    assert Datastore(catalogue) == store
    with pytest.raises(InvalidReference, match="look it up again"):
        pickle.loads(pickle.dumps(store)).unregister()
    store.unregister()
    with pytest.raises(DatastoreNotFound):
        Datastore.get(catalogue, "images")
    assert Path(store.container_name).is_dir()


def test_a_workspace_is_anything_with_a_catalogue(
    catalogue: MemoryCatalogue, store: Datastore
) -> None:
    class Workspace:
        def __init__(self) -> None:
            self.catalogue = catalogue

    assert Datastore(Workspace(), "images") == store
    with pytest.raises(InvalidReference):
        Datastore("workspace", "images")  # type: ignore[arg-type]  # a mistake on purpose


def test_a_folder_must_exist_and_a_name_be_free(
    catalogue: MemoryCatalogue, store: Datastore, tmp_path: Path
) -> None:
    with pytest.raises(DataNotFound, match="create_if_not_exists"):
        Datastore.register_folder(catalogue, "other", tmp_path / "nowhere")
    with pytest.raises(DatastoreExists):
        Datastore.register_folder(catalogue, "images", tmp_path)
    with pytest.raises(InvalidReference):
        Datastore.register_folder(catalogue, "a/b", tmp_path)
    Datastore.register_folder(catalogue, "images", tmp_path, overwrite=True)


def test_upload_keeps_the_structure_and_returns_a_reference(store: Datastore, source: Path) -> None:
    reference = store.upload(source, "data/set", show_progress=False)
    assert (reference.datastore_name, reference.path_on_datastore) == ("images", "data/set")
    assert [file.path for file in store.files("data")] == [
        "data/set/a.txt",
        "data/set/sub/b.txt",
    ]


def test_upload_keeps_existing_files_unless_overwriting(store: Datastore, source: Path) -> None:
    store.upload(source, "d", show_progress=False)
    store.upload(source, "d", show_progress=False)  # no warning: the files are the same
    (source / "a.txt").write_text("changed")
    with pytest.warns(KeptOtherFile, match=r"0 stored, 2 kept .*, 1 of them .* size \(d/a\.txt\)"):
        store.upload(source, "d", show_progress=False)
    assert Path(store.container_name, "d/a.txt").read_text() == "aaa"
    store.upload(source, "d", overwrite=True, show_progress=False)
    assert Path(store.container_name, "d/a.txt").read_text() == "changed"


def test_kept_files_of_one_size_are_compared(
    store: Datastore, source: Path, tmp_path: Path
) -> None:
    store.upload(source, "d", show_progress=False)
    Dataset.File.from_files((store, "d")).download(tmp_path / "got", show_progress=False)
    (source / "a.txt").write_text("bbb")
    with pytest.warns(KeptOtherFile, match="1 of them differs in content"):
        store.upload(source, "d", show_progress=False)
    (tmp_path / "got" / "a.txt").write_text("ccc")
    (tmp_path / "got" / "sub" / "b.txt").write_text("longer")
    with pytest.warns(KeptOtherFile, match="0 fetched, 2 kept .*, 2 of them differ in size or"):
        Dataset.File.from_files((store, "d")).download(tmp_path / "got", show_progress=False)
    with pytest.warns(KeptOtherFile, match="1 fetched, 0 kept|0 fetched, 1 kept"):
        (tmp_path / "t" / "d").mkdir(parents=True)
        (tmp_path / "t" / "d" / "a.txt").write_text("old")
        store.download(tmp_path / "t", "d/a.txt", show_progress=False)


def test_a_datastore_that_is_needed_is_not_forgotten(
    catalogue: MemoryCatalogue, store: Datastore, source: Path, tmp_path: Path
) -> None:
    default = ensure_default(catalogue, DatastoreRecord("x", "local", {"root": f"{tmp_path}/b"}))
    with pytest.raises(DatastoreInUse, match="every workspace"):
        default.unregister(force=True)
    store.upload(source, "d", show_progress=False)
    for path in ("d", "d/**"):
        dataset = Dataset.File.from_files((store, path))
        dataset.register(catalogue, "cats", create_new_version=True)
    with pytest.raises(DatastoreInUse, match="cats:1, cats:2"):
        store.unregister()
    assert Datastore.get(catalogue, "images") == store
    store.unregister(force=True)
    assert [record.name for record in catalogue.datastores()] == [DEFAULT_DATASTORE]


SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12"


@pytest.mark.parametrize("skip_validation", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": f"http://AK:{SECRET}@127.0.0.1:9"},
        {"endpoint": f"http://127.0.0.1:9/?secret={SECRET}"},
        {"endpoint": f"AK:{SECRET}@127.0.0.1:9"},
        {"bucket": f"AK:{SECRET}@bucket"},
        {"bucket": f"bucket:{SECRET}"},
        {"prefix": f"p?secret={SECRET}/../x"},
        {"access_key_env": "AKIAIOSFODNN7EXAMPLE", "secret_key_env": "KEPT_SECRET"},
        {"access_key_env": "KEPT_KEY", "secret_key_env": SECRET},
        {"access_key_env": "KEPT_KEY", "secret_key_env": f"{SECRET[:20]}/{SECRET[20:]}"},
        {"session_token_env": f"{SECRET}=="},
    ],
)
def test_secret_is_neither_stored_nor_printed(
    catalogue: MemoryCatalogue, settings: dict[str, str], skip_validation: bool
) -> None:
    given = {"bucket": "bucket", "endpoint": "http://127.0.0.1:9"} | settings
    with pytest.raises(InvalidReference) as caught:
        Datastore.register_s3(
            catalogue,
            "photos",
            given.pop("bucket"),
            skip_validation=skip_validation,
            **given,  # type: ignore[arg-type]  # mypy cannot tell which settings these are
        )
    assert catalogue.datastores() == []
    assert SECRET[:20] not in str(caught.value)
    assert "AKIA" not in str(caught.value)
    if any(name.endswith("_env") for name in settings):
        assert "the NAME of an environment variable" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AK:{SECRET}@bucket/p",
        f"s3://AK:{SECRET[:20]}/{SECRET[20:]}@bucket/p",
        f"s3://bucket/p?secret={SECRET}",
        f"s3://bucket/p?{SECRET}",
        f"https://user:{SECRET}@host/p",
        f"ftp://user:{SECRET[:20]}/{SECRET[20:]}@host/p",
    ],
)
def test_secret_in_an_address_is_refused_and_not_printed(url: str) -> None:
    with pytest.raises(InvalidReference) as caught:
        record_of_url("photos", url)
    assert SECRET[:20] not in str(caught.value)
    if "://bucket/p?" not in url or "=" in url:
        with pytest.raises(InvalidReference) as caught:
            Dataset.File.from_files(url)
        assert SECRET[:20] not in str(caught.value)


def test_upload_files_by_name_or_below_a_root(store: Datastore, source: Path) -> None:
    files: list[str | Path] = [source / "a.txt", str(source / "sub" / "b.txt")]
    store.upload_files(files, target_path="flat", show_progress=False)
    store.upload_files(files, relative_root=source, target_path="deep", show_progress=False)
    assert [file.path for file in store.files()] == [
        "deep/a.txt",
        "deep/sub/b.txt",
        "flat/a.txt",
        "flat/b.txt",
    ]


def test_wrong_uploads_are_refused(store: Datastore, source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidReference, match="not a folder"):
        store.upload(tmp_path / "nowhere", show_progress=False)
    with pytest.raises(InvalidReference, match="not a file"):
        store.upload_files([source], show_progress=False)
    with pytest.raises(InvalidReference, match="is not below"):
        store.upload_files([source / "a.txt"], tmp_path / "store", show_progress=False)
    (source / "sub" / "a.txt").write_text("same name")
    with pytest.raises(InvalidReference, match="relative_root"):
        store.upload_files([source / "a.txt", source / "sub" / "a.txt"], show_progress=False)
    assert list(store.files()) == []


def test_download_keeps_the_path_in_the_datastore(
    store: Datastore, source: Path, tmp_path: Path
) -> None:
    store.upload(source, "d", show_progress=False)
    target = tmp_path / "target"
    assert store.download(target, "d/sub", show_progress=False) == 1
    assert (target / "d/sub/b.txt").read_text() == "bb"
    assert store.download(target, show_progress=False) == 1
    assert (target / "d/a.txt").read_text() == "aaa"
    assert store.download(target, show_progress=False) == 0
    assert store.download(target, overwrite=True, show_progress=False) == 2
    assert store.download(tmp_path / "one", "d/a.txt", show_progress=False) == 1


def test_download_of_nothing_is_reported(store: Datastore, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="nowhere"):
        store.download(tmp_path, "nowhere", show_progress=False)


def test_every_transfer_reports_progress(
    store: Datastore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Progress] = []
    store.upload(source, "d", progress=seen.append)
    store.download(tmp_path / "t", progress=seen.append)
    uploads = [step for step in seen if step.doing == "upload"]
    assert uploads[-1] == Progress("upload", 2, 2, 5, 5, finished=True)
    assert seen[-1] == Progress("download", 2, 2, 5, 5, finished=True)
    assert [step.done_bytes for step in uploads] == sorted(step.done_bytes for step in uploads)
    assert capsys.readouterr() == ("", "")
    store.upload(source, "e")
    assert capsys.readouterr().err == "upload: 2/2 files, 5 B of 5 B\n"


def test_a_datastore_by_url(tmp_path: Path) -> None:
    assert record_of_url("x", str(tmp_path)).settings["root"] == str(tmp_path)
    assert dict(record_of_url("x", "s3://bucket/a/b").settings) == {
        "bucket": "bucket",
        "prefix": "a/b",
    }
    assert record_of_url("x", "ftp://host").kind == "fsspec"
    with pytest.raises(InvalidReference, match="nor a URL of fsspec"):
        record_of_url("x", "https://host/p")


def test_references_of_a_datastore(store: Datastore) -> None:
    assert str(store.as_mount()) == "$AZUREML_DATAREFERENCE_images"
    assert store.as_download("/d").path_on_compute == "/d"
    assert store.path("a").as_upload().mode == "upload"
    assert store.path("a", "named").data_reference_name == "named"


def test_upload_warns_about_skipped_files(store: Datastore, source: Path) -> None:
    (source / "gone").symlink_to(source / "nothing")
    with pytest.warns(LeftOut, match=r"1 entry left out: .*gone \(a broken link\)"):
        store.upload(source, show_progress=False)


def test_a_file_inside_a_file_is_refused_by_a_folder(store: Datastore, source: Path) -> None:
    store.upload_files([source / "a.txt"], show_progress=False)
    with pytest.raises(InvalidReference, match=r"a\.txt is a file; give a folder"):
        store.backend.put(source / "a.txt", "a.txt/b/c")
