"""Estimates when waiting jobs will start, by simulating the queue."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Mapping

from rayjobs.core.text import counted
from rayjobs.policy.decisions import Decisions
from rayjobs.policy.durations import (
    ELAPSED,
    HISTORY,
    LIMITS,
    OUTRUN,
    SCRIPT,
    UNKNOWN,
    likely_duration_s,
    predicted_end_s,
    source_of,
)
from rayjobs.policy.records import Rule, Running, Waiting
from rayjobs.policy.reserving import with_capacity_of
from rayjobs.policy.shapes import NodeCapacity, take

# For how many jobs in line estimates are kept up to date; later ones are made on request.
DEPTH = 1000
# An estimate's basis is the weakest of the bases that it uses.
_WEAKNESS = {"": 0, HISTORY: 1, SCRIPT: 2, LIMITS: 3, ELAPSED: 4, OUTRUN: 5}
# How many scripts are named as the source of an estimate.
NAMED_SOURCES = 2


def estimates(decisions: Decisions) -> Mapping[str, tuple[float, str]]:
    """Return the seconds until their start, and the basis, for the first `DEPTH` jobs in line.

    This simulates the queue in its order without backfill; each job runs for its probable time. A
    job of unknown duration is assumed never to end: jobs that need its resources have no estimate,
    and neither do jobs behind them or jobs that depend on it. Members that their array holds back,
    and jobs that depend on others, join the end of the line when they may start. Limits of users,
    pauses, and future jobs are not considered.
    """
    if decisions.estimated is None:
        decisions.estimated = _Play(decisions).run(DEPTH)
    return decisions.estimated


def estimate(decisions: Decisions, key: str) -> tuple[float | None, str]:
    """Return the seconds until one job probably starts (None: unknown), and the basis.

    Unlike `estimates`, this covers any job, however far down the line.
    """
    if decisions.rule(key) in (Rule.START, Rule.HELD, Rule.NEVER_FITS):
        return None, ""
    known = estimates(decisions)
    found = known.get(key)
    if found is None and len(known) >= DEPTH:
        found = _Play(decisions).run(len(decisions.by_key)).get(key)
    return (None, UNKNOWN) if found is None else found


class _Play:
    """One simulation."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.clock_s = self.now_s = decisions.situation.now_s
        self.capacities = list(decisions.capacities)
        limits = decisions.situation.limits
        held = len(decisions.situation.running) + len(decisions.starts)
        self.slots = math.inf if limits.jobs is None else limits.jobs - held
        self.weakest = ""
        self.sources: dict[str, dict[str, None]] = {}  # basis → whose runs, in order
        # The key is unique: no Running is compared.
        self.ends: list[tuple[float, str, str, Running]] = []
        self.line: deque[str] = deque(decisions.queue)
        self.held_back: dict[str, deque[str]] = defaultdict(deque)  # group → its next jobs
        self.children: dict[str, list[str]] = defaultdict(list)  # parent → jobs that wait for it
        self.parents: dict[str, set[str]] = {}
        for key, rule in decisions.refused.items():
            job = decisions.by_key[key]
            if rule is Rule.ARRAY_LIMIT and job.group is not None:
                self.held_back[job.group].append(key)
            elif rule is Rule.DEPENDENCY and job.after:
                self.parents[key] = set(job.after)
                for parent in job.after:
                    self.children[parent].append(key)

    def run(self, depth: int) -> dict[str, tuple[float, str]]:
        """Return the estimates of the first `depth` jobs."""
        decisions, found = self.decisions, dict[str, tuple[float, str]]()
        for one in decisions.situation.running:
            at_s, basis = predicted_end_s(one, self.now_s)
            if at_s is not None:
                heapq.heappush(self.ends, (at_s, one.key, basis, one))
        for start in decisions.starts:
            self._begin(decisions.by_key[start.key], start.nodes)
        while len(found) < depth and (self.line or self.ends):
            if not self.line:
                self._next_end()
                continue
            job = decisions.by_key[self.line.popleft()]
            # The policy has just decided that the head does not start: it may wait for a limit.
            taken = None if job.key == decisions.head else self._take(job)
            while taken is None and self.ends:
                self._next_end()
                taken = self._take(job)
            if taken is None:
                break
            self.capacities = taken[0]
            self.slots -= 1
            basis = self.weakest
            if (
                job.key == decisions.head
                and decisions.kept is not None
                and decisions.kept.likely_s == self.clock_s
            ):
                # The earlier ends of other jobs do not matter.
                basis = self.weakest = decisions.kept.basis
                self.sources = (
                    {basis: {decisions.kept.source: None}} if decisions.kept.source else {}
                )
            found[job.key] = (self.clock_s - self.now_s, basis)
            decisions.sources[job.key] = _named(self.sources.get(basis, {}), basis)
            self._begin(job, taken[1])
        return found

    def _take(self, job: Waiting) -> tuple[list[NodeCapacity], tuple[str, ...]] | None:
        return take(self.capacities, job.shape) if self.slots >= 1 else None

    def _begin(self, job: Waiting, nodes: tuple[str, ...]) -> None:
        duration_s, basis = likely_duration_s(job)
        if duration_s is not None:
            order = ("", 0, job.key)
            one = Running(
                key=job.key,
                priority=0,
                order=order,
                shape=job.shape,
                nodes=nodes,
                group=job.group,
                expected_from=job.expected_from,
            )
            heapq.heappush(self.ends, (self.clock_s + duration_s, job.key, basis, one))

    def _next_end(self) -> None:
        """End the next job, and add the jobs that waited for it to the line."""
        at_s, key, basis, ended = heapq.heappop(self.ends)
        self.clock_s = max(self.clock_s, at_s)
        self.weakest = max(self.weakest, basis, key=_WEAKNESS.__getitem__)
        source = source_of(ended, basis)
        if source:
            self.sources.setdefault(basis, {})[source] = None
        self.capacities = with_capacity_of([ended], self.capacities)
        self.slots += 1
        if ended.group is not None and self.held_back[ended.group]:
            self.line.append(self.held_back[ended.group].popleft())
        for child in self.children.pop(key, ()):
            self.parents[child].discard(key)
            if not self.parents[child]:
                self.line.append(child)


def _named(sources: dict[str, None], basis: str) -> str:
    """Return whose runs an estimate is based on, or which job has outrun them, for users."""
    if len(sources) > NAMED_SOURCES and basis == OUTRUN:
        return f"{len(sources)} jobs have already outrun all earlier runs of their scripts"
    if len(sources) > NAMED_SOURCES:
        return f"earlier runs of {counted(len(sources), 'script')}"
    return " and ".join(sources)
