"""`rayjobs update` of what was submitted: a new revision in the old place, or a sentence."""

from __future__ import annotations

import json

from rayjobs.cli.exits import Exit
from rayjobs.errors import UsageError
from rayjobs.spec import Array, JobSpec
from rayjobs.states import JobState
from rayjobs.submit.revising import revise
from tests.unit.cli.conftest import Queue, Terminal


def test_a_waiting_job_gets_a_new_revision_in_its_place(queue: Queue, terminal: Terminal) -> None:
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
    (told,) = (one for one in store.events(job.id) if one.kind == "revision")
    assert "max_duration_s none → 7200" in told.message
    assert "resources.cpus 1 → 2" in told.message
    assert JobSpec.model_validate_json(told.data["before"]) == job.spec  # kept as it was
    assert terminal.type("update", job.id, "--max-duration", "none", "--untag", "a").code == 0
    assert store.job(job.id).spec.max_duration_s is None
    assert dict(store.job(job.id).spec.tags) == {}
    assert store.revision(job.id) == 3
    assert "Revision" in terminal.type("show", job.id).out
    assert "Revision" not in terminal.type("show", later.id).out


def test_two_who_read_the_same_and_change_it_lose_nothing(queue: Queue) -> None:
    store, read = queue.workspace.store, queue.submit()
    revise(queue.workspace, read, {"max_duration": "2h"})
    revise(queue.workspace, read, {}, tags={"a": "b"})
    revise(queue.workspace, read, {"priority": 4}, tags={"c": "d"})
    new = store.job(read.id)
    assert (new.spec.max_duration_s, new.spec.priority, new.priority) == (7200.0, 4, 4)
    assert dict(new.tags) == dict(new.spec.tags) == {"a": "b", "c": "d"}
    assert store.revise(read, read.spec) is None
    assert store.revision(read.id) == 4
    messages = [one.message for one in store.events(read.id) if one.kind == "revision"]
    assert messages[1] == "revision 3: tags.a none → b"


def test_what_is_wrong_is_refused_by_its_flag(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    done = terminal.type("update", job.id, "--max-duration", "6hh", "--nodes", "0")
    assert done.code == Exit.USAGE
    assert "--max-duration" in done.err
    assert "--nodes" in done.err
    assert queue.workspace.store.revision(job.id) == 1


def test_what_runs_keeps_what_it_was_started_with(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    done = terminal.type("update", job.id, "--max-duration", "1h")
    assert done.code == Exit.USAGE
    assert "only a job that waits in the queue can be changed" in done.err
    assert terminal.type("update", job.id, "--tag", "a=b").code == 0
    assert queue.workspace.store.revision(job.id) == 1


def test_the_members_of_an_array_that_wait_are_changed(queue: Queue, terminal: Terminal) -> None:
    store = queue.workspace.store
    spec = JobSpec(script="train.py", array=Array(indices="0-2"))
    array, _ = store.submit_array(spec, experiment="e", snapshot=None, user="u")
    queue.start(store.member(array.id, 0))
    assert terminal.type("update", array.id, "--max-duration", "90s").code == 0
    limits = [store.member(array.id, index).spec.max_duration_s for index in range(3)]
    assert limits == [None, 90.0, 90.0]
    assert store.job(array.id).state is JobState.RUNNING
    assert store.revision(store.member(array.id, 1).id) == 2


def test_a_submit_that_is_repeated_finds_its_changed_job(queue: Queue) -> None:
    store, spec = queue.workspace.store, JobSpec(script="train.py")
    values = {"experiment": "e", "snapshot": None, "user": "u", "idempotency_key": "k"}
    job, _ = store.submit(spec, **values)  # type: ignore[arg-type]
    changed = spec.model_copy(update={"max_duration_s": 60.0})
    assert store.revise(job, changed) is not None
    again, is_new = store.submit(spec, **values)  # type: ignore[arg-type]
    assert (again.id, is_new) == (job.id, False)
    try:
        store.submit(changed, **values)  # type: ignore[arg-type]
    except UsageError as error:
        assert "another spec" in error.message
    else:
        raise AssertionError("another spec under the same key was taken")
