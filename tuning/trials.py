"""TrialRecord: one row of a sweep's trial table, from which a restarted driver continues."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal


class TrialState(StrEnum):
    """The state of a trial."""

    PLANNED = "Planned"  # its parameters are recorded; its job may not have been submitted yet
    RUNNING = "Running"  # its job is submitted (queued or running, see the job's state)
    COMPLETED = "Completed"
    FAILED = "Failed"  # its job failed, or it never reported the primary metric
    CANCELED = "Canceled"  # stopped by the policy, a limit or a user

    @property
    def is_final(self) -> bool:
        """Whether this state is final."""
        return self in FINAL


FINAL = frozenset({TrialState.COMPLETED, TrialState.FAILED, TrialState.CANCELED})


class TrialCause(StrEnum):
    """What decided that a trial fails or must end. Stored, and printed by `--json`."""

    POLICY = "policy"  # the early termination policy stopped it
    SWEEP_ENDED = "sweep_ended"  # a limit of its sweep was reached, or no trial reports its metric
    SWEEP_CANCELED = "sweep_canceled"  # a user canceled its sweep
    NO_METRIC = "no_metric"  # its job completed, and never reported the primary metric
    JOB = "job"  # its job failed, was canceled, or is no longer in the store


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial of a sweep.

    Attributes:
        number: From 0, in order of planning; also part of the idempotency key of its job.
        parameters: Sampled values by given key.
        values: The primary metric's reports so far, oldest first; the n-th is interval n.
            NaN and infinities are kept: they are also reports.
        job_id: None until the job is submitted.
        reason: Why it was stopped or failed, with the numbers; otherwise empty. A sentence for
            people.
        cause: The same for programs; None unless it has failed or must end.
        detail: The reason for the trial's own row of a table, without its number; empty if the
            reason does not name the trial.
        judged: How many of `values` the policy has already judged, so that a restart does not judge
            an interval again with later reports.
        stop_requested: A stop is recorded; the job may still be ending.
        metric_names: Every metric name it reported, for the message about a misspelled one.
        started_at: When its job was submitted.
        ended_at: When its state became final.
    """

    number: int
    parameters: Mapping[str, Any]
    state: TrialState = TrialState.PLANNED
    values: tuple[float, ...] = ()
    job_id: str | None = None
    reason: str = ""
    cause: TrialCause | None = None
    detail: str = ""
    judged: int = 0
    stop_requested: bool = False
    metric_names: tuple[str, ...] = field(default=())
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_final(self) -> bool:
        """Whether this state is final."""
        return self.state.is_final

    @property
    def is_stopped_early(self) -> bool:
        """Whether its sweep ended it, and not a user."""
        by_sweep = self.cause in (TrialCause.POLICY, TrialCause.SWEEP_ENDED)
        return self.state is TrialState.CANCELED and by_sweep

    @property
    def is_reason_of_job(self) -> bool:
        """Whether the reason is its job's own sentence, which does not name the trial."""
        return self.cause is None or self.cause is TrialCause.JOB

    @property
    def diverged(self) -> bool:
        """Whether any report was NaN or infinite."""
        return not all(math.isfinite(value) for value in self.values)

    def best(self, goal: PrimaryMetricGoal) -> float | None:
        """Return its best finite value over its history; None without one."""
        return goal.best(self.values)

    def standing(self, goal: PrimaryMetricGoal) -> float | None:
        """Return the value for its ranking: its best, None if its last report is not finite.

        A trial that diverged after its best left its last files, not its best ones.
        """
        if not self.values or not math.isfinite(self.values[-1]):
            return None
        return self.best(goal)

    def result(self, goal: PrimaryMetricGoal) -> float | None:
        """Return what the sampler learns from a final trial: its best value if it completed.

        None for a failed, stopped or diverged one, which the sampler treats as having no result.
        """
        return self.standing(goal) if self.state is TrialState.COMPLETED else None
