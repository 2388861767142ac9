"""A script replaces its attempt's records: the node still collects, and reports the damage."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError
from rayjobs.core.paths import AttemptPaths
from rayjobs.datastore import looks
from rayjobs.datastore.digests import digest_of
from rayjobs.engine.attempt import ending
from rayjobs.injob import exit_record
from rayjobs.injob.exit_record import ExitRecord, RankExit
from rayjobs.injob.outcomes import CANCELED, Outcome
from rayjobs.jobs.events import Restored
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.states import JobState
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import end_leftovers, find_leftovers
from rayjobs.node import collect as nodecollect
from rayjobs.node import collection_threads, watch
from rayjobs.node.collect import Collecting
from rayjobs.node.data import NodeData
from rayjobs.node.hosts import host_of, record_of
from rayjobs.node.input_changes import InputChanges, KeptInput
from rayjobs.node.node import Node
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.agent import AgentLostError
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.settled import Found
from rayjobs.results.collect import MetricFollower
from rayjobs.results.logs import Logs
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import blobs
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.conformance import hosts
from tests.conformance.hosts import warm
from tests.fakes.world import World, play
from tests.support.attempts import on_node, on_node_of

__all__ = ["warm"]

STILL_S = 20.0  # a collection that stalls this long fails its test
LOG = "azureml-logs/70_driver_log.txt"

ENDED = ExitRecord(job="j", attempt=1, node=0, marker="m", outcome=Outcome.COMPLETED)


class Attempt:
    """One attempt whose script has succeeded, as its node finds it."""

    def __init__(self, workspace: OpenWorkspace, folder: Path, cache: Path) -> None:
        store = workspace.store
        self.workspace = workspace
        self.job, _ = store.submit(
            NewJob(
                spec=JobSpec(script="a.py", source_directory="."),
                experiment="e",
                snapshot=None,
                user="u",
            )
        )
        store.add_allocation("place", target="local", shape={})
        store.start(self.job.id, attempt=0, allocation="place")
        self.paths = AttemptPaths(folder)
        for made in (self.paths.work / "outputs", self.paths.work / "logs"):
            made.mkdir(parents=True)
        self.paths.driver_log(0).parent.mkdir()
        self.paths.metrics(0).parent.mkdir()
        self.paths.driver_log(0).write_text("hello\n")
        (self.paths.work / "outputs" / "x").write_text("x")
        self.on = on_node(folder, workspace=str(workspace.path), job=self.job.id)
        rank = RankExit(rank=0, pid=1, started_at=1.0, exit_code=0)
        exit_record.write(str(folder), replace(ENDED, job=self.job.id, ranks=(rank,)))
        store.set_hosts(self.job.id, attempt=1, hosts=[HostRecord(root=str(folder), marker="m")])
        self._cache = cache
        self.collecting = Collecting(NodeData(cache), Workspaces())

    def keep(self, file: Path) -> Path:
        """Record the state of an input file, as at the attempt's start; return the record."""
        digests = {file.name: digest_of(file.read_bytes())}
        seen = looks.Seen(str(file.parent), {file.name: looks.look_at(file)}, digests)
        changes = InputChanges(self._cache / "seen")
        changes.keep(self.paths.root, {"digits": KeptInput((seen,))})
        (kept,) = (self._cache / "seen").iterdir()
        return kept

    def messages(self, kind: str) -> list[str]:
        return [one.message for one in self.workspace.store.events(self.job.id) if one.kind == kind]

    def collect(self) -> Collected:
        return asyncio.run(self.collecting.collect(self.on))

    def left_out(self) -> list[str]:
        return self.messages("left_out")

    def end(self) -> None:
        store = self.workspace.store
        for old, new in (
            (JobState.PROVISIONING, JobState.PREPARING),
            (JobState.PREPARING, JobState.RUNNING),
            (JobState.RUNNING, JobState.FINALIZING),
        ):
            store.move(self.job.id, attempt=1, old=old, new=new)
        store.finish(self.job.id, attempt=1, state=JobState.COMPLETED, outcome=Outcome.COMPLETED)

    def stored(self) -> dict[str, bytes]:
        found = {}
        for row in self.workspace.store.files(self.job.id):
            with self.workspace.blobs.open(row.blob) as file:
                found[row.name] = file.read()
        return found


@pytest.fixture
def attempt(short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    monkeypatch.setattr(collection_threads, "STILL_S", STILL_S)
    (tmp_path / "attempts").mkdir()
    with open_workspace(short_path / "w") as workspace:
        yield Attempt(workspace, tmp_path / "attempts" / "a1", tmp_path / "cache")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(64 << 30)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


HARMS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "link": link_to_zeros,
    "sparse": sparse,
    "folder": os.mkdir,
}
RECORDS = {
    "metrics": "metrics/rank-8.jsonl",
    "models": "models/rank-0.jsonl",
    "log": "log/driver_0.log",
    "mpi": "log/mpi.log",
    "lock": "environment.lock",
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("harm", HARMS)
def test_no_record_blocks_its_collection(attempt: Attempt, record: str, harm: str) -> None:
    path = attempt.paths.root / RECORDS[record]
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    HARMS[harm](path)
    found = attempt.collect()
    assert (found.stuck, found.problems) == (None, ())
    assert attempt.stored()["outputs/x"] == b"x"
    if (harm, record) != ("sparse", "models"):
        (message,) = attempt.left_out()
        assert RECORDS[record] in message or "the file has a hole there" in message


def garbage(path: Path) -> None:
    path.write_text("{")


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED])
@pytest.mark.parametrize("harm", [*HARMS.values(), garbage])
def test_damaged_list_of_outputs_is_named_and_the_other_files_are_stored(
    attempt: Attempt, harm: Callable[[Path], object], outcome: Outcome
) -> None:
    exit_record.write(str(attempt.paths.root), replace(ENDED, job=attempt.job.id, outcome=outcome))
    harm(attempt.paths.data)
    found = attempt.collect()
    problems = [f"the list of the job's outputs, {attempt.paths.data}, cannot be read: "]
    assert [one[: len(problems[0])] for one in found.problems] == (
        problems if outcome is Outcome.COMPLETED else []
    )
    assert found.data is not None and found.data.refused == ()
    assert attempt.stored()["outputs/x"] == b"x"
    assert attempt.paths.stored.exists() == (outcome is not Outcome.COMPLETED)


@pytest.mark.parametrize("folder", ["metrics", "models", "log"])
def test_record_folder_of_another_type_is_named(
    attempt: Attempt, folder: str, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("rank-0.jsonl", "driver_0.log"):
        (elsewhere / name).write_text('{"k": "metric", "name": "foreign", "value": 1, "t": 1}\n')
    path = attempt.paths.root / folder
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(elsewhere)
    assert attempt.collect().problems == ()
    assert any(folder in message for message in attempt.left_out())
    assert attempt.workspace.store.metrics(attempt.job.id) == []
    assert (LOG in attempt.stored()) == (folder != "log")


def test_growing_metrics_are_read_up_to_their_size_at_the_start(attempt: Attempt) -> None:
    path = attempt.paths.metrics(0)
    line = b'{"k": "metric", "name": "a", "value": 1, "step": 1, "t": 1}\n'
    path.write_bytes(line * 10)
    follower = MetricFollower(attempt.paths.root, attempt=1)
    points = 0
    for batch in follower.batches(limit=1):
        with path.open("ab") as file:
            file.write(line)
        points += len(batch.points)
        follower.confirm(batch)
        assert points <= 10
    assert points == 10


def test_growing_file_is_stored_up_to_its_size_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"0123456789")

    class Growing(io.BytesIO):
        def write(self, data: Any) -> int:
            with path.open("ab") as file:
                file.write(b"x" * 10)
            assert self.tell() <= 10
            return super().write(data)

    with path.open("rb", buffering=0) as source:
        size, _ = blobs._copy(source, Growing(), 10)
    assert size == 10


@pytest.mark.parametrize("name", ["host.json", "exit.json"])
@pytest.mark.parametrize("harm", HARMS)
def test_damaged_host_record_is_ignored(attempt: Attempt, name: str, harm: str) -> None:
    path = attempt.paths.root / name
    path.unlink(missing_ok=True)
    HARMS[harm](path)
    assert (record_of(str(path.parent)) is None) == (name == "exit.json")
    assert host_of(str(path.parent)) is None


def test_exit_record_replaces_whatever_is_in_its_place(attempt: Attempt) -> None:
    path = attempt.paths.root / "exit.json"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    exit_record.write(str(attempt.paths.root), ENDED)
    assert record_of(str(attempt.paths.root)) == ENDED


def test_a_removed_attempt_folder_is_reported(attempt: Attempt) -> None:
    shutil.rmtree(attempt.paths.root)
    assert attempt.collect().problems == ()
    (message,) = attempt.left_out()
    assert "the attempt's folder was gone at its end" in message
    attempt.end()
    with pytest.raises(NotFoundError, match="the attempt's folder was gone at its end"):
        Logs(attempt.workspace, attempt.job.id).read()


def test_folder_missing_before_a_restore_is_not_reported_as_removed(attempt: Attempt) -> None:
    shutil.rmtree(attempt.paths.root)
    restored = "the store was restored from b.db; in the replaced store it is Completed"
    attempt.workspace.store.add_event(attempt.job.id, Restored.KIND, restored, attempt=1)
    attempt.collect()
    (message,) = attempt.left_out()
    assert message == f"the attempt's folder is gone, since the attempt had ended: {restored}"
    attempt.end()
    with pytest.raises(NotFoundError, match="in the replaced store it is Completed"):
        Logs(attempt.workspace, attempt.job.id).read()


REMOVES = """
import os, pathlib, shutil, time
root = pathlib.Path(os.environ["GONE"])
if os.environ["WHAT"] == "folder":
    shutil.rmtree(root)
else:
    (root / "host.json").unlink()
(root.parent / "removed").touch()
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["warm", "cold"])
@pytest.mark.parametrize("what", ["folder", "host.json"])
@pytest.mark.parametrize("ends", ["cancel", "settle"])
def test_an_attempt_whose_host_record_is_removed_can_be_ended(
    short_path: Path,
    warm: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    what: str,
    ends: str,
) -> None:
    """By a cancel, a preemption or a stop, and by a restarted target or agent."""
    root = short_path / "a"
    env = {"GONE": str(root), "WHAT": what}
    started = hosts.Attempt.make(short_path, REMOVES, root=root, env=env, grace_s=2.0)
    started = started.start(warm) if way == "warm" else started.start_cold()
    hosts.until((short_path / "removed").exists, "the removal")
    with open_workspace(short_path / "w"):
        pass
    on = on_node_of(started.plan, short_path / "w")

    waits, wait_once = asyncio.Event(), hostclient.HostConnection._wait_once

    async def answered(host: hostclient.HostConnection) -> ExitRecord | None:
        waits.set()
        return await wait_once(host)

    monkeypatch.setattr(hostclient.HostConnection, "_wait_once", answered)

    async def scene() -> Any:
        node = Node("local", short_path / "home")
        assert await watch.renew(on, None) is not None
        if ends == "settle":
            assert (await node.ends.settle(on, end=False)).state is Found.RUNNING
            return await node.ends.settle(on, end=True)
        following = asyncio.ensure_future(node.follow(on))
        await asyncio.wait_for(waits.wait(), STILL_S)  # else its record is requested too late
        await node.stop(on, CANCELED, grace_s=2.0)
        return await asyncio.wait_for(following, STILL_S)

    try:
        record = asyncio.run(scene())
        hosts.until(lambda: not find_leftovers(started.marker), "the end of the host")
    finally:
        end_leftovers(started.marker, None, 0.0)
    if ends == "settle":
        # Without the folder its record cannot be stored, and reaches only a waiting caller.
        assert record.proven and record.ended_now
        return
    assert record.outcome is Outcome.CANCELED
    assert record.leftovers.proven_dead
    assert record.ranks[0].signal == signal.SIGTERM


def test_a_log_that_was_removed_is_reported(attempt: Attempt) -> None:
    attempt.paths.driver_log(0).unlink()
    attempt.collect()
    (message,) = attempt.left_out()
    assert message.startswith(f"{LOG}: the log was gone")
    attempt.end()
    with pytest.raises(NotFoundError, match="the log was gone"):
        Logs(attempt.workspace, attempt.job.id).read()


def test_a_log_that_is_a_link_is_neither_stored_nor_shown(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("foreign text\n")
    attempt.paths.driver_log(0).unlink()
    attempt.paths.driver_log(0).symlink_to(tmp_path / "foreign")
    logs = Logs(attempt.workspace, attempt.job.id)
    assert LOG not in logs.names()
    with pytest.raises(NotFoundError, match=r"log/driver_0\.log is a link"):
        logs.read()
    attempt.collect()
    assert LOG not in attempt.stored()
    attempt.end()
    with pytest.raises(NotFoundError, match=r"log/driver_0\.log is a link"):
        logs.read()


def test_a_linked_folder_of_logs_is_not_listed(attempt: Attempt, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "foreign.txt").write_text("foreign\n")
    (attempt.paths.work / "logs").rmdir()
    (attempt.paths.work / "logs").symlink_to(elsewhere)
    assert "logs/foreign.txt" not in Logs(attempt.workspace, attempt.job.id).names()


def test_hanging_collection_blocks_no_other_thread(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More collections than an event loop has threads: each reports where it stalls."""
    go = threading.Event()
    monkeypatch.setattr(collection_threads, "STILL_S", 0.2)

    async def scene() -> None:
        node = collection_threads.CollectionThreads()

        def hangs() -> Collected:
            go.wait()
            return Collected()

        stuck = [(f"m{number}", collection_threads.Progress()) for number in range(40)]
        for marker, progress in stuck:
            collected = await node.collect(marker, hangs, progress)
            assert str(collected.stuck).startswith(
                "collecting its beginning has made no progress for"
            )
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 10.0) == 1
        again = await node.collect("other", lambda: Collected(problems=("p",)), stuck[0][1])
        assert again.problems == ("p",)
        go.set()
        monkeypatch.setattr(collection_threads, "STILL_S", STILL_S)
        assert (await node.collect("m0", hangs, stuck[0][1])).stuck is None

    async def whole() -> None:
        try:
            await scene()
        finally:
            go.set()  # before the loop's end, which waits for its threads

    asyncio.run(whole())


@pytest.mark.parametrize("cancels", [True, False])
def test_stalled_collection_is_reported_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancels: bool
) -> None:
    """The history and `why` name the step; a cancel or a time limit abandons it."""
    monkeypatch.setattr(ending, "STUCK_LOOK_S", 0.02)

    async def scene(here: World) -> None:
        async def stuck(_: AttemptOnNode) -> Collected:
            return Collected(stuck="collecting x has made no progress")

        job = here.submit()
        await here.launched(job)
        here.agent.collect = stuck  # type: ignore[method-assign, assignment]
        here.agent.end(job.id, 1, exit_code=0)
        await here.until(lambda: "no progress" in here.store.job(job.id).reason, "the reason")
        assert here.store.job(job.id).state is JobState.FINALIZING
        kinds = [one.kind for one in here.store.events(job.id)]
        assert kinds.count("collecting") == 1
        if cancels:
            here.store.request_cancel(job.id)
            here.engine.wake()
            done = await here.state(job, JobState.CANCELED)
        else:
            monkeypatch.setattr(ending, "STUCK_S", 0.0)
            done = await here.state(job, JobState.FAILED)
            assert done.failure is not None
            assert done.failure.failure_class == "storage"
        assert "collecting x has made no progress" in done.reason
        await here.until(lambda: not here.engine.attempts, "its allocation is free")
        assert ("clean", job.id, 1) not in here.agent.calls

    play(scene, tmp_path)


def test_collection_that_resumes_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "STUCK_LOOK_S", 0.02)

    async def scene(here: World) -> None:
        collect, answers = here.agent.collect, [Collected(stuck="collecting x")] * 3

        async def slow(on: AttemptOnNode) -> Collected:
            return answers.pop() if answers else await collect(on)

        job = here.submit()
        await here.launched(job)
        here.agent.collect = slow  # type: ignore[method-assign]
        here.agent.end(job.id, 1, exit_code=0)
        assert (await here.state(job, JobState.COMPLETED)).reason == ""
        messages = [one.message for one in here.store.events(job.id) if one.kind == "collecting"]
        assert messages[1:] == ["the job's files are still being collected"]

    play(scene, tmp_path)


def test_collection_names_its_hanging_step(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running watch delays the end; the hanging step is reported."""
    go = threading.Event()
    monkeypatch.setattr(collection_threads, "STILL_S", 0.3)
    monkeypatch.setattr(nodecollect, "METRICS_EVERY_S", 0.01)
    monkeypatch.setattr(nodecollect, "FILES_EVERY_S", 0.01)
    (attempt.paths.work / "outputs" / "slow.log").write_text("of a file system that hangs")
    os.utime(attempt.paths.work / "outputs" / "slow.log", (1, 1))
    add_file = type(attempt.workspace.blobs).add_file

    def slow(self: Any, path: Path, **more: Any) -> Any:
        go.wait()
        return add_file(self, path, **more)

    monkeypatch.setattr(type(attempt.workspace.blobs), "add_file", slow)
    try:
        collected = attempt.collect()
        assert collected.stuck is not None
        assert "slow.log" in collected.stuck or LOG in collected.stuck
    finally:
        go.set()


# -- the files of its inputs ----------------------------------------------------------------------


@pytest.fixture
def touched(attempt: Attempt, tmp_path: Path) -> Path:
    """An input file whose metadata differs at the end, but whose content is the same."""
    file = tmp_path / "stored" / "a"
    file.parent.mkdir()
    file.write_text("a")
    attempt.keep(file)
    os.utime(file, ns=(1, 1))
    return file


def test_uninspectable_input_fails_no_job(attempt: Attempt, touched: Path) -> None:
    touched.unlink()
    touched.symlink_to(touched.name)
    assert attempt.collect().problems == ()
    (message,) = attempt.messages("data")
    assert "Too many levels of symbolic links" in message
    assert attempt.stored()["outputs/x"] == b"x"


def test_failing_comparison_fails_no_job(attempt: Attempt, touched: Path) -> None:
    attempt.keep(touched).write_text("half a rec")
    assert attempt.collect().problems == ()
    (message,) = attempt.left_out()
    assert message.startswith("the files of its inputs were not compared")
    assert attempt.stored()["outputs/x"] == b"x"


def test_an_input_on_storage_that_does_not_answer_is_named_within_a_minute(
    attempt: Attempt, touched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regardless of file sizes: progress counts by the parts that are read."""
    go = threading.Event()
    monkeypatch.setattr(collection_threads, "STILL_S", 0.3)
    with touched.open("wb") as file:
        file.truncate(looks.MOST_READ_BYTES)
    read = os.read

    def hangs(descriptor: int, size_bytes: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(touched):
            go.wait()
            raise OSError("the storage answers again, with an error")
        return read(descriptor, size_bytes)

    monkeypatch.setattr(os, "read", hangs)

    async def scene() -> Collected:
        collecting = attempt.collecting.collect(attempt.on)
        return await asyncio.wait_for(collecting, STILL_S)

    try:
        assert str(touched) in str(asyncio.run(scene()).stuck)
    finally:
        go.set()


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_cancel_ends_the_comparison_of_inputs(
    attempt: Attempt, touched: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    monkeypatch.setattr(nodecollect, "CANCEL_EVERY_S", 0.0)
    touched.write_bytes(b"changed")
    read, store = os.read, attempt.workspace.store

    def reads(descriptor: int, size_bytes: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(touched):
            assert meanwhile, "it is not read once the job is canceled"
            store.request_cancel(attempt.job.id)
        return read(descriptor, size_bytes)

    monkeypatch.setattr(os, "read", reads)
    if not meanwhile:
        store.request_cancel(attempt.job.id)
    assert attempt.collect().problems == ()
    (message,) = attempt.left_out()
    assert message.endswith("the job was canceled")
    assert attempt.messages("input_changed") == []


@pytest.mark.parametrize("comes_back", [True, False])
def test_agent_lost_during_a_stuck_collection_repeats_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """The next agent collects; without one, the files are not reported as stored."""
    monkeypatch.setattr(ending, "STUCK_LOOK_S", 0.02)
    monkeypatch.setattr(ending, "AGENT_PAUSE_S", 0.01)

    async def scene(here: World) -> None:
        collect, calls = here.agent.collect, 0

        async def lost(on: AttemptOnNode) -> Collected:
            nonlocal calls
            calls += 1
            if calls == 1:
                return Collected(stuck="collecting x")
            if calls == 2 or not comes_back:
                raise AgentLostError("killed while it collected")
            return await collect(on)

        job = here.submit(retries={"system": 5})
        await here.launched(job)
        here.agent.collect = lost  # type: ignore[method-assign]
        here.agent.end(job.id, 1, exit_code=0)
        done = await here.state(job, JobState.COMPLETED if comes_back else JobState.FAILED)
        assert done.attempt == 1
        if not comes_back:
            assert done.failure is not None and done.failure.failure_class == "storage"
            assert "the node's agent was lost" in done.failure.message

    play(scene, tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_abandoned_collection_is_forgotten_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """While its result is requested in time, `work` does not run a second time."""
    monkeypatch.setattr(collection_threads, "STILL_S", 0.1)
    go = threading.Event()
    runs: list[int] = []

    def hangs() -> Collected:
        runs.append(1)
        go.wait()
        if fails:
            raise OSError("the server answers again")
        return Collected()

    async def scene() -> None:
        node = collection_threads.CollectionThreads()
        assert (await node.collect("m", hangs, collection_threads.Progress())).stuck
        assert (await node.collect("m", hangs, collection_threads.Progress())).stuck
        assert runs == [1]
        monkeypatch.setattr(collection_threads, "KEPT_S", 0.0)
        go.set()
        async with asyncio.timeout(STILL_S):
            while node._running:
                await asyncio.sleep(0.01)

    try:
        asyncio.run(scene())
    finally:
        go.set()
    assert ("a collection that was given up failed" in caplog.text) == fails
