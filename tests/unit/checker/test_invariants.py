"""Each invariant fails on a history that is broken on purpose in one way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import (
    Allocation,
    AllocationState,
    Attempt,
    Event,
    Job,
    ModelFile,
    ModelVersion,
)
from rayjobs.jobs.states import JobState
from rayjobs.results.driver_log import marker as gap_marker
from rayjobs.spec.model import JobSpec, Retries
from tests.checker.evidence import Evidence, Ran, Whole, living, read_history
from tests.checker.invariants import RULES, check
from tests.fakes.cluster import exit_record

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def event(number: int, kind: str, message: str, attempt: int = 1, **data: str) -> Event:
    return Event(
        serial=number, job="j", at=NOW, kind=kind, message=message, attempt=attempt, data=data
    )


def path_of(*states: JobState) -> list[Event]:
    return [event(number, "state", str(new), new=str(new)) for number, new in enumerate(states)]


S = JobState
LIFE = (S.QUEUED, S.PROVISIONING, S.PREPARING, S.RUNNING)
HOST = HostRecord(marker="rj-j-a1-n0-x", root="/nowhere", pid=1)


def history() -> Evidence:
    """One job that was killed once, resumed and completed, without violations."""
    spec = JobSpec(script="train.py", max_duration_s=60.0, retries=Retries(user=1))
    job = Job(
        id="j",
        serial=1,
        experiment="e",
        spec=spec,
        state=S.COMPLETED,
        attempt=2,
        submitted_at=NOW,
        changed_at=NOW,
        ended_at=NOW,
    )
    failure = Failure(FailureClass.USER, "killed")
    first = Attempt(
        job="j",
        number=1,
        allocation="p",
        created_at=NOW,
        ended_at=NOW,
        hosts=(HOST,),
        exits=(exit_record("j", 1, exit_code=None, signal=9, outcome=Outcome.FAILED),),
        outcome="failed",
        failure=failure,
    )
    good = with_log(exit_record("j", 2))
    second = replace(
        first,
        number=2,
        hosts=(replace(HOST, marker="rj-j-a2-n0-x"),),
        exits=(good,),
        failure=None,
        outcome="completed",
    )
    events = [
        *path_of(*LIFE, S.FINALIZING, S.QUEUED, *LIFE[1:], S.FINALIZING, S.COMPLETED),
        event(99, "resumed", "continues from its checkpoint of step 7 (attempt 1)", attempt=2),
    ]
    model = ModelVersion(
        name="m",
        version=1,
        run="j",
        attempt=2,
        path="outputs/m",
        digest="sha256:m",
        files=(ModelFile(name="m", size=1, digest="sha256:a", blob="b"),),
        lineage={"primary_metric": {"name": "loss", "value": 0.5}},
        created_at=NOW,
    )
    place = Allocation(
        name="p",
        target="local",
        shape={"nodes": 1, "cpus": 1.0},
        state=AllocationState.IDLE,
        changed_at=NOW,
    )
    return Evidence(
        jobs=[job],
        attempts={"j": [first, second]},
        events={"j": events},
        allocations=[place],
        models=[model],
        acknowledged=[("key", "j")],
        keys={"key": ["j"]},
        ran=[
            Ran("j", 1, 0, 0.0, 5.0, gpus=("0",), first=0, step=9),
            Ran("j", 2, 0, 6.0, 9.0, gpus=("0",), found=7, first=8, step=12),
        ],
        written={("j", 0): b"abc"},
        logs={("j", 0): b"abc"},
        checkpoints={"j": [Whole(3, 1), Whole(7, 1), Whole(9, 2)]},
        waited_with={("j", 1): 7},
        curves={"j": list(range(12))},
        codes={"j": 0},
        kills={"j": 1},
        digests={"b": "sha256:a"},
        canaries=[b"hunter2"],
        artefacts={"store.db": b"nothing of that"},
        total_cpus=1.0,
        total_gpus=1.0,
    )


def test_sound_history_has_no_violation() -> None:
    assert check(history(), scratch=True) == []


def job_of(**changes: object) -> Callable[[Evidence], None]:
    def change(it: Evidence) -> None:
        it.jobs = [replace(it.jobs[0], **changes)]  # type: ignore[arg-type]

    return change


def attempt_of(index: int, **changes: object) -> Callable[[Evidence], None]:
    def change(it: Evidence) -> None:
        listed = list(it.attempts["j"])
        listed[index] = replace(listed[index], **changes)  # type: ignore[arg-type]
        it.attempts = {"j": listed}

    return change


def put(**values: object) -> Callable[[Evidence], None]:
    def change(it: Evidence) -> None:
        for name, value in values.items():
            setattr(it, name, value)

    return change


def add_event(new: Event) -> Callable[[Evidence], None]:
    return lambda it: it.events["j"].append(new)


def held(job: str | None, state: AllocationState, cpus: float = 1.0) -> list[Allocation]:
    return [
        Allocation(
            name="p",
            target="local",
            shape={"nodes": 1, "cpus": cpus},
            state=state,
            job=job,
            changed_at=NOW,
        )
    ]


def with_log(record: ExitRecord) -> ExitRecord:
    """Return the record of a rank whose log has 3 bytes."""
    return replace(record, ranks=(replace(record.ranks[0], log_bytes=3),))


def long_exit() -> ExitRecord:
    return replace(with_log(exit_record("j", 2)), duration_s=90.0)


USER = Failure(FailureClass.USER, "again")
SYSTEM = Failure(FailureClass.SYSTEM, "the host is gone")
OUTAGE = Failure(FailureClass.DATA, "the storage does not answer", is_outage=True)


def failed_as(failure: Failure | None, *, times: int = 1, outcome: str = "failed") -> Evidence:
    """Return a sound history in which all attempts, and so the job, failed in the same way."""
    evidence = history()
    job_of(state=S.FAILED, attempt=times)(evidence)
    one = replace(evidence.attempts["j"][0], failure=failure, outcome=outcome)
    evidence.attempts = {"j": [replace(one, number=number + 1) for number in range(times)]}
    states = [*LIFE, S.FINALIZING] * times
    evidence.events = {"j": path_of(*states, S.FAILED)}
    evidence.models, evidence.checkpoints, evidence.waited_with, evidence.ran = [], {}, {}, []
    evidence.written, evidence.logs = {}, {}
    return evidence


def started_over(it: Evidence) -> None:
    """The second attempt got no checkpoint and repeated all steps."""
    first, second = it.ran
    it.ran = [first, replace(second, found=None, first=0)]
    it.events = {"j": [one for one in it.events["j"] if one.kind != "resumed"]}


def started_over_and_saved_again(it: Evidence) -> None:
    started_over(it)
    it.checkpoints = {"j": [Whole(9, 2)]}


def started_over_without_reports_of_its_ranks(it: Evidence) -> None:
    started_over(it)
    it.ran, it.waited_with = [], {}
    attempt_of(1, started_at=NOW)(it)


def continued_from_an_older_checkpoint(it: Evidence) -> None:
    it.ran = [it.ran[0], replace(it.ran[1], found=3, first=4)]


def failed_too_often(it: Evidence) -> None:
    job_of(spec=JobSpec(script="train.py", retries=Retries(user=0)))(it)
    attempt_of(1, failure=USER)(it)


BROKEN: list[tuple[str, str, Callable[[Evidence], None]]] = [
    ("I1", "acknowledged", put(acknowledged=[("key", "j"), ("", "lost")])),
    ("I1", "belongs to 2 jobs", put(keys={"key": ["j", "k"]})),
    ("I1", "the store has", put(keys={})),
    ("I2", "was alive 1.000 s after", put(ran=[Ran("j", 1, 0, 0, 7), Ran("j", 2, 0, 6, 9)])),
    ("I2", "are numbered", attempt_of(1, number=3)),
    ("I2", "a successor and no end", attempt_of(0, ended_at=None)),
    ("I3", "went from Completed to Queued", add_event(event(100, "state", "", new="Queued"))),
    ("I3", "no cancel was requested", job_of(state=S.CANCELED)),
    ("I3", "and its end is None", job_of(ended_at=None)),
    ("I3", "its row says Failed", job_of(state=S.FAILED)),
    ("I3", "its exit codes are [1]", attempt_of(1, exits=(exit_record("j", 2, exit_code=1),))),
    ("I3", "has no end", attempt_of(1, ended_at=None)),
    ("I3", "and its script exits with 3", put(codes={"j": 3})),
    ("I3", "its ranks were killed 0 times", put(kills={})),
    ("I4", "failed 2 times as user", failed_too_often),
    ("I4", "run again after", attempt_of(0, outcome="completed", failure=None)),
    ("I5", "are alive", put(alive={"rj-j-a2-n0-x": [4711]})),
    ("I5", "are alive", put(alive={"rj-j-a1-n0-x": [4711]})),
    ("I5", "is held for j", put(allocations=held("j", AllocationState.HELD))),
    ("I5", "is left of attempt 2", put(left={"rj-j-a2-n0-x": ["the mount /x"]})),
    ("I6", "2 CPUs were in use", put(ran=[Ran("j", 1, 0, 0, 5), Ran("k", 1, 0, 4, 9)])),
    (
        "I6",
        "seen by several jobs",
        put(ran=[Ran("j", 1, 0, 0, 5, 0.5, ("0",)), Ran("k", 1, 0, 4, 9, 0.5, ("0",))]),
    ),
    ("I6", "allocations hold 2 cpus", put(allocations=held(None, AllocationState.DRAINING, 2.0))),
    ("I7", "ran 90.0 s", attempt_of(1, exits=(long_exit(),))),
    ("I7", "was alive 94.0 s", put(ran=[Ran("j", 2, 0, 6, 100)])),
    ("I8", "not what it wrote", put(written={("j", 0): b"abd"})),
    ("I8", "no log is stored", put(logs={})),
    ("I8", "its host counted 3", put(logs={("j", 0): b"ab"}, written={})),
    ("I9", "which is not whole", put(checkpoints={"j": [Whole(3, 1)]}, waited_with={})),
    ("I9", "started over, although step 7 was whole", started_over),
    ("I9", "although step 7 was whole before it", started_over_and_saved_again),
    ("I9", "over, although step 7 was whole before it", started_over_without_reports_of_its_ranks),
    ("I9", "from step 3, although step 7 was whole", continued_from_an_older_checkpoint),
    ("I9", "lacks steps [4]", put(curves={"j": [0, 1, 2, 3, *range(5, 12)]})),
    ("I9", "lacks steps [11]", put(curves={"j": list(range(11))})),
    ("I9", "lacks steps [0, 1", put(curves={"j": []})),
    ("I9", "has step 7 twice", put(curves={"j": [*range(8), *range(7, 12)]})),
    ("I9", "has steps [12], which were not", put(curves={"j": list(range(13))})),
    ("I9", "goes back in its steps", put(curves={"j": [1, 0, *range(2, 12)]})),
    ("I9", "although step 8 was whole", put(checkpoints={"j": [Whole(7, 1), Whole(8, 1)]})),
    (
        "I10",
        "has the value nan",
        lambda it: it.models[0].lineage["primary_metric"].update(value=float("nan")),
    ),
    ("I10", "is unknown", lambda it: setattr(it, "models", [replace(it.models[0], run="k")])),
    ("I10", "recorded as sha256:a", put(digests={"b": "sha256:b"})),
    ("I11", "a secret is in store.db", put(artefacts={"store.db": b"-hunter2-"})),
]


@pytest.mark.parametrize(
    ("name", "words", "change"), BROKEN, ids=[f"{name}-{words[:24]}" for name, words, _ in BROKEN]
)
def test_a_broken_history_is_named(
    name: str, words: str, change: Callable[[Evidence], None]
) -> None:
    evidence = history()
    change(evidence)
    found = [str(one) for one in check(evidence, scratch=True)]
    assert any(one.startswith(f"{name}: ") and words in one for one in found), found


def test_every_invariant_has_a_history_that_violates_it() -> None:
    assert {name for name, _, _ in BROKEN} == set(RULES)


def test_a_log_with_a_counted_gap_is_the_log() -> None:
    evidence = history()
    evidence.attempts = {}
    evidence.written = {("j", 0): b"start" + b"x" * 100 + b"end"}
    evidence.logs = {("j", 0): b"start" + gap_marker(100) + b"end"}
    assert [one for one in check(evidence) if one.invariant == "I8"] == []
    evidence.logs = {("j", 0): b"start" + gap_marker(99) + b"end"}
    assert [one.invariant for one in check(evidence) if one.invariant == "I8"] == ["I8"]


def test_rank_ended_by_a_signal_has_no_exit_code_0() -> None:
    evidence = history()
    job_of(state=S.FAILED)(evidence)
    evidence.kills = {"j": 2}
    evidence.events["j"][-2] = event(98, "state", "", new="Failed")
    killed = with_log(exit_record("j", 2, exit_code=None, signal=9, outcome=Outcome.FAILED))
    attempt_of(1, exits=(killed,), outcome="failed", failure=USER)(evidence)
    evidence.models = []
    assert check(evidence) == []


def test_requeued_attempts_spend_no_budget() -> None:
    evidence = history()
    attempt_of(1, failure=USER, outcome="put_back")(evidence)
    assert [one for one in check(evidence) if one.invariant == "I4"] == []


def budget_problems(evidence: Evidence) -> list[str]:
    return [one.words for one in check(evidence) if one.invariant == "I4"]


def test_job_failed_with_a_retry_left_is_named() -> None:
    assert budget_problems(failed_as(SYSTEM)) == ["j is Failed (system) after 0 of 2 retries"]
    assert budget_problems(failed_as(SYSTEM, times=2)) == [
        "j is Failed (system) after 1 of 2 retries"
    ]
    assert check(failed_as(SYSTEM, times=3)) == []
    nothing = failed_as(None)
    assert budget_problems(nothing) == ["j is Failed, and its last attempt has no failure"]


def test_failures_of_another_class_do_not_spend_a_budget() -> None:
    evidence = failed_as(SYSTEM, times=3)
    attempt_of(0, failure=Failure(FailureClass.NODE_LOST, "lost"))(evidence)
    assert budget_problems(evidence) == ["j is Failed (system) after 1 of 2 retries"]


def test_outages_have_a_count_of_their_own() -> None:
    assert check(failed_as(OUTAGE, times=9)) == []
    assert budget_problems(failed_as(OUTAGE, times=8)) == [
        "j is Failed (outage) after 7 of 8 retries"
    ]
    assert budget_problems(failed_as(OUTAGE, times=10)) == [
        "j met 10 outages in a row; its limit is 8"
    ]
    none = failed_as(OUTAGE)
    job_of(spec=JobSpec(script="train.py", retries=Retries(data=0)))(none)
    assert check(none) == []
    apart = failed_as(OUTAGE, times=10)
    attempt_of(5, failure=SYSTEM)(apart)
    assert budget_problems(apart) == ["j is Failed (outage) after 3 of 8 retries"]


def test_hour_of_work_renews_budgets_of_external_failures() -> None:
    late = NOW + timedelta(hours=1)
    evidence = failed_as(SYSTEM, times=5)
    attempt_of(2, started_at=NOW, ended_at=late)(evidence)
    assert check(evidence) == []
    attempt_of(3, started_at=NOW, ended_at=late)(evidence)
    assert budget_problems(evidence) == ["j is Failed (system) after 1 of 2 retries"]
    user = failed_as(USER, times=3)
    user.kills = {"j": 3}
    attempt_of(1, started_at=NOW, ended_at=late)(user)
    assert budget_problems(user) == ["j failed 3 times as user; its budget is 1 retries"]


def test_job_that_lost_its_host_twenty_times_may_fail() -> None:
    hour = {"started_at": NOW, "ended_at": NOW + timedelta(hours=1)}
    for times, found_text in ((21, []), (20, ["j is Failed (system) after 0 of 2 retries"])):
        evidence = failed_as(SYSTEM, times=times, outcome="host_error")
        evidence.attempts = {"j": [replace(one, **hour) for one in evidence.attempts["j"]]}  # type: ignore[arg-type]
        assert budget_problems(evidence) == found_text


def test_permanent_storage_failure_is_not_retried() -> None:
    full = Failure(FailureClass.STORAGE, "the disk is full")
    assert check(failed_as(full, outcome="not_stored")) == []
    assert budget_problems(failed_as(full)) == ["j is Failed (storage) after 0 of 1 retries"]


def test_release_allows_one_more_attempt() -> None:
    evidence = failed_as(SYSTEM, times=4)
    assert budget_problems(evidence) == ["j failed 4 times as system; its budget is 2 retries"]
    add_event(event(200, "release", "released"))(evidence)
    assert check(evidence) == []


def test_rank_report_replaces_a_lost_resume_event() -> None:
    evidence = history()
    evidence.events = {"j": [one for one in evidence.events["j"] if one.kind != "resumed"]}
    assert check(evidence) == []


def test_rank_histories_are_read_without_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "history"
    at = (NOW + timedelta(seconds=1)).timestamp()
    lines = [{"job": "j", "attempt": 1, "rank": 0, "at": at + more} for more in (2.0, 0.0, 1.0)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"job": "j", "att')
    assert read_history(path) == [Ran("j", 1, 0, at, at + 2.0)]
    assert read_history(tmp_path / "none") == []


def test_rank_reports_its_start_and_last_step(tmp_path: Path) -> None:
    path = tmp_path / "history"
    who = {"job": "j", "attempt": 2, "rank": 0, "found": 7}
    lines = [{**who, "at": float(step), "step": step} for step in (8, 9, 10)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert read_history(path) == [Ran("j", 2, 0, 8.0, 10.0, found=7, first=8, step=10)]


def test_live_process_is_found_by_its_marker() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, "RAYJOBS_MARKER": "rj-checker-test"},
    ) as process:
        assert process.pid in living({"rj-checker-test"})["rj-checker-test"]
        assert process.stdin is not None
        process.stdin.close()
    assert living({"rj-checker-test-" + "gone"}) == {}
