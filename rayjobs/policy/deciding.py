"""Makes the decision in one pass along the queue."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from rayjobs.policy.decisions import Decisions
from rayjobs.policy.durations import as_running, worst_duration_s
from rayjobs.policy.order import SortKey, line_of, used_by_users
from rayjobs.policy.preempting import is_enough_ending, victims
from rayjobs.policy.records import (
    Preempt,
    Reservation,
    Rule,
    Situation,
    Start,
    Waiting,
)
from rayjobs.policy.reserving import Kept, keep, least
from rayjobs.policy.shapes import NodeCapacity, Shape, take

# How many jobs are tried behind the first in line; the others wait for the next decision.
BACKFILL_TRIES = 1000


def decide(situation: Situation) -> Decisions:
    """Return which jobs start, which are preempted for them, and why the others wait.

    Pure. In queue order, each job starts that fits and is within the limits. The first that does
    not fit is the head: running jobs are preempted for it if allowed, otherwise capacity is
    reserved for it, and only jobs that cannot delay it start before it.
    """
    return _Pass(situation).run()


class _Tried:
    """The results for one shape. They stay valid in one decision: capacity only decreases."""

    __slots__ = ("fits_ever", "no_capacity", "no_spare")

    def __init__(self, fits_ever: bool) -> None:
        self.fits_ever = fits_ever
        self.no_capacity = False
        self.no_spare = False


class _Pass:
    """One pass along the queue that never exceeds capacity or a limit."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.limits = situation.limits
        self.now_s = situation.now_s
        self.by_key = {job.key: job for job in situation.waiting}
        self.capacities = list(situation.capacities)
        self.index = {capacity.node_id: number for number, capacity in enumerate(self.capacities)}
        self.running = list(situation.running)
        self.jobs, gpus = used_by_users(situation.running)
        self.gpus = dict(gpus)
        self.line, self.sort_keys, self.refused = line_of(situation)
        self.starts: list[Start] = []
        self.preempts: list[Preempt] = []
        self.halted: set[str] = set()
        self.tried: dict[Shape, _Tried] = {}
        self.head: Waiting | None = None
        self.head_rule = Rule.CAPACITY
        self.kept: Kept | None = None
        # Behind the head: the capacity for a job that ends in time, and for one that may not.
        self.spare: dict[str, NodeCapacity] = {}
        self.backfill: list[NodeCapacity] = []
        self.until_s = -math.inf
        self.tries = BACKFILL_TRIES
        # Nodes that have to start for this decision's jobs.
        self.growing: set[str] = set()

    def run(self) -> Decisions:
        """Return the decisions."""
        is_limited = self.limits.jobs_per_user is not None or self.limits.gpus_per_user is not None
        for job in self.line:
            tried = self.tried.get(job.shape) or self._try_empty(job.shape)
            if not tried.fits_ever:
                self.refused[job.key] = Rule.NEVER_FITS
                continue
            if is_limited and not self._within_user_limits(job):
                continue
            if self.head is not None:
                if self.tries > 0:
                    self._pass_by(job, tried)
                elif not is_limited:
                    break
                continue
            taken = self._take(self.capacities, job) if self._slots() >= 1 else None
            if taken is None:
                self._stop_at(job)
                continue
            self._start(job, taken[1], backfilled=False)
        refused = self.refused
        return Decisions(
            situation=self.situation,
            by_key=self.by_key,
            starts=tuple(self.starts),
            preempts=tuple(self.preempts),
            reservation=None if self.kept is None else self.kept.reservation,
            line=tuple(job.key for job in self.line if job.key not in refused),
            refused=refused,
            head=None if self.head is None else self.head.key,
            head_rule=self.head_rule,
            kept=self.kept,
            capacities=tuple(self.capacities),
        )

    # -- limits ----------------------------------------------------------------------------------
    def _slots(self) -> float:
        return math.inf if self.limits.jobs is None else self.limits.jobs - len(self.running)

    def _try_empty(self, shape: Shape) -> _Tried:
        """Record and return whether the shape fits on empty nodes."""
        empty = [capacity.emptied() for capacity in self.situation.capacities]
        self.tried[shape] = tried = _Tried(take(empty, shape) is not None)
        return tried

    def _within_user_limits(self, job: Waiting) -> bool:
        """Whether its user may run it now; if not, that user's later jobs keep their order."""
        most_jobs, most_gpus = self.limits.jobs_per_user, self.limits.gpus_per_user
        gpus = job.gpus if most_gpus is not None else 0.0
        if most_gpus is not None and gpus > most_gpus + 1e-6:
            # It can never run: the user's other jobs need not wait for it.
            self.refused[job.key] = Rule.USER_GPUS
            return False
        if job.user in self.halted:
            self.refused[job.key] = Rule.OWN_ORDER
            return False
        if most_jobs is not None and self.jobs[job.user] >= most_jobs:
            self.refused[job.key] = Rule.USER_JOBS
        elif (
            most_gpus is not None
            and gpus > 0
            and self.gpus.get(job.user, 0.0) + gpus > most_gpus + 1e-6
        ):
            self.refused[job.key] = Rule.USER_GPUS
        else:
            return True
        self.halted.add(job.user)
        return False

    # -- starts ----------------------------------------------------------------------------------
    def _start(self, job: Waiting, nodes: tuple[str, ...], *, backfilled: bool) -> None:
        self.starts.append(Start(job.key, nodes, backfilled))
        self.running.append(as_running(job, nodes))
        self.jobs[job.user] += 1
        self.gpus[job.user] = self.gpus.get(job.user, 0.0) + job.gpus
        for node in nodes:
            at = self.index[node]
            self.capacities[at] = self.capacities[at].less(job.shape)
        self.growing |= self._to_start(nodes)

    def _take(
        self, capacities: Sequence[NodeCapacity], job: Waiting
    ) -> tuple[list[NodeCapacity], tuple[str, ...]] | None:
        """Return the capacities with the job's shape taken and its nodes, or None.

        None if there is no capacity, if too many nodes would have to start, or if a job of another
        shape already waits for new nodes of these types. Ray does not keep the order of waiting
        groups: a later small one would take the node that a large one waits for.
        """
        taken = take(capacities, job.shape)
        if taken is None:
            return None
        fresh = self._to_start(taken[1])
        most = self.situation.may_start
        if most is not None and fresh and len(fresh | self.growing) > most:
            return None
        types = self._types_of(fresh)
        if types and any(
            one.shape != job.shape and types & self._types_of(self._to_start(one.nodes))
            for one in self.running
        ):
            return None
        return taken

    def _to_start(self, nodes: Sequence[str]) -> set[str]:
        """Return the given nodes that are not up."""
        return {
            node
            for node in nodes
            if node in self.index and not self.capacities[self.index[node]].is_up
        }

    def _types_of(self, nodes: Collection[str]) -> set[str]:
        return {self.capacities[self.index[node]].node_type for node in nodes}

    # -- the head --------------------------------------------------------------------------------
    def _stop_at(self, job: Waiting) -> None:
        """Make the first job without capacity wait, and reserve its capacity."""
        self.head = job
        old = self.situation.reservation
        slots = self._slots()
        if slots < 1:
            self.head_rule = Rule.TARGET_JOBS
        preempted = self._preempt_for(job, self.sort_keys[job.key], slots)
        if preempted is not None:
            old = preempted
        if slots < 1:
            self.tries = 0  # no other job may start
        if not self.limits.backfill:
            self.tries = 0
        self.kept = keep(job, self.running, self.capacities, now_s=self.now_s, old=old, slots=slots)
        self.until_s = self.kept.until_s
        self.spare = dict(self.kept.spare)
        self.backfill = [
            least(capacity, self.spare.get(capacity.node_id)) for capacity in self.capacities
        ]

    def _preempt_for(self, job: Waiting, sort_key: SortKey, slots: float) -> Reservation | None:
        """Select the jobs to preempt for the head; return the reservation of their capacity."""
        if is_enough_ending(job, self.running, self.capacities, slots=slots):
            self.head_rule = Rule.YIELDING
            return None
        if not self.limits.preemption:
            return None
        found = victims(
            job,
            sort_key,
            # Jobs that this decision starts have not begun: they are ahead of the head.
            self.running[: len(self.situation.running)],
            self.capacities,
            limits=self.limits,
            now_s=self.now_s,
            slots=slots,
        )
        if found is None or not found[0]:
            return None
        chosen, nodes = found
        reason = f"its resources are needed for a job of priority {job.priority}"
        self.preempts = [Preempt(one.key, job.key, reason) for one in chosen]
        preempted = {one.key for one in chosen}
        self.running = [
            replace(one, is_ending=True) if one.key in preempted else one for one in self.running
        ]
        self.head_rule = Rule.YIELDING
        return Reservation(
            key=job.key, nodes=nodes, at_s=self.now_s, by_preemption=True, shape=job.shape
        )

    # -- behind the head -------------------------------------------------------------------------
    def _pass_by(self, job: Waiting, tried: _Tried) -> None:
        """Start a job behind the head if that cannot delay the head."""
        slots = self._slots()
        if slots < 1:
            self.tries = 0
            return
        if not self._leaves_users_share(job):
            return
        # A job without a time limit must also leave the head a slot.
        if slots >= 2 and not tried.no_spare:
            self.tries -= 1
            taken = self._take(self.backfill, job)
            if taken is not None:
                for node in taken[1]:
                    if node in self.spare:
                        self.spare[node] = self.spare[node].less(job.shape)
                self._backfill(job, taken[1])
                return
            tried.no_spare = True
        if tried.no_capacity or self.now_s + worst_duration_s(job) > self.until_s:
            return
        self.tries -= slots < 2  # otherwise counted above, or for an earlier job of this shape
        taken = self._take(self.capacities, job)
        if taken is None:
            tried.no_capacity = True
        else:
            self._backfill(job, taken[1])

    def _leaves_users_share(self, job: Waiting) -> bool:
        """Whether the limits of the head's user still allow the head while the job runs.

        It does not matter how soon the job would end: until then, the head would be refused and
        would have no reservation.
        """
        head, limits = self.head, self.limits
        assert head is not None
        if job.user != head.user:
            return True
        if limits.jobs_per_user is not None and self.jobs[job.user] + 2 > limits.jobs_per_user:
            return False
        if limits.gpus_per_user is None or not (job.gpus and head.gpus):
            return True
        gpus = self.gpus.get(job.user, 0.0) + job.gpus + head.gpus
        return gpus <= limits.gpus_per_user + 1e-6

    def _backfill(self, job: Waiting, nodes: tuple[str, ...]) -> None:
        self._start(job, nodes, backfilled=True)
        for node in nodes:
            at = self.index[node]
            self.backfill[at] = least(self.capacities[at], self.spare.get(node))
