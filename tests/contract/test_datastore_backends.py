"""The contract of storages; the tests of S3 inherit it as well."""

import errno
import os
from pathlib import Path

import pytest

from rayjobs.datastore.backends import Backend, Folder, StoredFile
from rayjobs.datastore.backends.local import LocalBackend
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import (
    AccessDenied,
    DataChanged,
    DataNotFound,
    DatastoreError,
    DatastoreUnavailable,
)

TREE = {"a/one.txt": b"one", "a/b/two.txt": b"two two", "top.txt": b"", "a b/ü+%.txt": b"odd name"}


class BackendContract:
    """The inheriting class provides `backend`, which is empty."""

    @pytest.fixture
    def local(self, tmp_path: Path) -> Path:
        folder = tmp_path / "local"
        folder.mkdir()
        return folder

    def fill(self, backend: Backend, local: Path) -> None:
        for number, (path, content) in enumerate(TREE.items()):
            source = local / f"source-{number}"
            source.write_bytes(content)
            backend.put(source, path)

    def test_stored_file_is_listed(self, backend: Backend, local: Path) -> None:
        self.fill(backend, local)
        assert {file.path: file.size for file in backend.walk("")} == {
            path: len(content) for path, content in TREE.items()
        }
        assert {file.path for file in backend.walk("a")} == {"a/one.txt", "a/b/two.txt"}

    def test_folder_is_not_matched_as_a_name_prefix(self, backend: Backend, local: Path) -> None:
        self.fill(backend, local)
        assert [file.path for file in backend.walk("a/o")] == []
        assert backend.stat("a/o") is None

    def test_stored_bytes_come_back(self, backend: Backend, local: Path) -> None:
        self.fill(backend, local)
        for path, content in TREE.items():
            file = backend.stat(path)
            assert file is not None
            assert file.size == len(content)
            to = local / "back"
            seen: list[int] = []
            assert backend.fetch(file, to, seen.append) == digest_of(content)
            assert to.read_bytes() == content
            assert sum(seen) == len(content)
            to.unlink()

    def test_pieces_are_those_of_the_file(self, backend: Backend, local: Path) -> None:
        source = local / "source"
        source.write_bytes(content := os.urandom(50_000))
        backend.put(source, "a/file")
        file = backend.stat("a/file")
        assert file is not None
        for start, length in ((0, 7), (1, 49_999), (49_990, 100), (50_000, 5), (60_000, 5), (0, 0)):
            assert backend.read(file, start, length) == content[start : start + length]

    def test_changed_file_yields_no_piece(self, backend: Backend, local: Path) -> None:
        source = local / "source"
        source.write_bytes(b"1" * 50)
        backend.put(source, "a/file")
        (listed,) = backend.walk("a")
        assert backend.read(listed, 0, 10) == b"1" * 10
        source.write_bytes(b"2" * 50)
        backend.put(source, "a/file")
        with pytest.raises(DataChanged):
            backend.read(listed, 10, 10)
        backend.remove("a/file")
        with pytest.raises((DataNotFound, DataChanged)):
            backend.read(listed, 10, 10)

    def test_put_returns_what_it_stored(self, backend: Backend, local: Path) -> None:
        source = local / "file"
        source.write_bytes(b"content")
        seen: list[int] = []
        stored = backend.put(source, "x/file", seen.append)
        listed = next(iter(backend.walk("x")))
        assert (stored.path, stored.size, stored.digest) == ("x/file", 7, digest_of(b"content"))
        assert stored.etag == listed.etag
        assert sum(seen) == 7

    def test_changed_content_has_a_different_mark(self, backend: Backend, local: Path) -> None:
        source = local / "file"
        source.write_bytes(b"first")
        first = backend.put(source, "file")
        source.write_bytes(b"other")
        second = backend.put(source, "file")
        assert first.etag != second.etag

    def test_changed_file_is_distinguished_from_the_listed_one(
        self, backend: Backend, local: Path
    ) -> None:
        source, to = local / "file", local / "back"
        source.write_bytes(b"first")
        backend.put(source, "file")
        listed = next(iter(backend.walk("")))
        source.write_bytes(b"other")
        backend.put(source, "file")
        with pytest.raises(DataChanged):
            backend.fetch(listed, to)
        assert not to.exists()

    def test_children_are_files_and_folders(self, backend: Backend, local: Path) -> None:
        self.fill(backend, local)
        top = backend.children("")
        assert [item.path for item in top] == ["a", "a b", "top.txt"]
        assert isinstance(top[0], Folder)
        assert isinstance(top[2], StoredFile)
        assert [item.path for item in backend.children("a")] == ["a/b", "a/one.txt"]
        assert backend.children("nothing") == []

    def test_missing_file_is_not_found(self, backend: Backend, local: Path) -> None:
        assert backend.stat("nothing") is None
        assert backend.stat("") is None
        assert list(backend.walk("nothing")) == []
        with pytest.raises(DataNotFound):
            backend.fetch(StoredFile("nothing", 1, ""), local / "back")
        assert not (local / "back").exists()

    def test_remove_is_idempotent(self, backend: Backend, local: Path) -> None:
        self.fill(backend, local)
        backend.remove("top.txt")
        backend.remove("top.txt")
        assert backend.stat("top.txt") is None

    def test_a_path_stays_inside(self, backend: Backend, local: Path) -> None:
        with pytest.raises(DatastoreError):
            backend.stat("../outside")
        with pytest.raises(DatastoreError):
            backend.put(local / "file", "a/../../outside")

    def test_backend_passes_its_check(self, backend: Backend, tmp_path: Path) -> None:
        backend.check()


class TestLocalBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        (tmp_path / "store").mkdir()
        return LocalBackend(tmp_path / "store")

    def test_links_are_followed_once(self, backend: Backend, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "file").write_text("x")
        (tmp_path / "store" / "linked").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "store")
        assert [file.path for file in backend.walk("")] == ["linked/file"]

    def test_pipes_and_broken_links_are_not_files(self, backend: Backend, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "store" / "pipe")
        (tmp_path / "store" / "broken").symlink_to(tmp_path / "nowhere")
        assert list(backend.walk("")) == []
        assert backend.children("") == []

    def test_a_file_being_written_is_not_shown(self, backend: Backend, tmp_path: Path) -> None:
        (tmp_path / "store" / ".file.partial-0a1b").write_text("half")
        assert list(backend.walk("")) == []

    def test_paths_that_the_file_system_refuses(self, backend: Backend) -> None:
        name = "n" * 300  # longer than any file system's names
        for ask in (backend.stat, backend.children, lambda path: list(backend.walk(path))):
            with pytest.raises(DatastoreUnavailable, match="File name too long"):
                ask(name)

    def test_a_folder_that_cannot_be_read(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scandir(path: Path) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        monkeypatch.setattr("rayjobs.datastore.backends.local.os.scandir", scandir)
        for ask in (backend.children, lambda path: list(backend.walk(path))):
            with pytest.raises(AccessDenied, match="check the folder's permissions"):
                ask("")

    def test_missing_root_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(DataNotFound, match="nowhere"):
            LocalBackend(tmp_path / "nowhere").check()
