"""A sweep as lines of text: what is new since the last look, its table, its head line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from rayjobs.metrics import number_text
from rayjobs.tuning.engine import SweepState, metric_missing
from rayjobs.tuning.results import Row, Summary, best_trial, rows, summary
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.trials import TrialRecord, TrialState


class News:
    """Tells what happened to a sweep's trials, each thing once, one line each."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._known: dict[int, tuple[TrialState, bool]] = {}
        self._best: int | None = None
        self._is_warned = False

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
        warning = metric_missing(state.trials, self._spec.metric)
        if warning and not self._is_warned:
            self._is_warned = True
            told.append(f"warning: {warning}")
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
        f" ({found.completed} completed, {found.stopped} stopped early, {found.failed} failed)"
    ]
    if found.running:
        parts.append(f"{found.running} running")
    if found.best is not None and found.best_value is not None:
        parts.append(
            f"best {spec.metric} = {number_text(found.best_value)} (trial {found.best.number})"
        )
    if found.running and found.eta_s is not None:
        parts.append(f"about {_time_text(found.eta_s)} left")
    return _BETWEEN.join(parts)


HEADER = ("TRIAL", "STATE", "BEST", "LAST", "REPORTS", "JOB", "PARAMETERS", "")
_SPACE = "  "  # between two columns
_BETWEEN = " · "


def table_cells(state: SweepState, spec: SweepSpec) -> list[tuple[str, ...]]:
    """Return the table's cells, a row for each trial; the best is marked with a star."""
    trials = {trial.number: trial for trial in state.trials}
    return [_cells(row, trials[row.number]) for row in rows(state.trials, spec.goal)]


STOPPED_EARLY = "Stopped early"


def state_text(trial: TrialRecord) -> str:
    """Return a trial's state for people: what its sweep stopped is not called canceled."""
    by_sweep = trial.stop_requested and not trial.reason.endswith("the sweep was canceled")
    return STOPPED_EARLY if trial.state is TrialState.CANCELED and by_sweep else str(trial.state)


def _cells(row: Row, trial: TrialRecord) -> tuple[str, ...]:
    shown = "Stopping" if trial.stop_requested and not trial.is_final else state_text(trial)
    return (
        f"{row.number}{'*' if row.is_best else ''}",
        shown,
        number_text(row.best),
        number_text(row.last),
        str(row.intervals),
        row.job_id.rpartition("_")[2] if row.job_id else "-",
        parameters_text(trial),
        # The row's own number is there already.
        " ".join(row.note.split()).removeprefix(f"stopped trial {row.number} "),
    )


def fitted(
    cells: Sequence[tuple[str, ...]], columns: int
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of a table that tells in so many characters why trials ended.

    Where there is too little room the jobs are left out and the reasons said shorter; reasons
    then get the room that they need, and parameters what is left.
    """
    rows = [tuple(row) for row in cells]
    if _width([HEADER, *rows]) <= columns:
        return HEADER, rows
    job, parameters = HEADER.index("JOB"), HEADER.index("PARAMETERS") - 1
    header = (*HEADER[:job], *HEADER[job + 1 :])
    rows = [
        (*row[:job], *row[job + 1 : -1], re.sub(r"^at (interval \d+: )", r"\1", row[-1]))
        for row in rows
    ]
    state = HEADER.index("STATE")
    rows = [(*row[:state], row[state].removesuffix(" early"), *row[state + 1 :]) for row in rows]
    fixed = _width([header[:parameters], *(row[:parameters] for row in rows)])
    room = columns - fixed - 2 * len(_SPACE)
    last = header.index("LAST")
    if max(len(row[-1]) for row in rows) > room - len("PARAMETERS"):
        # The numbers of a reason come first.
        room += max(len(line[last]) for line in (header, *rows)) + len(_SPACE)
        header = (*header[:last], *header[last + 1 :])
        rows = [(*row[:last], *row[last + 1 :]) for row in rows]
        parameters -= 1
    most = max(room - max(len(row[-1]) for row in rows), len("PARAMETERS"))
    return header, [(*row[:parameters], _cut(row[parameters], most), row[-1]) for row in rows]


def _width(rows: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + len(_SPACE) * (len(widths) - 1)


def folded(head: str, columns: int) -> str:
    """Return a head line on as many lines as it takes, parted between its facts."""
    lines = [""]
    for part in head.split(_BETWEEN):
        longer = f"{lines[-1]}{_BETWEEN}{part}" if lines[-1] else part
        if lines[-1] and len(longer) > columns:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
