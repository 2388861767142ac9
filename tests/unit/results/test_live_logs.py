"""Output of a rank for readers without the attempt's folder: every byte once, in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import StoreUnreachableError
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import Job
from rayjobs.results import live_logs, logs
from rayjobs.results.driver_log import marker
from rayjobs.results.live_logs import Reader, Sender
from rayjobs.results.logs import Logs
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from rayjobs.workspace.s3_address import S3Address
from tests.unit.results.played import begin, end


class SharedBlobs(FolderBlobs):
    """A folder in place of a bucket; unavailable while `is_away`."""

    address = S3Address("bucket")
    is_away = False

    def list(self, prefix: str = "") -> Iterator[str]:
        if self.is_away:
            raise StoreUnreachableError("the bucket is away")
        return super().list(prefix)


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def blobs(tmp_path: Path) -> SharedBlobs:
    return SharedBlobs(tmp_path / "bucket")


@pytest.fixture
def workspace(tmp_path: Path, blobs: SharedBlobs) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "ws") as opened:
        yield replace(opened, blobs=blobs)


@pytest.fixture
def job(workspace: OpenWorkspace) -> Job:
    job, _ = workspace.store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="e", snapshot=None, user="me")
    )
    return job


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "attempt" / "log" / "driver_0.log"
    path.parent.mkdir(parents=True)
    return path


def sender(blobs: FolderBlobs, log: Path, clock: Clock | None = None) -> Sender:
    return Sender(blobs, log, "live/j/1/0/", clock or Clock())


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_pieces_make_the_log(blobs: SharedBlobs, log: Path) -> None:
    clock, reader = Clock(), Reader(blobs, "live/j/1/0/")
    sends = sender(blobs, log, clock)
    sends.step()  # there is no log yet
    assert reader.read() == b""
    add(log, b"one\n")
    sends.step()
    add(log, b"two\n")
    sends.step()
    assert reader.read() == b"one\ntwo\n"
    assert (reader.read(), reader.given) == (b"", 8)
    sends.remove()
    assert list(blobs.list("live/")) == []


def test_a_busy_rank_is_stored_once_a_second(blobs: SharedBlobs, log: Path) -> None:
    clock = Clock()
    sends = sender(blobs, log, clock)
    for number in range(20):
        add(log, b"%d\n" % number)
        sends.step()
    first = b"".join(b"%d\n" % number for number in range(live_logs.AT_ONCE))
    assert Reader(blobs, "live/j/1/0/").read() == first
    clock.now_s = 1.0
    sends.step()
    assert Reader(blobs, "live/j/1/0/").read() == log.read_bytes()


def test_new_agent_continues_after_the_last_piece(blobs: SharedBlobs, log: Path) -> None:
    reader = Reader(blobs, "live/j/1/0/")
    add(log, b"one\n")
    sender(blobs, log).step()
    assert reader.read() == b"one\n"
    add(log, b"two\n")
    again = sender(blobs, log)
    again.step()
    again.step()
    assert reader.read() == b"two\n"
    assert len(list(blobs.list("live/"))) == 1


def test_a_long_log_has_few_pieces(blobs: SharedBlobs, log: Path) -> None:
    clock, reader = Clock(), Reader(blobs, "live/j/1/0/")
    sends = sender(blobs, log, clock)
    found = b""
    for number in range(100):
        add(log, b"%07d\n" % number * 1250)  # 10,000 bytes
        clock.now_s += 1.0
        sends.step()
        if number % 3 == 0:
            found += reader.read()
    pieces = len(list(blobs.list("live/")))
    assert pieces <= 1_000_000 // live_logs.PIECE_BYTES + 1
    assert found + reader.read() == log.read_bytes()
    assert Reader(blobs, "live/j/1/0/").read() == log.read_bytes()


def test_a_part_that_was_left_out_is_read_once(blobs: SharedBlobs, log: Path) -> None:
    import json

    add(log, b"begin\n" + bytes(4096 - 6) + b"end\n")
    note = {"holes": [{"offset": 6, "length": 4090}]}
    log.with_name("driver_0.holes.json").write_text(json.dumps(note))
    sends, reader = sender(blobs, log), Reader(blobs, "live/j/1/0/")
    sends.step()
    whole = b"begin\n" + marker(4090) + b"end\n"
    assert reader.read() == whole
    add(log, b"more\n")
    sends.step()
    assert reader.read() == b"more\n"
    assert reader.given == len(whole) + 5


def test_a_piece_that_was_not_stored_is_sent_again(
    blobs: SharedBlobs, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = sender(blobs, log)
    add(log, b"one\n")
    sends.step()
    add(log, b"two\n")
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise StoreUnreachableError("away")

        patched.setattr(blobs, "put_bytes", away)
        with pytest.raises(StoreUnreachableError):
            sends.step()
    sends.step()
    assert Reader(blobs, "live/j/1/0/").read() == b"one\ntwo\n"


class Following:
    """A follower on its own thread."""

    def __init__(self, workspace: OpenWorkspace, job: Job) -> None:
        self.data = b""
        self.error: BaseException | None = None
        self.news = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(Logs(workspace, job.id),))
        self._thread.start()

    def _run(self, of_job: Logs) -> None:
        try:
            for part in of_job.follow(poll_s=0.01):
                with self.news:
                    self.data += part.data
                    self.news.notify_all()
        except BaseException as error:
            self.error = error

    def wait_for(self, data: bytes) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.data == data, timeout=30), self.data

    def end(self) -> bytes:
        self._thread.join(30)
        assert not self._thread.is_alive() and self.error is None, self.error
        return self.data


def elsewhere(workspace: OpenWorkspace, job: Job, root: Path, number: int = 1) -> None:
    """Record the attempt's folder as one of another machine, at a path that exists here as well."""
    host = HostRecord(root=str(root), pid=1, start_time=1, boot_id="of another machine")
    workspace.store.set_hosts(job.id, attempt=number, hosts=[host])


def test_remote_follower_gets_every_byte_once(
    workspace: OpenWorkspace, blobs: SharedBlobs, job: Job, tmp_path: Path
) -> None:
    root = tmp_path / "a1"
    path = begin(workspace, job, root).driver_log(0)
    elsewhere(workspace, job, root)
    sends = Sender(blobs, path, live_logs.folder(job.id, 1, 0), Clock())
    following = Following(workspace, job)
    path.write_bytes(b"first\n")
    sends.step()
    following.wait_for(b"first\n")
    of_job = Logs(workspace, job.id)
    assert of_job.names() == ["azureml-logs/70_driver_log.txt"]
    assert of_job.read() == b"first\n"
    add(path, b"second\n")
    sends.step()
    following.wait_for(b"first\nsecond\n")
    add(path, b"last\n")  # the attempt ends before it is sent
    end(workspace, job, root)
    sends.remove()
    assert following.end() == b"first\nsecond\nlast\n"
    assert Logs(workspace, job.id).read() == b"first\nsecond\nlast\n"


def test_a_folder_of_another_machine_is_not_read(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    path = begin(workspace, job, tmp_path / "a1").driver_log(0)
    path.write_bytes(b"of a job of this machine\n")
    elsewhere(workspace, job, tmp_path / "a1")
    assert Logs(workspace, job.id).names() == []


def test_follower_continues_after_an_outage(
    workspace: OpenWorkspace, blobs: SharedBlobs, job: Job, tmp_path: Path
) -> None:
    path = begin(workspace, job, tmp_path / "a1").driver_log(0)
    elsewhere(workspace, job, tmp_path / "a1")
    path.write_bytes(b"one\n")
    Sender(blobs, path, live_logs.folder(job.id, 1, 0), Clock()).step()
    blobs.is_away = True
    following = Logs(workspace, job.id).follow(poll_s=0.01)
    assert [next(following).data for _ in range(5)] == [b""] * 5
    blobs.is_away = False
    while not (data := next(following).data):
        pass
    assert data == b"one\n"


def test_a_follower_reads_the_end_of_an_attempt_after_the_next_has_begun(
    workspace: OpenWorkspace, blobs: SharedBlobs, job: Job, tmp_path: Path
) -> None:
    path = begin(workspace, job, tmp_path / "a1").driver_log(0)
    elsewhere(workspace, job, tmp_path / "a1")
    sends = Sender(blobs, path, live_logs.folder(job.id, 1, 0), Clock())
    of_job = Logs(workspace, job.id)
    parts = of_job.follow(poll_s=0.0)
    path.write_bytes(b"one\n")
    sends.step()
    found = b""
    while found != b"one\n":
        found += next(parts).data
    add(path, b"two\n")
    end_and_requeue(workspace, job, tmp_path / "a1")
    sends.remove()
    path = begin(workspace, job, tmp_path / "a2").driver_log(0)
    elsewhere(workspace, job, tmp_path / "a2", 2)
    path.write_bytes(b"three\n")
    end(workspace, job, tmp_path / "a2")
    assert found + b"".join(part.data for part in parts) == b"one\ntwo\nthree\n"


def end_and_requeue(workspace: OpenWorkspace, job: Job, root: Path) -> None:
    from rayjobs.injob.outcomes import Outcome
    from rayjobs.jobs.states import JobState
    from rayjobs.results.collect import Publisher
    from tests.support.attempts import on_node

    store = workspace.store
    store.move(job.id, attempt=1, old=JobState.RUNNING, new=JobState.FINALIZING)
    publisher = Publisher(
        on_node(root, attempt=1),
        blobs=workspace.blobs,
        publish=lambda files: store.publish_files(job.id, attempt=1, files=files),
    )
    assert publisher.finish() == []
    assert store.requeue(job.id, attempt=1, reason="again", outcome=Outcome.FAILED)


def test_permanent_storage_outage_ends_the_following(
    workspace: OpenWorkspace,
    blobs: SharedBlobs,
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(workspace, job, tmp_path / "a1")
    elsewhere(workspace, job, tmp_path / "a1")
    monkeypatch.setattr(logs, "PATIENCE_S", 0.0)
    blobs.is_away = True
    with pytest.raises(StoreUnreachableError, match="away"):
        for _ in Logs(workspace, job.id).follow(poll_s=0.0):
            pass


def test_pieces_before_one_that_cannot_be_read_are_not_lost(
    blobs: SharedBlobs, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(blobs, "live/j/1/0/")
    for start, data in ((0, b"abc"), (3, b"def")):
        blobs.put_bytes(data, f"live/j/1/0/{start:016d}-{start + 3:016d}")
    usual, refuses = blobs.open, [True]

    def opened(key: str) -> Any:
        if refuses and key.endswith("6"):
            refuses.clear()
            raise StoreUnreachableError("the bucket is away")
        return usual(key)

    monkeypatch.setattr(blobs, "open", opened)
    assert reader.read() == b"abc"
    assert (reader.at, reader.given) == (3, 3)
    assert reader.read() == b"def"
    assert (reader.at, reader.given) == (6, 6)
    refuses.append(True)
    blobs.put_bytes(b"ghi", f"live/j/1/0/{6:016d}-{16:016d}")
    with pytest.raises(StoreUnreachableError):
        reader.read()
