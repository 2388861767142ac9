"""Budgets, pauses and quarantine, as pure decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.outcomes import LONGEST_PAUSE_S
from rayjobs.jobs.records import Attempt
from rayjobs.jobs.retry import (
    MOST_LOSSES,
    OUTAGE_RETRIES,
    POISON_AFTER,
    GiveUp,
    Hold,
    Retry,
    allows_preemption,
    decide,
    pause_s,
)
from rayjobs.spec.model import Retries

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOST = Failure(FailureClass.NODE_LOST, "the node is gone")
HOUR = 3600.0


def attempts(
    *outcomes: str, lived_s: float = 30.0, failure: Failure = LOST, started: bool = True
) -> list[Attempt]:
    """Return attempts with these outcomes, one per hour; the newest has no written end yet."""
    made = []
    for number, outcome in enumerate(outcomes, start=1):
        begin = AT + timedelta(hours=number)
        is_newest = number == len(outcomes)
        made.append(
            Attempt(
                job="j",
                number=number,
                allocation=None,
                created_at=begin,
                started_at=begin if started else None,
                ended_at=None if is_newest else begin + timedelta(seconds=lived_s),
                outcome="" if is_newest else outcome,
                failure=None if is_newest else failure,
            )
        )
    return made


def after(
    made: list[Attempt],
    outcome: str,
    *,
    failure: Failure = LOST,
    lived_s: float = 30.0,
    retries: Retries | None = None,
    released_at: datetime | None = None,
) -> Retry | Hold | GiveUp:
    return decide(
        retries or Retries(),
        failure,
        outcome=Outcome(outcome),
        attempts=made,
        now=made[-1].created_at + timedelta(seconds=lived_s),
        released_at=released_at,
    )


def test_each_class_has_its_own_budget() -> None:
    broken = Failure(FailureClass.USER, "rank 0 exited with code 1")
    assert after(attempts("failed"), "failed", failure=broken) == GiveUp()
    once = Retries(user=1)
    first = after(attempts("failed"), "failed", failure=broken, retries=once)
    assert isinstance(first, Retry)
    assert first.reason.startswith("tries again (1 of 1) after a failure of class user")
    second = attempts("failed", "failed", failure=broken)
    assert after(second, "failed", failure=broken, retries=once) == GiveUp()
    # A lost node in between has its own budget.
    between = attempts("node_lost", "failed")
    assert isinstance(after(between, "failed", failure=broken, retries=once), Retry)


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_s(used) for used in (0, 1, 2, 5, 6, 99)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
    made = attempts("node_lost", "node_lost", lived_s=HOUR / 2)
    decision = after(made, "node_lost", lived_s=HOUR / 2)
    assert isinstance(decision, Retry)
    assert decision.pause_s == 2.0


@pytest.mark.parametrize(
    "failure",
    [
        LOST,
        Failure(FailureClass.SYSTEM, "its host ended"),
        Failure(FailureClass.PREEMPTED, "made way for x"),
        Failure(FailureClass.DATA, "s3://photos does not answer", is_outage=True),
        Failure(FailureClass.STORAGE, "s3://photos does not answer", is_outage=True),
    ],
    ids=["node_lost", "system", "preempted", "data away", "storage away"],
)
def test_work_renews_budgets_of_external_failures(failure: Failure) -> None:
    spent = 200  # more than the budget of any class
    long = attempts(*["cluster_lost"] * spent, failure=failure, lived_s=20 * HOUR)
    decision = after(long, "cluster_lost", failure=failure, lived_s=20 * HOUR)
    assert isinstance(decision, Retry)
    short = attempts(*["cluster_lost"] * spent, failure=failure)
    assert after(short, "cluster_lost", failure=failure) == GiveUp()
    # An hour of work renews the budget; the failures after it count.
    assert isinstance(after(short, "cluster_lost", failure=failure, lived_s=HOUR), Retry)
    worked = attempts("cluster_lost", lived_s=HOUR, failure=failure)
    assert after([*worked, *short], "cluster_lost", failure=failure) == GiveUp()
    none = Retries(node_lost=0, system=0, preempted=0, data=0, storage=0)
    assert after(long, "cluster_lost", failure=failure, lived_s=HOUR, retries=none) == GiveUp()


def test_a_renewed_budget_counts_from_the_attempt_that_did_its_work() -> None:
    made = [*attempts("cluster_lost", "", lived_s=HOUR)[:1], *attempts(*["cluster_lost"] * 3)]
    decision = after(made, "cluster_lost")
    assert decision == GiveUp()  # the end of that attempt and two more are 3
    decision = after([*made[:1], *made[2:]], "cluster_lost")
    assert isinstance(decision, Retry)
    assert decision.reason.startswith("tries again (3 of 3)")
    decision = after(made, "cluster_lost", lived_s=HOUR)
    assert isinstance(decision, Retry)
    assert decision.reason.startswith("tries again (1 of 3)")


@pytest.mark.parametrize(
    ("outcomes", "lived_s", "allowed"),
    [
        (["node_lost", "node_lost", "node_lost"], 30.0, True),  # none of them was a preemption
        (["preempted", "node_lost"], 30.0, False),
        (["preempted", "node_lost"], HOUR, True),  # its work has renewed the budget
        (["put_back", ""], 30.0, True),
    ],
)
def test_preemptions_are_counted_before_one_as_after_it(
    outcomes: list[str], lived_s: float, allowed: bool
) -> None:
    preempted = Failure(FailureClass.PREEMPTED, "preempted")
    made = [
        replace(one, failure=preempted if one.outcome == "preempted" else one.failure)
        for one in attempts(*outcomes)
    ]
    retries = Retries(preempted=1)
    now = made[-1].created_at + timedelta(seconds=lived_s)
    assert allows_preemption(retries, made, now=now) is allowed
    decision = after(made, "preempted", failure=preempted, lived_s=lived_s, retries=retries)
    assert isinstance(decision, Retry) is allowed


def test_work_renews_no_budget_of_script_failures() -> None:
    for failure in (
        Failure(FailureClass.USER, "rank 0 exited with code 1"),
        Failure(FailureClass.DATA, "there is nothing at 'x'"),
        Failure(FailureClass.STALLED, "nothing was heard"),
    ):
        once = Retries(user=1, data=1, stalled=1)
        made = attempts("failed", "failed", failure=failure, lived_s=20 * HOUR)
        decision = after(made, "failed", failure=failure, lived_s=20 * HOUR, retries=once)
        assert decision == GiveUp()


def test_preempted_job_is_retried_without_a_pause() -> None:
    failure = Failure(FailureClass.PREEMPTED, "made way for x")
    assert after(attempts("preempted"), "preempted", failure=failure) == Retry(
        "made way for x", 0.0
    )


@pytest.mark.parametrize("outcome", ["host_error", "node_lost", "lease_lost"])
def test_job_that_repeatedly_kills_its_host_is_held(outcome: str) -> None:
    losses = [outcome] * POISON_AFTER
    decision = after(attempts(*losses), outcome)
    assert isinstance(decision, Hold)
    assert "3 consecutive attempts lost their host or node" in decision.hold
    assert "--release" in decision.hold
    assert isinstance(after(attempts(*losses[1:]), outcome), Retry)


def test_preemption_does_not_reset_the_poison_count() -> None:
    made = attempts("node_lost", "node_lost", "preempted", "node_lost")
    assert isinstance(after(made, "node_lost"), Hold)


@pytest.mark.parametrize(
    "made",
    [
        attempts("node_lost", "failed", "node_lost"),
        attempts("cluster_lost", "cluster_lost", "node_lost"),
        attempts("node_lost", "node_lost", "node_lost", started=False),
        attempts("node_lost", "node_lost", "node_lost", lived_s=HOUR),
    ],
    ids=["something else between", "the cluster was restarted", "never started", "after hours"],
)
def test_job_with_possible_node_failures_is_not_held(made: list[Attempt]) -> None:
    assert not isinstance(after(made, "node_lost"), Hold)


def test_attempts_before_a_release_do_not_count() -> None:
    made = attempts("node_lost", "node_lost", "node_lost", "node_lost")
    released = made[2].created_at + timedelta(minutes=30)
    assert after(made, "node_lost", released_at=released) == GiveUp()
    generous = Retries(node_lost=9)
    assert isinstance(after(made, "node_lost", released_at=released, retries=generous), Retry)


AWAY = Failure(FailureClass.DATA, "s3://photos does not answer", is_outage=True)


def test_storage_outage_is_waited_for_some_minutes() -> None:
    pauses = []
    for number in range(1, OUTAGE_RETRIES + 1):
        made = attempts(*["not_prepared"] * number, failure=AWAY)
        decision = after(made, "not_prepared", failure=AWAY)
        assert isinstance(decision, Retry)
        assert decision.reason == (
            f"tries again ({number} of {OUTAGE_RETRIES}) because a storage does not answer: "
            f"{AWAY.message}"
        )
        pauses.append(decision.pause_s)
    assert pauses == sorted(pauses)
    assert pauses[0] >= 5.0
    assert pauses[-1] <= LONGEST_PAUSE_S  # a longer one counts as a clock change
    assert 180.0 <= sum(pauses) <= 600.0
    made = attempts(*["not_prepared"] * (OUTAGE_RETRIES + 1), failure=AWAY)
    assert after(made, "not_prepared", failure=AWAY) == GiveUp()
    made.insert(-1, attempts("preempted", "")[0])  # a preemption does not reset the count
    assert after(made, "not_prepared", failure=AWAY) == GiveUp()


def test_outage_spends_no_data_budget_and_is_not_waited_for_without_one() -> None:
    gone = Failure(FailureClass.DATA, "there is nothing at 'x'")
    made = attempts("not_prepared", "not_prepared", failure=AWAY)
    decision = after(made, "not_prepared", failure=gone)
    assert isinstance(decision, Retry)
    assert decision.pause_s == 1.0
    made = attempts("not_prepared", "not_prepared", failure=gone)
    assert after(made, "not_prepared", failure=gone) == GiveUp()
    assert isinstance(after(made, "not_prepared", failure=AWAY), Retry)
    made = attempts("not_prepared", failure=AWAY)
    assert after(made, "not_prepared", failure=AWAY, retries=Retries(data=0)) == GiveUp()
    many = attempts(*["not_prepared"] * (OUTAGE_RETRIES + 1), failure=AWAY)
    patient = Retries(data=OUTAGE_RETRIES + 1)
    assert isinstance(after(many, "not_prepared", failure=AWAY, retries=patient), Retry)


def test_stored_failure_keeps_its_outage_flag() -> None:
    assert Failure.from_dict(AWAY.to_dict()) == AWAY
    older = {key: value for key, value in LOST.to_dict().items() if key != "is_outage"}
    assert Failure.from_dict(older) == LOST


def test_jobs_of_a_lost_cluster_are_retried_without_a_pause() -> None:
    decision = after(attempts("cluster_lost", failure=LOST), "cluster_lost", failure=LOST)
    assert isinstance(decision, Retry)
    assert decision.pause_s == 0.0
    other = after(attempts("node_lost", failure=LOST), "node_lost", failure=LOST)
    assert isinstance(other, Retry)
    assert other.pause_s == 1.0


def test_job_that_keeps_losing_nodes_finally_fails() -> None:
    lost = ["node_lost"] * MOST_LOSSES
    made = attempts(*lost, failure=LOST, lived_s=20 * HOUR)
    assert isinstance(after(made, "node_lost", failure=LOST, lived_s=20 * HOUR), Retry)
    made = attempts(*lost, "node_lost", failure=LOST, lived_s=20 * HOUR)
    assert after(made, "node_lost", failure=LOST, lived_s=20 * HOUR) == GiveUp()
    patient = Retries(node_lost=MOST_LOSSES + 1)
    assert isinstance(
        after(made, "node_lost", failure=LOST, lived_s=20 * HOUR, retries=patient), Retry
    )


@pytest.mark.parametrize("name", list(FailureClass))
def test_permanent_failure_is_not_retried(name: FailureClass) -> None:
    """Off switch: leave `is_permanent` out of `decide`."""
    budget = Retries(**{str(name): 5})
    passing = Failure(name, "it is away")
    permanent = Failure(name, "there is no such file", is_permanent=True)
    assert isinstance(after(attempts("failed"), "failed", failure=passing, retries=budget), Retry)
    assert after(attempts("failed"), "failed", failure=permanent, retries=budget) == GiveUp()
    assert Failure.from_dict(permanent.to_dict()) == permanent
