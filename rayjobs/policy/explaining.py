"""Why a job waits, in words: what is free, what comes nearest, what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayjobs.policy.durations import LIMITS, worst_duration_s
from rayjobs.policy.order import rank
from rayjobs.policy.records import OVERHEAD_S, Decision, Rule, Waiting
from rayjobs.policy.shapes import NodeRoom, Shape, describe_free, take
from rayjobs.units import duration_text

if TYPE_CHECKING:
    from rayjobs.policy.deciding import Plan

# How many of those ahead are named.
AHEAD = 10
# A limit below this is no advice.
LEAST_LIMIT_S = 60.0
# What a spec may have at most.
MOST_PRIORITY = 1000


def reason_of(plan: Plan, key: str) -> str:
    """Return in one sentence why a job waits, or that it starts."""
    job, rule, limits = plan.by_key[key], plan.rule(key), plan.situation.limits
    if job.blocked_by is not None:
        return job.blocked_by
    match rule:
        case Rule.START:
            return "starts now"
        case Rule.PAUSE:
            assert job.not_before_s is not None
            return f"tries again in {job.not_before_s - plan.situation.now_s:.0f} s"
        case Rule.NEVER_FITS:
            return (
                f"asks for {job.shape.describe()}; the target's nodes have in all: "
                f"{describe_free([room.emptied() for room in plan.situation.rooms])}"
            )
        case Rule.ARRAY_LIMIT:
            return f"{job.group_limit} of its group run, the most that may at a time"
        case Rule.USER_JOBS:
            return f"{limits.jobs_per_user} jobs of {_who(job)} run, the most that may at a time"
        case Rule.USER_GPUS:
            assert limits.gpus_per_user is not None
            most = f"jobs of {_who(job)} may hold {limits.gpus_per_user:g} GPUs at a time"
            return f"{most}, and this one asks for {job.gpus:g}"
        case Rule.OWN_ORDER:
            return f"an earlier job of {_who(job)} waits for that user's limit"
        case Rule.TARGET_JOBS:
            return f"first in line; {limits.jobs} jobs run, the most that may on this target"
        case Rule.YIELDING:
            return "first in line; starts when jobs that are ending have given back their room"
        case Rule.ROOM if take(plan.rooms, job.shape) is not None:
            if plan.situation.may_start == 0:
                return "first in line; no more nodes may start before others have gone"
            return "first in line; waits until the nodes of an earlier job have started"
        case Rule.ROOM:
            free = describe_free(plan.rooms)
            return f"first in line; waits for {job.shape.describe()}: {free}"
    ahead = plan.positions.get(key, 1) - 1
    return f"waits for {ahead} job{'' if ahead == 1 else 's'} ahead of it"


def explain(plan: Plan, key: str) -> Decision:
    """Return all that is known about a job's wait."""
    job, rule = plan.by_key[key], plan.rule(key)
    started = plan.started.get(key)
    position = plan.positions.get(key, 0)
    estimate_s, basis = plan.estimate(key)
    if rule is Rule.PAUSE and job.not_before_s is not None:
        estimate_s, basis = job.not_before_s - plan.situation.now_s, LIMITS
    latest_s = None
    if key == plan.head and plan.promise is not None and plan.promise.at_s is not None:
        latest_s = max(0.0, plan.promise.at_s - plan.situation.now_s)
    first = max(0, position - 1 - AHEAD)
    return Decision(
        key=key,
        rule=rule,
        reason=reason_of(plan, key),
        position=position,
        ahead=tuple(reversed(plan.queue[first : position - 1])) if position else (),
        free=tuple(_free(room) for room in plan.rooms if room.is_up),
        nearest="" if started else nearest_fit(plan.rooms, job.shape),
        estimate_s=estimate_s,
        basis=basis,
        latest_s=latest_s,
        remedy="" if started else remedy_of(plan, job, rule),
        nodes=started.nodes if started else (),
    )


def _free(room: NodeRoom) -> Mapping[str, Any]:
    return {
        "node_id": room.node_id,
        "cpus": room.cpus,
        "gpus": room.gpus,
        "memory": room.memory,
        "free_cpus": max(0.0, room.free_cpus),
        "free_gpus": max(0.0, room.free_gpus),
        "free_memory": max(0.0, room.free_memory),
    }


def nearest_fit(rooms: Sequence[NodeRoom], shape: Shape) -> str:
    """Return which node comes nearest to holding a bundle, and what it lacks; empty: none."""
    rooms = [room for room in rooms if room.is_up]
    if not rooms:
        return ""
    best = min(rooms, key=lambda room: _lack(room, shape))
    fitting = sum(1 for room in rooms if room.holds(shape))
    if fitting and shape.nodes > 1:
        return f"{fitting} of {shape.nodes} nodes have room for their part"
    if shape.node_types and best.node_type not in shape.node_types:
        return ""  # other nodes have to start
    parts = []
    for name, wanted, free, unit in (
        ("GPUs", shape.gpus, best.free_gpus, 1.0),
        ("CPUs", shape.cpus, best.free_cpus, 1.0),
        ("GiB of memory", shape.memory, best.free_memory, 2.0**30),
    ):
        if wanted - free > 1e-6 * unit:
            parts.append(f"{(wanted - max(0.0, free)) / unit:.3g} {name}")
    if not parts:
        return f"{best.node_id} has room for it"
    return f"{best.node_id} lacks {', '.join(parts)}"


def _lack(room: NodeRoom, shape: Shape) -> tuple[bool, float, float, float]:
    return (
        bool(shape.node_types) and room.node_type not in shape.node_types,
        max(0.0, shape.gpus - room.free_gpus),
        max(0.0, shape.cpus - room.free_cpus),
        max(0.0, shape.memory - room.free_memory),
    )


def remedy_of(plan: Plan, job: Waiting, rule: Rule) -> str:
    """Return what change would start the job now or sooner; empty: none is known."""
    match rule:
        case Rule.NEVER_FITS:
            return "submit it with less per node, or add a node that is large enough"
        case Rule.ARRAY_LIMIT:
            return "submit with a higher limit after the % of --array"
        case Rule.USER_JOBS | Rule.USER_GPUS | Rule.OWN_ORDER:
            return "end one of that user's jobs, or raise the user's limit on the target"
        case Rule.TARGET_JOBS:
            return "end a job, or raise the target's limit of running jobs"
        case Rule.ROOM:
            return _smaller(plan, job)
        case Rule.LINE:
            return _sooner(plan, job)
    return ""


def _smaller(plan: Plan, job: Waiting) -> str:
    """Return a smaller shape that would start now."""
    shape = job.shape
    for nodes in range(shape.nodes - 1, 0, -1):
        if take(plan.rooms, _with(shape, nodes=nodes)) is not None:
            return f"with {nodes} node{'s' if nodes > 1 else ''} it would start now"
    most_gpus = max((room.free_gpus for room in plan.rooms), default=0.0)
    if shape.gpus > most_gpus >= 1:
        gpus = math.floor(most_gpus)
        if take(plan.rooms, _with(shape, nodes=1, gpus=float(gpus))) is not None:
            return f"with {gpus} GPU{'s' if gpus > 1 else ''} on one node it would start now"
    most_cpus = max((room.free_cpus for room in plan.rooms), default=0.0)
    if shape.cpus > most_cpus >= 1:
        cpus = math.floor(most_cpus)
        if take(plan.rooms, _with(shape, nodes=1, cpus=float(cpus))) is not None:
            return f"with {cpus} CPU{'s' if cpus > 1 else ''} on one node it would start now"
    return ""


def _sooner(plan: Plan, job: Waiting) -> str:
    """Return what would let a job behind the head start now: a limit of time, or priority."""
    if plan.kept is None or take(plan.rooms, job.shape) is None:
        return ""
    until_s = plan.kept.until_s
    spare_s = until_s - plan.situation.now_s - job.grace_s - OVERHEAD_S
    if spare_s >= LEAST_LIMIT_S and worst_duration_s(job) > spare_s:
        limit = duration_text(math.floor(spare_s / 60) * 60)
        return f"with --max-duration {limit} or less it would pass those ahead and start now"
    priority = _priority_to_stand_first(plan, job)
    if priority is not None:
        return f"with priority {priority} it would stand first and start now"
    return ""


def _priority_to_stand_first(plan: Plan, job: Waiting) -> int | None:
    """Return the least priority that puts the job before the head; None: none does."""
    assert plan.head is not None
    if plan.promise is not None and plan.promise.is_claim:
        return None
    head, limits, now_s = plan.by_key[plan.head], plan.situation.limits, plan.situation.now_s
    active = [one for one in plan.situation.running if one.group == head.group]
    head_rank = rank(head, limits, extra=len(active) if head.group else 0, now_s=now_s)
    low, high = job.priority + 1, MOST_PRIORITY
    extra = 0 if job.group is None else 1  # enough for the first of a group as well

    def is_before(priority: int) -> bool:
        raised = replace(job, priority=priority)
        return rank(raised, limits, extra=extra, now_s=now_s) < head_rank

    if low > high or not is_before(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if is_before(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _with(shape: Shape, **changes: Any) -> Shape:
    return replace(shape, **changes)


def _who(job: Waiting) -> str:
    return job.user or "this user"
