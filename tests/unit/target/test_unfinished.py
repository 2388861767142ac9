"""A stop lists its effect on jobs, needs a confirmation, and the next start reports it."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import TargetError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.paths import home
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.submit.submitting import submit
from rayjobs.target import (
    keeper,
    keeper_state,
    reach,
    revive,
    starting,
    stop_record,
    stopping,
    targets,
    unfinished,
    wake_client,
)
from rayjobs.target.answers import TargetAnswer
from rayjobs.target.record import TargetRecord, load_target, save_target
from rayjobs.target.stopping import TargetLocation
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture
def location() -> Iterator[TargetLocation]:
    location = TargetLocation("local", home())
    yield location
    stopping.remove_files(location)


@pytest.fixture
def workspace(tmp_path: Path, location: TargetLocation) -> Iterator[OpenWorkspace]:
    """A workspace that the target serves."""
    with open_workspace(tmp_path / "w") as opened:
        starting.register_workspace(location.paths, opened.path)
        yield opened


@pytest.fixture
def terminal(
    workspace: OpenWorkspace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Terminal:
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(workspace.path))
    return Terminal(capsys)


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets for which a process was started."""
    names: list[str] = []
    monkeypatch.setattr(revive, "in_background", lambda name, **_more: names.append(name))
    return names


def test_stop_with_jobs_lists_them_and_the_options(
    workspace: OpenWorkspace, terminal: Terminal
) -> None:
    queue = Queue(workspace)
    running, waiting = queue.start(queue.submit("long")), queue.submit("next")
    done = terminal.type("target", "stop")
    assert done.code == 1
    for text in (running.id, waiting.id, "1 running job and 1 waiting job", "--cancel", "--force"):
        assert text in done.err, text


def test_stop_ignores_jobs_of_other_targets(
    workspace: OpenWorkspace, location: TargetLocation
) -> None:
    job, _ = workspace.store.submit(
        NewJob(
            spec=JobSpec(script="a.py", name="a", target="lab"),
            experiment="a",
            snapshot=None,
            user="u",
        )
    )
    assert not unfinished.of_target("local", home=location.home)
    assert job.state is JobState.QUEUED


def test_forced_stop_lists_jobs_that_start_with_the_next_start(
    workspace: OpenWorkspace, terminal: Terminal, location: TargetLocation
) -> None:
    job = Queue(workspace).submit()
    done = terminal.type("target", "stop", "--force")
    assert done.code == 0
    assert "1 waiting job" in done.err
    assert job.id in done.err
    assert stop_record.last(location.paths).is_in_force
    assert "was stopped" in terminal.type("why", job.id).out
    assert terminal.type("target", "stop").code == 0  # the target is already stopped


def test_a_job_of_a_stopped_target_is_not_shown_as_not_responding(
    workspace: OpenWorkspace, terminal: Terminal, location: TargetLocation
) -> None:
    """Its actor was killed before it could requeue the job; still, no process of the job runs."""
    queue = Queue(workspace)
    queue.start(queue.submit())
    assert "NotResponding" in terminal.type("ls").out
    targets.stop_target("local", force=True, home=location.home)
    shown = terminal.type("ls").out
    assert "NotResponding" not in shown
    assert "was stopped" in shown


def test_a_stop_with_cancel_cancels_first(
    workspace: OpenWorkspace, terminal: Terminal, begun: list[str]
) -> None:
    job = Queue(workspace).submit()
    done = terminal.type("target", "stop", "--cancel")
    assert done.code == 0, done.err
    assert workspace.store.job(job.id).state is JobState.CANCELED
    assert "canceled: 1 job" in done.err
    assert begun == []


def test_a_job_that_ends_by_itself_is_not_counted_as_canceled(
    workspace: OpenWorkspace,
    terminal: Terminal,
    begun: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An array with a failed member was canceled, though it ends as Failed."""
    queue, find = Queue(workspace), unfinished.of_target
    running, waiting = queue.start(queue.submit()), queue.submit()
    spec = JobSpec(name="b", script="train.py", array={"indices": "0-2"})
    array = submit(workspace, spec, wake=False).job
    failed = next(job for job in workspace.store.jobs(JobFilter(parent=array.id)))
    queue.finish(queue.start(failed), Failure(FailureClass.USER, "no"))

    def found(*arguments: Any, **values: Any) -> unfinished.Unfinished:
        jobs = find(*arguments, **values)
        if not workspace.store.job(running.id).state.is_final:
            queue.finish(running)
        return jobs

    monkeypatch.setattr(unfinished, "of_target", found)
    done = terminal.type("target", "stop", "--cancel", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["canceled"] == [array.id, waiting.id]
    assert "1 job ended meanwhile, before the cancel" in done.err
    assert workspace.store.job(array.id).state is JobState.FAILED
    assert begun == []


def test_a_removal_counts_only_the_jobs_that_it_cancels(
    workspace: OpenWorkspace, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    waiting = queue.submit("b", target="lab")
    jobs = unfinished.of_target("lab", home=lab.home)
    queue.finish(running)
    found = unfinished.cancel_for_good("lab", jobs, home=lab.home, say=lambda _text: None)
    assert found == [waiting.id]


def test_a_stop_with_cancel_of_a_stopped_target_starts_nothing(
    workspace: OpenWorkspace, terminal: Terminal, location: TargetLocation, begun: list[str]
) -> None:
    """A sweep and an array are unfinished without being among the jobs that wait."""
    queue = Queue(workspace)
    running = queue.start(queue.submit("ran"))
    waiting = queue.submit("waits")
    targets.stop_target("local", force=True, home=location.home)
    done = terminal.type("target", "stop", "--cancel")
    assert done.code == 0, done.err
    assert "canceled: 2 jobs" in done.err
    for job in (running, waiting):
        assert workspace.store.job(job.id).state is JobState.CANCELED
    assert "its target had been stopped" in workspace.store.job(running.id).reason
    assert begun == []
    assert stop_record.last(location.paths).is_in_force


def test_ctrl_c_during_a_start_reports_what_continues(
    terminal: Terminal, location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(targets, "start_target", interrupted)
    done = terminal.type("target", "start")
    assert done.code == 130
    assert "was not started; `rayjobs target start local` tries again" in done.err
    monkeypatch.setattr(keeper_state, "is_kept", lambda _paths: True)
    done = terminal.type("target", "start")
    assert "continues to start in the background. `rayjobs target show local`" in done.err


def _age(workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Make jobs appear older than they are."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Later:
            return cls.fromtimestamp(time.time(), UTC) + timedelta(days=days)

    monkeypatch.setattr(unfinished, "datetime", Later)


def test_submit_starting_the_target_lists_older_jobs_that_start(
    workspace: OpenWorkspace,
    location: TargetLocation,
    monkeypatch: pytest.MonkeyPatch,
    begun: list[str],
) -> None:
    old = Queue(workspace).submit()
    spec = JobSpec(command="true", name="new")
    assert not any("older job" in note for note in submit(workspace, spec).notes)
    _age(workspace, monkeypatch, days=3.5)
    [note] = [note for note in submit(workspace, spec).notes if "older job" in note]
    assert "2 older jobs of target 'local' start with it, the oldest 3 days old" in note
    assert old.id in note
    assert begun == ["local", "local"]
    with location.paths.keeper_lock.open("w") as held:  # another process is starting it already
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not any("older job" in note for note in submit(workspace, spec).notes)


def test_jobs_kept_at_a_stop_are_named_at_any_age(
    workspace: OpenWorkspace, terminal: Terminal
) -> None:
    old = Queue(workspace).submit()
    assert terminal.type("target", "stop", "--force").code == 0
    notes = submit(workspace, JobSpec(command="true", name="new")).notes
    [note] = [note for note in notes if "older job" in note]
    assert "1 older job of target 'local' starts with it" in note and old.id in note


@pytest.mark.parametrize(("jobs", "text"), [(1, "job stays"), (2, "jobs stay")])
def test_a_stop_lists_what_is_left_after_it(
    workspace: OpenWorkspace,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
    text: str,
) -> None:
    queue = Queue(workspace)
    ends, *_ = [queue.start(queue.submit()) for _ in range(jobs + 1)]
    stop = targets.stop_target

    def stop_late(*arguments: Any, **more: Any) -> bool:
        queue.finish(ends)  # one ends while the target stops
        return stop(*arguments, **more)

    monkeypatch.setattr(targets, "stop_target", stop_late)
    done = terminal.type("target", "stop", "--force")
    assert done.code == 0
    assert f"{jobs} running {text} in the queue" in done.err
    assert ends.id not in done.err


def test_a_target_with_jobs_is_removed_only_on_demand(workspace: OpenWorkspace) -> None:
    from rayjobs.target.record import TargetRecord, save_target

    lab = TargetLocation("lab", home())
    save_target(TargetRecord("lab", address="127.0.0.1:1", token_file="t"), home=lab.home)
    starting.register_workspace(lab.paths, workspace.path)
    workspace.store.submit(
        NewJob(
            spec=JobSpec(script="a.py", name="a", target="lab"),
            experiment="a",
            snapshot=None,
            user="u",
        )
    )
    with pytest.raises(TargetError, match="1 waiting job"):
        targets.remove_target("lab", home=lab.home)
    assert "Connection refused" in targets.remove_target("lab", force=True, home=lab.home)


@pytest.mark.long
def test_keeper_stops_retrying_when_no_job_waits(
    workspace: OpenWorkspace, location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs were canceled while it paused after a start that failed."""
    job = Queue(workspace).submit()
    tries: list[str] = []

    def fail(_keeper: keeper.Keeper) -> None:
        tries.append("start")
        assert len(tries) < 3, "it tries again without a job"
        if len(tries) == 2:
            workspace.store.request_cancel(job.id, by="u")
        raise TargetError("Ray does not start")

    monkeypatch.setattr(keeper.Keeper, "_bring_up", fail)
    monkeypatch.setattr(keeper, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(keeper, "WATCH_EVERY_S", 0.01)
    assert keeper.Keeper(location, "s1", is_patient=True).run() == 0
    assert len(tries) == 2
    assert "no job waits" in (location.paths.log / "keeper.log").read_text()
    assert keeper_state.pause_of(location.paths) is None


def test_unreadable_store_counts_as_having_jobs(
    workspace: OpenWorkspace, location: TargetLocation
) -> None:
    arguments = [str(location.home), location.name]
    assert unfinished.main(arguments) == keeper.NO_JOBS
    workspace.store.close()
    for file in workspace.path.glob("store.db*"):
        file.write_bytes(b"no database" * 1000)
    assert unfinished.main(arguments) == 0


# --- a cluster that cannot be reached -------------------------------------------------------------


@pytest.fixture
def lab(workspace: OpenWorkspace) -> Iterator[TargetLocation]:
    """An attached target that serves the workspace, and whose cluster is gone."""
    location = TargetLocation("lab", home())
    with socket.socket() as listener:  # no other process uses its port or listens there
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        save_target(TargetRecord("lab", address=address, token_file="t"), home=location.home)
        starting.register_workspace(location.paths, workspace.path)
        yield location
    stopping.remove_files(location)


def _address(location: TargetLocation) -> str:
    return str(load_target(location.name, home=location.home).address)


def test_a_stop_with_cancel_needs_no_cluster(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation, begun: list[str]
) -> None:
    queue = Queue(workspace)
    jobs = [queue.submit(name, target="lab") for name in ("a", "b")]
    done = terminal.type("target", "stop", "lab", "--cancel")
    assert done.code == 0, done.err
    message = f"2 jobs canceled; the target's actor could not be reached at {_address(lab)}"
    assert message in done.err
    assert {workspace.store.job(job.id).state for job in jobs} == {JobState.CANCELED}
    assert stop_record.last(lab.paths).is_in_force
    assert begun == []
    jobs.append(queue.submit("c", target="lab"))
    done = terminal.type("target", "stop", "lab", "--cancel", "--json")
    result = json.loads(done.out)
    assert (result["canceled"], result["cancel_requested"]) == ([jobs[2].id], [])
    assert (result["unreachable"], result["state"]) == (_address(lab), "stopped")
    assert revive.look_after("lab", home=lab.home, workspace=workspace.path).is_stopped
    assert begun == []


def test_the_stacks_of_its_jobs_name_a_cluster_that_is_gone(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    done = terminal.type("stacks", running.id)
    assert done.code == 5
    assert _address(lab) in done.err and "Connection refused" in done.err
    assert "target start" not in done.err


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (TimeoutError("took the request"), "does not answer: took the request"),
        (TargetAnswer(False, error="a node cannot be reached"), "a node cannot be reached"),
        (None, "does not answer. Start it with `rayjobs target start lab`"),
    ],
)
def test_stacks_without_an_answer_name_the_cluster(
    workspace: OpenWorkspace,
    terminal: Terminal,
    lab: TargetLocation,
    monkeypatch: pytest.MonkeyPatch,
    answer: TargetAnswer | TimeoutError | None,
    said: str,
    is_gone: bool,
) -> None:
    """The actor may be there without its cluster, or the cluster without its actor."""
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))

    def ask(*_arguments: object, **_values: object) -> TargetAnswer | None:
        if isinstance(answer, TimeoutError):
            raise answer
        return answer

    monkeypatch.setattr(wake_client, "ask_target", ask)
    if not is_gone:
        monkeypatch.setattr(reach, "why_unreachable", lambda _address: "")
    done = terminal.type("stacks", running.id)
    is_refusal = isinstance(answer, TargetAnswer)
    assert done.code == (3 if is_refusal and not is_gone else 5)
    if is_gone:
        assert f"no Ray cluster can be reached at {_address(lab)}: Connection refused" in done.err
    else:
        assert said in done.err
        assert is_refusal or f"target 'lab' (cluster {_address(lab)})" in done.err


def test_job_on_a_vanished_cluster_gets_a_cancel_request_but_is_not_canceled(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    waiting = queue.submit("b", target="lab")
    done = terminal.type("target", "stop", "lab", "--cancel")
    assert done.code == 0, done.err
    assert "1 job canceled; the target's actor could not be reached" in done.err
    assert "1 running job may still run there: the cancel is recorded" in done.err
    assert running.id in done.err
    assert "rayjobs target rm lab --cancel" in done.err
    assert "rayjobs cancel --force" in terminal.type("why", running.id).out  # it was stopped, too
    found = workspace.store.job(running.id)
    assert (found.state, found.cancel_requested_at is not None) == (JobState.RUNNING, True)
    assert workspace.store.job(waiting.id).state is JobState.CANCELED
    result = json.loads(terminal.type("target", "stop", "lab", "--cancel", "--json").out)
    assert result["cancel_requested"] == [running.id]
    assert result["canceled"] == result["put_back"] == []


def test_stop_without_cancel_explains_jobs_of_a_vanished_cluster(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    waiting = queue.submit("b", target="lab")
    done = terminal.type("target", "stop", "lab")
    stderr = " ".join(done.err.split())
    assert done.code == 5
    for text in (
        running.id,
        waiting.id,
        "Running jobs may continue there unobserved",
        _address(lab),
    ):
        assert text in stderr, text
    for text in ("Waiting jobs stay queued", "Nothing was stopped", "--cancel", "--force"):
        assert text in stderr, text
    assert not stop_record.last(lab.paths).is_in_force
    done = terminal.type("target", "stop", "lab", "--force")
    assert done.code == 5
    assert "Running jobs may continue there unobserved" in done.err
    assert stop_record.last(lab.paths).is_in_force
    assert workspace.store.job(waiting.id).state is JobState.QUEUED
    assert "NotResponding" in terminal.type("ls").out  # it may still run


def test_forced_cancel_ends_a_job_of_a_vanished_cluster(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    done = terminal.type("cancel", running.id)
    assert done.code == 0, done.err
    assert f"its cluster cannot be reached at {_address(lab)}" in done.err
    assert "rayjobs cancel --force" in done.err
    assert workspace.store.job(running.id).state is JobState.RUNNING
    listed = terminal.type("ls").out
    assert "NotResponding" in listed and "cancel requested" in listed
    assert "rayjobs cancel --force" in listed
    done = terminal.type("cancel", "--force", running.id)
    assert done.code == 0, done.err
    found = workspace.store.job(running.id)
    assert found.state is JobState.CANCELED
    assert "it is unknown whether its processes have ended" in found.reason
    by = found.reason.partition("; ")[0]
    assert re.search(rf"{by} (just now|\d+s ago); its cluster", terminal.type("ls").out)
    assert f"{by} at 2" in terminal.type("show", running.id).out
    # Nothing that the lost attempt still writes counts.
    assert not workspace.store.finish(
        running.id, attempt=running.attempt, state=JobState.FAILED, reason="late"
    )
    assert workspace.store.job(running.id).state is JobState.CANCELED


def test_forced_cancel_ignores_jobs_of_a_reachable_target(
    workspace: OpenWorkspace, terminal: Terminal
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a"))
    done = terminal.type("cancel", "--force", running.id)
    assert done.code == 0, done.err
    found = workspace.store.job(running.id)
    assert (found.state, found.cancel_requested_at is not None) == (JobState.RUNNING, True)


def test_a_target_whose_cluster_is_gone_is_removed_with_its_jobs(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    spec = JobSpec(name="b", script="train.py", target="lab", array={"indices": "0-2"})
    array = submit(workspace, spec, wake=False).job
    member = next(job for job in workspace.store.jobs(JobFilter(parent=array.id)))
    queue.start(member)
    done = terminal.type("target", "rm", "lab", "--cancel")
    assert done.code == 0, done.err
    assert "Processes of its jobs may still run there" in done.err
    assert "removed target lab" in done.err
    states = {job.state for job in workspace.store.jobs()}
    assert states == {JobState.CANCELED}
    assert "rayjobs target rm lab" in workspace.store.job(running.id).reason
    assert workspace.store.job(array.id).state is JobState.CANCELED


def test_a_job_of_a_removed_target_is_not_shown_as_running(
    workspace: OpenWorkspace, terminal: Terminal, lab: TargetLocation
) -> None:
    queue = Queue(workspace)
    running = queue.start(queue.submit("a", target="lab"))
    done = terminal.type("target", "rm", "lab", "--force")
    assert done.code == 0, done.err
    listed = " ".join(terminal.type("ls").out.split())
    assert "NotResponding" in listed and "target 'lab' was removed" in listed
    done = terminal.type("cancel", "--force", running.id)
    assert workspace.store.job(running.id).state is JobState.CANCELED
