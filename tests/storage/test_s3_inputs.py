"""Inputs from S3 on a node: by mount and by download, shared, counted, fetched once."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs import datastore
from rayjobs.datastore import (
    DataInput,
    Dataset,
    Datastore,
    Materialised,
    MemoryCatalogue,
    TabularDataset,
)
from rayjobs.datastore.digests import digest_of_file
from rayjobs.datastore.inputs import resolve_input
from rayjobs.datastore.materialise import materialise, mounts_root, release, start_node, trouble
from rayjobs.datastore.mountfiles import is_mounted
from rayjobs.datastore.mounts import fuse_missing
from rayjobs.datastore.protection import Protection
from rayjobs.injob.identity import identity_of
from tests.storage.node import node_folder, wait_for
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server

pytestmark = pytest.mark.storage

TREE = {
    "train/cats/1.png": b"cat one" * 100,
    "train/cats/2.png": b"cat two" * 20_000,
    "train/dogs/1.png": os.urandom(700_001),
    "train/dogs/empty.png": b"",
    "labels.csv": b"id,label\n1,cat\n2,dog\n",
}


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


@pytest.fixture
def store(s3_server: S3Server, catalogue: MemoryCatalogue, tmp_path: Path) -> Datastore:
    for path, content in TREE.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(content)
    record = s3_server.record("s3")
    catalogue.add_datastore(record)
    store = Datastore.from_record(record)
    store.upload(tmp_path / "source", "data", show_progress=False)
    return store


@pytest.fixture
def node(short_path: Path) -> Iterator[Path]:
    yield from node_folder(short_path / "node")


def contents(path: str) -> dict[str, bytes]:
    root = Path(path)
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


def below(prefix: str) -> dict[str, bytes]:
    return {
        path.removeprefix(prefix): content
        for path, content in TREE.items()
        if path.startswith(prefix)
    }


def test_mounts_work_on_this_machine() -> None:
    assert fuse_missing() == ""


@pytest.mark.parametrize(("mode", "how"), [("mount", "mounted"), ("download", "downloaded")])
def test_a_tree_is_the_same_by_mount_and_by_download(
    store: Datastore,
    catalogue: MemoryCatalogue,
    node: Path,
    tmp_path: Path,
    mode: str,
    how: str,
) -> None:
    source = resolve_input(store.path("data/train", "train"), catalogue, mode=mode)
    done = materialise(source, node, into=tmp_path / "in")
    assert (done.how, done.said, done.files) == (how, (), 4)
    assert contents(done.path) == below("train/")
    assert sorted(os.listdir(done.path)) == ["cats", "dogs"]
    assert done.version == source.version
    assert trouble(done) is None
    release(done)
    release(done)
    assert not os.path.lexists(tmp_path / "in" / "train")


@pytest.mark.parametrize("mode", ["mount", "download"])
def test_single_file_input_is_its_path(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path, mode: str
) -> None:
    dataset = Dataset.File.from_files((store, "data/labels.csv"))
    source = resolve_input(dataset.as_named_input("labels"), catalogue, mode=mode)
    done = materialise(source, node, into=tmp_path / "in")
    assert done.path == str(tmp_path / "in" / "labels" / "labels.csv")
    assert Path(done.path).read_bytes() == TREE["labels.csv"]
    release(done)


def test_a_mount_is_read_only_and_can_be_read_anywhere(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    done = materialise(
        resolve_input(store.path("data", "d"), catalogue), node, into=tmp_path / "in"
    )
    try:
        dog = Path(done.path) / "train" / "dogs" / "1.png"
        with pytest.raises(OSError, match="Read-only"):
            dog.write_bytes(b"x")
        with pytest.raises(OSError, match="Read-only"):
            (Path(done.path) / "new").mkdir()
        with pytest.raises(FileNotFoundError):
            (Path(done.path) / "nothing").read_bytes()
        status = dog.stat()
        assert (status.st_size, stat.S_IMODE(status.st_mode)) == (700_001, 0o444)
        with dog.open("rb") as stream:
            stream.seek(650_000)
            assert stream.read(100) == TREE["train/dogs/1.png"][650_000:650_100]
            stream.seek(10)
            assert stream.read(100) == TREE["train/dogs/1.png"][10:110]
    finally:
        release(done)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the kernel's read-ahead")
def test_the_kernel_reads_far_ahead_in_a_mount(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    done = materialise(
        resolve_input(store.path("data", "d"), catalogue), node, into=tmp_path / "in"
    )
    try:
        device = Path(done.path).stat().st_dev
        settings = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}")
        if not os.access(settings / "read_ahead_kb", os.W_OK):
            pytest.skip("/sys is read-only here")
        assert (settings / "read_ahead_kb").read_text().strip() == "1024"
    finally:
        release(done)


def test_mount_is_shared_and_removed_with_its_last_user(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    source = resolve_input(store.path("data", "d"), catalogue)
    first = materialise(source, node, into=tmp_path / "one")
    second = materialise(source, node, into=tmp_path / "two")
    point = Path(first.mount_folder) / "files"
    assert first.mount_folder == second.mount_folder
    release(first)
    assert is_mounted(point)
    assert contents(second.path)["labels.csv"] == TREE["labels.csv"]
    release(second)
    assert not is_mounted(point)
    assert not Path(first.mount_folder).exists()


def test_another_version_has_another_mount(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    old = resolve_input(store.path("data", "d"), catalogue)
    (tmp_path / "new.csv").write_text("new")
    first = materialise(old, node, into=tmp_path / "one")
    store.upload_files([tmp_path / "new.csv"], target_path="data", show_progress=False)
    second = materialise(
        resolve_input(store.path("data", "d"), catalogue), node, into=tmp_path / "two"
    )
    assert first.mount_folder != second.mount_folder
    assert "new.csv" not in os.listdir(first.path)
    assert "new.csv" in os.listdir(second.path)
    release(first)
    release(second)


def test_missing_fuse_is_reported_and_the_input_is_downloaded(
    store: Datastore,
    catalogue: MemoryCatalogue,
    node: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    source = resolve_input(store.path("data", "d"), catalogue)
    done = materialise(source, node, into=tmp_path / "in")
    assert done.how == "downloaded"
    (message,) = done.said
    assert "downloaded instead" in message
    assert contents(done.path) == TREE
    release(done)


OTHER_PROCESS = """
import json, sys
from pathlib import Path
from rayjobs.datastore import DataInput
from rayjobs.datastore.materialise import materialise
from rayjobs.datastore.protection import Protection
source = DataInput.from_json(json.loads(Path(sys.argv[1]).read_text()))
protection = Protection(overlay=sys.argv[4] == "overlay")
done = materialise(
    source, Path(sys.argv[2]), into=Path(sys.argv[3]), protection=protection
)
print(json.dumps(done.to_json()), flush=True)
sys.stdin.read()
"""


def other_process(
    source: DataInput, node: Path, into: Path, *, own: str = "copy"
) -> subprocess.Popen[str]:
    into.mkdir(parents=True)
    (into / "source.json").write_text(json.dumps(source.to_json()))
    return subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(into / "source.json"), node, into, own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(datastore.__file__).parents[2],
    )


def answer(process: subprocess.Popen[str]) -> Materialised:
    assert process.stdout is not None
    return Materialised.from_json(json.loads(process.stdout.readline()))


@pytest.mark.parametrize("own", ["copy", "overlay"])
def test_processes_at_once_fetch_each_byte_once(
    s3_server: S3Server, catalogue: MemoryCatalogue, node: Path, tmp_path: Path, own: str
) -> None:
    size = 8 << 20
    with Proxy(s3_server.port) as proxy:
        record = s3_server.record("s3", endpoint=proxy.endpoint)
        catalogue.add_datastore(record)
        for number in range(4):
            (tmp_path / f"{number}.bin").write_bytes(os.urandom(size // 4))
        store = Datastore.from_record(record)
        store.upload_files(
            [tmp_path / f"{number}.bin" for number in range(4)],
            target_path="big",
            show_progress=False,
        )
        source = resolve_input(store.path("big", "big"), catalogue, mode="download")
        proxy.sent = 0
        jobs = [
            other_process(source, node, tmp_path / f"job-{number}", own=own) for number in range(8)
        ]
        answers = [answer(job) for job in jobs]
        for job in jobs:
            job.communicate()
        again = materialise(replace(source, mode="mount"), node, into=tmp_path / "mounted")
        assert sum(len(content) for content in contents(again.path).values()) == size
        release(again)
        assert size <= proxy.sent < size * 1.05
    assert [done.how for done in answers] == ["downloaded"] * 8
    first = Path(answers[0].path) / "0.bin"
    shared = [first.samefile(Path(done.path) / "0.bin") for done in answers[1:]]
    assert shared == [own == "overlay"] * 7
    assert [len(done.overlays) for done in answers] == [int(own == "overlay")] * 8
    for done in answers:
        release(done)


WRITES = """
import json, sys
from pathlib import Path
from rayjobs.injob.views import Views
folder, views = sys.argv[1:]
Views.from_json(json.loads(views)).enter()
for name in ("labels.csv", "train/cats/1.png", "new"):
    (Path(folder) / name).write_bytes(b"x")
(Path(folder) / "train" / "dogs" / "1.png").unlink()
(Path(folder) / "train" / "cats").rename(Path(folder) / "tigers")
print(sorted(path.name for path in Path(folder).rglob("*")))
"""


@pytest.mark.parametrize("own", ["copy", "overlay"])
def test_writes_to_a_download_are_private_to_the_job(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path, own: str
) -> None:
    """Both ways, by root too. Off switch: hard links into the cache for all."""
    command = [sys.executable, "-m", "rayjobs.injob.views", str(tmp_path)]
    works = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    if own == "overlay" and not works["overlay"]:
        pytest.skip("no private layers on this machine")
    protection = Protection(overlay=own == "overlay")
    source = resolve_input(store.path("data", "d"), catalogue, mode="download")
    done = materialise(source, node, into=tmp_path / "one", protection=protection)
    views = json.dumps({"overlays": done.overlays})
    job = [sys.executable, "-c", WRITES, done.path, views]
    written = subprocess.run(job, capture_output=True, text=True, check=False)
    assert written.returncode == 0, written.stderr
    assert "tigers" in written.stdout and "dogs" in written.stdout
    other = materialise(source, node, into=tmp_path / "two", protection=protection)
    assert contents(other.path) == TREE
    for each in (done, other):
        release(each)
    objects = [path for path in (node / "cache" / "objects").glob("*/*") if not path.suffix]
    assert {digest_of_file(path)[7:] for path in objects} == {path.name for path in objects}


def test_mount_without_fuse_is_read_only_if_possible(
    store: Datastore,
    catalogue: MemoryCatalogue,
    node: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    source = resolve_input(store.path("data", "d"), catalogue)
    protection = Protection(read_only=True, overlay=True)
    done = materialise(source, node, into=tmp_path / "in", protection=protection)
    assert (done.how, done.overlays, done.read_only) == ("downloaded", (), (done.path,))
    release(done)


def test_killed_user_is_no_longer_counted(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    source = resolve_input(store.path("data", "d"), catalogue)
    process = other_process(source, node, tmp_path / "job")
    done = answer(process)
    point = Path(done.mount_folder) / "files"
    assert is_mounted(point)
    assert contents(done.path) == TREE
    process.kill()
    process.communicate()
    wait_for(lambda: not is_mounted(point), "the keeper's unmounting")
    wait_for(lambda: not Path(done.mount_folder).exists(), "the keeper's tidying")


def test_a_mount_stays_for_the_owner_that_was_named(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    try:
        source = resolve_input(store.path("data", "d"), catalogue)
        identity = identity_of(owner.pid)
        done = materialise(source, node, into=tmp_path / "in", owner=identity)
        assert start_node(node) == []
        assert contents(done.path) == TREE
    finally:
        owner.kill()
        owner.communicate()
    wait_for(lambda: not is_mounted(Path(done.mount_folder) / "files"), "the keeper's unmounting")


def test_mount_processes_have_no_job_marker(
    store: Datastore,
    catalogue: MemoryCatalogue,
    node: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYJOBS_RUN_ID", "some-job")
    source = resolve_input(store.path("data", "d"), catalogue)
    done = materialise(source, node, into=tmp_path / "in")
    values = json.loads((Path(done.mount_folder) / "mount.json").read_text())
    for name in ("keeper", "server"):
        pid = values[name]["pid"]
        assert b"some-job" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getsid(pid) != os.getsid(0)
    assert "test-secret" not in json.dumps(values)
    release(done)
    assert list(mounts_root(node).glob("*/g*")) == []


def test_a_table_is_read_from_s3(
    store: Datastore, catalogue: MemoryCatalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATASTORE_CACHE", str(tmp_path / "cache"))
    table = Dataset.Tabular.from_delimited_files((store, "data/labels.csv"))
    table.register(catalogue, "labels")
    found = Dataset.get_by_name(catalogue, "labels")
    assert isinstance(found, TabularDataset)
    assert found.to_pandas_dataframe()["label"].tolist() == ["cat", "dog"]


def test_registered_version_is_stable(
    store: Datastore, catalogue: MemoryCatalogue, node: Path, tmp_path: Path
) -> None:
    Dataset.File.from_files((store, "data/train/**/*.png")).register(catalogue, "pets")
    (tmp_path / "3.png").write_bytes(b"late")
    store.upload_files([tmp_path / "3.png"], target_path="data/train/cats", show_progress=False)
    source = resolve_input("dataset:pets:1", catalogue, name="pets", mode="download")
    done = materialise(source, node, into=tmp_path / "in")
    assert contents(done.path) == below("train/")
    assert done.version == "pets:1"
    release(done)
