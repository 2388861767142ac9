"""Decides about a job whose attempt failed: retry it, hold it, or fail it. Pure.

Each failure class has its own budget (`spec.Retries`) and a pause that doubles; the pauses for a
storage outage are longer. A failure that another attempt cannot change, such as a
missing file or credential, is never retried. Completed work renews the budgets of failures that are
not the script's fault: a job that runs for weeks survives more lost nodes than one that runs for
minutes. A job that repeatedly takes down its attempt host or a whole node is a poison job: other
jobs lose work because of it. The queue holds it, with the reason, until a user releases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.outcomes import LONGEST_PAUSE_S, LOSSES, spends_budget
from rayjobs.jobs.records import Attempt
from rayjobs.spec.model import Retries

# A storage service is back seconds after a restart, minutes after an upgrade: the pauses between
# this many retries add up to five minutes.
OUTAGE_RETRIES = 8
OUTAGE_FIRST_PAUSE_S = 5.0
# A job is a poison job if this many consecutive attempts lost their host or node, each this soon
# after its start. The loss of a node after hours of work is the node's fault, not the script's.
POISON_AFTER = 3
POISON_WITHIN_S = 600.0
# The limit on losses, even with completed work: a job that loses so many nodes probably causes it.
MOST_LOSSES = 20
# An attempt that ran this long made progress: earlier failures say little about the next attempt.
RENEWED_AFTER_S = 3600.0
# Classes of failures that the job does not cause. The budget of storage outages is renewed too.
RENEWED = frozenset({FailureClass.NODE_LOST, FailureClass.PREEMPTED, FailureClass.SYSTEM})


@dataclass(frozen=True)
class Retry:
    """Requeue it, and start it after `pause_s` at the earliest."""

    reason: str
    pause_s: float


@dataclass(frozen=True)
class Hold:
    """Requeue and hold it: `hold` has the reason and the remedy."""

    reason: str
    hold: str


@dataclass(frozen=True)
class GiveUp:
    """It has failed permanently: its budget is used up, or a retry cannot help."""


def decide(
    retries: Retries,
    failure: Failure,
    *,
    outcome: Outcome,
    attempts: Sequence[Attempt],
    now: datetime,
    released_at: datetime | None = None,
) -> Retry | Hold | GiveUp:
    """Return the decision about a job whose newest attempt has failed.

    Args:
        outcome: The newest attempt's outcome, which its row does not have yet.
        attempts: All attempts of the job, oldest first, including the newest.
        released_at: When the job was last released from a hold; None: never. Attempts before that
            do not count towards another hold.
    """
    lost = _lost_in_a_row(attempts, outcome, now, released_at)
    if lost >= POISON_AFTER:
        what = f"{lost} consecutive attempts lost their host or node"
        job = attempts[-1].job
        return Hold(
            f"held: {what}; the last: {failure.message}",
            f"{what}, each within {duration_text(POISON_WITHIN_S)} of its start; the last: "
            f"{failure.message}. See its log (`rayjobs logs {job}`), then start it again with "
            f"`rayjobs update {job} --release`, or cancel it: `rayjobs cancel {job}`",
        )
    if failure.is_permanent:
        return GiveUp()
    budget = retries.budget(failure.failure_class)
    before = attempts[:-1]
    if failure.is_outage or failure.failure_class in RENEWED:
        before = attempts[_renewed_at(attempts, now) : -1]
    if failure.is_outage and budget:
        return _wait_for_storage(failure, _outages_in_a_row(before), budget)
    used = _used(before, failure.failure_class)
    losses = sum(one.outcome in LOSSES for one in attempts[:-1])
    if used >= budget or (outcome in LOSSES and losses >= max(budget, MOST_LOSSES)):
        return GiveUp()
    if failure.failure_class is FailureClass.PREEMPTED:
        return Retry(failure.message, 0.0)  # a pause would not help against this failure
    return Retry(
        f"tries again ({used + 1} of {budget}) after a failure of class "
        f"{failure.failure_class}: {failure.message}",
        # After a restart of the cluster, jobs that ran before start ahead of waiting ones.
        0.0 if outcome is Outcome.CLUSTER_LOST else pause_s(used),
    )


def allows_preemption(retries: Retries, attempts: Sequence[Attempt], *, now: datetime) -> bool:
    """Return whether `decide` would retry the job if its newest attempt were preempted now.

    Args:
        attempts: All attempts of the job, oldest first; the newest is running.
    """
    before = attempts[_renewed_at(attempts, now) : -1]
    return _used(before, FailureClass.PREEMPTED) < retries.preempted


def _used(before: Sequence[Attempt], failure_class: FailureClass) -> int:
    """Return how much of the budget of a class earlier attempts have spent."""
    return sum(
        one.failure is not None
        and spends_budget(one.outcome)
        and one.failure.failure_class == failure_class
        and not one.failure.is_outage
        for one in before
    )


def pause_s(used: int) -> float:
    """Return the pause in seconds before a retry, by the number of earlier ones of its class."""
    return float(min(LONGEST_PAUSE_S, 2.0 ** min(used, 16)))


def _wait_for_storage(failure: Failure, used: int, budget: int) -> Retry | GiveUp:
    """Return the decision after a storage outage; the budget is not 0.

    Outages are counted separately, since the job did nothing wrong and only has to wait. There are
    at least `OUTAGE_RETRIES` retries, and more if the budget is larger.
    """
    most = max(budget, OUTAGE_RETRIES)
    if used >= most:
        return GiveUp()
    return Retry(
        f"tries again ({used + 1} of {most}) because a storage does not answer: {failure.message}",
        float(min(LONGEST_PAUSE_S, OUTAGE_FIRST_PAUSE_S * 2.0 ** min(used, 16))),
    )


def _renewed_at(attempts: Sequence[Attempt], now: datetime) -> int:
    """Return the index of the last attempt that ran long enough to renew the budget, or 0.

    That attempt's own failure is the first one charged to the renewed budget.
    """
    for index in range(len(attempts) - 1, -1, -1):
        one = attempts[index]
        ended_at = now if index == len(attempts) - 1 else one.ended_at
        if one.started_at is None or ended_at is None:
            continue
        if (ended_at - one.started_at).total_seconds() >= RENEWED_AFTER_S:
            return index
    return 0


def _outages_in_a_row(before: Sequence[Attempt]) -> int:
    count = 0
    for attempt in reversed(before):
        if attempt.outcome == Outcome.PREEMPTED:
            continue  # says nothing about the storage
        if attempt.failure is None or not attempt.failure.is_outage:
            break
        count += 1
    return count


def _lost_in_a_row(
    attempts: Sequence[Attempt], outcome: Outcome, now: datetime, released_at: datetime | None
) -> int:
    count = 0
    for index, attempt in enumerate(reversed(attempts)):
        ended_at = now if index == 0 else attempt.ended_at
        how = outcome if index == 0 else attempt.outcome
        if how == Outcome.PREEMPTED:
            continue  # says nothing about the node
        if how not in LOSSES or attempt.started_at is None or ended_at is None:
            break
        if released_at is not None and attempt.created_at <= released_at:
            break
        if (ended_at - attempt.started_at).total_seconds() > POISON_WITHIN_S:
            break
        count += 1
    return count
