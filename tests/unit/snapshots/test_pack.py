"""Packing: the same tree has the same digest, is stored once, and is never stale."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.core.errors import SnapshotError, StoreFullError, UsageError
from rayjobs.snapshots import Limits, NodeSnapshots, Snapshot, blob_key, limits_from_environment
from rayjobs.snapshots import pack as pack_directory
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import open_workspace
from tests.unit.snapshots.conftest import Packer

LONG_AGO_NS = 1_600_000_000 * 10**9


def paths(snapshot: Snapshot) -> set[str]:
    return {entry.path for entry in snapshot.manifest}


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every file as old enough to be trusted: change times cannot be set back."""
    monkeypatch.setattr("rayjobs.snapshots.stat_cache.SETTLED_NS", -(10**15))


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=20)
TREES = st.lists(
    st.tuples(
        st.lists(
            NAMES.filter(lambda name: name not in ("", ".", "..") and len(name.encode()) < 250),
            min_size=1,
            max_size=3,
        ),
        st.binary(max_size=600),
        st.booleans(),
    ),
    max_size=6,
)


def write_tree(root: Path, tree: list[tuple[list[str], bytes, bool]]) -> None:
    root.mkdir()
    for parts, content, executable in tree:
        path = root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            continue  # an earlier file is where this one needs a folder, or the other way
        path.chmod(0o700 if executable else 0o600)


@pytest.mark.long
@given(tree=TREES)
def test_a_tree_survives_packing_and_unpacking_whatever_its_times_and_owners(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[list[str], bytes, bool]]
) -> None:
    base = tmp_path_factory.mktemp("tree")
    blobs = FolderBlobs(base / "blobs")
    snapshots = []
    for name, listed in (("one", tree), ("two", tree)):
        write_tree(base / name, listed)
        if name == "two":
            for path in (base / name).rglob("*"):
                os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
        snapshots.append(
            pack_directory(base / name, blobs_put=blobs.put_file, blobs_has=blobs.exists)
        )
    one, two = snapshots
    assert one.digest == two.digest
    assert one.is_new and not two.is_new
    node = NodeSnapshots(base / "node")
    unpacked = node.ensure(one.digest, lambda: blobs.open(blob_key(one.digest)))
    for entry in one.manifest:
        path = unpacked / entry.path
        if path.is_file():
            assert path.read_bytes() == (base / "one" / entry.path).read_bytes()
            assert bool(path.stat().st_mode & 0o100) == entry.executable
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*")}
    assert found == paths(one)


def test_the_digest_is_the_same_on_every_machine_and_in_every_version(packed: Packer) -> None:
    # Never change this digest: a job's record names its snapshot by it.
    assert packed().digest == (
        "sha256:a8d1577a7500f9f4eacebca7bb8232d816d37f18b97cd68c7a390b8621bb7573"
    )


@pytest.mark.parametrize("change", ["content", "name", "executable", "empty folder", "link"])
def test_every_difference_that_a_script_could_see_changes_the_digest(
    packed: Packer, source: Path, change: str
) -> None:
    before = packed().digest
    script = source / "train.py"
    if change == "content":
        script.write_text("print('hallo')\n")
    elif change == "name":
        script.rename(source / "Train.py")
    elif change == "executable":
        script.chmod(0o755)
    elif change == "empty folder":
        (source / "data").mkdir()
    else:
        (source / "again.py").symlink_to("train.py")
    assert packed().digest != before


def test_an_unchanged_tree_is_neither_read_nor_stored_again(
    packed: Packer, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    (source / ".gitignore").write_text("*.log\n")
    (source / "x.log").write_text("")
    first = packed(cache=tmp_path / "cache")
    module = importlib.import_module("rayjobs.snapshots.pack")  # the package has a function `pack`
    monkeypatch.setattr(module, "_write", None)  # would fail when called
    monkeypatch.setattr("rayjobs.snapshots.ignore.Rules._compiled", None)
    second = packed(cache=tmp_path / "cache")
    assert (second.digest, second.manifest) == (first.digest, first.manifest)
    assert first.is_new and not second.is_new


def test_recent_file_is_read_again_although_its_metadata_is_equal(
    packed: Packer, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file system whose times are so coarse that two writes look alike.
    module = importlib.import_module("rayjobs.snapshots.pack")
    monkeypatch.setattr(module, "signature", lambda _found: "the same")
    # The scan stays within 2 s of the writes, however slow the machine is.
    monkeypatch.setattr("rayjobs.snapshots.stat_cache.SETTLED_NS", 3_600 * 10**9)
    first = packed(cache=tmp_path / "cache")
    (source / "train.py").write_text("print('hullo')\n")
    assert packed(cache=tmp_path / "cache").digest != first.digest


@pytest.mark.parametrize("change", ["content", "new file", "removed", "ignore file", "executable"])
def test_the_cache_is_never_stale(
    packed: Packer, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    settle(monkeypatch)
    (source / "data.csv").write_text("1")
    cache = tmp_path / "cache"
    packed(cache=cache)
    if change == "content":
        info = (source / "data.csv").stat()
        (source / "data.csv").write_text("2")
        os.utime(source / "data.csv", ns=(info.st_atime_ns, info.st_mtime_ns))
    elif change == "new file":
        (source / "new.py").write_text("")
    elif change == "removed":
        (source / "data.csv").unlink()
    elif change == "ignore file":
        (source / ".gitignore").write_text("*.csv")
    else:
        (source / "data.csv").chmod(0o755)
    cached = packed(cache=cache)
    assert cached.digest == packed().digest
    assert paths(cached) == paths(packed())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99}', b"\xff"]
)
def test_a_broken_cache_is_ignored(
    packed: Packer, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    cache = tmp_path / "cache"
    first = packed(cache=cache)
    (file,) = cache.iterdir()
    file.write_bytes(content)
    assert packed(cache=cache).digest == first.digest


def test_an_archive_lost_from_the_store_is_written_again(
    packed: Packer, blobs: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    first = packed(cache=tmp_path / "cache")
    blobs.delete(blob_key(first.digest))
    assert packed(cache=tmp_path / "cache").is_new
    assert blobs.exists(blob_key(first.digest))


def test_no_temporary_archive_stays(packed: Packer, tmp_path: Path) -> None:
    packed(cache=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]


def test_a_full_disk_is_named_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def put(_path: Path, _key: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreFullError, match="no space left"):
        pack_directory(source, blobs_put=put, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_tree_above_the_size_limit_names_the_largest_and_the_lines_that_help(
    packed: Packer, source: Path
) -> None:
    (source / "data").mkdir()
    for number in range(3):
        (source / "data" / f"part{number}.bin").write_bytes(bytes(40_000))
    (source / "weights [1].pt").write_bytes(bytes(30_000))
    limits = Limits(size=50_000, files=100)
    with pytest.raises(SnapshotError) as caught:
        packed(limits=limits, entry="train.py")
    text = str(caught.value)
    assert "data/ (3 files)" in text
    assert "weights [1].pt" in text
    lines = caught.value.values["ignore_lines"]
    assert lines == ("/data/",)
    (source / ".rayjobsignore").write_text("\n".join(lines))
    assert "data/" not in {path + "/" for path in paths(packed(limits=limits, entry="train.py"))}


def test_the_suggested_line_never_hides_the_entry_script(packed: Packer, source: Path) -> None:
    (source / "app" / "big").mkdir(parents=True)
    (source / "app" / "main.py").write_text("")
    (source / "app" / "big" / "x").write_bytes(bytes(9_000))
    (source / "wei*rd ").write_bytes(bytes(5_000))
    limits = Limits(size=1_000, files=100)
    with pytest.raises(SnapshotError) as caught:
        packed(limits=limits, entry="app/main.py")
    lines = caught.value.values["ignore_lines"]
    assert lines[0] == "/app/big/"
    (source / ".rayjobsignore").write_text("\n".join(lines))
    assert "app/main.py" in paths(packed(limits=limits, entry="app/main.py"))


def test_too_many_files_are_refused_with_the_fullest_folder(packed: Packer, source: Path) -> None:
    (source / "many").mkdir()
    for number in range(30):
        (source / "many" / str(number)).touch()
    with pytest.raises(SnapshotError, match=r"(?s)30 files +many/.*/many/"):
        packed(limits=Limits(files=20))


def test_limits_come_from_the_environment() -> None:
    assert limits_from_environment({}) == Limits()
    assert limits_from_environment({"RAYJOBS_SNAPSHOT_LIMIT_MIB": "1.5"}).size == 1_572_864
    assert limits_from_environment({"RAYJOBS_SNAPSHOT_LIMIT_FILES": "7"}).files == 7
    assert limits_from_environment({"AML_SNAPSHOT_NO_FILE_LIMIT": "1"}).files > 100_000
    for wrong in ("0", "-1", "x", "nan", "inf"):
        with pytest.raises(UsageError, match="RAYJOBS_SNAPSHOT_LIMIT_MIB"):
            limits_from_environment({"RAYJOBS_SNAPSHOT_LIMIT_MIB": wrong})


def test_a_missing_source_directory_is_named(tmp_path: Path, packed: Packer) -> None:
    with pytest.raises(SnapshotError, match="does not exist"):
        packed(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("ignore", "entry", "message"),
    [
        ("train.py\n", "train.py", r"line 1 of \.rayjobsignore: train\.py"),
        ("\n# scripts\n/code/\n", "code/run.py", r"line 3 of \.rayjobsignore"),
        ("", "credentials_test.py", "likely secret"),
        ("", "nothere.py", "is not a file"),
        ("", "code", "is not a file"),
    ],
)
def test_an_entry_script_that_would_be_left_out_is_an_error(
    packed: Packer, source: Path, ignore: str, entry: str, message: str
) -> None:
    (source / ".rayjobsignore").write_text(ignore)
    (source / "code").mkdir()
    (source / "code" / "run.py").touch()
    (source / "credentials_test.py").touch()
    with pytest.raises(SnapshotError, match=message):
        packed(entry=entry)


def test_an_entry_script_that_no_ignore_line_would_pack_has_another_remedy(
    packed: Packer, source: Path
) -> None:
    open_workspace(source / "ws").close()
    (source / "got").mkdir()
    for name in ("ws/train.py", "got/train.py", "got/.rayjobs-download"):
        (source / name).touch()
    (source / ".rayjobsignore").write_text("!/ws/\n!/got/\n")
    with pytest.raises(SnapshotError, match="never packed: move the script to a folder without"):
        packed(entry="ws/train.py")
    with pytest.raises(SnapshotError, match=r"remove got/\.rayjobs-download"):
        packed(entry="got/train.py")
    (source / "got" / ".rayjobs-download").unlink()
    packed(entry="got/train.py")


def test_stored_outputs_of_an_earlier_run_cause_a_warning(packed: Packer, source: Path) -> None:
    (source / "outputs").mkdir()
    assert not packed().warnings
    (source / "outputs" / "model.pt").touch()
    assert any("/outputs/" in warning for warning in packed().warnings)


@pytest.mark.long
def test_an_unchanged_tree_without_ignore_file_needs_no_heavy_import(source: Path) -> None:
    code = (
        "import sys, tempfile, pathlib\n"
        "from rayjobs.snapshots import pack\n"
        f"pack({str(source)!r}, blobs_put=lambda path, key: None)\n"
        "print([name for name in ('pathspec', 'ray', 'pydantic', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout.strip() == "[]"
