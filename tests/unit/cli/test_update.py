"""`rayjobs update` of submitted jobs: a new revision at the same position, or a refusal."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest

from rayjobs.cli.exits import Exit
from rayjobs.core.errors import UsageError
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Array, JobSpec
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.submit.revising import revise
from rayjobs.workspace.folder import WorkspaceFiles
from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script; the working directory."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path / "code")
    return tmp_path / "code"


def test_waiting_job_gets_a_new_revision_and_keeps_its_position(
    queue: Queue, terminal: Terminal
) -> None:
    store = queue.workspace.store
    job, later = queue.submit("first"), queue.submit("later")
    options = ("--max-duration", "2h", "--cpus-per-proc", "2", "--priority", "3", "--tag", "a=b")
    done = terminal.type("update", "--json", job.id, *options)
    assert done.code == 0, done.err
    assert json.loads(done.out)["revision"] == 2
    new = store.job(job.id)
    assert (new.spec.max_duration_s, new.spec.resources.cpus) == (7200.0, 2.0)
    assert (new.spec.priority, new.priority) == (3, 3)
    assert dict(new.tags) == dict(new.spec.tags) == {"a": "b"}
    assert (new.serial, new.submitted_at, new.snapshot) == (
        job.serial,
        job.submitted_at,
        job.snapshot,
    )
    (event,) = (one for one in store.events(job.id) if one.kind == "revision")
    assert "max_duration_s none → 7200" in event.message
    assert "resources.cpus 1 → 2" in event.message
    assert JobSpec.model_validate_json(event.data["before"]) == job.spec  # the earlier spec
    done = terminal.type("update", job.id, "--max-duration", "none", "--untag", "a")
    assert done.out == f"{job.id} priority 3, max-duration none, no tags, revision 3\n"
    assert store.job(job.id).spec.max_duration_s is None
    assert dict(store.job(job.id).spec.tags) == {}
    assert store.revision(job.id) == 3
    assert "Revision" in terminal.type("show", job.id).out
    assert "Revision" not in terminal.type("show", later.id).out


def test_concurrent_updates_lose_nothing(queue: Queue) -> None:
    store, read = queue.workspace.store, queue.submit()
    revise(queue.workspace, read, {"max_duration": "2h"})
    revise(queue.workspace, read, {}, JobChanges(tags={"a": "b"}))
    revise(queue.workspace, read, {"priority": 4}, JobChanges(tags={"c": "d"}))
    new = store.job(read.id)
    assert (new.spec.max_duration_s, new.spec.priority, new.priority) == (7200.0, 4, 4)
    assert dict(new.tags) == dict(new.spec.tags) == {"a": "b", "c": "d"}
    assert store.revise(read, read.spec) is None
    assert store.revision(read.id) == 4
    messages = [one.message for one in store.events(read.id) if one.kind == "revision"]
    assert messages[1] == "revision 3: tags.a none → b"


def test_invalid_value_is_refused_with_its_option(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    done = terminal.type("update", job.id, "--max-duration", "6hh", "--nodes", "0")
    assert done.code == Exit.USAGE
    assert "--max-duration" in done.err
    assert "--nodes" in done.err
    assert queue.workspace.store.revision(job.id) == 1


def test_running_job_keeps_its_spec(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    done = terminal.type("update", job.id, "--max-duration", "1h")
    assert done.code == Exit.USAGE
    assert "only a job that waits in the queue can be changed" in done.err
    assert terminal.type("update", job.id, "--tag", "a=b").code == 0
    assert queue.workspace.store.revision(job.id) == 1


def test_waiting_members_of_an_array_are_changed(queue: Queue, terminal: Terminal) -> None:
    store = queue.workspace.store
    spec = JobSpec(script="train.py", array=Array(indices="0-2"))
    array, _ = store.submit_array(NewJob(spec=spec, experiment="e", snapshot=None, user="u"))
    queue.start(store.member(array.id, 0))
    assert terminal.type("update", array.id, "--max-duration", "90s").code == 0
    limits = [store.member(array.id, index).spec.max_duration_s for index in range(3)]
    assert limits == [None, 90.0, 90.0]
    assert store.job(array.id).state is JobState.RUNNING
    assert store.revision(store.member(array.id, 1).id) == 2


def test_all_changes_of_one_update_are_kept_or_none(queue: Queue, terminal: Terminal) -> None:
    store = queue.workspace.store
    spec = JobSpec(script="train.py", array=Array(indices="0-1"))
    array, _ = store.submit_array(NewJob(spec=spec, experiment="e", snapshot=None, user="u"))
    every = ("--priority", "5", "--tag", "a=b", "--display-name", "mine", "--hold", "not yet")
    options = ("update", array.id, "--max-duration", "90s", *every)
    file = WorkspaceFiles(queue.workspace.path).store
    with sqlite3.connect(file) as connection:  # the last write of the command fails
        connection.execute(
            "CREATE TRIGGER broken BEFORE UPDATE OF hold ON jobs "
            "BEGIN SELECT RAISE(FAIL, 'the disk broke'); END"
        )
    assert terminal.type(*options).code != 0
    assert store.job(array.id) == array
    assert store.revision(array.id) == 1
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TRIGGER broken")
    done = terminal.type(*options)
    assert done.code == 0, done.err
    new = store.job(array.id)
    assert (new.priority, dict(new.tags), new.display_name, new.held) == (
        5,
        {"a": "b"},
        "mine",
        "not yet",
    )
    members = [store.member(array.id, index) for index in range(2)]
    assert {(one.priority, one.spec.max_duration_s, one.held) for one in members} == {
        (5, 90.0, "not yet")
    }
    assert store.revision(array.id) == 2


def test_repeated_submit_finds_its_changed_job(queue: Queue) -> None:
    store, spec = queue.workspace.store, JobSpec(script="train.py")
    values = {"experiment": "e", "snapshot": None, "user": "u", "idempotency_key": "k"}
    job, _ = store.submit(NewJob(spec=spec, **values))  # type: ignore[arg-type]
    changed = spec.model_copy(update={"max_duration_s": 60.0})
    assert store.revise(job, changed) is not None
    again, is_new = store.submit(NewJob(spec=spec, **values))  # type: ignore[arg-type]
    assert (again.id, is_new) == (job.id, False)
    try:
        store.submit(NewJob(spec=changed, **values))  # type: ignore[arg-type]
    except UsageError as error:
        assert "another spec" in error.message
    else:
        raise AssertionError("another spec under the same key was taken")


def test_more_cpus_than_the_machine_has_are_noted_as_at_submit(
    queue: Queue, terminal: Terminal, project: Path
) -> None:
    text = "the job asks for 4000 CPUs and this machine has"
    done = terminal.type("submit", "train.py", "--cpus-per-proc", "4000", "--dry-run")
    assert done.code == 0, done.err
    assert text in done.out + done.err
    job = queue.submit()
    done = terminal.type("update", job.id, "--cpus-per-proc", "4000")
    assert done.code == 0, done.err
    assert f"note: {text}" in done.err
    assert "its threads share them" in done.err
    result = json.loads(terminal.type("update", job.id, "--cpus-per-proc", "3000", "--json").out)
    assert len(result["notes"]) == 1
    assert "CPUs" not in terminal.type("update", job.id, "--cpus-per-proc", "1").err


def test_unknown_environment_is_refused_at_submit(
    queue: Queue, terminal: Terminal, project: Path
) -> None:
    (project / "empty").mkdir()
    for named, what in (("/nope", "is not an executable file"), ("empty", "has no bin/python")):
        done = terminal.type("submit", "train.py", "--env", named, "--dry-run")
        assert done.code == Exit.USAGE
        assert f"{what}" in done.err and "--env" in done.err and "target 'local'" in done.err
    assert terminal.type("submit", "train.py", "--env", sys.prefix, "--dry-run").code == 0
    done = terminal.type("submit", "train.py", "--env", sys.executable, "--dry-run")
    assert done.code == 0, done.err
