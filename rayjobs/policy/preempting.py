"""Selects the running jobs to preempt for a waiting one of higher priority."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rayjobs.policy.order import SortKey, sort_key
from rayjobs.policy.records import Limits, Running, Waiting
from rayjobs.policy.reserving import with_capacity_of
from rayjobs.policy.shapes import NodeCapacity, take


def is_enough_ending(
    head: Waiting, running: Sequence[Running], capacities: Sequence[NodeCapacity], *, slots: float
) -> bool:
    """Return whether `head` fits after the end of the jobs that are already ending."""
    ending = [one for one in running if one.is_ending]
    return (
        bool(ending)
        and slots + len(ending) >= 1
        and take(with_capacity_of(ending, capacities), head.shape) is not None
    )


def victims(
    head: Waiting,
    head_sort_key: SortKey,
    running: Sequence[Running],
    capacities: Sequence[NodeCapacity],
    *,
    limits: Limits,
    now_s: float,
    slots: float = math.inf,
) -> tuple[list[Running], tuple[str, ...]] | None:
    """Return the jobs to preempt so that `head` can start, and its nodes then, or None.

    Candidates are preemptible jobs of lower priority, and jobs that still wait for nodes to start,
    if they return *behind* the head in line: so the head is never preempted for one of them in
    turn. This prefers few victims, then little lost work: for each bundle, it clears the cheapest
    node, and finally it spares victims that are not needed.

    Args:
        slots: How many more jobs the target may run.
    """
    candidates = [
        one
        for one in running
        if (one.is_scaling or (one.preemptible and one.priority < head.priority))
        and not one.is_ending
        and (one.group is None or one.group != head.group)
        and sort_key(one, limits) > head_sort_key
    ]
    if not candidates:
        return None
    ending = [one for one in running if one.is_ending]
    base = with_capacity_of(ending, capacities)
    chosen = _clear(head, base, candidates, now_s)
    if chosen is None:
        return None
    if not chosen and slots + len(ending) < 1:
        chosen = [min(candidates, key=lambda one: _cost(one, now_s))]
    for one in sorted(chosen, key=lambda one: _cost(one, now_s), reverse=True):
        others = [other for other in chosen if other is not one]
        enough = slots + len(ending) + len(others) >= 1
        if enough and take(with_capacity_of(others, base), head.shape) is not None:
            chosen = others
    taken = take(with_capacity_of(chosen, base), head.shape)
    assert taken is not None
    return chosen, taken[1]


def _clear(
    head: Waiting, capacities: Sequence[NodeCapacity], candidates: Sequence[Running], now_s: float
) -> list[Running] | None:
    """Return jobs whose end makes every bundle of `head` fit."""
    left = list(capacities)
    chosen: list[Running] = []
    used: set[str] = set()
    for _ in range(head.shape.nodes):
        best: tuple[tuple[int, float], int, list[Running]] | None = None
        for index, capacity in enumerate(left):
            if head.shape.spread and capacity.node_id in used:
                continue
            here = [
                one for one in candidates if capacity.node_id in one.nodes and one not in chosen
            ]
            needed = _on_one_node(head, capacity, here, now_s)
            if needed is None:
                continue
            cost = (len(needed), sum(_loss_s(one, now_s) for one in needed))
            if best is None or cost < best[0]:
                best = (cost, index, needed)
        if best is None:
            return None
        _, index, needed = best
        left = with_capacity_of(needed, left)
        used.add(left[index].node_id)
        left[index] = left[index].less(head.shape)
        chosen += needed
    return chosen


def _on_one_node(
    head: Waiting, capacity: NodeCapacity, here: Sequence[Running], now_s: float
) -> list[Running] | None:
    """Return few jobs on one node whose end makes a bundle fit; None if even all are too few."""

    def fits(ended: Sequence[Running]) -> bool:
        return with_capacity_of(ended, [capacity])[0].holds(head.shape)

    if fits([]):
        return []
    if not fits(here):
        return None
    by_cost = sorted(here, key=lambda one: _cost(one, now_s))
    for one in by_cost:  # usually one is enough
        if fits([one]):
            return [one]
    # The largest first, for few victims.
    chosen: list[Running] = []
    for one in sorted(
        by_cost, key=lambda one: (-one.shape.gpus, -one.shape.cpus, *_cost(one, now_s))
    ):
        chosen.append(one)
        if fits(chosen):
            break
    for one in sorted(chosen, key=lambda one: _cost(one, now_s), reverse=True):
        others = [other for other in chosen if other is not one]
        if fits(others):
            chosen = others
    return chosen


def _loss_s(job: Running, now_s: float) -> float:
    """Return how many seconds of work are lost if the job stops now."""
    if job.started_s is None:
        return 0.0
    # If the newest checkpoint is older than this attempt, only the attempt's own work is lost.
    return max(0.0, now_s - max(job.started_s, job.saved_s or job.started_s))


def _cost(job: Running, now_s: float) -> tuple[float, float, float, tuple[str, int, str]]:
    """Return the sort key of victims: lower priority, less lost work, later submission."""
    return (float(job.priority), _loss_s(job, now_s), -job.submitted_s, job.order)
