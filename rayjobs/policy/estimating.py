"""When those who wait will probably start: the line played forward."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from rayjobs.policy.durations import ELAPSED, LIMITS, likely_duration_s, likely_end_s
from rayjobs.policy.records import Running
from rayjobs.policy.reserving import with_room_of
from rayjobs.policy.shapes import Shape, take

if TYPE_CHECKING:
    from rayjobs.policy.deciding import Plan

# So far down the line; what comes later depends on too much that is not known.
DEPTH = 1000
# The weakest of what an estimate is built on is what it is built on.
_WEAKNESS = {"": 0, "history": 1, LIMITS: 2, ELAPSED: 3}


def estimates(plan: Plan) -> dict[str, tuple[float, str]]:
    """Return for each job in the line the seconds until its start, and the basis.

    The line is played in its order without passing, each job for its probable time. A job whose
    time is not known is taken to stay: those who need its room have no estimate, nor those
    behind them. Limits of users and arrays, and jobs that are still to come, are not foreseen.
    """
    situation = plan.situation
    now_s = situation.now_s
    rooms = list(plan.rooms)
    ends: list[tuple[float, str, str, Running]] = []  # the key is unique: no Running is compared

    def ends_at(job: Running, at_s: float, basis: str) -> None:
        heapq.heappush(ends, (at_s, job.key, basis, job))

    for one in situation.running:
        at_s, basis = likely_end_s(one, now_s)
        ends_at(one, at_s, basis)
    for start in plan.starts:
        job = plan.by_key[start.key]
        duration_s, basis = likely_duration_s(job)
        if duration_s is not None:
            ends_at(_placed(job.key, job.shape, start.nodes), now_s + duration_s, basis)
    clock_s, weakest = now_s, ""
    found: dict[str, tuple[float, str]] = {}
    for key in plan.queue[:DEPTH]:
        job = plan.by_key[key]
        # Of the head the policy has just said so: a limit may be what it waits for.
        taken = None if key == plan.head else take(rooms, job.shape)
        while taken is None and ends:
            at_s, _, basis, ended = heapq.heappop(ends)
            clock_s = max(clock_s, at_s)
            weakest = max(weakest, basis, key=_WEAKNESS.__getitem__)
            rooms = with_room_of([ended], rooms)
            taken = take(rooms, job.shape)
        if taken is None:
            break
        rooms = taken[0]
        if key == plan.head and plan.kept is not None and plan.kept.likely_s == clock_s:
            weakest = plan.kept.basis  # others that end before are no part of it
        found[key] = (clock_s - now_s, weakest)
        duration_s, basis = likely_duration_s(job)
        if duration_s is not None:
            ends_at(_placed(key, job.shape, taken[1]), clock_s + duration_s, basis)
    return found


def _placed(key: str, shape: Shape, nodes: tuple[str, ...]) -> Running:
    return Running(key=key, priority=0, order=("", 0, key), shape=shape, nodes=nodes)
