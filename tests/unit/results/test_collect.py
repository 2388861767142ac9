"""The files of an attempt are stored completely and once, and missing ones are named."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import StoreBusyError, StoreError
from rayjobs.core.paths import AttemptPaths
from rayjobs.jobs.records import Job, StoredFile
from rayjobs.results.collect import MetricFollower, Publisher, deliver, log_tails, scan_files
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.workspace import blobs as blobs_module
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import on_node


class FakeClock:
    """Wall and monotonic time that the test sets."""

    def __init__(self) -> None:
        self.passed = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.passed

    def monotonic_s(self) -> float:
        return self.passed.total_seconds()

    def advance(self, seconds: float) -> None:
        self.passed += timedelta(seconds=seconds)


class Shelf:
    """Stands in for the store: accepts published rows, unless it is set to refuse or to fail."""

    def __init__(self) -> None:
        self.rows: dict[str, StoredFile] = {}
        self.refuses = False
        self.error: Exception | None = None

    def publish(self, files: Sequence[StoredFile]) -> bool:
        if self.error is not None:
            raise self.error
        if not self.refuses:
            self.rows.update({one.name: one for one in files})
        return not self.refuses


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "attempt"
    paths = AttemptPaths(root)
    for folder in (paths.work / "outputs", paths.work / "logs", root / "log", root / "metrics"):
        folder.mkdir(parents=True)
    return root


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


def publisher(root: Path, blobs: FolderBlobs, shelf: Shelf, clock: FakeClock) -> Publisher:
    return Publisher(on_node(root), blobs=blobs, publish=shelf.publish, clock=clock)


def content(blobs: FolderBlobs, row: StoredFile) -> bytes:
    with blobs.open(row.blob) as file:
        return file.read()


def test_outputs_logs_uploads_and_prints_are_found(root: Path) -> None:
    (root / "work" / "outputs" / "sub").mkdir()
    (root / "work" / "outputs" / "sub" / "model.pt").write_bytes(b"m")
    (root / "work" / "logs" / "a.txt").write_bytes(b"l")
    (root / "work" / "train.py").write_bytes(b"not an output")
    (root / "uploads").mkdir()
    (root / "uploads" / "given.bin").write_bytes(b"u")
    (root / "uploads" / ".part-123").write_bytes(b"half a copy")
    (root / "work" / "outputs" / ".part-abc").mkdir()
    (root / "work" / "outputs" / ".part-abc" / "model.pt").write_bytes(b"half a checkpoint")
    (root / "log" / "driver_0.log").write_bytes(b"printed")
    found = scan_files(on_node(root))
    assert [name for name, _ in found.files] == [
        "azureml-logs/70_driver_log.txt",
        "given.bin",
        "logs/a.txt",
        "outputs/sub/model.pt",
    ]
    assert found.left_out == []
    second = scan_files(on_node(root, node=1, node_count=2, ranks=(1,)))
    assert [name for name, _ in second.files] == [
        "node-1/given.bin",
        "node-1/logs/a.txt",
        "node-1/outputs/sub/model.pt",
    ]


def test_links_and_odd_files_are_handled(root: Path, tmp_path: Path) -> None:
    outputs = root / "work" / "outputs"
    (tmp_path / "secret").write_bytes(b"secret")
    (outputs / "real").mkdir()
    (outputs / "real" / "a").write_bytes(b"a")
    (outputs / "inside").symlink_to("real")
    (outputs / "file").symlink_to("real/a")
    (outputs / "outside").symlink_to(tmp_path / "secret")
    (outputs / "folder_outside").symlink_to(tmp_path)
    (outputs / "loop").symlink_to(".")
    (outputs / "nowhere").symlink_to("missing")
    os.mkfifo(outputs / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(outputs, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/sock")  # the whole path would be too long
        finally:
            os.close(folder)
        found = scan_files(on_node(root))
    assert [name for name, _ in found.files] == [
        "outputs/file",
        "outputs/inside/a",
        "outputs/real/a",
    ]
    sentences = "\n".join(one.sentence for one in found.left_out)
    for name in ("outside", "folder_outside", "loop", "nowhere", "fifo", "sock"):
        assert f"outputs/{name}: " in sentences


def test_outputs_that_were_replaced_by_a_link_are_not_followed_out(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"x")
    (root / "work" / "outputs").rmdir()
    (root / "work" / "outputs").symlink_to(tmp_path / "elsewhere")
    assert scan_files(on_node(root)).files == []


def test_a_script_may_delete_its_folder(root: Path, blobs: FolderBlobs) -> None:
    for folder in ("outputs", "logs"):
        (root / "work" / folder).rmdir()
    (root / "work").rmdir()
    assert publisher(root, blobs, Shelf(), FakeClock()).finish() == []


def test_names_that_are_not_text_are_stored_readably(root: Path, blobs: FolderBlobs) -> None:
    try:
        (root / "work" / "outputs" / os.fsdecode(b"caf\xe9")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system accepts only names in UTF-8")
    shelf = Shelf()
    assert publisher(root, blobs, shelf, FakeClock()).finish() == []
    assert list(shelf.rows) == ["outputs/caf\\xe9"]


def test_a_name_that_looks_like_an_escaped_one_is_another(root: Path, blobs: FolderBlobs) -> None:
    outputs = root / "work" / "outputs"
    names = {b"caf\xe9": "caf\\xe9", b"caf\\xe9": "caf\\x5cxe9", b"a\\b": "a\\b"}
    try:
        for name in names:
            (outputs / os.fsdecode(name)).write_bytes(name)
    except OSError:
        pytest.skip("this file system accepts only names in UTF-8")
    shelf = Shelf()
    assert publisher(root, blobs, shelf, FakeClock()).finish() == []
    kept = {name.removeprefix("outputs/"): row for name, row in shelf.rows.items()}
    assert {shown: content(blobs, kept[shown]) for shown in kept} == {
        shown: name for name, shown in names.items()
    }


def test_while_running_only_whole_files_are_stored(root: Path, blobs: FolderBlobs) -> None:
    shelf, clock = Shelf(), FakeClock()
    storing = publisher(root, blobs, shelf, clock)
    file = root / "work" / "outputs" / "model.pt"
    file.write_bytes(b"one")
    assert storing.step() == 0
    clock.advance(10)
    assert storing.step() == 1
    assert content(blobs, shelf.rows["outputs/model.pt"]) == b"one"
    assert storing.step() == 0
    file.write_bytes(b"three")
    os.utime(file, (1, 1))
    assert storing.step() == 0  # stored a moment ago
    clock.advance(60)
    assert storing.step() == 1
    assert content(blobs, shelf.rows["outputs/model.pt"]) == b"three"


def test_at_the_end_everything_is_stored_once(root: Path, blobs: FolderBlobs) -> None:
    shelf = Shelf()
    storing = publisher(root, blobs, shelf, FakeClock())
    (root / "work" / "outputs" / "model.pt").write_bytes(b"fresh")
    (root / "log" / "driver_0.log").write_bytes(b"caf\xe9\0")
    assert storing.finish() == []
    assert content(blobs, shelf.rows["outputs/model.pt"]) == b"fresh"
    row = shelf.rows["azureml-logs/70_driver_log.txt"]
    assert content(blobs, row) == b"caf\xe9\0"
    assert (row.size, row.attempt) == (5, 1)
    shelf.rows.clear()
    assert storing.finish() == []
    assert shelf.rows == {}


def test_an_unreadable_file_is_named_and_the_rest_stored(
    root: Path, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "work" / "outputs" / "a").write_bytes(b"a")
    (root / "work" / "outputs" / "b").write_bytes(b"b")
    open_source = blobs_module.open_source

    def refuse(path: Path) -> Any:
        if path.name == "a":
            raise StoreError("it cannot be stored: Permission denied")
        return open_source(path)

    monkeypatch.setattr(blobs_module, "open_source", refuse)
    shelf = Shelf()
    assert publisher(root, blobs, shelf, FakeClock()).finish() == [
        "outputs/a: it cannot be stored: Permission denied."
    ]
    assert list(shelf.rows) == ["outputs/b"]


def test_a_full_disk_is_reported_and_a_second_try_stores_the_rest(
    root: Path, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        (root / "work" / "outputs" / str(number)).write_bytes(b"%d" % number)
    shelf = Shelf()
    storing = publisher(root, blobs, shelf, FakeClock())
    with monkeypatch.context() as full:

        def refuse(*given: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(blobs_module, "_copy", refuse)
        assert storing.step() == 0
        problems = storing.finish()
    assert problems[0].startswith("outputs/0: no space is left for files")
    assert problems[-1] == "4 more files could not be stored."
    assert storing.finish() == []
    assert len(shelf.rows) == 9


def test_storing_is_repeated_if_the_store_is_busy(root: Path, blobs: FolderBlobs) -> None:
    (root / "work" / "outputs" / "a").write_bytes(b"a")
    shelf = Shelf()
    storing = publisher(root, blobs, shelf, FakeClock())
    shelf.error = StoreBusyError("the store is locked")
    assert storing.finish() == ["the store is locked."]
    shelf.error = None
    assert storing.finish() == []
    assert list(shelf.rows) == ["outputs/a"]


def test_a_late_attempt_stores_nothing_more(root: Path, blobs: FolderBlobs) -> None:
    (root / "work" / "outputs" / "a").write_bytes(b"a")
    shelf, clock = Shelf(), FakeClock()
    shelf.refuses = True
    storing = publisher(root, blobs, shelf, clock)
    clock.advance(10)
    storing.step()
    assert storing.refused
    shelf.refuses = False
    assert storing.finish() == []
    assert shelf.rows == {}


# -- metrics --------------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "ws") as opened:
        yield opened


@pytest.fixture
def job(workspace: OpenWorkspace) -> Job:
    job, _ = workspace.store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="e", snapshot=None, user="me")
    )
    workspace.store.start(job.id, attempt=0, allocation="rj-local-1")
    return job


LOGGED = (
    b'{"k":"metric","name":"loss","value":0.5,"step":1,"t":1.5}\n'
    b'{"k":"tag","name":"quality","value":"good","t":2}\n'
    b'{"k":"property","name":"author","value":"me","t":2}\n'
    b'{"k":"metric","name":"loss","value":"NaN","step":2,"t":2.5}\n'
    b'{"k":"fail","name":"error","value":"not good","t":2.5}\n'
    b'{"k":"dropped","value":7}\n'
)


def test_batches_are_resent_until_confirmed(root: Path) -> None:
    (root / "metrics" / "rank-0.jsonl").write_bytes(LOGGED)
    follower = MetricFollower(root, attempt=1)
    (first,) = follower.batches()
    (again,) = follower.batches()
    assert [point.value for point in first.points] == [0.5, "NaN"]
    assert again == first
    follower.confirm(again)
    assert list(follower.batches()) == []


def test_all_ranks_are_read(root: Path) -> None:
    for rank in (0, 2, 11):
        (root / "metrics" / f"rank-{rank}.jsonl").write_bytes(LOGGED)
    (root / "metrics" / "other.txt").write_bytes(b"x")
    batches = list(MetricFollower(root, attempt=1).batches())
    assert [batch.rank for batch in batches] == [0, 2, 11]
    assert list(MetricFollower(root / "none", attempt=1).batches()) == []


def test_a_delivered_batch_is_in_the_store_once(
    root: Path, workspace: OpenWorkspace, job: Job
) -> None:
    (root / "metrics" / "rank-0.jsonl").write_bytes(LOGGED)
    for _ in range(2):  # the second follower is that of an agent that was replaced
        follower = MetricFollower(root, attempt=1)
        for batch in follower.batches(limit=2):
            deliver(workspace.store, job.id, batch, attempt=1)
            follower.confirm(batch)
    points = workspace.store.metrics(job.id)
    assert [(point.value, point.step) for point in points] == [(0.5, 1), ("NaN", 2)]
    now = workspace.store.job(job.id)
    assert dict(now.tags) == {"quality": "good"}
    assert now.properties["author"] == "me"
    kinds = {event.kind for event in workspace.store.events(job.id)}
    assert {"script_error", "metrics_dropped"} <= kinds


def test_existing_property_is_reported_and_blocks_nothing(
    root: Path, workspace: OpenWorkspace, job: Job
) -> None:
    workspace.store.update(job.id, JobChanges(properties={"author": "you"}))
    (root / "metrics" / "rank-0.jsonl").write_bytes(LOGGED)
    follower = MetricFollower(root, attempt=1)
    for batch in follower.batches():
        deliver(workspace.store, job.id, batch, attempt=1)
    assert workspace.store.job(job.id).properties["author"] == "you"
    events = [event.kind for event in workspace.store.events(job.id)]
    assert "property_refused" in events


def test_tails_are_the_ends_of_all_logs(root: Path) -> None:
    (root / "log" / "driver_0.log").write_bytes(b"a" * 100_000 + b"end")
    tails = log_tails(on_node(root, ranks=(0, 1)), most_bytes=10)
    assert tails == {0: b"aaaaaaaend", 1: b""}
