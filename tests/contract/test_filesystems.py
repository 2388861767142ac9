"""The contract of `Datastore.filesystem` on every kind of storage: paths start at its root."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from rayjobs.datastore import Datastore, MemoryCatalogue
from tests.storage.server import S3Server, s3_server
from tests.unit.datastore.web_server import WebServer

__all__ = ["s3_server"]

FILES = {"a.txt": b"a", "tables/x.csv": b"x,y\n1,2\n", "tables/deep/y.csv": b"x,y\n3,4\n"}


class FileSystemContract:
    """Tests that every file system passes; `store` is empty."""

    @pytest.fixture
    def store(self) -> Datastore:
        raise NotImplementedError

    @pytest.fixture
    def system(self, store: Datastore, tmp_path: Path) -> Any:
        """The file system of a datastore to which `FILES` were uploaded."""
        for path, content in FILES.items():
            (tmp_path / "up" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "up" / path).write_bytes(content)
        store.upload(tmp_path / "up", "", show_progress=False)
        return store.filesystem()

    def test_reads_files_of_the_datastore(self, system: Any) -> None:
        assert system.cat_file("a.txt") == b"a"
        assert system.cat_file("a.txt", start=0, end=1) == b"a"
        with system.open("tables/x.csv") as file:
            assert pandas.read_csv(file).to_dict("list") == {"x": [1], "y": [2]}
        with system.open("tables/x.csv") as file:
            file.seek(4)
            assert file.read(3) == b"1,2"
        with system.open("a.txt", "r") as file:
            assert file.read() == "a"

    def test_lists_and_finds(self, system: Any) -> None:
        assert sorted(system.ls("tables", detail=False)) == ["tables/deep", "tables/x.csv"]
        by_name = {one["name"]: one for one in system.ls("tables", detail=True)}
        assert by_name["tables/x.csv"]["size"] == 8
        assert [one["type"] for _, one in sorted(by_name.items())] == ["directory", "file"]
        assert sorted(system.glob("**/*.csv")) == ["tables/deep/y.csv", "tables/x.csv"]
        assert system.glob("tables/*.csv") == ["tables/x.csv"]
        assert sorted(system.find("")) == sorted(FILES)
        assert system.isfile("a.txt") and system.isdir("tables") and system.exists("tables/deep")
        assert system.info("a.txt")["size"] == 1

    def test_written_files_are_in_the_datastore(
        self, system: Any, store: Datastore, tmp_path: Path
    ) -> None:
        system.makedirs("new", exist_ok=True)
        with system.open("new/b.txt", "w") as file:
            file.write("text")
        system.pipe_file("new/c.bin", b"\0" * 100_000)
        (tmp_path / "one").write_bytes(b"put")
        system.put_file(str(tmp_path / "one"), "new/d")
        assert {one.path: one.size for one in store.files("new")} == {
            "new/b.txt": 4,
            "new/c.bin": 100_000,
            "new/d": 3,
        }
        system.pipe_file("new/b.txt", b"other")
        assert system.cat_file("new/b.txt") == b"other"
        system.get_file("new/d", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"put"
        system.rm_file("new/c.bin")
        assert not system.exists("new/c.bin")
        system.rm("new", recursive=True)
        assert not system.exists("new/b.txt") and list(store.files("new")) == []

    def test_missing_file_is_not_found(self, system: Any) -> None:
        with pytest.raises(FileNotFoundError):
            system.cat_file("nothing.txt")
        with pytest.raises(FileNotFoundError):
            system.open("nothing.txt").read()
        assert not system.exists("nothing.txt")
        assert system.glob("nothing/*") == []

    def test_a_new_file_is_seen_at_once(self, system: Any, store: Datastore) -> None:
        """Listings are not cached: another process may have written."""
        assert system.glob("*.txt") == ["a.txt"]
        store.filesystem().pipe_file("b.txt", b"b")
        assert system.glob("*.txt") == ["a.txt", "b.txt"]


class TestFolder(FileSystemContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Datastore:
        (tmp_path / "store").mkdir()
        return Datastore.register_folder(MemoryCatalogue(), "here", tmp_path / "store")


class TestMemory(FileSystemContract):
    @pytest.fixture
    def store(self) -> Iterator[Datastore]:
        url = f"memory://{uuid.uuid4().hex}"
        made = Datastore.register_fsspec(MemoryCatalogue(), "mem", url, skip_validation=True)
        yield made
        made.filesystem().rm("", recursive=True)


class TestFileUrl(FileSystemContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Datastore:
        (tmp_path / "store").mkdir()
        url = f"file://{tmp_path}/store"
        return Datastore.register_fsspec(MemoryCatalogue(), "files", url)


@pytest.mark.storage
class TestS3(FileSystemContract):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> Datastore:
        return Datastore.from_record(s3_server.record("photos"))

    def test_is_the_s3fs_implementation(self, store: Datastore) -> None:
        import s3fs

        assert isinstance(store.filesystem().fs, s3fs.S3FileSystem)


@pytest.mark.storage
class TestS3ByUrl(FileSystemContract):
    """A bucket as a datastore of the generic kind."""

    @pytest.fixture
    def store(self, s3_server: S3Server) -> Datastore:
        given = s3_server.record("photos").settings
        return Datastore.register_fsspec(
            MemoryCatalogue(),
            "generic",
            f"s3://{given['bucket']}/{given['prefix']}",
            options={"endpoint_url": s3_server.endpoint},
            option_env={"key": "TEST_ACCESS_KEY", "secret": "TEST_SECRET_KEY"},
            skip_validation=True,
        )


def test_a_web_server_is_a_file_system_to_read(tmp_path: Path) -> None:
    with WebServer().running() as server:
        server.files["/data/x.csv"] = b"x,y\n1,2\n"
        store = Datastore.register_fsspec(
            MemoryCatalogue(), "web", f"{server.root}/data", skip_validation=True
        )
        system = store.filesystem()
        assert system.cat_file("x.csv") == b"x,y\n1,2\n"
        with system.open("x.csv") as file:
            assert pandas.read_csv(file).to_dict("list") == {"x": [1], "y": [2]}
        assert system.exists("x.csv") and not system.exists("nothing.csv")
        with pytest.raises(FileNotFoundError):
            system.cat_file("nothing.csv")
