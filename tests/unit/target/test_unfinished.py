"""What a stop does to a target's jobs is listed and asked for, and told at the next start."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rayjobs.compute import headstop, keeper, starting, targets
from rayjobs.compute.headstop import Place
from rayjobs.errors import TargetError
from rayjobs.paths import home
from rayjobs.spec import JobSpec
from rayjobs.states import JobState
from rayjobs.submitting import submit
from rayjobs.target import keeping, revive, stops, unfinished
from rayjobs.workspace_files import OpenWorkspace, open_workspace
from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("local", home())
    yield place
    headstop.remove_files(place)


@pytest.fixture
def workspace(tmp_path: Path, place: Place) -> Iterator[OpenWorkspace]:
    """A workspace that the target serves."""
    with open_workspace(tmp_path / "w") as opened:
        starting.register_workspace(place.paths, opened.path)
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


def test_a_stop_with_jobs_lists_them_and_what_can_be_done(
    workspace: OpenWorkspace, terminal: Terminal
) -> None:
    queue = Queue(workspace)
    running, waiting = queue.start(queue.submit("long")), queue.submit("next")
    done = terminal.type("target", "stop")
    assert done.code == 5
    for text in (running.id, waiting.id, "1 running job and 1 waiting job", "--cancel", "--force"):
        assert text in done.err, text


def test_jobs_of_other_targets_are_none_of_its(workspace: OpenWorkspace, place: Place) -> None:
    job, _ = workspace.store.submit(
        JobSpec(script="a.py", name="a", target="lab"), experiment="a", snapshot=None, user="u"
    )
    assert not unfinished.of_target("local", home=place.home)
    assert job.state is JobState.QUEUED


def test_a_forced_stop_says_what_starts_with_the_next_start(
    workspace: OpenWorkspace, terminal: Terminal, place: Place
) -> None:
    job = Queue(workspace).submit()
    done = terminal.type("target", "stop", "--force")
    assert done.code == 0
    assert "1 waiting job" in done.err
    assert job.id in done.err
    assert stops.last(place.paths).is_in_force
    assert "was stopped" in terminal.type("why", job.id).out
    assert terminal.type("target", "stop").code == 0  # it is what was asked for


def test_a_job_of_a_stopped_target_is_not_shown_as_not_responding(
    workspace: OpenWorkspace, terminal: Terminal, place: Place
) -> None:
    """Its actor was killed before it could put the job back; nothing of it runs all the same."""
    queue = Queue(workspace)
    queue.start(queue.submit())
    assert "NotResponding" in terminal.type("ls").out
    targets.stop_target("local", force=True, home=place.home)
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


def _age(workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Let jobs be older than they are."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + timedelta(days=days)

    monkeypatch.setattr(unfinished, "datetime", Later)


def test_a_submit_that_starts_the_target_says_which_older_jobs_start_with_it(
    workspace: OpenWorkspace, place: Place, monkeypatch: pytest.MonkeyPatch, begun: list[str]
) -> None:
    old = Queue(workspace).submit()
    spec = JobSpec(command="true", name="new")
    assert not any("older job" in note for note in submit(workspace, spec).notes)
    _age(workspace, monkeypatch, days=3.5)
    [note] = [note for note in submit(workspace, spec).notes if "older job" in note]
    assert "2 older jobs of target 'local' start with it, the oldest 3 days old" in note
    assert old.id in note
    assert begun == ["local", "local"]
    with keeping.lock_path(place.paths).open("w") as held:  # somebody is starting it already
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not any("older job" in note for note in submit(workspace, spec).notes)


def test_a_target_with_jobs_is_removed_only_on_demand(workspace: OpenWorkspace) -> None:
    from rayjobs.compute.targetrecord import TargetRecord, save_target

    lab = Place("lab", home())
    save_target(TargetRecord("lab", address="127.0.0.1:1", token_file="t"), home=lab.home)
    starting.register_workspace(lab.paths, workspace.path)
    workspace.store.submit(
        JobSpec(script="a.py", name="a", target="lab"), experiment="a", snapshot=None, user="u"
    )
    with pytest.raises(TargetError, match="1 waiting job"):
        targets.remove_target("lab", home=lab.home)
    assert "Connection refused" in targets.remove_target("lab", force=True, home=lab.home)


def test_a_keeper_gives_up_once_no_job_waits_for_its_target(
    workspace: OpenWorkspace, place: Place, monkeypatch: pytest.MonkeyPatch
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
    assert keeper.Keeper(place, "s1", is_patient=True).run() == 0
    assert len(tries) == 2
    assert "no job waits" in (place.paths.log / "keeper.log").read_text()
    assert keeper.pause_of(place.paths) is None


def test_a_store_that_cannot_be_read_may_have_jobs(workspace: OpenWorkspace, place: Place) -> None:
    arguments = [str(place.home), place.name]
    assert unfinished.main(arguments) == keeper.NO_JOBS
    workspace.store.close()
    for file in workspace.path.glob("store.db*"):
        file.write_bytes(b"no database" * 1000)
    assert unfinished.main(arguments) == 0
