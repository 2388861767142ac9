"""Commands that list jobs show what the target reports about waiting ones."""

from __future__ import annotations

import fcntl
import json
import re

import pytest

from rayjobs.cli import outlook
from rayjobs.core.paths import TargetPaths, home
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.states import JobState
from tests.unit.cli.conftest import Queue, Terminal
from tests.unit.cli.fake_target import target


def test_waiting_job_shows_its_reason_and_position(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    key = f"{queue.workspace.path}::{job.id}"
    waiting = {key: {"reason": "needs 4 CPUs, 1 of 2 free", "position": 3}}
    with target({"ok": True, "waiting": waiting}):
        output = terminal.type("why", job.id).out
        assert output == f"{job.id} is Queued (number 3 in the queue): needs 4 CPUs, 1 of 2 free\n"
        assert "#3 needs 4 CPUs, 1 of 2 free" in terminal.type("ls").out
        assert "number 3 in the queue" in terminal.type("show", job.id).out


def test_live_job_of_a_responsive_target_is_shown_unchanged(
    queue: Queue, terminal: Terminal
) -> None:
    queue.start(queue.submit())
    with target({"ok": True, "waiting": {}}):
        [listed] = json.loads(terminal.type("ls", "--json").out)
    assert listed["shown_state"] == "Running"


def test_slow_target_is_not_reported_as_gone(
    queue: Queue, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "ANSWER_S", 0.05)
    queue.start(queue.submit())
    with target(None):
        [listed] = json.loads(terminal.type("ls", "--json").out)
    assert listed["shown_state"] == "Running"


def test_starting_target_is_reported(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    lock = TargetPaths.of("local", under=home()).keeper_lock
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "is being started" in terminal.type("why", job.id).out
    assert "does not run" in terminal.type("why", job.id).out


def test_time_including_an_outage_is_called_a_bound(queue: Queue, terminal: Terminal) -> None:
    """The end of the attempt was not observed: the target was down."""
    store = queue.workspace.store
    job = queue.start(queue.submit())
    (row,) = json.loads(terminal.type("ls", "--json").out)  # no target responds
    assert (row["shown_state"], row["ran_at_most"]) == ("NotResponding", True)
    assert "≤" in terminal.type("ls").out
    assert store.requeue(job.id, attempt=1, reason="restarted", outcome=Outcome.CLUSTER_LOST)
    done = queue.finish(queue.start(store.job(job.id)))
    seen = queue.completed("seen")
    rows = {row["id"]: row["ran_at_most"] for row in json.loads(terminal.type("ls", "--json").out)}
    assert rows == {done.id: True, seen.id: False}
    assert json.loads(terminal.type("show", "--json", done.id).out)["ran_at_most"]
    (ran,) = [line for line in terminal.type("show", done.id).out.splitlines() if "Ran " in line]
    assert "≤" in ran
    assert "(its end was not seen)" in terminal.type("show", "-v", done.id).out
    (ran,) = [line for line in terminal.type("show", seen.id).out.splitlines() if "Ran " in line]
    assert "≤" not in ran


def test_dependent_job_is_listed_below_the_head_of_the_queue(
    queue: Queue, terminal: Terminal
) -> None:
    after, first = queue.submit("after"), queue.submit("first")
    path = queue.workspace.path
    waiting = {
        f"{path}::{after.id}": {"reason": "waits for parent", "position": 0},
        f"{path}::{first.id}": {"reason": "first in line", "position": 1},
    }
    with target({"ok": True, "waiting": waiting}):
        listed = json.loads(terminal.type("queue", "--json").out)
    assert [row["id"] for row in listed] == [first.id, after.id]


def test_limit_reports_the_number_of_hidden_unfinished_jobs(
    queue: Queue, terminal: Terminal
) -> None:
    queue.submit("old")
    queue.start(queue.submit("older"))
    queue.completed("new")
    listed = terminal.type("ls", "-n", "1")
    assert "new" in listed.out
    assert "2 unfinished jobs are not shown" in listed.err
    assert "not shown" not in terminal.type("ls", "-n", "3").err
    assert "not shown" not in terminal.type("ls", "-n", "1", "-s", "completed").err


@pytest.mark.parametrize("user", ["ada", "eve; no one"])
def test_canceled_job_shows_the_user_and_the_time_before_the_remarks(
    user: str, queue: Queue, terminal: Terminal
) -> None:
    store = queue.workspace.store
    stored, requeued = queue.start(queue.submit()), queue.start(queue.submit())
    waited = queue.submit()
    for job in (stored, requeued):
        store.request_cancel(job.id, by=user)
    text = "the store is full; its files are still there"
    store.finish(stored.id, attempt=1, state=JobState.CANCELED, reason=text)
    store.requeue(requeued.id, attempt=1, reason="its node; died", outcome=Outcome.NODE_LOST)
    ended = "a_1, which it waited for, ended as Failed"
    store.finish(
        waited.id, attempt=0, state=JobState.CANCELED, reason=ended, outcome=Outcome.DEPENDENCY
    )
    listed = terminal.type("ls").out
    time, date = r"(just now|\ds ago)", r"at \d{4}-\d\d-\d\d [0-9:]{8}"
    again = r"instead of being queued again \(its node; died\)"
    assert re.search(rf"canceled by {user} {time}; {text}\n", listed)
    assert re.search(rf"canceled by {user} {time} {again}\n", listed)
    assert re.search(rf"{ended} {time}\n", listed)
    shown = [terminal.type("show", job.id).out for job in (stored, requeued, waited)]
    assert re.search(rf"canceled by {user} {date}; {text}\n", shown[0])
    assert re.search(rf"canceled by {user} {date} {again}\n", shown[1])
    assert re.search(rf"{ended} {date}\n", shown[2])
    reasons = {row["id"]: row["reason"] for row in json.loads(terminal.type("ls", "--json").out)}
    assert reasons[stored.id] == f"canceled by {user}; {text}"
    assert (
        reasons[requeued.id] == f"canceled by {user} instead of being queued again (its node; died)"
    )
