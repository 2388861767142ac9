"""What becomes of a job whose attempt failed: tried again, held, or given up. Pure.

Each failure class has a budget of its own (`spec.Retries`) and a pause that doubles; a storage that
does not answer is waited for with longer ones. A failure that another attempt cannot change, such
as a missing file or credential, is never tried again. Work that was done renews the budgets of
what is not the script's fault: a job of weeks outlives more lost nodes than one of minutes. A job
that takes its attempt host, or a whole node, down with it again and again is poison: others lose
their work by it. It is held back in the queue, with the reason, until somebody releases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.text import duration_text
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.outcomes import LONGEST_PAUSE_S, LOSSES, spends_budget
from rayjobs.jobs.records import Attempt
from rayjobs.spec.model import Retries

# A storage that is restarted is back in seconds, one that is upgraded in minutes: the pauses
# between so many retries add up to five minutes.
OUTAGE_RETRIES = 8
OUTAGE_FIRST_PAUSE_S = 5.0
# So many attempts one after the other that lost their host or node, each so soon after its start.
# A node that is lost after hours of work is a node's fault, not a script's.
POISON_AFTER = 3
POISON_WITHIN_S = 600.0
# Work or no work, that is enough: what loses its nodes so often has a part in it.
MOST_LOSSES = 20
# An attempt that ran for so long did its work: what ended it, and others before it, is no sign
# that the next one will not.
RENEWED_AFTER_S = 3600.0
# Classes of what happens to a job, not by it. Outages of a storage are renewed too.
RENEWED = frozenset({FailureClass.NODE_LOST, FailureClass.PREEMPTED, FailureClass.SYSTEM})


@dataclass(frozen=True)
class Retry:
    """Queue it again, and start it no sooner than in `pause_s`."""

    reason: str
    pause_s: float


@dataclass(frozen=True)
class Hold:
    """Queue it again and keep it there: `hold` says why, and what to do."""

    reason: str
    hold: str


@dataclass(frozen=True)
class GiveUp:
    """It has failed for good: its budget is spent, or nothing that a retry does can help."""


def decide(
    retries: Retries,
    failure: Failure,
    *,
    outcome: Outcome,
    attempts: Sequence[Attempt],
    now: datetime,
    released_at: datetime | None = None,
) -> Retry | Hold | GiveUp:
    """Return what becomes of a job whose newest attempt has ended in a failure.

    Args:
        outcome: Of the newest attempt, whose row does not say it yet.
        attempts: All of the job, oldest first, the newest among them.
        released_at: When the job was last released from a hold; None: never. What was before
            does not count towards another one.
    """
    lost = _lost_in_a_row(attempts, outcome, now, released_at)
    if lost >= POISON_AFTER:
        what = f"{lost} attempts one after the other lost their host or node"
        return Hold(
            f"held: {what}; the last: {failure.message}",
            f"{what}, each within {duration_text(POISON_WITHIN_S)} of its start; the last: "
            f"{failure.message}. See its log (`rayjobs logs ID`), then start it again with "
            f"`rayjobs update ID --release`, or cancel it",
        )
    if failure.is_permanent:
        return GiveUp()
    budget = retries.budget(failure.failure_class)
    before = attempts[:-1]
    if failure.is_outage or failure.failure_class in RENEWED:
        before = attempts[_renewed_at(attempts, now) : -1]
    if failure.is_outage and budget:
        return _wait_for_storage(failure, _outages_in_a_row(before), budget)
    used = sum(
        one.failure is not None
        and spends_budget(one.outcome)
        and one.failure.failure_class == failure.failure_class
        and not one.failure.is_outage
        for one in before
    )
    losses = sum(one.outcome in LOSSES for one in attempts[:-1])
    if used >= budget or (outcome in LOSSES and losses >= max(budget, MOST_LOSSES)):
        return GiveUp()
    if failure.failure_class is FailureClass.PREEMPTED:
        return Retry(failure.message, 0.0)  # nothing failed that a pause would mend
    return Retry(
        f"tries again ({used + 1} of {budget}) after a failure of class "
        f"{failure.failure_class}: {failure.message}",
        # What ran before goes on first when the cluster is up again, ahead of what only waited.
        0.0 if outcome is Outcome.CLUSTER_LOST else pause_s(used),
    )


def pause_s(used: int) -> float:
    """Return the pause before a retry, in seconds, when so many of its class came before it."""
    return float(min(LONGEST_PAUSE_S, 2.0 ** min(used, 16)))


def _wait_for_storage(failure: Failure, used: int, budget: int) -> Retry | GiveUp:
    """Outages have a count of their own: the job did nothing wrong, and needs only patience.

    A budget of 0 still means that nothing is tried again, a larger one that more is.
    """
    most = max(budget, OUTAGE_RETRIES)
    if used >= most:
        return GiveUp()
    return Retry(
        f"tries again ({used + 1} of {most}) because a storage does not answer: {failure.message}",
        float(min(LONGEST_PAUSE_S, OUTAGE_FIRST_PAUSE_S * 2.0 ** min(used, 16))),
    )


def _renewed_at(attempts: Sequence[Attempt], now: datetime) -> int:
    """Return the index of the last attempt that ran long enough to renew the budget, 0 if none did.

    That attempt's own failure is the first that is charged to the renewed budget.
    """
    for place in range(len(attempts) - 1, -1, -1):
        one = attempts[place]
        ended_at = now if place == len(attempts) - 1 else one.ended_at
        if one.started_at is None or ended_at is None:
            continue
        if (ended_at - one.started_at).total_seconds() >= RENEWED_AFTER_S:
            return place
    return 0


def _outages_in_a_row(before: Sequence[Attempt]) -> int:
    count = 0
    for attempt in reversed(before):
        if attempt.outcome == Outcome.PREEMPTED:
            continue  # says nothing about it
        if attempt.failure is None or not attempt.failure.is_outage:
            break
        count += 1
    return count


def _lost_in_a_row(
    attempts: Sequence[Attempt], outcome: Outcome, now: datetime, released_at: datetime | None
) -> int:
    count = 0
    for place, attempt in enumerate(reversed(attempts)):
        ended_at = now if place == 0 else attempt.ended_at
        how = outcome if place == 0 else attempt.outcome
        if how == Outcome.PREEMPTED:
            continue  # says nothing about it
        if how not in LOSSES or attempt.started_at is None or ended_at is None:
            break
        if released_at is not None and attempt.created_at <= released_at:
            break
        if (ended_at - attempt.started_at).total_seconds() > POISON_WITHIN_S:
            break
        count += 1
    return count
