"""The order of the line: priority, then first come, with aging, and one share for each group.

A job's position is its submission time, minus `aging_s` for each level of its priority: a level is
worth that much waiting, and the order of two jobs never changes however long both wait. So jobs of
priority 1 pass a job of priority 0 only if they are submitted within `aging_s` after it: no job
waits forever.

The jobs of a group (a sweep, an array, a pipeline run) share one such position: the first of them
has it while none of the group runs. Every further one is an extra: it counts as submitted now,
behind all waiting jobs of the same priority, and extras of all groups take turns: first the second
ones, then the third ones. So a group that is alone gets the whole target; if others wait, it keeps
one position at a time and gets what they leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rayjobs.jobs.outcomes import LONGEST_PAUSE_S
from rayjobs.policy.records import Limits, Reservation, Rule, Running, Situation, Waiting

SortKey = tuple[float, float, int, float, tuple[str, int, str]]


def sort_key(
    job: Waiting | Running, limits: Limits, *, extra: int = 0, now_s: float = 0.0
) -> SortKey:
    """Return the sort key of the line: smaller is earlier.

    Args:
        extra: How many of the job's group run or are ahead of it.
        now_s: Needed for extras, which count as submitted now.
    """
    at_s = max(now_s, job.submitted_s) if extra else job.submitted_s
    if limits.aging_s is None:
        return (-job.priority, at_s, extra, job.submitted_s, job.order)
    return (0.0, at_s - job.priority * limits.aging_s, extra, job.submitted_s, job.order)


def line_of(situation: Situation) -> tuple[list[Waiting], dict[str, SortKey], dict[str, Rule]]:
    """Return the line in order, each job's sort key, and why the others are not in it.

    A job for which others were preempted comes first whatever its sort key.
    """
    limits, now_s = situation.limits, situation.now_s
    refused: dict[str, Rule] = {}
    singles: list[Waiting] = []
    groups: dict[str, list[Waiting]] = {}
    for job in situation.waiting:
        if job.blocked_by is not None:
            refused[job.key] = job.blocked_rule
        elif job.not_before_s is not None and 0 < job.not_before_s - now_s <= LONGEST_PAUSE_S:
            refused[job.key] = Rule.PAUSE
        elif job.group is None:
            singles.append(job)
        else:
            groups.setdefault(job.group, []).append(job)
    sort_keys = {job.key: sort_key(job, limits) for job in singles}
    line = singles
    active = Counter(one.group for one in situation.running if one.group is not None)
    for group, members in groups.items():
        line += _members(members, active[group], situation, sort_keys, refused)
    line.sort(key=lambda job: sort_keys[job.key])
    return _preempting_first(line, situation.reservation), sort_keys, refused


def _members(
    members: list[Waiting],
    active: int,
    situation: Situation,
    sort_keys: dict[str, SortKey],
    refused: dict[str, Rule],
) -> Sequence[Waiting]:
    """Sort the jobs of a group that may run in addition to the running ones; refuse the others."""
    limits, now_s = situation.limits, situation.now_s
    members.sort(key=lambda job: sort_key(job, limits))
    allowed: list[Waiting] = []
    for job in members:
        extra = active + len(allowed)
        if job.group_limit is not None and extra >= job.group_limit:
            refused[job.key] = Rule.ARRAY_LIMIT
            continue
        sort_keys[job.key] = sort_key(job, limits, extra=extra, now_s=now_s)
        allowed.append(job)
    return allowed


def _preempting_first(line: list[Waiting], reservation: Reservation | None) -> list[Waiting]:
    if reservation is not None and reservation.by_preemption:
        for index, job in enumerate(line):
            if job.key == reservation.key:
                return [job, *line[:index], *line[index + 1 :]]
    return line


def used_by_users(running: Sequence[Running]) -> tuple[Counter[str], Mapping[str, float]]:
    """Return how many jobs each user runs, and how many GPUs they hold."""
    jobs: Counter[str] = Counter()
    gpus: dict[str, float] = {}
    for one in running:
        jobs[one.user] += 1
        gpus[one.user] = gpus.get(one.user, 0.0) + one.gpus
    return jobs, gpus
