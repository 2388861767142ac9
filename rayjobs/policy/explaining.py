"""Explains why a job waits: what is free, which node comes closest, what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import Any

from rayjobs.core.text import counted, duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.deciding import decide
from rayjobs.policy.decisions import Decisions
from rayjobs.policy.durations import LIMITS, as_running, worst_duration_s
from rayjobs.policy.estimating import estimate
from rayjobs.policy.order import sort_key
from rayjobs.policy.records import OVERHEAD_S, Decision, Rule, Waiting
from rayjobs.policy.shapes import SLACK, NodeCapacity, Shape, describe_free, describe_total, take

# How many of the jobs ahead are named.
AHEAD = 10
# A limit below this is not advised.
LEAST_LIMIT_S = 60.0
# The maximum in a spec.
MOST_PRIORITY = 1000
# How many changes to try for one advice: each takes one or two decisions.
ADVICE_TRIES = 3


def reason_of(decisions: Decisions, key: str) -> str:
    """Return one sentence on why a job waits, or that it starts."""
    job, rule, limits = decisions.by_key[key], decisions.rule(key), decisions.situation.limits
    if job.blocked_by is not None:
        return job.blocked_by
    match rule:
        case Rule.START:
            return "starts now"
        case Rule.PAUSE:
            assert job.not_before_s is not None
            return f"tries again in {duration_text(job.not_before_s - decisions.situation.now_s)}"
        case Rule.NEVER_FITS:
            capacities = decisions.situation.capacities
            are_up = any(one.is_up for one in capacities)
            have = "the target's nodes have, when empty: " if are_up else ""
            return f"asks for {job.shape.describe()}; {have}{describe_total(capacities)}"
        case Rule.ARRAY_LIMIT:
            assert job.group_limit is not None
            return _of_array(decisions, job, job.group_limit)
        case Rule.USER_JOBS:
            return _of_users_jobs(decisions, job)
        case Rule.USER_GPUS:
            return _of_users_gpus(decisions, job)
        case Rule.OWN_ORDER:
            return f"an earlier job of {_who(job)} waits for that user's limit"
        case Rule.TARGET_JOBS:
            assert limits.jobs is not None
            most = counted(limits.jobs, "job")
            return (
                f"first in line; this target runs at most {most} at a time "
                f"({len(decisions.holding)} running)"
            )
        case Rule.YIELDING:
            return "first in line; starts when the jobs that are ending have ended"
        case Rule.CAPACITY:
            return f"first in line; {_of_capacity(decisions, job)}"
    ahead = decisions.positions.get(key, 1) - 1
    return f"waits for {counted(ahead, 'job')} ahead of it"


def _of_users_jobs(decisions: Decisions, job: Waiting) -> str:
    limit = decisions.situation.limits.jobs_per_user
    assert limit is not None
    running = sum(one.user == job.user for one in decisions.holding)
    return f"at most {counted(limit, 'job')} of {_who(job)} may run at a time ({running} running)"


def _of_users_gpus(decisions: Decisions, job: Waiting) -> str:
    limit = decisions.situation.limits.gpus_per_user
    assert limit is not None
    most = f"jobs of {_who(job)} may hold {limit:g} GPUs at a time"
    if job.gpus > limit + SLACK:
        return f"{most}, and this job requests {job.gpus:g}"
    held = sum(one.gpus for one in decisions.holding if one.user == job.user)
    return f"{most}; they hold {held:g}, and this one asks for {job.gpus:g}"


def _of_capacity(decisions: Decisions, job: Waiting) -> str:
    if take(decisions.capacities, job.shape) is None:
        return f"waits for {job.shape.describe()}: {describe_free(decisions.capacities)}"
    if decisions.situation.may_start == 0:
        return "no more nodes may start before others have stopped"
    return "waits until the nodes of an earlier job have started"


def summary(decisions: Decisions, key: str) -> tuple[Rule, str, int]:
    """Return rule, reason and position: cheap, for lists. Raises KeyError like `Decisions.rule`."""
    return decisions.rule(key), reason_of(decisions, key), decisions.positions.get(key, 0)


def explain(decisions: Decisions, key: str) -> Decision:
    """Return everything known about a job's wait. Raises KeyError like `Decisions.rule`."""
    job, rule = decisions.by_key[key], decisions.rule(key)
    started = decisions.started.get(key)
    position = decisions.positions.get(key, 0)
    estimate_s, basis = estimate(decisions, key)
    source = decisions.sources.get(key, "")
    if rule is Rule.PAUSE and job.not_before_s is not None:
        estimate_s, basis, source = job.not_before_s - decisions.situation.now_s, LIMITS, ""
    latest_s = None
    if (
        key == decisions.head
        and decisions.reservation is not None
        and decisions.reservation.at_s is not None
    ):
        latest_s = decisions.reservation.at_s - decisions.situation.now_s
        if latest_s <= 0:
            latest_s = (
                None  # unknown: others were preempted, or its resources are held beyond the limit
            )
    first = max(0, position - 1 - AHEAD)
    advice = Advice() if started else advice_for(decisions, job, rule)
    return Decision(
        key=key,
        rule=rule,
        reason=reason_of(decisions, key),
        position=position,
        ahead=tuple(reversed(decisions.queue[first : position - 1])) if position else (),
        free=tuple(_free(capacity) for capacity in decisions.capacities if capacity.is_up),
        nearest="" if started else nearest_fit(decisions.capacities, job.shape),
        estimate_s=estimate_s,
        basis=basis,
        source=source,
        latest_s=latest_s,
        remedy=advice.text,
        change=advice.change,
        nodes=started.nodes if started else (),
    )


def _free(capacity: NodeCapacity) -> Mapping[str, Any]:
    return {
        "node_id": capacity.node_id,
        "cpus": capacity.cpus,
        "gpus": capacity.gpus,
        "memory": capacity.memory,
        "free_cpus": max(0.0, capacity.free_cpus),
        "free_gpus": max(0.0, capacity.free_gpus),
        "free_memory": max(0.0, capacity.free_memory),
    }


def nearest_fit(capacities: Sequence[NodeCapacity], shape: Shape) -> str:
    """Return which node comes closest to fitting a bundle, and what it lacks; may be empty."""
    capacities = [capacity for capacity in capacities if capacity.is_up]
    if not capacities:
        return ""
    best = min(capacities, key=lambda capacity: _lack(capacity, shape))
    fitting = sum(1 for capacity in capacities if capacity.holds(shape))
    if fitting and shape.nodes > 1:
        return f"{fitting} of {shape.nodes} nodes have capacity for their part"
    if shape.node_types and best.node_type not in shape.node_types:
        return ""  # other nodes have to start
    parts = []
    for name, wanted, free, unit in (
        ("GPU", shape.gpus, best.free_gpus, 1.0),
        ("CPU", shape.cpus, best.free_cpus, 1.0),
        ("GiB of memory", shape.memory, best.free_memory, 2.0**30),
    ):
        if wanted - free > 1e-6 * unit:
            lack = float(f"{(wanted - max(0.0, free)) / unit:.3g}")
            parts.append(f"{lack:g} {name}" if unit > 1 else counted(lack, name))
    node = best.node_id[:12]
    if not parts:
        return f"{node} has capacity for it"
    return f"{node} lacks {', '.join(parts)}"


def _lack(capacity: NodeCapacity, shape: Shape) -> tuple[bool, float, float, float]:
    return (
        bool(shape.node_types) and capacity.node_type not in shape.node_types,
        max(0.0, shape.gpus - capacity.free_gpus),
        max(0.0, shape.cpus - capacity.free_cpus),
        max(0.0, shape.memory - capacity.free_memory),
    )


@dataclass(frozen=True)
class Advice:
    """A change that would start a job now or sooner.

    Attributes:
        text: For users; empty: none is known.
        change: See `Decision.change`.
    """

    text: str = ""
    change: Mapping[str, float] = field(default_factory=dict)


def advice_for(decisions: Decisions, job: Waiting, rule: Rule) -> Advice:
    """Return a change that would start the job now or sooner."""
    limits = decisions.situation.limits
    match rule:
        case Rule.NEVER_FITS:
            return Advice("submit it with less per node, or add a node that is large enough")
        case Rule.ARRAY_LIMIT:
            # A higher limit helps only if the job waits for nothing else.
            advice = iter(
                [
                    (
                        replace(job, group_limit=None),
                        Advice("submit with a higher limit after the % of --array"),
                    )
                ]
            )
        case Rule.USER_GPUS if (
            limits.gpus_per_user is not None and job.gpus > limits.gpus_per_user + SLACK
        ):
            return Advice("submit it with fewer GPUs, or raise the user's limit on the target")
        case Rule.USER_JOBS:
            return Advice("end one of that user's jobs, or raise the user's limit on the target")
        case Rule.USER_GPUS:
            return Advice(
                "end jobs of that user that hold GPUs, or raise the user's limit on the target"
            )
        case Rule.OWN_ORDER:
            return Advice("raise the user's limit on the target")
        case Rule.TARGET_JOBS:
            return Advice("end a job, or raise the target's limit of running jobs")
        case Rule.CAPACITY:
            advice = _smaller(decisions, job)
        case Rule.LINE:
            advice = _sooner(decisions, job)
        case _:
            return Advice()
    tried = islice(advice, ADVICE_TRIES)
    return next(
        (advised for changed, advised in tried if _would_start(decisions, changed)), Advice()
    )


def _would_start(decisions: Decisions, changed: Waiting) -> bool:
    """Whether a changed waiting job would start now, by a decision on the changed situation."""
    before = decisions.situation
    waiting = [changed if one.key == changed.key else one for one in before.waiting]
    situation = replace(before, waiting=waiting)
    if decisions.starts or decisions.preempts or decisions.reservation != before.reservation:
        if changed.key not in decide(situation).started:
            return False
        # By the time of the change, the decisions will have been carried out.
        situation = replace(situation, **_carried_out(decisions, waiting))
    return changed.key in decide(replace(situation, reservation=decisions.reservation)).started


def _carried_out(decisions: Decisions, waiting: Sequence[Waiting]) -> dict[str, Any]:
    """Return the fields of a situation that differ after the decisions are carried out."""
    preempted = {one.key for one in decisions.preempts}
    running = [
        replace(one, is_ending=True) if one.key in preempted else one
        for one in decisions.situation.running
    ]
    running += [as_running(decisions.by_key[one.key], one.nodes) for one in decisions.starts]
    left = [one for one in waiting if one.key not in decisions.started]
    return {"waiting": left, "running": running, "capacities": decisions.capacities}


def _smaller(decisions: Decisions, job: Waiting) -> Iterator[tuple[Waiting, Advice]]:
    """Find smaller shapes that have capacity now."""
    shape = job.shape
    for nodes in range(shape.nodes - 1, 0, -1):
        fewer = replace(shape, nodes=nodes)
        if take(decisions.capacities, fewer) is not None:
            text = f"with {counted(nodes, 'node')} it would start now"
            yield replace(job, shape=fewer), Advice(text, {"nodes": float(nodes)})
    gpus = math.floor(max((capacity.free_gpus for capacity in decisions.capacities), default=0.0))
    cpus = math.floor(max((capacity.free_cpus for capacity in decisions.capacities), default=0.0))
    for wanted, free, less, text in (
        (shape.gpus, gpus, replace(shape, nodes=1, gpus=float(gpus)), counted(gpus, "GPU")),
        (shape.cpus, cpus, replace(shape, nodes=1, cpus=float(cpus)), counted(cpus, "CPU")),
    ):
        if wanted > free >= 1 and take(decisions.capacities, less) is not None:
            advice = Advice(f"with {text} on one node it would start now")
            yield replace(job, shape=less), advice


def _sooner(decisions: Decisions, job: Waiting) -> Iterator[tuple[Waiting, Advice]]:
    """Find a time limit or priority with which a job behind the head starts now."""
    if decisions.kept is None or take(decisions.capacities, job.shape) is None:
        return
    until_s = decisions.kept.until_s
    spare_s = until_s - decisions.situation.now_s - job.grace_s - OVERHEAD_S
    if spare_s >= LEAST_LIMIT_S and worst_duration_s(job) > spare_s:
        limit_s = math.floor(spare_s / 60) * 60
        text = f"with --max-duration {duration_text(limit_s, exact=True)} or less"
        yield (
            replace(job, max_duration_s=float(limit_s)),
            Advice(
                f"{text} it would pass those ahead and start now",
                {"max_duration_s": float(limit_s)},
            ),
        )
    priority = _priority_to_be_first(decisions, job)
    if priority is not None:
        text = f"with priority {priority} it would be first and start now"
        yield replace(job, priority=priority), Advice(text, {"priority": float(priority)})


def _priority_to_be_first(decisions: Decisions, job: Waiting) -> int | None:
    """Return the lowest priority that puts the job before the head, or None."""
    assert decisions.head is not None
    if decisions.reservation is not None and decisions.reservation.by_preemption:
        return None
    head, limits, now_s = (
        decisions.by_key[decisions.head],
        decisions.situation.limits,
        decisions.situation.now_s,
    )
    active = [one for one in decisions.situation.running if one.group == head.group]
    head_sort_key = sort_key(head, limits, extra=len(active) if head.group else 0, now_s=now_s)
    low, high = job.priority + 1, MOST_PRIORITY
    extra = 0 if job.group is None else 1  # safe for the first job of a group, too

    def is_before(priority: int) -> bool:
        raised = replace(job, priority=priority)
        return sort_key(raised, limits, extra=extra, now_s=now_s) < head_sort_key

    if low > high or not is_before(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if is_before(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _of_array(decisions: Decisions, job: Waiting, limit: int) -> str:
    """Return how many jobs of an array run, and how many have their turn before this one."""
    running, before = (counts[job.group] for counts in decisions.groups)
    counts = f"{running} running"
    if before:
        counts += f", {before} waiting before it"
    return f"at most {counted(limit, 'member')} of the array may run at a time ({counts})"


def _who(job: Waiting) -> str:
    return job.user or "this user"
