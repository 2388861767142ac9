"""Logs by name: from the attempt's folder while it lives, from the store afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job
from rayjobs.results.left_out import FileLeftOut, LeftOut
from rayjobs.results.logs import Logs, prefixed, real_name
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.unit.results.played import begin, end


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "ws") as opened:
        yield opened


@pytest.fixture
def job(workspace: OpenWorkspace) -> Job:
    job, _ = workspace.store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="e", snapshot=None, user="me")
    )
    return job


def test_omitted_log_reports_the_reason(workspace: OpenWorkspace, job: Job) -> None:
    name = "azureml-logs/70_driver_log.txt"
    for one in (
        LeftOut(f"{name}: a named pipe", name),
        LeftOut("outputs/a: a socket", "outputs/a"),
    ):
        workspace.store.add_event(job.id, FileLeftOut.KIND, one.sentence, data=one.data.to_json())
    with pytest.raises(NotFoundError, match=r"has no log: .*: a named pipe"):
        Logs(workspace, job.id).read()
    lost = LeftOut("its folder is gone", has_lost_files=True)
    workspace.store.add_event(job.id, FileLeftOut.KIND, lost.sentence, data=lost.data.to_json())
    for file in (None, "logs/own.txt"):
        with pytest.raises(NotFoundError, match="has no log: its folder is gone"):
            Logs(workspace, job.id).read(file)


def test_live_log_is_read_in_place_and_later_from_the_store(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    logs = Logs(workspace, job.id)
    with pytest.raises(NotFoundError, match="no logs yet: it is Queued"):
        logs.read()
    root = tmp_path / "a1"
    paths = begin(workspace, job, root)
    paths.driver_log(0).write_bytes(b"caf\xe9\n")
    (paths.work / "logs" / "own.txt").write_bytes(b"own")
    names = ["azureml-logs/70_driver_log.txt", "logs/own.txt"]
    assert logs.names() == names
    assert logs.read() == b"caf\xe9\n"
    assert logs.read("user_logs/std_log.txt") == b"caf\xe9\n"
    assert logs.read("logs/own.txt") == b"own"
    with pytest.raises(NotFoundError, match="it has: azureml-logs"):
        logs.read("logs/other.txt")
    end(workspace, job, root)
    root.rename(tmp_path / "gone")
    assert logs.names() == names
    assert logs.read("user_logs/std_log.txt") == b"caf\xe9\n"
    assert logs.tail(lines=1) == b"caf\xe9\n"
    assert b"".join(logs.merged()) == b"[rank 0] caf\xe9\n"


def follow_in_thread(logs: Logs, seen: list[bytes]) -> threading.Thread:
    def follow() -> None:
        seen.extend(part.data for part in logs.follow())

    thread = threading.Thread(target=follow)
    thread.start()
    return thread


def wait_for(seen: list[bytes], text: bytes) -> None:
    deadline = time.monotonic() + 150
    while text not in b"".join(seen):
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)


@pytest.mark.long
def test_following_goes_from_the_queue_over_all_attempts_to_the_end(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    seen: list[bytes] = []
    thread = follow_in_thread(Logs(workspace, job.id), seen)
    paths = begin(workspace, job, tmp_path / "a1")
    paths.driver_log(0).write_bytes(b"first ")
    wait_for(seen, b"first ")
    workspace.store.requeue(job.id, attempt=1, reason="node lost", outcome=Outcome.NODE_LOST)
    paths = begin(workspace, job, tmp_path / "a2")
    paths.driver_log(0).write_bytes(b"second ")
    wait_for(seen, b"second ")
    with paths.driver_log(0).open("ab") as file:
        file.write(b"last")
    end(workspace, job, tmp_path / "a2")
    thread.join(150)
    assert not thread.is_alive()
    assert b"".join(seen) == b"first second last"


def test_following_a_finished_job_prints_it_once(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    root = tmp_path / "a1"
    begin(workspace, job, root).driver_log(0).write_bytes(b"all of it\n")
    end(workspace, job, root)
    root.rename(tmp_path / "gone")
    parts = list(Logs(workspace, job.id).follow())
    assert b"".join(part.data for part in parts) == b"all of it\n"
    assert parts[0].name == "azureml-logs/70_driver_log.txt"
    assert parts[0].attempt == 1


def test_following_ends_on_request(workspace: OpenWorkspace, job: Job) -> None:
    assert [part.data for part in Logs(workspace, job.id).follow(stop=lambda: True)] == []


def test_a_canceled_job_that_never_ran_has_nothing_to_follow(
    workspace: OpenWorkspace, job: Job
) -> None:
    workspace.store.request_cancel(job.id)
    assert list(Logs(workspace, job.id).follow()) == []
    with pytest.raises(NotFoundError, match="Canceled"):
        Logs(workspace, job.id).read()


def test_names_have_aliases() -> None:
    assert real_name("user_logs/std_log.txt") == "azureml-logs/70_driver_log.txt"
    assert real_name("user_logs/std_log_3.txt") == "azureml-logs/70_driver_log_3.txt"
    assert real_name("logs/x.txt") == "logs/x.txt"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_each_line_gets_its_prefix(size: int) -> None:
    text = b"a\n\nbc\nd"
    parts = iter([text[start : start + size] for start in range(0, len(text), size)])
    assert b"".join(prefixed(parts, b"> ")) == b"> a\n> \n> bc\n> d\n"
