"""Whether work resumes correctly: from the newest complete checkpoint, with a complete curve."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rayjobs.jobs.states import JobState
from tests.checker.evidence import Evidence

# The message of `resuming.bring`; it differs for another run or given files.
_STEP = re.compile(r"from its checkpoint of step (\d+)")


def resumes(evidence: Evidence) -> Iterator[str]:
    """Compare the checkpoints that attempts resumed from with those that were whole before them."""
    for job_id, attempts in evidence.attempts.items():
        stored = evidence.checkpoints.get(job_id, [])
        known = [(one.attempt, one.step) for one in stored]
        known += [
            (number, step) for (job, number), step in evidence.waited_with.items() if job == job_id
        ]
        resumed: dict[int, int | None] = {}
        for event in evidence.events.get(job_id, []):
            if event.kind == "resumed":
                match = _STEP.search(event.message)
                resumed[event.attempt] = None if match is None else int(match[1])
        ran = [one for one in evidence.ran if one.job == job_id]
        # The job runs even if the store refuses the event: then only the rank has recorded it.
        found = {one.attempt: one.found for one in ran if one.found is not None}
        for number, step in resumed.items():
            if step is not None and step not in {whole for _, whole in known}:
                yield (f"attempt {number} of {job_id} resumed from step {step}, which is not whole")
        started = {one.attempt for one in ran}
        started |= {one.number for one in attempts if one.started_at is not None}
        for number in sorted(started):
            newest = max((step for attempt, step in known if attempt < number), default=None)
            if newest is None:
                continue
            if number not in resumed and number not in found:
                yield (
                    f"attempt {number} of {job_id} started over, although step {newest} was whole "
                    f"before it"
                )
            for step in {resumed.get(number), found.get(number)} - {None}:
                if step is not None and step < newest:
                    yield (
                        f"attempt {number} of {job_id} resumed from step {step}, although "
                        f"step {newest} was whole"
                    )


def curves(evidence: Evidence) -> Iterator[str]:
    """Compare the metrics of completed jobs with the steps that their ranks recorded."""
    for job in evidence.jobs:
        steps = evidence.curves.get(job.id)
        if steps is None or job.state is not JobState.COMPLETED:
            continue
        done = [
            one.step
            for one in evidence.ran
            if (one.job, one.attempt, one.rank) == (job.id, job.attempt, 0)
        ]
        count = done[0] if done and done[0] is not None else max(steps, default=-1) + 1
        wrong = _wrong(steps, count)
        if wrong:
            yield f"the curve of {job.id} {wrong}"


def _wrong(steps: Sequence[int], count: int) -> str:
    expected, seen = set(range(count)), set(steps)
    double = sorted({step for step in seen if steps.count(step) > 1})
    if double:
        return f"has step {double[0]} twice, one of {len(double)} duplicate steps"
    if seen != expected:
        missing, more = sorted(expected - seen), sorted(seen - expected)
        return f"lacks steps {missing}" if missing else f"has steps {more}, which were not done"
    return "" if list(steps) == sorted(steps) else "goes back in its steps"
