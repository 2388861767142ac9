"""The next actions of a sweep, given its spec and its trial table.

The driver's loop is: update the table from the jobs, call `next_actions`, apply each action to the
table with `applied`, write the changed rows, then carry the actions out. All its state is in the
table, so a driver that takes over after a crash calls the same function and gets the same
remaining work: Ray Tune's sampler and scheduler are also rebuilt from the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.states import JobState
from rayjobs.tuning.errors import SweepUsageError
from rayjobs.tuning.policies import Scheduler
from rayjobs.tuning.samplers import Sampler
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.trials import TrialCause, TrialRecord, TrialState

LACKING_AT_LEAST = 5  # trials without the metric, before a sweep ends because of it


@dataclass(frozen=True)
class PlanTrial:
    """Record a new trial, then submit its job (see `Submit`)."""

    number: int
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Submit:
    """Submit the job of a recorded trial.

    The submission must be idempotent by sweep and number: after a crash it is requested again, and
    the job may already exist.
    """

    number: int


@dataclass(frozen=True)
class Judged:
    """Record that the policy accepted a trial's first `intervals` reports."""

    number: int
    intervals: int


@dataclass(frozen=True)
class StopTrial:
    """Record that a trial must end, then cancel its job (repeating is harmless).

    Attributes:
        number: The trial's.
        reason: One sentence for people.
        judged: See `TrialRecord.judged`.
        cause: The reason for programs.
        detail: See `TrialRecord.detail`.
    """

    number: int
    reason: str
    judged: int
    cause: TrialCause | None
    detail: str = ""


@dataclass(frozen=True)
class Finish:
    """The sweep is over: no trial is running or left to start."""

    state: JobState
    reason: str


Action = PlanTrial | Submit | Judged | StopTrial | Finish


@dataclass(frozen=True)
class Halt:
    """Why no trial of a sweep may start or continue: for people, and for programs."""

    reason: str
    cause: TrialCause


@dataclass(frozen=True)
class SweepState:
    """The state of a sweep at one moment.

    Attributes:
        trials: The trial table, in order of number, without gaps from 0.
        elapsed_s: Seconds since the sweep's recorded start.
        cancel_requested: A user canceled it.
    """

    trials: tuple[TrialRecord, ...] = ()
    elapsed_s: float = 0.0
    cancel_requested: bool = False

    def __post_init__(self) -> None:
        numbers = [trial.number for trial in self.trials]
        if numbers != list(range(len(numbers))):
            raise SweepUsageError(
                f"the trial table must hold the numbers 0 … {len(numbers) - 1} in order, and "
                f"holds {numbers}. Read it sorted by number, with every row."
            )

    @property
    def active(self) -> tuple[TrialRecord, ...]:
        """The trials that have not ended, including recorded ones without a job."""
        return tuple(trial for trial in self.trials if not trial.is_final)

    @property
    def pending_stops(self) -> tuple[StopTrial, ...]:
        """Recorded stops that are not yet carried out; a driver that takes over repeats them."""
        return tuple(
            StopTrial(trial.number, trial.reason, trial.judged, trial.cause, trial.detail)
            for trial in self.active
            if trial.stop_requested
        )

    def count(self, state: TrialState) -> int:
        """Return how many trials are in `state`."""
        return sum(1 for trial in self.trials if trial.state is state)

    def halted(self, spec: SweepSpec) -> Halt | None:
        """Return why no trial may start or continue; None while they may."""
        failed, limits = self.count(TrialState.FAILED), spec.limits
        if self.cancel_requested:
            return Halt("the sweep was canceled", TrialCause.SWEEP_CANCELED)
        if limits.max_failures is not None and failed > limits.max_failures:
            reason = f"{failed} trials failed, more than max_failures, {limits.max_failures}"
        elif self.elapsed_s >= limits.max_duration_s:
            reason = (
                f"the sweep's time is up: {duration_text(self.elapsed_s)} of "
                f"{duration_text(limits.max_duration_s, exact=True)}"
            )
        else:
            reason = self._all_lack_the_metric(spec)
        return Halt(reason, TrialCause.SWEEP_ENDED) if reason else None

    def _all_lack_the_metric(self, spec: SweepSpec) -> str:
        """Return why no trial will ever count, once a whole round of trials has shown it.

        A round has as many completed trials as run at a time, at least five: for some parameters a
        script may exit before it reports, and by chance the first few trials may have such
        parameters. One trial that ever reported the metric, however it ended, proves that others
        may.
        """
        # A trial that crashed before its first report proves nothing.
        lacking = [trial for trial in self.trials if trial.cause is TrialCause.NO_METRIC]
        a_round = max(LACKING_AT_LEAST, spec.limits.at_a_time)
        if len(lacking) < a_round or any(trial.values for trial in self.trials):
            return ""
        names = sorted({name for trial in lacking for name in trial.metric_names})
        shown = f"they reported: {', '.join(names)}" if names else "they reported nothing"
        near = difflib.get_close_matches(spec.metric, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        others = spec.total - len(self.trials)
        unstarted = f" and the other {others} were not started" if others else ""
        return (
            f"{len(lacking)} trials ran to their end, but none reported the metric "
            f"{spec.metric!r} ({shown}{hint}), so they count as failed{unstarted}: correct the "
            f"sweep's metric, or the name in the script"
        )

    def next_actions(
        self, spec: SweepSpec, sampler: Sampler, scheduler: Scheduler
    ) -> tuple[Action, ...]:
        """Return the actions to take now, in order.

        A second call without recording anything gives the same result.

        Args:
            sampler: Fresh or used; it is first updated from the table.
            scheduler: Like the sampler.
        """
        halted = self.halted(spec)
        if halted is not None:
            stops = tuple(
                StopTrial(
                    trial.number,
                    f"stopped trial {trial.number}: {halted.reason}",
                    trial.judged,
                    halted.cause,
                    halted.reason,
                )
                for trial in self.active
                if not trial.stop_requested
            )
            return stops or self._finish(spec, halted.reason, exhausted=True)
        actions: list[Action] = [
            Judged(verdict.trial, verdict.intervals)
            if verdict.stop is None
            else StopTrial(
                verdict.trial,
                verdict.stop.reason,
                verdict.intervals,
                TrialCause.POLICY,
                verdict.stop.detail,
            )
            for verdict in scheduler.judge(self.trials)
        ]
        actions += [
            Submit(trial.number)
            for trial in self.active
            if trial.state is TrialState.PLANNED and not trial.stop_requested
        ]
        sampler.replay(self.trials)
        exhausted = len(self.trials) >= spec.limits.total
        free = spec.limits.at_a_time - len(self.active)
        for number in range(len(self.trials), spec.limits.total):
            if number - len(self.trials) >= free:
                break
            parameters = sampler.suggest(number)
            if parameters is None:
                exhausted = True
                break
            actions.append(PlanTrial(number, parameters))
        return tuple(actions) or self._finish(spec, "", exhausted=exhausted)

    def applied(self, action: Action) -> SweepState:
        """Return the table after `action` was recorded.

        `Submit` changes nothing here: its row becomes running once the job's id is known; see
        `submitted`.
        """
        if isinstance(action, PlanTrial):
            row = TrialRecord(number=action.number, parameters=dict(action.parameters))
            return replace(self, trials=(*self.trials, row))
        if isinstance(action, Judged):
            return self.with_trial(replace(self.trials[action.number], judged=action.intervals))
        if isinstance(action, StopTrial):
            return self.with_trial(
                replace(
                    self.trials[action.number],
                    stop_requested=True,
                    reason=action.reason,
                    cause=action.cause,
                    detail=action.detail,
                    judged=action.judged,
                )
            )
        return self

    def submitted(self, number: int, job_id: str, *, at: datetime | None = None) -> SweepState:
        """Return the table with the trial's job recorded."""
        row = self.trials[number]
        return self.with_trial(replace(row, state=TrialState.RUNNING, job_id=job_id, started_at=at))

    def with_trial(self, trial: TrialRecord) -> SweepState:
        """Return the table with one row replaced.

        Raises:
            SweepUsageError: the row is final and would change.
        """
        old = self.trials[trial.number]
        if old.is_final and old != trial:
            raise SweepUsageError(
                f"trial {trial.number} ended as {old.state} and never changes; {trial.state} was "
                "requested. Read the table again."
            )
        rows = list(self.trials)
        rows[trial.number] = trial
        return replace(self, trials=tuple(rows))

    def _finish(self, spec: SweepSpec, halted: str, *, exhausted: bool) -> tuple[Action, ...]:
        if self.active or not exhausted:
            return ()
        completed, total = self.count(TrialState.COMPLETED), len(self.trials)
        facts = (
            f"{completed} completed, {self.count(TrialState.CANCELED)} stopped, "
            f"{self.count(TrialState.FAILED)} failed of {total} trials"
        )
        reason = f"{halted}; {facts}" if halted else facts
        too_many = spec.limits.max_failures is not None and (
            self.count(TrialState.FAILED) > spec.limits.max_failures
        )
        if self.cancel_requested:
            return (Finish(JobState.CANCELED, facts),)  # the store records who canceled it
        if too_many or completed == 0:
            return (Finish(JobState.FAILED, reason),)
        return (Finish(JobState.COMPLETED, reason),)


def conclude(
    trial: TrialRecord,
    job_state: JobState | None,
    spec: SweepSpec,
    *,
    message: str = "",
    at: datetime | None = None,
) -> TrialRecord:
    """Return the trial's final record, given how its job ended and what it reported.

    A job that completed without ever reporting the primary metric makes a failed trial, whose
    reason lists the reported names; the sweep continues.

    Args:
        job_state: A final state; None if no job was ever submitted (it was stopped first).
        message: The job's failure in one line.

    Raises:
        SweepUsageError: the job's state is not final.
    """
    if job_state is not None and not job_state.is_final:
        raise SweepUsageError(
            f"the job of trial {trial.number} is {job_state}; wait for its end first."
        )
    if job_state is JobState.COMPLETED:
        if trial.values:
            return replace(trial, state=TrialState.COMPLETED, ended_at=at)
        detail = misspelt(trial, spec.metric)
        return replace(
            trial,
            state=TrialState.FAILED,
            reason=f"trial {trial.number} {detail}",
            cause=TrialCause.NO_METRIC,
            detail=detail,
            ended_at=at,
        )
    failed = job_state is JobState.FAILED
    ended = replace(trial, state=TrialState.FAILED if failed else TrialState.CANCELED, ended_at=at)
    if trial.reason and not (failed and message):
        return ended  # its sweep had stopped it
    reason = message or ("its job failed" if failed else "its job was canceled")
    return replace(ended, reason=reason, cause=TrialCause.JOB, detail="")


REPORTS_WITHOUT_METRIC = 3


@dataclass(frozen=True, slots=True)
class MetricNotice:
    """A notice that running trials report metrics, but not the sweep's.

    Attributes:
        near: The reported name most similar to the sweep's metric; None if none is similar.
        text: The situation and what to do, in full sentences.
    """

    text: str
    near: str | None = None

    @property
    def level(self) -> str:
        """`warning` if the name is probably misspelled, else `note`."""
        return "note" if self.near is None else "warning"


def metric_missing(trials: Sequence[TrialRecord], metric: str) -> MetricNotice | None:
    """Return a notice while running trials report metrics other than the sweep's; else None.

    A driver records the names of a running trial once one of them has been reported three times and
    the primary metric never: immediately if a name is similar to the metric's, else after some
    time. The trial may still be right: many scripts log a loss at each step and the metric after
    each epoch. One trial that ever reported the metric proves that others may.
    """
    if any(trial.values for trial in trials):
        return None
    found = [trial for trial in trials if not trial.is_final and trial.metric_names]
    if not found:
        return None
    names = sorted({name for trial in found for name in trial.metric_names})
    numbers = ", ".join(str(trial.number) for trial in found[:5])
    which = f"trials {numbers} have" if len(found) > 1 else f"trial {numbers} has"
    so_far = (
        f"{which} made {REPORTS_WITHOUT_METRIC} reports or more, but none of the sweep's metric "
        f"{metric!r}; reported so far: {', '.join(names[:10])}."
    )
    near = difflib.get_close_matches(metric, names, n=1)
    if near:
        return MetricNotice(
            f"{so_far} Did you mean {near[0]!r}? If so, cancel the sweep and correct the name. If "
            f"the script logs {metric!r} later, after an epoch for example, do nothing.",
            near[0],
        )
    return MetricNotice(
        f"{so_far} This is fine if the script logs {metric!r} later, after an epoch for example. A "
        "trial that ends without it counts as failed."
    )


def misspelt(trial: TrialRecord, metric: str) -> str:
    """Return, after a trial's name, that it never reported the primary metric."""
    names = sorted(set(trial.metric_names))
    if not names:
        return (
            f"never reported the metric {metric!r}, nor any other. Log it in the script: "
            f"run.log({metric!r}, value)."
        )
    near = difflib.get_close_matches(metric, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"never reported the metric {metric!r}; it reported: {', '.join(names)}.{hint} Correct "
        f"the sweep's metric, or the name in the script."
    )
