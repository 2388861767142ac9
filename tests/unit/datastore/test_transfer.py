"""Many files at once: the first failure stops the rest, complete files stay."""

import threading
from pathlib import Path

import pytest

from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.backends.base import CountBytes, Stopped, StoredFile, ignore_bytes
from rayjobs.datastore.backends.local import LocalBackend
from rayjobs.datastore.digests import CHUNK_BYTES
from rayjobs.datastore.errors import CredentialNotSet, DatastoreUnavailable
from rayjobs.datastore.fsspec_records import fsspec_record
from rayjobs.datastore.progress import Progress, ProgressLine
from rayjobs.datastore.transfer import Download, download, files_below, for_each


class BreaksAt(LocalBackend):
    """A folder that fails in the middle of one file."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(root)
        self.path = path

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        if file.path == self.path:
            to.write_bytes(b"half")
            raise DatastoreUnavailable("broke off")
        return super().fetch(file, to, count)


def test_partial_file_is_never_left(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    store.mkdir()
    for name in "abc":
        (store / name).write_text(name)
    backend = BreaksAt(store, "b")
    wanted = [Download(file, target / file.path) for file in backend.walk("")]
    with pytest.raises(DatastoreUnavailable, match="of 3 files"):
        download(backend, wanted, overwrite=False, progress=None, threads=1)
    assert [path.name for path in target.iterdir()] == ["a"]


@pytest.mark.parametrize("kind", ["local", "fsspec"])
def test_an_interrupted_upload_leaves_no_partial_file(tmp_path: Path, kind: str) -> None:
    """Ctrl-C raises `Stopped` in the middle of each file."""
    root, source = tmp_path / "store", tmp_path / "big"
    root.mkdir()
    source.write_bytes(b"x" * (3 * CHUNK_BYTES))

    def interrupted(_size: int) -> None:
        raise Stopped

    backend = (
        LocalBackend(root)
        if kind == "local"
        else open_backend(fsspec_record("s", f"file://{root}", {}, {}))
    )
    with pytest.raises(Stopped):
        backend.put(source, "a/big", interrupted)
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_the_error_of_a_transfer_keeps_the_attributes_of_the_first_failure(tmp_path: Path) -> None:
    class Unset(LocalBackend):
        def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
            raise CredentialNotSet("export it", "PHOTOS_KEY")

    store = tmp_path / "store"
    store.mkdir()
    for name in "ab":
        (store / name).write_text(name)
    backend = Unset(store)
    wanted = [Download(file, tmp_path / "target" / file.path) for file in backend.walk("")]
    with pytest.raises(CredentialNotSet, match="0 of 2 files") as raised:
        download(backend, wanted, overwrite=False, progress=None)
    assert str(raised.value).endswith(": export it")
    assert raised.value.variable == "PHOTOS_KEY"
    assert raised.value.message == str(raised.value)


def test_no_transfer_starts_after_a_failure() -> None:
    begun: list[int] = []
    may_fail = threading.Event()

    def work(number: int, stop: threading.Event) -> None:
        begun.append(number)
        if number == 0:
            assert may_fail.wait(150)
            raise ValueError("first")
        may_fail.set()
        assert stop.wait(150)

    with pytest.raises(ValueError, match="first"):
        for_each(list(range(50)), work, threads=2)
    assert sorted(begun) == [0, 1]


def test_transfer_of_no_files_returns() -> None:
    for_each([], lambda item, stop: None)


def test_files_below_a_folder_follow_links_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert [path.name for path in files_below(tmp_path)] == ["x"]


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""


def test_a_terminal_gets_one_line_that_changes() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal, every_s=0)  # type: ignore[arg-type]  # has the methods used
    line(Progress("upload", 0, 2, 0, 2000))
    line(Progress("upload", 2, 2, 2000, 2000, finished=True))
    assert terminal.text == (
        "\rupload: 0/2 files, 0 B of 1.95 KiB\rupload: 2/2 files, 1.95 KiB of 1.95 KiB\n"
    )
