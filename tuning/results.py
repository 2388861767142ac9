"""The results of a sweep: the best trial, sorted children, the table, and the remaining time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.trials import TrialRecord, TrialState

# The event of a sweep in which a completed trial stored no file that could be registered.
MODEL_MISSING = "model_missing"


def best_trial(
    trials: Iterable[TrialRecord],
    goal: PrimaryMetricGoal,
    *,
    include_failed: bool = False,
    include_canceled: bool = False,
) -> TrialRecord | None:
    """Return the best trial, None if no trial qualifies.

    A trial qualifies if it completed and its last value is finite; its best value over its history
    counts. Among equal trials the better last value wins, since most scripts keep their last
    weights; then the first trial. Running trials never qualify.

    Args:
        include_failed: Let failed trials qualify by what they reported before.
        include_canceled: Likewise, let stopped trials qualify.
    """
    states = {TrialState.COMPLETED}
    if include_failed:
        states.add(TrialState.FAILED)
    if include_canceled:
        states.add(TrialState.CANCELED)
    return next(iter(ranked((one for one in trials if one.state in states), goal)), None)


def ranked(
    trials: Iterable[TrialRecord], goal: PrimaryMetricGoal, *, reverse: bool = False
) -> list[TrialRecord]:
    """Return the trials with a value to rank, in the order of `best_trial`.

    Args:
        reverse: Worst first; trials with equal best and last values stay in order of number.
    """
    direction = goal.sign if reverse else -goal.sign
    valued = [
        ((direction * value, direction * trial.values[-1], trial.number), trial)
        for trial in trials
        if (value := trial.standing(goal)) is not None
    ]
    return [trial for _, trial in sorted(valued, key=lambda pair: pair[0])]


def sorted_children(
    trials: Iterable[TrialRecord],
    goal: PrimaryMetricGoal,
    *,
    top: int = 0,
    reverse: bool = False,
    discard_no_metric: bool = False,
) -> list[dict[str, Any]]:
    """Return the trials best first, then those that diverged after their best.

    Those without any finite value come last.

    Args:
        top: The maximum number; 0 means all.
        reverse: Worst first (those that diverged or have no value still last).
        discard_no_metric: Leave out those without a value.

    Returns:
        ``{"run_id", "hyperparameters" (JSON text), "best_primary_metric", "status"}`` each.

    Source: ``HyperDriveRun.get_children_sorted_by_primary_metric``.
    """
    diverged: list[TrialRecord] = []
    without: list[TrialRecord] = []
    by_number = sorted(trials, key=lambda trial: trial.number)
    for trial in by_number:
        if trial.standing(goal) is None:
            (without if trial.best(goal) is None else diverged).append(trial)
    listed = [*ranked(by_number, goal, reverse=reverse), *diverged]
    if not discard_no_metric:
        listed += without
    return [
        {
            "run_id": trial.job_id,
            "hyperparameters": hyperparameters(trial),
            "best_primary_metric": trial.best(goal),
            "status": str(trial.state),
        }
        for trial in (listed[:top] if top > 0 else listed)
    ]


def hyperparameters(trial: TrialRecord) -> str:
    """Return the trial's parameters as JSON text, with the keys as given."""
    return json.dumps(dict(trial.parameters))


@dataclass(frozen=True)
class Row:
    """One line of a sweep's table.

    Attributes:
        best: Best finite value so far; None without one.
        last: The latest report, finite or not.
        intervals: Number of reports.
        is_best: The sweep's best so far (completed trials only).
        note: Why it was stopped or failed, or that it diverged.
    """

    number: int
    state: TrialState
    best: float | None
    last: float | None
    intervals: int
    parameters: Mapping[str, Any]
    job_id: str | None
    is_best: bool
    note: str


def rows(trials: Sequence[TrialRecord], goal: PrimaryMetricGoal) -> list[Row]:
    """Return the table of a sweep, in order of number."""
    leader = best_trial(trials, goal)
    return [
        Row(
            number=trial.number,
            state=trial.state,
            best=trial.best(goal),
            last=trial.values[-1] if trial.values else None,
            intervals=len(trial.values),
            parameters=trial.parameters,
            job_id=trial.job_id,
            is_best=leader is not None and leader.number == trial.number,
            note=trial.reason or ("diverged: a report was not finite" if trial.diverged else ""),
        )
        for trial in sorted(trials, key=lambda trial: trial.number)
    ]


@dataclass(frozen=True)
class Summary:
    """A sweep in one line.

    Attributes:
        total: The number of trials it can have.
        stopped: Trials that the policy, a limit or a user stopped.
        eta_s: Seconds until the end, see `eta_s`; None while unknown.
    """

    total: int
    completed: int
    stopped: int
    failed: int
    running: int
    best: TrialRecord | None
    best_value: float | None
    eta_s: float | None


def summary(state: SweepState, spec: SweepSpec, *, now: datetime) -> Summary:
    """Return the sweep's state as numbers.

    Args:
        now: The wall time, timezone-aware.
    """
    best = best_trial(state.trials, spec.goal)
    return Summary(
        total=spec.total,
        completed=state.count(TrialState.COMPLETED),
        stopped=state.count(TrialState.CANCELED),
        failed=state.count(TrialState.FAILED),
        running=len(state.active),
        best=best,
        best_value=best.best(spec.goal) if best else None,
        eta_s=eta_s(state, spec, now=now),
    )


def eta_s(state: SweepState, spec: SweepSpec, *, now: datetime) -> float | None:
    """Return an estimate of the seconds until the sweep ends; None until a trial has ended.

    It assumes the mean time of the ended trials for every remaining trial, `concurrent` at a time,
    minus the time that running ones have used. It never exceeds the sweep's own limit.
    """
    times = [
        (trial.ended_at - trial.started_at).total_seconds()
        for trial in state.trials
        if trial.started_at is not None and trial.ended_at is not None
    ]
    if not times:
        return None
    mean = max(0.0, sum(times) / len(times))
    unstarted = max(0, spec.total - len(state.trials))
    work = unstarted * mean
    longest = mean if unstarted else 0.0
    for trial in state.active:
        used = (now - trial.started_at).total_seconds() if trial.started_at is not None else 0.0
        rest = max(0.0, mean - used)
        work += rest
        longest = max(longest, rest)
    at_once = max(1, min(spec.limits.at_a_time, len(state.active) + unstarted))
    allowed = max(0.0, spec.limits.max_duration_s - state.elapsed_s)
    return min(max(work / at_once, longest), allowed)
