"""Simulates a trace: the target's own policy, on a pool of nodes with simulated time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from rayjobs.core.errors import UsageError
from rayjobs.core.text import counted
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy import (
    Decisions,
    Limits,
    NodeCapacity,
    Reservation,
    Running,
    Shape,
    Situation,
    Waiting,
    decide,
    take,
)
from rayjobs.policy.durations import as_running
from rayjobs.policy.simulate.trace import TraceJob

POLICIES: Mapping[str, Limits] = {
    "fifo": Limits(backfill=False, preemption=False),
    "backfill": Limits(preemption=False),
    "backfill+preempt": Limits(),
}
# How long a preempted job keeps its nodes. It loses the work after its last checkpoint, which is at
# the last whole multiple of `checkpoint_s`.
GRACE_S = 10.0


@dataclass(frozen=True)
class Pool:
    """The nodes of a simulation."""

    nodes: int = 4
    gpus: float = 8.0
    cpus: float = 64.0

    def capacities(self) -> list[NodeCapacity]:
        """Return them, empty."""
        return [
            NodeCapacity(f"node{index}", self.cpus, self.gpus, 0.0, self.cpus, self.gpus, 0.0)
            for index in range(self.nodes)
        ]


@dataclass
class Outcome:
    """The outcome of one job of a trace.

    Attributes:
        started_s: When it first started.
        ended_s: When it finished.
        spells: Each stay on nodes: (from, until, nodes).
        lost_s: Work done twice, since it was preempted after its last checkpoint.
    """

    job: TraceJob
    started_s: float | None = None
    ended_s: float | None = None
    spells: list[tuple[float, float, tuple[str, ...]]] = field(default_factory=list)
    preempted: int = 0
    lost_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """From its submission to its first start."""
        assert self.started_s is not None
        return self.started_s - self.job.submit_s


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A policy's figures on a trace. Waits are from submission to first start, in seconds.

    Attributes:
        top_wait_s: Mean wait of the jobs of the highest priority in the trace.
        utilisation: Share of GPU time in use until the last end (CPU time if no job uses GPUs).
        lost_s: Work done twice because jobs were preempted.
    """

    policy: str
    jobs: int
    mean_wait_s: float
    p50_wait_s: float
    p95_wait_s: float
    max_wait_s: float
    top_wait_s: float
    makespan_s: float
    utilisation: float
    preemptions: int
    lost_s: float


def play(
    trace: Sequence[TraceJob],
    pool: Pool,
    limits: Limits,
    *,
    checkpoint_s: float = 600.0,
    watch: Callable[[Decisions], None] = lambda _decisions: None,
) -> list[Outcome]:
    """Return the outcome of every job. Pure: the same trace gives the same outcome.

    Args:
        checkpoint_s: A preempted job continues from the last whole multiple of this.
        watch: Sees every decision.

    Raises:
        UsageError: a job that can never fit into the pool or start within the limits.
    """
    empty = pool.capacities()
    for job in trace:
        if take(empty, shape_of(job)) is None:
            raise UsageError(
                f"job {job.job!r} asks for {shape_of(job).describe()}; the pool has "
                f"{counted(pool.nodes, 'node')} with {counted(pool.cpus, 'CPU')} and "
                f"{counted(pool.gpus, 'GPU')}. Give a larger pool with --nodes, --gpus and --cpus."
            )
    return _World(trace, empty, limits, checkpoint_s, watch).run()


def shape_of(job: TraceJob) -> Shape:
    """Return the shape of a trace's job: each bundle needs its own node."""
    return Shape(nodes=job.nodes, cpus=job.cpus, gpus=job.gpus, spread=job.nodes > 1)


def figures(policy: str, outcomes: Sequence[Outcome], pool: Pool) -> Figures:
    """Return the figures of a simulated trace."""
    waits = sorted(one.waited_s for one in outcomes)
    first_s = min(one.job.submit_s for one in outcomes)
    last_s = max(one.ended_s or 0.0 for one in outcomes)
    makespan_s = last_s - first_s
    highest = max(one.job.priority for one in outcomes)
    top = [one.waited_s for one in outcomes if one.job.priority == highest]
    by_gpus = any(one.job.gpus for one in outcomes)
    used = sum(
        (until - since) * one.job.nodes * (one.job.gpus if by_gpus else one.job.cpus)
        for one in outcomes
        for since, until, _ in one.spells
    )
    has = pool.nodes * (pool.gpus if by_gpus else pool.cpus) * makespan_s
    return Figures(
        policy=policy,
        jobs=len(outcomes),
        mean_wait_s=sum(waits) / len(waits),
        p50_wait_s=_quantile(waits, 0.5),
        p95_wait_s=_quantile(waits, 0.95),
        max_wait_s=waits[-1],
        top_wait_s=sum(top) / len(top),
        makespan_s=makespan_s,
        utilisation=used / has if has else 0.0,
        preemptions=sum(one.preempted for one in outcomes),
        lost_s=sum(one.lost_s for one in outcomes),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


class _World:
    """The state of the simulation: waiting and running jobs, and the next events."""

    def __init__(
        self,
        trace: Sequence[TraceJob],
        empty: list[NodeCapacity],
        limits: Limits,
        checkpoint_s: float,
        watch: Callable[[Decisions], None],
    ) -> None:
        self.outcomes = {job.job: Outcome(job) for job in trace}
        self.coming = sorted(trace, key=lambda job: (job.submit_s, job.job), reverse=True)
        self.capacities = {capacity.node_id: capacity for capacity in empty}
        self.limits = limits
        self.checkpoint_s = checkpoint_s
        self.watch = watch
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, Running] = {}
        self.left_s = {job.job: job.work_s for job in trace}
        # (when, number of the spell, key); an end of an older spell is ignored.
        self.ends: list[tuple[float, int, str]] = []
        self.spell: dict[str, int] = {}
        self.spells = 0
        self.reservation: Reservation | None = None
        self.now_s = 0.0

    def run(self) -> list[Outcome]:
        while self.coming or self.ends or self.waiting:
            times = [self.coming[-1].submit_s] if self.coming else []
            times += [self.ends[0][0]] if self.ends else []
            if not times:
                key = next(iter(self.waiting))
                raise UsageError(
                    f"job {key!r} never starts within these limits; raise them, or leave it out."
                )
            self.now_s = max(self.now_s, min(times))
            self._end_what_is_due()
            while self.coming and self.coming[-1].submit_s <= self.now_s:
                self._submit(self.coming.pop())
            if self.waiting:
                self._decide()
        return list(self.outcomes.values())

    def _submit(self, job: TraceJob) -> None:
        self.waiting[job.job] = Waiting(
            key=job.job,
            priority=job.priority,
            order=(f"{job.submit_s:020.6f}", 0, job.job),
            shape=shape_of(job),
            submitted_s=job.submit_s,
            user=job.user,
            group=job.group,
            preemptible=job.preemptible,
            max_duration_s=job.cap_s,
            grace_s=GRACE_S,
            expected_s=job.expected_s,
        )

    def _end_what_is_due(self) -> None:
        while self.ends and self.ends[0][0] <= self.now_s:
            _, number, key = heapq.heappop(self.ends)
            if self.spell.get(key) == number:
                self._end(key)

    def _end(self, key: str) -> None:
        held, outcome = self.running.pop(key), self.outcomes[key]
        del self.spell[key]
        for node in held.nodes:
            shape = held.shape
            self.capacities[node] = self.capacities[node].plus(shape.cpus, shape.gpus, shape.memory)
        started_s = held.started_s if held.started_s is not None else self.now_s
        outcome.spells.append((started_s, self.now_s, held.nodes))
        if not held.is_ending:
            outcome.ended_s = self.now_s
            return
        ran_s = self.now_s - started_s
        if ran_s >= self.left_s[key]:
            outcome.ended_s = self.now_s  # it finished before its preemption
            return
        kept_s = math.floor(ran_s / self.checkpoint_s) * self.checkpoint_s
        outcome.preempted += 1
        outcome.lost_s += ran_s - kept_s
        self.left_s[key] -= kept_s
        self._submit(outcome.job)

    def _decide(self) -> None:
        decisions = decide(
            Situation(
                waiting=list(self.waiting.values()),
                running=list(self.running.values()),
                capacities=list(self.capacities.values()),
                limits=self.limits,
                now_s=self.now_s,
                reservation=self.reservation,
            )
        )
        self.watch(decisions)
        self.reservation = decisions.reservation
        for start in decisions.starts:
            self._start(self.waiting.pop(start.key), start.nodes)
        for one in decisions.preempts:
            self.running[one.key] = replace(self.running[one.key], is_ending=True)
            self._ends_at(one.key, min(self.now_s + GRACE_S, self._end_of(one.key)))

    def _start(self, job: Waiting, nodes: tuple[str, ...]) -> None:
        for node in nodes:
            self.capacities[node] = self.capacities[node].less(job.shape)
        self.running[job.key] = replace(as_running(job, nodes), started_s=self.now_s)
        outcome = self.outcomes[job.key]
        if outcome.started_s is None:
            outcome.started_s = self.now_s
        self._ends_at(job.key, self.now_s + self.left_s[job.key])

    def _end_of(self, key: str) -> float:
        started_s = self.running[key].started_s
        assert started_s is not None
        return started_s + self.left_s[key]

    def _ends_at(self, key: str, at_s: float) -> None:
        self.spells += 1
        self.spell[key] = self.spells
        heapq.heappush(self.ends, (at_s, self.spells, key))
