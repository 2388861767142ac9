"""The generic backend on file systems of fsspec, and datastores as file systems."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest

from rayjobs.datastore import Dataset, Datastore, MemoryCatalogue
from rayjobs.datastore.backends import Backend, StoredFile, open_backend
from rayjobs.datastore.errors import (
    CredentialNotSet,
    DataNotFound,
    DatastoreUnavailable,
    InvalidReference,
)
from rayjobs.datastore.fsspec_records import fsspec_record
from rayjobs.datastore.sources import record_of_url
from tests.contract.test_datastore_backends import BackendContract
from tests.storage.server import BUCKET, S3Server, s3_server

__all__ = ["s3_server"]


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        made = open_backend(fsspec_record("m", f"memory://{uuid.uuid4().hex}", {}, {}))
        made.file_system.makedirs(made.root)  # type: ignore[attr-defined]
        yield made
        made.file_system.rm(made.root, recursive=True)  # type: ignore[attr-defined]


class TestFile(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        (tmp_path / "store").mkdir()
        return open_backend(fsspec_record("f", f"file://{tmp_path}/store", {}, {}))


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_missing_file_is_named_once(tmp_path: Path, protocol: str) -> None:
    root = tmp_path / uuid.uuid4().hex
    backend = open_backend(fsspec_record("f", f"{protocol}://{root}", {}, {}))
    with pytest.raises(DataNotFound) as raised:
        backend.fetch(StoredFile("a", 1, "-"), tmp_path / "to")
    assert str(raised.value) == f"{protocol}://{root} has no such file or folder: {root}/a."


@pytest.mark.storage
class TestS3fs(BackendContract):
    @pytest.fixture
    def backend(self, s3_server: S3Server) -> Backend:
        options = {"endpoint_url": s3_server.endpoint}
        secrets = {"key": "TEST_ACCESS_KEY", "secret": "TEST_SECRET_KEY"}
        url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        made = open_backend(fsspec_record("s", url, options, secrets))
        made.file_system.pipe(f"{made.root}/.keep", b"")  # type: ignore[attr-defined]
        made.remove(".keep")
        return made

    def test_backend_passes_its_check(self, backend: Backend, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")  # an empty prefix does not exist
        backend.put(tmp_path / "a", "a")
        backend.check()


@pytest.mark.storage
def test_a_bucket_is_a_file_system_of_s3fs(s3_server: S3Server, tmp_path: Path) -> None:
    import s3fs

    store = Datastore.from_record(s3_server.record("photos"))
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    store.upload_files([tmp_path / "a.csv"], target_path="tables", show_progress=False)
    system = store.filesystem()
    assert isinstance(system.fs, s3fs.S3FileSystem)
    assert system.ls("tables", detail=False) == ["tables/a.csv"]
    with system.open("tables/a.csv") as file:
        assert pandas.read_csv(file).to_dict("list") == {"x": [1], "y": [2]}
    with system.open("tables/b.txt", "w") as file:
        file.write("new")
    assert [one.path for one in store.files("tables")] == ["tables/a.csv", "tables/b.txt"]


def test_a_folder_is_a_file_system_too(tmp_path: Path) -> None:
    catalogue = MemoryCatalogue()
    store = Datastore.register_folder(catalogue, "here", tmp_path)
    (tmp_path / "deep").mkdir()
    store.filesystem().pipe("deep/a.txt", b"a")
    assert (tmp_path / "deep" / "a.txt").read_bytes() == b"a"
    assert store.workspace is catalogue


def test_a_url_of_fsspec_is_a_datastore_and_a_source(tmp_path: Path) -> None:
    catalogue, name = MemoryCatalogue(), uuid.uuid4().hex
    store = Datastore.register_fsspec(catalogue, "mem", f"memory://{name}", skip_validation=True)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.csv").write_text("x\n1\n")
    store.upload(tmp_path / "in", "data", show_progress=False)
    dataset = Dataset.File.from_files((store, "data/**/*.csv")).register(catalogue, "d")
    assert dataset.download(tmp_path / "out", show_progress=False)
    assert (tmp_path / "out" / "deep" / "a.csv").read_text() == "x\n1\n"
    by_url = Dataset.Tabular.from_delimited_files(f"memory://{name}/data/deep/a.csv")
    assert by_url.to_pandas_dataframe().to_dict("list") == {"x": [1]}
    assert (store.datastore_type, store.container_name) == ("fsspec", name)
    assert record_of_url("other", f"memory://{name}/data").settings["url"].endswith("/data")


def test_unusable_urls_and_urls_with_secrets_are_refused() -> None:
    catalogue = MemoryCatalogue()
    with pytest.raises(InvalidReference, match="option_env"):
        fsspec_record("a", "abfs://c", {"account_key": "very secret"}, {})
    with pytest.raises(InvalidReference, match="looks like a secret"):
        fsspec_record("a", "abfs://c", {}, {"account_key": "abc+def=="})
    with pytest.raises(InvalidReference, match="cannot be used here"):
        Datastore.register_fsspec(catalogue, "a", "nosuchprotocol://x")
    with pytest.raises(CredentialNotSet) as caught:
        Datastore.register_fsspec(
            catalogue, "a", "memory://x", option_env={"token": "NOT_SET_ANYWHERE"}
        )
    assert caught.value.variable == "NOT_SET_ANYWHERE"


def test_file_system_error_becomes_a_rayjobs_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def broken(*args: object, **kwargs: object) -> object:
        raise RuntimeError("server on fire")

    monkeypatch.setattr(MemoryFileSystem, "info", broken)
    backend = open_backend(fsspec_record("m", "memory://broken", {}, {}))
    with pytest.raises(DatastoreUnavailable, match="server on fire"):
        backend.stat("a")
