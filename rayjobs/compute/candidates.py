"""What the policy is told of each job: records of the queue and of drives as plain figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rayjobs import capacity
from rayjobs.clock import to_text
from rayjobs.compute.board import Served
from rayjobs.compute.cluster import NodeInfo
from rayjobs.compute.drive import Drive
from rayjobs.policy import Rule, Running, Shape, Waiting
from rayjobs.records import Attempt, Job
from rayjobs.states import JobState

# Median seconds of completed attempts by (experiment, entry).
Usual = Mapping[tuple[str, str], float]


class Candidates:
    """Makes the policy's records; those of jobs that did not change are made once."""

    def __init__(self, *, shares_machine: bool) -> None:
        self._shares_machine = shares_machine
        self._capacity: capacity.Capacity | None = None
        self._shapes: dict[str, tuple[capacity.Capacity, Shape]] = {}
        self._known: dict[str, tuple[tuple[Any, ...], Waiting]] = {}

    def look_at(self, nodes: Sequence[NodeInfo]) -> None:
        """Take over which nodes there are: shapes depend on their sizes alone."""
        shapes = tuple(capacity.NodeShape(node.cpus, node.gpus, int(node.memory)) for node in nodes)
        now = capacity.Capacity(
            nodes=shapes, max_nodes=len(shapes), shares_machine=self._shares_machine
        )
        if now != self._capacity:
            self._capacity = now
            self._known.clear()

    def shape_of(self, job: Job) -> Shape:
        """Return what the job's allocation holds on this target."""
        assert self._capacity is not None, "look_at comes first"
        return Shape.from_dict(capacity.plan_shape(job.spec, self._capacity).shape)

    def waiting(self, served: Served, job: Job, *, blocked: str | None, usual: Usual) -> Waiting:
        """Return a queued job as the policy sees it.

        Args:
            blocked: Which other job it waits for; None: none.
            usual: How long jobs like it take.
        """
        key = served.key(job.id)
        expected_s = usual.get((job.experiment, job.spec.entry))
        facts = (
            job.changed_at,
            job.priority,
            job.not_before,
            job.attempt,
            job.held,
            blocked,
            expected_s,
            job.group_limit,
        )
        known = self._known.get(key)
        if known is not None and known[0] == facts:
            return known[1]
        made = Waiting(
            key=key,
            priority=job.priority,
            order=(to_text(job.submitted_at), job.serial, key),
            shape=self.shape_of(job),
            submitted_s=job.submitted_at.timestamp(),
            user=job.user,
            group=_group(served, job),
            group_limit=job.group_limit,
            preemptible=job.spec.preemptible,
            max_duration_s=job.spec.max_duration_s,
            grace_s=job.spec.grace_s,
            expected_s=expected_s,
            not_before_s=_seconds(job.not_before),
            blocked_by=job.held or blocked,
            blocked_rule=Rule.HELD if job.held else Rule.DEPENDENCY,
        )
        self._known[key] = (facts, made)
        return made

    def forget_all_but(self, keys: Mapping[str, object]) -> None:
        """Drop what is remembered of jobs that wait no more."""
        for key in self._known.keys() - keys.keys():
            del self._known[key]

    def running(
        self,
        drives: Sequence[Drive],
        live: Sequence[tuple[Served, Job, Attempt]],
        *,
        usual: Usual,
    ) -> list[Running]:
        """Return the jobs that hold a place now, those included whose start is being written."""
        fresh = {served.key(job.id): (job, attempt) for served, job, attempt in live}
        return [_running(drive, fresh.get(drive.key), usual) for drive in drives]


def _running(drive: Drive, fresh: tuple[Job, Attempt] | None, usual: Usual) -> Running:
    job, attempt = fresh if fresh is not None else (drive.job, None)
    ending = drive.canceled.is_set() or drive.preempted.is_set()
    return Running(
        key=drive.key,
        priority=job.priority,
        order=(to_text(job.submitted_at), job.serial, drive.key),
        shape=drive.held.shape,
        nodes=drive.held.nodes,
        submitted_s=job.submitted_at.timestamp(),
        started_s=_seconds(attempt.started_at) if attempt is not None else None,
        user=job.user,
        group=_group(drive.served, job),
        # One that had to go as often as it may would fail instead of coming back.
        preemptible=job.spec.preemptible and job.attempt <= job.spec.retries.preempted,
        max_duration_s=job.spec.max_duration_s,
        grace_s=job.spec.grace_s,
        expected_s=usual.get((job.experiment, job.spec.entry)),
        is_ending=ending or job.state is JobState.FINALIZING,
    )


def _group(served: Served, job: Job) -> str | None:
    return None if job.parent is None else served.key(job.parent)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
