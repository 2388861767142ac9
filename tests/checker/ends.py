"""Whether jobs end as the exit codes of their scripts and their retry budgets require."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from rayjobs.core.failures import FailureClass
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from tests.checker.evidence import Evidence

# Attempts that ended in these ways did not fail, and spend no budget.
FREE_ENDS = ("put_back", "not_placed", "preempted")
# The script has succeeded, and only its files are not stored: the attempt is not repeated.
NOT_RETRIED = "not_stored"
# The least number of retries for a storage that does not answer, unless the budget is 0.
OUTAGE_RETRIES = 8
# An attempt that ran this long has renewed the budgets of external failures.
RENEWED_AFTER_S = 3600.0
RENEWED = (FailureClass.NODE_LOST, FailureClass.PREEMPTED, FailureClass.SYSTEM)
# A job that lost its host or node this often fails, even if its budget was renewed.
LOSSES = ("host_error", "node_lost", "lease_lost")
MOST_LOSSES = 20


def promised(evidence: Evidence) -> Iterator[str]:
    """Compare ends with the exit codes that the scripts have when undisturbed."""
    for job in evidence.jobs:
        code = evidence.codes.get(job.id)
        if code is None:
            continue
        if job.state is JobState.COMPLETED and code != 0:
            yield f"{job.id} is Completed, and its script exits with {code}"
        failed = sum(
            one.failure is not None and one.failure.failure_class is FailureClass.USER
            for one in evidence.attempts.get(job.id, [])
        )
        killed = evidence.kills.get(job.id, 0)
        if code == 0 and failed > killed:
            yield (
                f"{job.id} failed {failed} times as user; its script exits with 0, and its ranks "
                f"were killed {killed} times"
            )


def too_often(evidence: Evidence) -> Iterator[str]:
    """Name the failure classes that exceeded their budgets."""
    for job in evidence.jobs:
        attempts = evidence.attempts.get(job.id, [])
        # A poison job is held, whatever its budget: each release adds one attempt.
        released = sum(event.kind == "release" for event in evidence.events.get(job.id, []))
        worst: dict[str, int] = {}
        for index, one in enumerate(attempts):
            if one.failure is None or one.outcome in FREE_ENDS:
                continue
            name, counted = str(one.failure.failure_class), _counted(attempts[: index + 1])
            if one.failure.is_outage:
                count, most = _outages(counted), _outage_budget(job, name)
                if count > most + 1:
                    yield f"{job.id} met {count} outages in a row; its limit is {most}"
                continue
            count = sum(_spends(each, name) and each.outcome not in FREE_ENDS for each in counted)
            worst[name] = max(count, worst.get(name, 0))
        for name, count in worst.items():
            budget = _budget(job, name)
            if count > budget + 1 + released:
                yield f"{job.id} failed {count} times as {name}; its budget is {budget} retries"


def too_soon(evidence: Evidence) -> Iterator[str]:
    """Name the jobs that failed although the budget of their failure was not spent."""
    for job in evidence.jobs:
        if job.state is not JobState.FAILED or job.kind != "job":
            continue
        attempts = evidence.attempts.get(job.id, [])
        failure = attempts[-1].failure if attempts else None
        if failure is None:
            yield f"{job.id} is Failed, and its last attempt has no failure"
            continue
        if attempts[-1].outcome == NOT_RETRIED:
            continue
        name, before = str(failure.failure_class), _counted(attempts)[:-1]
        if failure.is_outage:
            used, budget = _outages(before), _outage_budget(job, name)
        else:
            used, budget = sum(_spends(one, name) for one in before), _budget(job, name)
        losses = sum(one.outcome in LOSSES for one in attempts[:-1])
        if attempts[-1].outcome in LOSSES and losses >= max(budget, MOST_LOSSES):
            continue
        if used < budget:
            what = "outage" if failure.is_outage else name
            yield f"{job.id} is Failed ({what}) after {used} of {budget} retries"


def _counted(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts since the budget of the last one's failure was renewed."""
    failure = attempts[-1].failure
    assert failure is not None
    if not (failure.is_outage or failure.failure_class in RENEWED):
        return attempts
    worked = [index for index, one in enumerate(attempts) if _ran_s(one) >= RENEWED_AFTER_S]
    return attempts[worked[-1] :] if worked else attempts


def _ran_s(attempt: Attempt) -> float:
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return (attempt.ended_at - attempt.started_at).total_seconds()


def _spends(attempt: Attempt, name: str) -> bool:
    failure = attempt.failure
    return failure is not None and failure.failure_class == name and not failure.is_outage


def _budget(job: Job, name: str) -> int:
    return int(getattr(job.spec.retries, name))


def _outage_budget(job: Job, name: str) -> int:
    budget = _budget(job, name)
    return max(budget, OUTAGE_RETRIES) if budget else 0


def _outages(attempts: Sequence[Attempt]) -> int:
    """Return how many of the newest attempts met an outage in a row."""
    failures = [one.failure for one in reversed(attempts) if one.outcome != "preempted"]
    return sum(1 for _ in takewhile(lambda one: one is not None and one.is_outage, failures))
