"""Reports of the queue: why a job waits, who uses what, and how accurate the estimates were."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rayjobs.cli.exits import Exit
from rayjobs.core.paths import TargetPaths, home
from rayjobs.core.text import duration_text
from rayjobs.jobs.queue_records import Prediction
from rayjobs.jobs.records import Job
from rayjobs.policy import report
from rayjobs.policy.node_types import NodeType, NodeTypes
from rayjobs.spec.model import Dependency
from rayjobs.target.answers import NodeStatus
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.reports import CapacityReport
from tests.unit.cli.conftest import Queue, Terminal
from tests.unit.cli.fake_target import target

NODE = {
    "node_id": "n1",
    "cpus": 4.0,
    "gpus": 2.0,
    "memory": 8.0 * 2**30,
    "free_cpus": 1.0,
    "free_gpus": 0.0,
    "free_memory": 4.0 * 2**30,
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the target's answer even on a busy machine."""
    for module in ("outlook", "why", "top"):
        monkeypatch.setattr(f"rayjobs.cli.{module}.ANSWER_S", 60.0)


def key(queue: Queue, job: Job) -> str:
    return f"{queue.workspace.path}::{job.id}"


def tail(job: Job) -> str:
    return job.id.rpartition("_")[2]


def decision(queue: Queue, job: Job, *ahead: str, **values: Any) -> dict[str, Any]:
    made = {
        "key": key(queue, job),
        "rule": "line",
        "reason": "waits for 2 jobs ahead of it",
        "position": 3,
        "ahead": list(ahead),
        "free": [NODE],
        "nearest": "n1 lacks 1 GPUs",
        "estimate_s": 720.0,
        "basis": "history",
        "latest_s": None,
        "remedy": "a priority above 5",
        "nodes": [],
    }
    return {"ok": True, "decision": {**made, **values}}


def status(queue: Queue, job: Job) -> dict[str, Any]:
    entry = {"reason": "waits for 2 jobs ahead of it", "position": 3, "rule": "line"}
    return {"ok": True, "waiting": {key(queue, job): entry}, "nodes": [NODE], "allocations": []}


# -- why ---------------------------------------------------------------------------------------


def test_why_shows_rule_free_capacity_jobs_ahead_and_start(
    queue: Queue, terminal: Terminal
) -> None:
    first, job = queue.submit("first"), queue.submit("second")
    explained = decision(queue, job, key(queue, first), "/elsewhere::x_1_aa")
    with target(status(queue, job), explained):
        output = terminal.type("why", job.id).out
        data = json.loads(terminal.type("why", "--json", job.id).out)
    lines = output.splitlines()
    assert lines[0] == f"{job.id} is Queued (number 3 in the queue): waits for 2 jobs ahead of it"
    for part in (
        "Rule",
        f"{tail(first)} first, a job of /elsewhere",
        "1 of 4 CPUs, 0 of 2 GPUs, 4 GiB of 8 GiB on n1",
        "n1 lacks 1 GPUs",
        "in about 12m (from the duration of similar jobs)",
        "a priority above 5",
    ):
        assert part in output, part
    assert data["decision"]["rule"] == "line"
    assert [one["name"] for one in data["ahead"]] == ["first", None]
    assert data["waits_for"] == []


def test_why_waits_until_the_target_applied_a_hold_and_its_release(
    queue: Queue, terminal: Terminal
) -> None:
    job = queue.submit()
    in_line, held = decision(queue, job), decision(queue, job, rule="held", reason="is held")
    queue.workspace.store.hold(job.id, reason="by ada")
    with target(status(queue, job), in_line, held):
        assert json.loads(terminal.type("why", "--json", job.id).out)["decision"]["rule"] == "held"
    queue.workspace.store.release(job.id)
    with target(status(queue, job), held, in_line):
        assert json.loads(terminal.type("why", "--json", job.id).out)["decision"]["rule"] == "line"


def test_why_shows_the_latest_start_or_that_it_is_unknown(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    explained = decision(queue, job, estimate_s=None, basis="", latest_s=3600.0)
    with target(status(queue, job), explained):
        assert "within 1h at the latest" in terminal.type("why", job.id).out
    explained = decision(queue, job, estimate_s=None, basis="", latest_s=None)
    with target(status(queue, job), explained):
        assert "Starts" in terminal.type("why", job.id).out
        assert "unknown" in terminal.type("why", job.id).out


def test_why_names_the_runs_behind_an_estimate_and_the_advised_command(
    queue: Queue, terminal: Terminal
) -> None:
    job = queue.submit()
    explained = decision(
        queue,
        job,
        basis="script",
        source="12 runs of train.py in this workspace",
        remedy="with --max-duration 1h28m or less it would pass those ahead and start now",
        change={"max_duration_s": 5280.0},
    )
    with target(status(queue, job), explained):
        output = terminal.type("why", job.id).out
    assert "in about 12m (from 12 runs of train.py in this workspace)" in output
    command = f"rayjobs update {tail(job)} --max-duration 1h28m"
    assert command in output
    assert terminal.type(*command.split()[1:]).code == 0  # the advice can be followed
    assert queue.workspace.store.job(job.id).spec.max_duration_s == 5280.0


def test_why_calls_an_estimate_a_guess_if_a_job_outran_earlier_runs(
    queue: Queue, terminal: Terminal
) -> None:
    queue.completed()
    long, job = queue.start(queue.submit()), queue.submit()
    source = f"job {long.id} has already outrun all 12 earlier runs of train.py (longest 12m)"
    explained = decision(queue, job, basis="outrun", source=source)
    with target(status(queue, job), explained):
        assert f"in about 12m (a guess: {source})" in terminal.type("why", job.id).out
        known = queue.workspace.store.usual_durations("local")["mnist", "train.py"]
        assert long.started_at is not None
        while (datetime.now(UTC) - long.started_at).total_seconds() <= known.longest_s:
            pass  # until it has run for longer than the earlier job
        output = terminal.type("why", long.id).out
        data = json.loads(terminal.type("why", "--json", long.id).out)
    message = (
        f"job {long.id} has already outrun the only earlier run of train.py in experiment mnist"
    )
    assert f"its end is a guess: {message} (longest {duration_text(known.longest_s)})" in output
    assert data["outrun"]["runs"] == 1
    assert data["outrun"]["text"].startswith(message)


def test_why_works_while_the_target_is_down(queue: Queue, terminal: Terminal) -> None:
    parent = queue.submit("parent")
    job = queue.submit("child", depends_on=(Dependency(job=parent.id),))
    waiting = terminal.type("why", job.id)
    assert waiting.code == 0
    assert "target 'local' does not run" in waiting.out
    assert f"{parent.id} (Queued)" in waiting.out
    data = json.loads(terminal.type("why", "--json", job.id).out)
    assert data["decision"] is None
    assert data["waits_for"] == [f"{parent.id} (Queued)"]


def test_why_for_an_ended_job_shows_how_it_ended(queue: Queue, terminal: Terminal) -> None:
    output = terminal.type("why", queue.completed().id).out
    assert "is not waiting: it is Completed" in output


# -- top ---------------------------------------------------------------------------------------


def test_top_shows_gpu_users_and_waiting_jobs(queue: Queue, terminal: Terminal) -> None:
    runs, waits = queue.start(queue.submit("train")), queue.submit("next", priority=4)
    answer = status(queue, waits)
    shape = {"nodes": 1, "cpus": 3.0, "gpus": 2.0, "memory": 0.0, "spread": 0.0}
    held = {"name": "rj-1", "shape": shape, "nodes": ["n1"], "gpus": [["0", "1"]]}
    answer["allocations"] = [{**held, "job": key(queue, runs), "draining": False}]
    with target(answer):
        shown = terminal.type("top").out
        data = json.loads(terminal.type("top", "--json").out)
    assert "target local (running): 1 running, 1 waiting" in shown
    assert f"{tail(runs)} train: 3 CPUs, 2 GPUs (0, 1)" in shown
    assert "3/4 CPUs, 2/2 GPUs, 4 GiB/8 GiB held" in shown
    (node,) = data["nodes"]
    assert (node["gpus_used"], node["jobs"][0]["gpu_ids"]) == (2.0, ["0", "1"])
    (running,) = data["running"]
    assert (running["id"], running["gpus"], running["limit_s"]) == (runs.id, 2.0, None)
    (waiting,) = data["waiting"]
    assert (waiting["id"], waiting["position"], waiting["priority"]) == (waits.id, 3, 4)
    assert data["queue_length"] == 1


def test_top_shows_jobs_without_a_position_last(queue: Queue, terminal: Terminal) -> None:
    known, unknown = queue.submit("known"), queue.submit("unknown", priority=9)
    with target(status(queue, known)):
        data = json.loads(terminal.type("top", "--json").out)
    assert [one["id"] for one in data["waiting"]] == [known.id, unknown.id]


def test_top_for_a_stopped_target_shows_the_queue(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    done = terminal.type("top")
    assert done.code == 0
    assert "target local (not running): 0 running, 1 waiting" in done.out
    assert "`rayjobs target start local` starts it" in done.out
    assert tail(job) in done.out


def test_top_for_an_unknown_target_lists_the_known_ones(queue: Queue, terminal: Terminal) -> None:
    queue.submit()
    done = terminal.type("top", "--target", "nope")
    assert (done.code, done.out) == (Exit.NOT_FOUND, "")
    assert "there is no target 'nope'; known targets: local" in done.err


# -- report ------------------------------------------------------------------------------------


@pytest.fixture
def predicted(queue: Queue) -> Queue:
    """A job that waited about as long as predicted, and one that waits."""
    store = queue.workspace.store
    job = queue.submit()
    now = datetime.now(UTC)
    store.note_predictions([Prediction(job=job.id, starts_at=now, basis="history")])
    store.note_predictions(
        [Prediction(job=job.id, starts_at=now + timedelta(hours=1), basis="limits")]
    )
    queue.finish(queue.start(job))
    queue.submit(priority=3)
    return queue


@pytest.mark.usefixtures("predicted")
def test_report_compares_estimates_with_starts(terminal: Terminal) -> None:
    data = json.loads(terminal.type("report", "queue", "--json").out)
    assert data["jobs"] == 2
    (first,) = data["first_by_target"]
    assert (first["name"], first["count"]) == ("local", 1)
    assert first["median_late_s"] >= 0.0  # the first prediction was an immediate start
    (last,) = data["last_by_target"]
    assert last["within_twice"] == 0.0
    assert last["median_late_s"] < -3500
    assert [one["name"] for one in data["first_by_basis"]] == ["history"]
    assert (data["waits"]["placed"], data["waits"]["waiting"]) == (1, 1)
    assert [one["name"] for one in data["waits_by_priority"]] == ["3", "0"]
    shown = terminal.type("report", "queue", "--since", "1h").out
    assert "First estimates against actual starts" in shown
    assert "WITHIN x2" in shown
    assert "Waits by priority" in shown


@pytest.mark.usefixtures("predicted")
def test_report_counts_the_jobs_that_had_no_estimate(
    queue: Queue, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads(terminal.type("report", "queue", "--json").out)
    counts = data["estimated"]
    first = terminal.type("report", "queue").out.splitlines()[0]
    assert first.startswith(f"{data['jobs']} jobs: {data['waits']['placed']} started ")
    assert sum(counts[one] for one in ("placed", "still", "ended")) == data["jobs"]
    assert counts["placed_with"] == sum(one["count"] for one in data["first_by_target"])
    monkeypatch.setattr(report, "AT_ONCE_S", 1e9)
    assert "without an estimate" not in terminal.type("report", "queue").out
    monkeypatch.setattr(report, "AT_ONCE_S", -1.0)  # every job counts as having waited
    queue.start(queue.submit())
    shown = terminal.type("report", "queue").out
    assert "2 jobs waited more than 10s to start, 1 without an estimate" in shown
    assert "1 job waiting now for more than 10s, 1 without an estimate." in shown
    data = json.loads(terminal.type("report", "queue", "--json").out)
    assert data["estimated"]["waiting_without"] == 1


def test_nodes_that_may_still_start_are_no_current_capacity(
    queue: Queue, terminal: Terminal
) -> None:
    gpu = NodeType("gpu", 8.0, 1.0, max_nodes=4)
    types = NodeTypes((gpu,), max_nodes=4)
    record = TargetRecord("lab", address="h:1", token_file="t", node_types=types)
    save_target(record, home=home())
    nodes = (NodeStatus(cpus=8.0, gpus=1.0, node_type="gpu"), NodeStatus(node_type="head"))
    CapacityReport(nodes).write(TargetPaths.of("lab", under=home()))
    job = queue.submit(target="lab", resources={"cpus": 4})
    store = queue.workspace.store
    store.add_allocation("lab-1", target="lab", shape={"nodes": 1.0, "cpus": 4.0})
    store.place_allocation("lab-1", nodes=["n1"], gpus=[[]])
    assert store.hold_allocation("lab-1", job=job.id, attempt=1)
    assert store.start(job.id, attempt=0, allocation="lab-1") is not None
    (one,) = json.loads(terminal.type("report", "queue", "--since", "1h", "--json").out)["in_use"]
    assert one["cpu_hours"] > 0
    assert (one["name"], one["cpus"]) == ("lab", pytest.approx(one["cpu_hours"] / 8))
    shown = terminal.type("report", "queue").out
    assert "lab: 1 node of at most 4 runs now; those that may still start do not count." in shown


def test_empty_report_says_there_is_nothing(queue: Queue, terminal: Terminal) -> None:
    queue.workspace.store.counts()
    done = terminal.type("report", "queue")
    assert (done.code, done.out) == (0, "")
    assert "no jobs were submitted" in done.err
