"""The copy of a driver log that Ray's dashboard serves."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from rayjobs.core.paths import AttemptPaths
from rayjobs.node import served_log
from rayjobs.node.served_log import ServedLogs
from rayjobs.protocol.ray_jobs import is_our_log

JOB = "digits_1795442505_f3f39d74"


class Node:
    """A session's log folder, and attempts next to it."""

    def __init__(self, folder: Path) -> None:
        self.session = folder / "session"
        self.session.mkdir()
        self.folder = folder
        self.logs = self.new()

    def new(self) -> ServedLogs:
        return ServedLogs(lambda job: self.session / f"job-driver-{job}.log", is_our_log)

    def log_file(self, attempt: int) -> Path:
        file = AttemptPaths(self.root(attempt)).driver_log(0)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def root(self, attempt: int) -> Path:
        return self.folder / f"a{attempt}"

    def copied(self, job: str = JOB) -> str:
        return (self.session / f"job-driver-{job}.log").read_text(encoding="utf-8")

    async def serve(self, attempt: int, job: str = JOB) -> None:
        """Serve a log until its present content has been copied, as at an attempt's end."""
        serving = asyncio.ensure_future(self.logs.serve(job, attempt, self.root(attempt)))
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await self.logs.finish()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_log_is_copied_while_it_is_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_log, "LOOK_EVERY_S", 0.01)

    async def scene() -> None:
        file = node.log_file(1)
        file.write_bytes(b"step 0\n")
        serving = asyncio.ensure_future(node.logs.serve(JOB, 1, node.root(1)))
        async with asyncio.timeout(30):
            while not (node.session / f"job-driver-{JOB}.log").exists():
                await asyncio.sleep(0.01)
            with file.open("ab") as log:
                log.write(b"step 1\n")
            while node.copied() != "step 0\nstep 1\n":
                await asyncio.sleep(0.01)
        file.unlink()  # the attempt's folder is removed
        serving.cancel()
        await node.logs.finish()

    asyncio.run(scene())


def test_new_attempt_is_appended_and_new_agent_starts_over(node: Node) -> None:
    async def scene() -> None:
        node.log_file(1).write_bytes(b"one\n")
        node.log_file(2).write_bytes(b"two\n")
        await node.serve(1)
        await node.serve(2)
        assert node.copied() == "one\n[rayjobs] attempt 2\ntwo\n"
        node.logs = node.new()
        await node.serve(2)
        assert node.copied() == "[rayjobs] attempt 2\ntwo\n"

    asyncio.run(scene())


def test_binary_or_unfinished_log_is_served(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off switch: no limit in `copy_new`. Ray's agent reads a log as a whole, and as text."""
    monkeypatch.setattr(served_log, "MOST_BYTES", 1000)

    async def scene() -> None:
        node.log_file(1).write_bytes(b"\xff\xfe" + b"x" * 100_000)
        await node.serve(1)
        text = node.copied()
        assert len(text) < 1200
        assert f"rayjobs logs {JOB}" in text

    asyncio.run(scene())


@pytest.mark.parametrize("which", ["file", "folder", "fifo"])
def test_replaced_log_is_not_followed(node: Node, which: str) -> None:
    """Off switch: open without O_NOFOLLOW."""
    import os

    secret = node.folder / "secret"
    secret.mkdir()
    (secret / "driver_0.log").write_text("the key")
    file = node.log_file(1)
    if which == "file":
        file.symlink_to(secret / "driver_0.log")
    elif which == "fifo":
        os.mkfifo(file)  # reading it would wait forever
    else:
        file.parent.rmdir()
        file.parent.symlink_to(secret)

    asyncio.run(node.serve(1))
    assert list(node.session.iterdir()) == []


def test_link_in_place_of_the_copy_is_replaced(node: Node) -> None:
    victim = node.folder / "victim"
    victim.write_text("precious")
    node.log_file(1).write_bytes(b"one\n")
    (node.session / f"job-driver-{JOB}.log").symlink_to(victim)
    asyncio.run(node.serve(1))
    assert victim.read_text() == "precious"
    assert node.copied() == "one\n"


def test_a_session_keeps_a_bounded_number_of_logs_and_never_touches_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_log, "MOST_LOGS", 3)
    theirs = node.session / "job-driver-raysubmit_abc.log"
    theirs.write_text("of another submission")
    node.log_file(1).write_bytes(b"one\n")

    async def scene() -> None:
        for number in range(10):
            await node.serve(1, f"job_1795442505_{number:08x}")

    asyncio.run(scene())
    left = [file.name for file in node.session.iterdir()]
    assert theirs.name in left
    assert len(left) <= 1 + 3 + 1


def test_end_waits_for_the_copy_that_a_canceled_call_has_left_at_work(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.log_file(1).write_bytes(b"one\n")
    target = node.session / f"job-driver-{JOB}.log"
    copy = served_log._Copy(node.log_file(1), node.root(1), target, JOB, 1, follows=False)
    is_reading, may_go_on, pread = threading.Event(), threading.Event(), os.pread

    def slow(*arguments: int) -> bytes:
        if not is_reading.is_set():
            is_reading.set()
            assert may_go_on.wait(30)
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", slow)
    copying = threading.Thread(target=copy.copy_new)
    copying.start()
    assert is_reading.wait(30)
    ending = threading.Thread(target=copy.end)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()
    may_go_on.set()
    for thread in (copying, ending):
        thread.join(30)
    assert node.copied() == "one\n"
