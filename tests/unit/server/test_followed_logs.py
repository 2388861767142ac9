"""Followed logs: many clients, one reader, and every byte to each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, StoreUnreachableError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.logs import Logs, Part
from rayjobs.server import followed_logs
from rayjobs.server.followed_logs import FollowedJobs, FollowedLogs, _Shared
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.unit.results.played import begin, end

FOLLOWERS = 50


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "w", create=True) as made:
        yield made


@pytest.fixture
def job(workspace: OpenWorkspace) -> Job:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")
    return workspace.store.submit(new)[0]


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the parts that all readers together have read."""
    seen: list[str] = []
    follow = Logs.follow

    def counted(logs: Logs, *given: int, **named: float) -> Iterator[Part]:
        for part in follow(logs, *given, **named):  # type: ignore[arg-type]
            seen.append(part.name)
            yield part

    monkeypatch.setattr(Logs, "follow", counted)
    return seen


class Following:
    """A client that follows a log in a task.

    Attributes:
        text: The text that it received.
        parts: The number of parts, including those without data.
    """

    def __init__(self, parts: AsyncIterator[Part]) -> None:
        self.text, self.parts = b"", 0
        self.task = asyncio.create_task(self._take(parts))

    async def _take(self, parts: AsyncIterator[Part]) -> None:
        async for part in parts:
            self.text += part.data
            self.parts += 1

    async def has(self, text: bytes) -> None:
        await until(lambda: self.text == text or self.task.done())
        assert self.text == text


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def at_the_end(logs: FollowedLogs, job: Job, text: bytes, count: int) -> list[Following]:
    """Return clients that have read all of a log."""
    clients = [Following(logs.follow(job, 0)) for _ in range(count)]
    for client in clients:
        await client.has(text)
    return clients


async def sleep_polls(count: int) -> None:
    await asyncio.sleep(count * followed_logs.POLL_S)


@pytest.mark.long
def test_clients_at_the_end_of_a_log_share_one_reader(
    workspace: OpenWorkspace, job: Job, polls: list[str], tmp_path: Path
) -> None:
    async def run() -> None:
        log = begin(workspace, job, tmp_path / "a1").driver_log(0)
        log.write_bytes(b"first\n")
        logs = FollowedLogs(workspace)
        clients = await at_the_end(logs, job, b"first\n", FOLLOWERS)
        await sleep_polls(5)
        before, began_s = len(polls), time.monotonic()
        await sleep_polls(5)
        # One reader, which pauses after each poll; each client alone would poll as often.
        most = (time.monotonic() - began_s) / followed_logs.POLL_S + 2
        assert len(polls) - before <= most
        with log.open("ab") as file:
            file.write(b"second\n")
        late = Following(logs.follow(job, 0))
        for client in (*clients, late):
            await client.has(b"first\nsecond\n")
        end(workspace, job, tmp_path / "a1")
        async with asyncio.timeout(60):
            await asyncio.gather(*(client.task for client in (*clients, late)))
        assert {client.text for client in (*clients, late)} == {b"first\nsecond\n"}
        assert not logs._shared

    asyncio.run(run())


@pytest.mark.long
def test_client_joins_at_its_own_position_in_the_log(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    """A log that grows all the time, and clients that begin at any moment."""

    async def run() -> None:
        log = begin(workspace, job, tmp_path / "a1").driver_log(0)
        logs = FollowedLogs(workspace)
        clients, whole = [], b""
        with log.open("ab", buffering=0) as file:
            for number in range(150):
                line = b"%05d %s\n" % (number, b"x" * (number % 70))
                whole += line
                file.write(line)
                if number % 10 == 0:
                    clients.append(Following(logs.follow(job, 0)))
                await asyncio.sleep(0.01)
        end(workspace, job, tmp_path / "a1")
        for client in clients:
            await client.has(whole)

    asyncio.run(run())


@pytest.mark.long
def test_a_slow_client_gets_all_of_a_log_and_holds_up_no_other(
    workspace: OpenWorkspace, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_logs, "MOST_WAITING", 100)

    async def run() -> None:
        log = begin(workspace, job, tmp_path / "a1").driver_log(0)
        log.write_bytes(b"first\n")
        logs = FollowedLogs(workspace)
        quick = Following(logs.follow(job, 0))
        slow, taken = logs.follow(job, 0), b""
        async with aclosing(slow):
            while not (await anext(slow)).data:
                pass
            await quick.has(b"first\n")
            for _ in range(3):
                await anext(slow)  # it has joined
            whole = b"first\n"
            with log.open("ab", buffering=0) as file:
                for number in range(40):
                    whole += (line := b"%03d\n" % number * 10)
                    file.write(line)
                    await quick.has(whole)
            end(workspace, job, tmp_path / "a1")
            async for part in slow:
                taken += part.data
        assert b"first\n" + taken == whole
        await quick.has(whole)

    asyncio.run(run())


def test_log_continues_with_the_next_attempt(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    async def run() -> None:
        first = begin(workspace, job, tmp_path / "a1").driver_log(0)
        first.write_bytes(b"one\n")
        logs = FollowedLogs(workspace)
        clients = await at_the_end(logs, job, b"one\n", 3)
        await sleep_polls(3)
        assert workspace.store.requeue(job.id, attempt=1, outcome=Outcome.PREEMPTED, reason="x")
        second = begin(workspace, job, tmp_path / "a2").driver_log(0)
        second.write_bytes(b"two\n")
        for client in clients:
            await client.has(b"one\ntwo\n")
        late = Following(logs.follow(job, 0))
        await late.has(b"two\n")  # from the newest attempt on
        end(workspace, job, tmp_path / "a2")
        await asyncio.gather(late.task, *(client.task for client in clients))

    asyncio.run(run())


def test_the_last_client_ends_the_reader(
    workspace: OpenWorkspace, job: Job, polls: list[str], tmp_path: Path
) -> None:
    async def run() -> None:
        begin(workspace, job, tmp_path / "a1").driver_log(0).write_bytes(b"first\n")
        logs = FollowedLogs(workspace)
        client = Following(logs.follow(job, 0))
        await client.has(b"first\n")
        await until(lambda: bool(logs._shared))
        client.task.cancel()
        await until(lambda: not logs._shared)
        before = len(polls)
        await sleep_polls(3)
        assert len(polls) == before
        again = Following(logs.follow(job, 0))
        await again.has(b"first\n")
        again.task.cancel()

    asyncio.run(run())


def test_an_error_of_the_reader_reaches_all_clients(
    workspace: OpenWorkspace, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that just ended would tell its client that the log is complete."""

    async def run() -> None:
        begin(workspace, job, tmp_path / "a1").driver_log(0).write_bytes(b"first\n")
        logs = FollowedLogs(workspace)
        clients = await at_the_end(logs, job, b"first\n", 3)
        await sleep_polls(3)

        def lost(*_: object) -> list[Job]:
            raise StoreUnreachableError("the store is away")

        monkeypatch.setattr(workspace.store, "jobs_of", lost)
        found = await asyncio.gather(*(one.task for one in clients), return_exceptions=True)
        assert [type(one) for one in found] == [StoreUnreachableError] * 3

    asyncio.run(run())


def test_the_end_of_the_server_is_not_the_end_of_a_log(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    async def run() -> None:
        begin(workspace, job, tmp_path / "a1").driver_log(0).write_bytes(b"first\n")
        logs = FollowedLogs(workspace)
        client = Following(logs.follow(job, 0))
        await until(lambda: bool(logs._shared))
        for task in asyncio.all_tasks() - {asyncio.current_task(), client.task}:
            task.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnreachableError, match="the server stops"):
                await client.task

    asyncio.run(run())


def test_server_that_stops_before_a_reader_begins_ends_its_clients(
    workspace: OpenWorkspace, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = _Shared.start

    def start(shared: _Shared, ended: Callable[[], object]) -> None:
        usual(shared, ended)
        assert shared._task is not None
        shared._task.cancel()

    monkeypatch.setattr(_Shared, "start", start)

    async def run() -> None:
        begin(workspace, job, tmp_path / "a1").driver_log(0).write_bytes(b"first\n")
        client = Following(FollowedLogs(workspace).follow(job, 0))
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnreachableError, match="the server stops"):
                await client.task

    asyncio.run(run())


@pytest.mark.long
def test_client_gets_a_message_each_second_for_a_silent_log(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    async def run() -> None:
        begin(workspace, job, tmp_path / "a1").driver_log(0).write_bytes(b"first\n")
        client = Following(FollowedLogs(workspace).follow(job, 0))
        await client.has(b"first\n")
        await sleep_polls(3)
        before = client.parts
        await until(lambda: client.parts >= before + 3)
        client.task.cancel()

    asyncio.run(run())


@pytest.mark.long
def test_many_logs_are_each_polled_less_often(
    workspace: OpenWorkspace,
    polls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The polls of all logs together are limited, so that other requests get their time."""
    monkeypatch.setattr(followed_logs, "MOST_POLLS", 20)
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")

    async def run() -> None:
        logs, clients, files = FollowedLogs(workspace), [], []
        for number in range(10):
            job = workspace.store.submit(new)[0]
            files.append(begin(workspace, job, tmp_path / f"{number}").driver_log(0))
            files[-1].write_bytes(b"first\n")
            clients.append(Following(logs.follow(job, 0)))
        await until(lambda: len(logs._shared) == len(clients))
        await sleep_polls(5)  # those that joined first pause as long as the others from now on
        before, began_s = len(polls), time.monotonic()
        await sleep_polls(10)
        assert len(polls) - before <= 20 * (time.monotonic() - began_s) + len(clients)
        for file in files:
            with file.open("ab") as log:
                log.write(b"second\n")
        for client in clients:
            await client.has(b"first\nsecond\n")
            client.task.cancel()

    asyncio.run(run())


def test_jobs_that_are_followed_are_read_together(
    workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")
    jobs = [workspace.store.submit(new)[0] for _ in range(5)]
    followed = FollowedJobs(workspace.store)
    for job in jobs:
        assert followed.get(job).id == job.id
    reads: list[list[int]] = []
    jobs_of = workspace.store.jobs_of

    def counted(serials: dict[int, float]) -> list[Job]:
        reads.append(sorted(serials))
        return jobs_of(serials)

    monkeypatch.setattr(workspace.store, "jobs_of", counted)
    monkeypatch.setattr(followed, "_read_s", float("-inf"))  # some time has passed
    workspace.store.request_cancel(jobs[3].id)
    assert [followed.get(job).state for job in jobs].count(JobState.CANCELED) == 1
    assert reads == [[job.serial for job in jobs]]


def test_a_job_that_was_removed_is_named(workspace: OpenWorkspace, job: Job) -> None:
    followed = FollowedJobs(workspace.store)
    followed.get(job)
    workspace.store.request_cancel(job.id)
    assert workspace.store.prune_records([job.id])
    followed._read_s = float("-inf")
    with pytest.raises(NotFoundError, match=job.id):
        followed.get(job)


def test_unfollowed_job_is_no_longer_read(
    workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")
    jobs = [workspace.store.submit(new)[0] for _ in range(2)]
    followed = FollowedJobs(workspace.store)
    followed.get(jobs[0])
    monkeypatch.setattr(followed_logs, "KEPT_S", 0.0)
    followed.get(jobs[1])
    assert jobs[0].serial not in followed._known
