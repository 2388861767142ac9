"""Arrays on the command line: one line, one id, members by their index, the worst exit code."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from rayjobs.cli.following import Stages
from rayjobs.cli.settings import Settings
from rayjobs.cli.submit import tell
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Array, JobSpec
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.submit.submitting import Submitted
from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture
def array(queue: Queue) -> Job:
    """A waiting array of four."""
    spec = JobSpec(script="train.py", name="shards", array=Array(indices="0-3", limit=2))
    return queue.workspace.store.submit_array(
        NewJob(spec=spec, experiment="shards", snapshot=None, user="ada")
    )[0]


def member(queue: Queue, array: Job, index: int) -> Job:
    return queue.workspace.store.member(array.id, index)


def tail(job: Job) -> str:
    return job.id.rpartition("_")[2]


def test_submit_makes_an_array(terminal: Terminal, own_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hi')\n")
    planned = terminal.type("submit", "--dry-run", "--json", "--array", "0-5%2", str(script))
    plan = json.loads(planned.out)
    assert plan["spec"]["array"] == {"indices": "0-5", "limit": 2, "count": None}
    assert "an array of 6 such jobs, [0] to [5], 2 at a time" in plan["plan"]["notes"][-1]
    assert plan["plan"]["hosts"][0]["env"]["RAYJOBS_ARRAY_COUNT"] == "6"
    wrong = terminal.type("submit", "--dry-run", "--array", "5-0", str(script))
    assert wrong.code == 2
    assert "--array" in wrong.err
    assert "does not count upwards" in wrong.err


def test_ls_folds_an_array_into_one_line(queue: Queue, array: Job, terminal: Terminal) -> None:
    queue.finish(queue.start(member(queue, array, 0), until=JobState.FINALIZING))
    lines = terminal.type("ls").out.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[0] == tail(array)
    assert "4 jobs: 3 Queued, 1 Completed" in lines[1]
    (listed,) = json.loads(terminal.type("ls", "--json").out)
    assert (listed["kind"], listed["members"]) == ("array", {"Queued": 3, "Completed": 1})
    expanded = terminal.type("ls", "--expand").out
    assert [f"shards[{index}]" in expanded for index in range(4)] == [True] * 4
    children = json.loads(terminal.type("ls", "--json", "--parent", array.id).out)
    assert sorted(one["array_index"] for one in children) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "chosen", [("-s", "{}"), ("--filter", "State={}"), ("--filter", "state!=Completed", "-s", "{}")]
)
def test_an_array_is_listed_by_the_states_of_its_members(
    queue: Queue, array: Job, terminal: Terminal, chosen: tuple[str, ...]
) -> None:
    def listed(state: str) -> list[str]:
        words = [word.format(state) for word in chosen]
        return [row["id"] for row in json.loads(terminal.type("ls", "--json", *words).out)]

    assert listed("Queued") == [array.id]
    assert listed("Running") == []
    queue.start(queue.workspace.store.jobs(JobFilter(parent=array.id))[0])
    assert listed("Queued") == listed("Running") == [array.id]
    assert listed("Failed") == []


def test_array_without_an_allocation_is_shown_as_queued(array: Job, terminal: Terminal) -> None:
    (listed,) = json.loads(terminal.type("ls", "--json").out)
    assert (listed["state"], listed["shown_state"]) == ("Running", "Queued")
    shown = terminal.type("show", array.id).out
    assert "Members     4 jobs: 4 Queued" in shown
    assert "0-3, 2 at a time" in shown


def test_wait_shows_an_array_without_an_allocation_as_queued(queue: Queue, array: Job) -> None:
    messages: list[str] = []
    stages = Stages(queue.workspace, array.id, messages.append)
    for _ in range(2):
        stages._looked_s = stages._outlook_s = -math.inf
        stages.look()
    assert messages[0] == "Queued"
    assert all(line.startswith("Queued: 4 jobs: 4 Queued") for line in messages[1:])
    assert len(messages) > 1
    queue.start(member(queue, array, 0))
    later: list[str] = []
    Stages(queue.workspace, array.id, later.append).look()
    assert later == ["Running"]


def test_a_member_is_shown_by_its_index(queue: Queue, array: Job, terminal: Terminal) -> None:
    data = json.loads(terminal.type("show", "--json", f"{tail(array)}[2]").out)
    assert (data["id"], data["array_index"]) == (member(queue, array, 2).id, 2)
    assert data["name"] == "shards[2]"
    assert terminal.type("show", f"{tail(array)}[9]").code == 3


def test_wait_exits_with_the_code_of_the_worst_member(
    queue: Queue, array: Job, terminal: Terminal
) -> None:
    late = Failure(FailureClass.TIME_LIMIT, "reached its limit")
    for index in range(3):
        queue.finish(queue.start(member(queue, array, index), until=JobState.FINALIZING))
    queue.finish(queue.start(member(queue, array, 3)), late)
    assert terminal.type("wait", "-q", array.id).code == 124
    assert terminal.type("wait", "-q", f"{array.id}[0]").code == 0
    assert terminal.type("wait", "-q", f"{array.id}[3]").code == 124
    assert "1 of 4 members failed, [3] first" in terminal.type("wait", array.id).out


def test_wait_for_a_failed_array_exits_with_1(queue: Queue, array: Job, terminal: Terminal) -> None:
    broken = Failure(FailureClass.USER, "rank 0 exited with code 3", rank=0, exit_code=3)
    queue.finish(queue.start(member(queue, array, 0)), broken)
    queue.finish(queue.start(member(queue, array, 1)), Failure(FailureClass.TIME_LIMIT, "late"))
    queue.workspace.store.request_cancel(array.id)
    assert terminal.type("wait", "-q", array.id).code == 1


def test_cancel_of_an_array_or_of_one_member(queue: Queue, array: Job, terminal: Terminal) -> None:
    assert "Canceled" in terminal.type("cancel", f"{array.id}[1]").out
    assert member(queue, array, 0).state is JobState.QUEUED
    done = json.loads(terminal.type("cancel", "--all", "--json").out)
    assert [one["id"] for one in done] == [array.id]
    assert done[0]["state"] == "Canceled"
    assert member(queue, array, 0).state is JobState.CANCELED


def test_update_changes_all_members_or_one(queue: Queue, array: Job, terminal: Terminal) -> None:
    assert terminal.type("update", array.id, "--priority", "5").code == 0
    assert terminal.type("update", f"{array.id}[3]", "--priority", "9").code == 0
    assert [member(queue, array, index).priority for index in range(4)] == [5, 5, 5, 9]


def test_logs_of_an_array_name_the_member_of_each_line(
    queue: Queue, array: Job, terminal: Terminal
) -> None:
    for index, text in ((0, b"one\ntwo"), (2, b"three\n")):
        job = queue.start(member(queue, array, index), until=JobState.FINALIZING)
        queue.store_file(job, "azureml-logs/70_driver_log.txt", text)
        queue.finish(job)
    queue.start(member(queue, array, 1))  # has printed nothing
    assert terminal.type("logs", array.id).out == "[0] one\n[0] two\n[2] three\n"
    assert terminal.type("logs", "-n", "1", array.id).out == "[0] two\n[2] three\n"
    assert terminal.type("logs", f"{array.id}[2]").out == "three\n"
    lines = [
        json.loads(line) for line in terminal.type("logs", "--json", array.id).out.split("\n")[:-1]
    ]
    assert [(one["array_index"], one["line"]) for one in lines] == [
        (0, "one"),
        (0, "two"),
        (2, "three"),
    ]
    refused = terminal.type("logs", "--list", array.id)
    assert refused.code == 2
    assert "name one of its members" in refused.err


@pytest.mark.long
def test_following_an_array_shows_lines_of_all_members_until_the_end(
    queue: Queue, array: Job, terminal: Terminal
) -> None:
    for index in range(4):
        job = queue.start(member(queue, array, index), until=JobState.FINALIZING)
        queue.store_file(job, "azureml-logs/70_driver_log.txt", f"shard {index}\n".encode())
        queue.finish(job)
    done = terminal.type("logs", "-f", array.id)
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [f"[{index}] shard {index}" for index in range(4)]
    both = terminal.type("logs", "-f", array.id, f"{array.id}[1]")
    assert both.code == 0
    assert sum("shard 1" in line for line in both.out.splitlines()) == 1  # named twice, shown once


def test_failed_lines_of_an_array(queue: Queue, array: Job, terminal: Terminal) -> None:
    assert "has failed" in terminal.type("logs", "--failed", array.id).err
    broken = Failure(FailureClass.USER, "rank 0 exited with code 3", lines=("ValueError: x",))
    queue.finish(queue.start(member(queue, array, 2)), broken)
    done = terminal.type("logs", "--failed", array.id)
    assert done.out == "[2] ValueError: x\n"
    assert "[2] user: rank 0 exited with code 3" in done.err
    (listed,) = json.loads(terminal.type("logs", "--failed", "--json", array.id).out)
    assert (listed["array_index"], listed["failure"]["failure_class"]) == (2, "user")


def test_failed_lines_of_an_array_include_a_member_that_never_started(
    queue: Queue, array: Job, terminal: Terminal
) -> None:
    failure = Failure(FailureClass.USER, "its data is gone")
    queue.workspace.store.request_fail(member(queue, array, 1).id, by="ada", failure=failure)
    done = terminal.type("logs", "--failed", array.id)
    assert "[1] user: its data is gone" in done.err


def test_submit_of_a_known_array_that_has_ended_names_the_next_commands(
    queue: Queue, array: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.workspace.store.request_cancel(array.id, by="ada")
    ended = queue.workspace.store.job(array.id)
    tell(Settings(), Submitted(ended, created=False))
    told = capsys.readouterr().err
    assert "it has ended already (Canceled): " in told
    assert f"rayjobs rerun {tail(array)}" in told and f"rayjobs show {tail(array)}" in told


def test_logs_of_a_waiting_array_report_that_it_waits(array: Job, terminal: Terminal) -> None:
    done = terminal.type("logs", array.id)
    assert (done.code, done.out) == (0, "")
    assert "nothing yet" not in done.out
    assert "has printed anything yet" in done.err


def test_why_of_an_array_is_about_its_next_member(
    queue: Queue, array: Job, terminal: Terminal
) -> None:
    queue.start(member(queue, array, 0))
    output = terminal.type("why", array.id).out
    assert f"{array.id} is an array; this explains shards[1], its next member" in output
    assert "target 'local' does not run" in output


def test_held_job_shows_the_hold_and_how_to_release_it(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    held = terminal.type("update", job.id, "--hold", "three hosts died of it")
    assert "held: three hosts died of it" in held.out
    output = terminal.type("why", job.id).out
    assert f"rayjobs update {tail(job)} --release" in output
    assert "three hosts died of it" in terminal.type("show", job.id).out
    assert json.loads(terminal.type("ls", "--json").out)[0]["held"] == "three hosts died of it"
    assert terminal.type("update", job.id, "--release").code == 0
    assert queue.workspace.store.job(job.id).held is None


@pytest.mark.parametrize("options", [("--hold", " "), ("--hold", "x", "--release"), ()])
def test_update_without_changes_is_refused(
    options: tuple[str, ...], queue: Queue, terminal: Terminal
) -> None:
    assert terminal.type("update", queue.submit().id, *options).code == 2


def test_canceled_array_names_the_canceling_user(
    queue: Queue, terminal: Terminal, array: Job
) -> None:
    running = queue.start(member(queue, array, 0))
    queue.workspace.store.request_cancel(array.id, by="bob")
    queue.workspace.store.finish(running.id, attempt=1, state=JobState.CANCELED)
    shown = terminal.type("ls").out
    assert re.search(r"canceled by bob (just now|\ds ago); 4 jobs: 4 Canceled", shown)
    rows = json.loads(terminal.type("ls", "--expand", "--json").out)
    assert {row["reason"].partition(";")[0] for row in rows} == {"canceled by bob"}


def test_members_are_listed_by_their_index_below_their_array(
    queue: Queue, terminal: Terminal, array: Job
) -> None:
    other = queue.submit("other")
    members = [member(queue, array, index).id for index in range(4)]

    def listed(*command: str) -> list[str]:
        return [row["id"] for row in json.loads(terminal.type(*command, "--json").out)]

    assert listed("ls", "--parent", array.id) == members
    assert listed("ls", "--expand") == [other.id, array.id, *members]
    waiting = json.loads(terminal.type("top", "--json").out)["waiting"]
    assert [row["id"] for row in waiting] == [*members, other.id]


def test_a_member_of_one_of_several_arrays_does_not_mean_the_unfinished_array(
    queue: Queue, array: Job, terminal: Terminal
) -> None:
    store = queue.workspace.store
    spec = JobSpec(script="train.py", name="shards", array=Array(indices="0-3"))
    ended, _ = store.submit_array(NewJob(spec=spec, experiment="shards", snapshot=None, user="ada"))
    store.request_cancel(ended.id)
    done = terminal.type("cancel", "shards[3]")
    assert (done.code, array.id in done.err, ended.id in done.err) == (2, True, True)
    assert not store.job(array.id).state.is_final
    assert terminal.type("cancel", "shards").code == 0
    assert store.job(array.id).state is JobState.CANCELED
