"""A sweep as lines of text: what is new since the last look, its table, its head line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rayjobs.metrics import number_text
from tuning.engine import SweepState
from tuning.results import Row, Summary, best_trial, rows, summary
from tuning.spec import SweepSpec
from tuning.trials import TrialRecord, TrialState


class News:
    """Tells what happened to a sweep's trials, each thing once, one line each."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._known: dict[int, tuple[TrialState, bool]] = {}
        self._best: int | None = None

    def lines(self, state: SweepState) -> list[str]:
        """Return what is new in `state` since the last call, in order of number."""
        told: list[str] = []
        for trial in state.trials:
            now = (trial.state, trial.stop_requested)
            before = self._known.get(trial.number)
            if now == before:
                continue
            self._known[trial.number] = now
            told += self._told(trial, before)
        best = best_trial(state.trials, self._spec.goal)
        if best is not None and best.number != self._best:
            self._best = best.number
            told.append(f"best so far: trial {best.number}, {self._valued(best)}")
        return told

    def _told(self, trial: TrialRecord, before: tuple[TrialState, bool] | None) -> list[str]:
        told = []
        name = f"trial {trial.number}"
        if trial.job_id is not None and (before is None or before[0] is TrialState.PLANNED):
            told.append(f"{name} submitted: {parameters_text(trial)}")
        if trial.state is TrialState.COMPLETED:
            told.append(f"{name} completed: {self._valued(trial)}")
        elif trial.is_final:
            if not (before is not None and before[1] and trial.state is TrialState.CANCELED):
                told.append(self._reason(trial))
        elif trial.stop_requested:
            told.append(self._reason(trial))
        return told

    def _reason(self, trial: TrialRecord) -> str:
        name = f"trial {trial.number}"
        named = name in trial.reason
        return trial.reason if named else f"{name} {str(trial.state).lower()}: {trial.reason}"

    def _valued(self, trial: TrialRecord) -> str:
        best = trial.best(self._spec.goal)
        value = "no finite value" if best is None else f"{self._spec.metric} = {number_text(best)}"
        note = ", diverged" if trial.diverged and best is not None else ""
        return f"{value}{note} ({parameters_text(trial)})"


def parameters_text(trial: TrialRecord) -> str:
    """Return a trial's parameters on one line."""
    return ", ".join(
        f"{key.lstrip('-')}={number_text(value)}" for key, value in trial.parameters.items()
    )


def head_line(state: SweepState, spec: SweepSpec, *, now: datetime) -> str:
    """Return best so far, counts and the time that is left, on one line."""
    return summary_text(summary(state, spec, now=now), spec)


def summary_text(found: Summary, spec: SweepSpec) -> str:
    """Return a summary on one line."""
    parts = [
        f"{found.completed + found.stopped + found.failed} of {found.total} trials ended"
        f" ({found.completed} completed, {found.stopped} stopped, {found.failed} failed)"
    ]
    if found.running:
        parts.append(f"{found.running} running")
    if found.best is not None and found.best_value is not None:
        parts.append(
            f"best {spec.metric} = {number_text(found.best_value)} (trial {found.best.number})"
        )
    if found.running and found.eta_s is not None:
        parts.append(f"about {_time_text(found.eta_s)} left")
    return " · ".join(parts)


HEADER = ("TRIAL", "STATE", "BEST", "LAST", "REPORTS", "JOB", "PARAMETERS", "")


def table_cells(state: SweepState, spec: SweepSpec) -> list[tuple[str, ...]]:
    """Return the table's cells, a row for each trial; the best is marked with a star."""
    trials = {trial.number: trial for trial in state.trials}
    return [_cells(row, trials[row.number]) for row in rows(state.trials, spec.goal)]


def _cells(row: Row, trial: TrialRecord) -> tuple[str, ...]:
    shown = "Stopping" if trial.stop_requested and not trial.is_final else str(row.state)
    return (
        f"{row.number}{'*' if row.is_best else ''}",
        shown,
        number_text(row.best),
        number_text(row.last),
        str(row.intervals),
        row.job_id.rpartition("_")[2] if row.job_id else "-",
        parameters_text(trial),
        " ".join(row.note.split()),
    )


def newest(cells: Sequence[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    """Return at most `most` rows: those that have not ended first, then the latest ended."""
    if len(cells) <= most:
        return list(cells)
    open_rows = [row for row in cells if row[1] in ("Planned", "Running", "Stopping")]
    best = [row for row in cells if row[0].endswith("*")]
    kept = {row[0] for row in [*best, *open_rows][:most]}
    for row in reversed(cells):
        if len(kept) >= most:
            break
        kept.add(row[0])
    return [row for row in cells if row[0] in kept]


def _time_text(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 3600:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
