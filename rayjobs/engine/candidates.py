"""Turns records of the queue and of attempts into plain figures for the policy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.engine.board import QueueView, Served, counts_preemptions
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.queue_records import Durations
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.policy import Rule, Running, Shape, Waiting, capacity
from rayjobs.protocol.agent import NodeInfo


class Learned(NamedTuple):
    """How long jobs of one (experiment, entry) take; see `policy.Waiting` and `policy.Running`."""

    known: Durations
    basis: str
    source: str


Usual = Mapping[tuple[str, str], Learned]
_Seen = tuple[Served, Mapping[str, Job], Mapping[str, JobState]]


@dataclass(frozen=True)
class _Made:
    served: Served
    job: Job
    record: Waiting


class Candidates:
    """Makes the policy's records, and reuses those of unchanged jobs.

    Attributes:
        doomed: Jobs that can never start because of a parent, by key, with the reason.
        faulty: Jobs that cause an error here, by key, with the reason. One bad job must not stop
            the whole queue.
    """

    def __init__(self, *, shares_machine: bool) -> None:
        self.doomed: dict[str, tuple[Served, Job, str]] = {}
        self.faulty: dict[str, tuple[Served, Job, Exception]] = {}
        self._shares_machine = shares_machine
        self._capacity: capacity.Capacity | None = None
        self._made: dict[str, _Made] = {}
        # What the records were made from.
        self._views: list[_Seen] = []
        self._usual: Usual = {}
        self._left_out: frozenset[str] = frozenset()
        self._records: list[Waiting] = []

    def look_at(self, nodes: Sequence[NodeInfo]) -> None:
        """Update the nodes: shapes depend only on their sizes."""
        shapes = tuple(capacity.NodeShape(node.cpus, node.gpus, int(node.memory)) for node in nodes)
        now = capacity.Capacity(
            nodes=shapes, max_nodes=len(shapes), shares_machine=self._shares_machine
        )
        if now != self._capacity:
            self._capacity = now
            self._made, self._views = {}, []

    def shape_of(self, job: Job) -> Shape:
        """Return the resources of the job's allocation on this target."""
        assert self._capacity is not None, "call look_at first"
        return Shape.from_dict(capacity.plan_shape(job.spec, self._capacity).shape)

    def job(self, key: str) -> tuple[Served, Job] | None:
        """Return the waiting job with this key, or None."""
        made = self._made.get(key)
        return None if made is None else (made.served, made.job)

    def records(
        self, views: Sequence[QueueView], *, usual: Usual, without: Collection[str] = ()
    ) -> list[Waiting]:
        """Return the queued jobs for the policy; the same list while nothing changes.

        Args:
            usual: How long jobs of each entry take.
            without: Keys of jobs that are being started.
        """
        seen: list[_Seen] = [(view.served, view.queued, view.parents) for view in views]
        if not self._is_seen(seen) or usual != self._usual:
            self._make(seen, usual)
            self._views, self._usual, self._left_out = seen, dict(usual), frozenset()
            self._records = [made.record for made in self._made.values()]
        left_out = frozenset(key for key in without if key in self._made)
        if left_out != self._left_out:
            self._left_out = left_out
            self._records = [made.record for key, made in self._made.items() if key not in left_out]
        return self._records

    def _is_seen(self, seen: Sequence[_Seen]) -> bool:
        # Views replace changed objects, so identical objects are unchanged jobs.
        return len(seen) == len(self._views) and all(
            one is other
            for now, before in zip(seen, self._views, strict=True)
            for one, other in zip(now, before, strict=True)
        )

    def _make(
        self,
        seen: Sequence[_Seen],
        usual: Usual,
    ) -> None:
        known, same = self._made, usual == self._usual
        found: dict[str, _Made] = {}
        doomed: dict[str, tuple[Served, Job, str]] = {}
        faulty: dict[str, tuple[Served, Job, Exception]] = {}
        for served, queued, parents in seen:
            came_s = _came_s(served, queued)
            for key, job in queued.items():
                made = known.get(key)
                if made is not None and made.record.submitted_s != came_s[key]:
                    made = None
                # A new object means a changed job: views keep the objects of unchanged ones.
                if made is not None and made.job is job and same and not job.spec.depends_on:
                    found[key] = made
                    continue
                try:
                    blocked, ends = _blocked(job, parents)
                    if ends:
                        doomed[key] = (served, job, blocked or "")
                    record = self.waiting(
                        served, job, blocked=blocked, usual=usual, came_s=came_s[key]
                    )
                    found[key] = _Made(served, job, record)
                except Exception as error:
                    faulty[key] = (served, job, error)
        self._made, self.doomed, self.faulty = found, doomed, faulty

    def waiting(
        self, served: Served, job: Job, *, blocked: str | None, usual: Usual, came_s: float
    ) -> Waiting:
        """Return a queued job for the policy.

        Args:
            blocked: Which other jobs it waits for; None: none.
            usual: How long jobs like it take.
            came_s: When it arrived, see `_came_s`.
        """
        key = served.key(job.id)
        learned = usual.get((job.experiment, job.spec.entry))
        return Waiting(
            key=key,
            priority=job.priority,
            order=("", job.serial, key),
            shape=self.shape_of(job),
            submitted_s=came_s,
            user=job.user,
            group=_group(served, job),
            group_limit=job.group_limit,
            preemptible=job.spec.preemptible,
            max_duration_s=job.spec.max_duration_s,
            grace_s=job.spec.grace_s,
            expected_s=None if learned is None else learned.known.median_s,
            expected_basis="history" if learned is None else learned.basis,
            expected_from="" if learned is None else learned.source,
            not_before_s=_seconds(job.not_before),
            blocked_by=_hold_text(job.held, blocked) if job.held else blocked,
            blocked_rule=Rule.HELD if job.held else Rule.DEPENDENCY,
            after=() if blocked is None else _after(served, job),
        )

    def running(
        self, supervisors: Sequence[AttemptSupervisor], views: Sequence[QueueView], *, usual: Usual
    ) -> list[Running]:
        """Return the jobs with an allocation, including those whose start is being written."""
        fresh = {
            served.key(job.id): (view, job, attempt)
            for view in views
            for served, job, attempt in view.live
        }
        saved = {key: at_s for view in views for key, at_s in view.saved.items()}
        return [_running(one, fresh.get(one.key), usual, saved.get(one.key)) for one in supervisors]


def _came_s(served: Served, queued: Mapping[str, Job]) -> dict[str, float]:
    """Return when each job arrived, in seconds since 1970: never after a job with a higher serial.

    The store sets the serials; the times come from many clients' clocks, which may be wrong or set
    back. No job arrived before its workspace was made.
    """
    found: dict[str, float] = {}
    least_s = math.inf
    for job in sorted(queued.values(), key=lambda job: -job.serial):
        least_s = min(least_s, max(served.made_s, job.submitted_at.timestamp()))
        found[served.key(job.id)] = least_s
    return found


def _hold_text(hold: str, blocked: str | None) -> str:
    return f"held: {hold}" + (f"; it also {blocked}" if blocked else "")


def _after(served: Served, job: Job) -> tuple[str, ...]:
    return tuple(served.key(one.job) for one in job.spec.depends_on)


def _blocked(job: Job, parents: Mapping[str, JobState]) -> tuple[str | None, bool]:
    """Return which other jobs this one waits for, and whether it can never start.

    The text names all that have not ended. One failed parent decides immediately, even if others
    still run.
    """
    waits: list[str] = []
    for dependency in job.spec.depends_on:
        state = parents.get(dependency.job)
        if state is None:
            return f"job {dependency.job}, which it waits for, does not exist", True
        if not state.is_final:
            waits.append(f"{dependency.job} ({state})")
        elif dependency.when == "ok" and state is not JobState.COMPLETED:
            return f"{dependency.job}, which it waited for, ended as {state}", True
    return (f"waits for {' and '.join(waits)}" if waits else None), False


def _running(
    supervisor: AttemptSupervisor,
    fresh: tuple[QueueView, Job, Attempt] | None,
    usual: Usual,
    saved_s: float | None,
) -> Running:
    view, job, attempt = fresh if fresh is not None else (None, supervisor.record.job, None)
    served = supervisor.record.served
    learned = usual.get((job.experiment, job.spec.entry))
    # After the last allowed preemption, a job would fail instead of returning to the queue.
    is_last = counts_preemptions(job)
    if view is not None and attempt is not None:
        is_last = not view.allows_preemption(job, attempt)
    return Running(
        key=supervisor.key,
        priority=job.priority,
        order=("", job.serial, supervisor.key),
        shape=supervisor.allocation.shape,
        nodes=supervisor.allocation.nodes,
        submitted_s=max(served.made_s, job.submitted_at.timestamp()),
        started_s=_seconds(attempt.started_at) if attempt is not None else None,
        user=job.user,
        group=_group(served, job),
        preemptible=job.spec.preemptible and not is_last,
        max_duration_s=job.spec.max_duration_s,
        grace_s=job.spec.grace_s,
        expected_s=None if learned is None else learned.known.median_s,
        expected_basis="history" if learned is None else learned.basis,
        expected_from="" if learned is None else learned.source,
        longest_s=None if learned is None else learned.known.longest_s,
        outrun_text=""
        if learned is None
        else learned.known.outrun_by(job.id, job.experiment, job.spec.entry),
        saved_s=saved_s,
        is_ending=supervisor.end_request.is_made or job.state is JobState.FINALIZING,
    )


def _group(served: Served, job: Job) -> str | None:
    return None if job.parent is None else served.key(job.parent)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
