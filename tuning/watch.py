"""A sweep as lines of text: its news since the last call, its table, its summary line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from rayjobs.core.text import duration_text
from rayjobs.results.metrics import number_text
from rayjobs.tuning.results import Row, Summary, best_trial, rows, summary
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.state import MetricNotice, SweepState, metric_missing
from rayjobs.tuning.trials import TrialRecord, TrialState


class News:
    """Reports what happened to a sweep's trials, each event once on one line."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._known: dict[int, tuple[TrialState, bool]] = {}
        self._best: int | None = None
        self._notice: MetricNotice | None = None

    def lines(self, state: SweepState) -> list[str]:
        """Return what is new in `state` since the last call, in order of number."""
        lines: list[str] = []
        for trial in state.trials:
            now = (trial.state, trial.stop_requested)
            before = self._known.get(trial.number)
            if now == before:
                continue
            self._known[trial.number] = now
            lines += self._lines_of(trial, before)
        best = best_trial(state.trials, self._spec.goal)
        if best is not None and best.number != self._best:
            self._best = best.number
            lines.append(f"best so far: trial {best.number}, {self._valued(best)}")
        return lines + self._metric_news(state)

    def _metric_news(self, state: SweepState) -> list[str]:
        """Report once that the metric is missing, and once that it has arrived."""
        before, now = self._notice, metric_missing(state.trials, self._spec.metric)
        if now is not None:
            if before is not None and before.near == now.near:
                return []
            self._notice = now
            return [f"{now.level}: {now.text}"]
        if before is not None and any(trial.values for trial in state.trials):
            self._notice = None
            return [f"the sweep's metric {self._spec.metric!r} has now been reported"]
        return []

    def _lines_of(self, trial: TrialRecord, before: tuple[TrialState, bool] | None) -> list[str]:
        lines = []
        name = f"trial {trial.number}"
        if trial.job_id is not None and (before is None or before[0] is TrialState.PLANNED):
            lines.append(f"{name} submitted: {parameters_text(trial)}")
        if trial.state is TrialState.COMPLETED:
            lines.append(f"{name} completed: {self._valued(trial)}")
        elif trial.is_final:
            if not (before is not None and before[1] and trial.state is TrialState.CANCELED):
                lines.append(_reason(trial))
        elif trial.stop_requested:
            lines.append(_reason(trial))
        return lines

    def _valued(self, trial: TrialRecord) -> str:
        best = trial.best(self._spec.goal)
        value = "no finite value" if best is None else f"{self._spec.metric} = {number_text(best)}"
        note = ", diverged" if trial.diverged and best is not None else ""
        return f"{value}{note} ({parameters_text(trial)})"


def _reason(trial: TrialRecord) -> str:
    if trial.is_reason_of_job:
        return f"trial {trial.number} {str(trial.state).lower()}: {trial.reason}"
    return trial.reason


def parameters_text(trial: TrialRecord) -> str:
    """Return a trial's parameters on one line."""
    return ", ".join(
        f"{key.lstrip('-')}={number_text(value)}" for key, value in trial.parameters.items()
    )


def head_line(
    state: SweepState, spec: SweepSpec, *, now: datetime, shown: Mapping[int, str] | None = None
) -> str:
    """Return the best value so far, counts and the remaining time, on one line.

    Args:
        shown: Displayed states of unfinished trials by number, where they differ from the table's.
    """
    return summary_text(summary(state, spec, now=now), spec, list((shown or {}).values()))


def summary_text(found: Summary, spec: SweepSpec, shown: Sequence[str] = ()) -> str:
    """Return a summary on one line; see `head_line`."""
    parts = [
        f"{found.completed + found.stopped + found.failed} of {found.total} trials ended"
        f" ({found.completed} completed, {found.stopped} stopped early, {found.failed} failed)"
    ]
    if shown:
        parts.append(", ".join(f"{n} {_words(one)}" for one, n in Counter(shown).items()))
    elif found.running:
        parts.append(f"{found.running} running")
    if found.best is not None and found.best_value is not None:
        parts.append(
            f"best {spec.metric} = {number_text(found.best_value)} (trial {found.best.number})"
        )
    if found.running and found.eta_s is not None and (not shown or "Running" in shown):
        parts.append(f"about {duration_text(found.eta_s)} left")
    return _BETWEEN.join(parts)


_ENDED = ("Completed", "Failed", "Canceled")


def _words(state: str) -> str:
    """Return a state's name for use in a sentence: ``NotResponding`` is "not responding".

    The job of a trial may have ended before the sweep has recorded the trial's end.
    """
    if state in _ENDED:
        return "ending"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", state).lower()


HEADER = ("TRIAL", "STATE", "BEST", "LAST", "REPORTS", "JOB", "PARAMETERS", "")
_SPACE = "  "  # between two columns
_BETWEEN = " · "


def table_cells(
    state: SweepState, spec: SweepSpec, shown: Mapping[int, str] | None = None
) -> list[tuple[str, ...]]:
    """Return the table's cells, a row for each trial; the best is marked with a star.

    Args:
        shown: See `head_line`.
    """
    trials = {trial.number: trial for trial in state.trials}
    return [_cells(row, trials[row.number], shown or {}) for row in rows(state.trials, spec.goal)]


STOPPED_EARLY = "Stopped early"


def state_text(trial: TrialRecord) -> str:
    """Return a trial's state for people: a trial stopped by its sweep is not called canceled."""
    return STOPPED_EARLY if trial.is_stopped_early else str(trial.state)


def _cells(row: Row, trial: TrialRecord, shown: Mapping[int, str]) -> tuple[str, ...]:
    state = shown.get(trial.number) or state_text(trial)
    return (
        f"{row.number}{'*' if row.is_best else ''}",
        "Stopping" if trial.stop_requested and not trial.is_final else state,
        number_text(row.best),
        number_text(row.last),
        str(row.intervals),
        row.job_id.rpartition("_")[2] if row.job_id else "-",
        parameters_text(trial),
        # The row already has its own number. Only the text gets shorter; see `TrialCause` for data.
        re.sub(rf"^(stopped )?trial {row.number} ", "", " ".join(row.note.split())),
    )


def fitted(
    cells: Sequence[tuple[str, ...]], columns: int
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of a table, with the trials' reasons, that fits into `columns`.

    If there is too little space, the jobs are left out and the reasons shortened; reasons then get
    the space they need, and parameters the rest.
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
    available = columns - fixed - 2 * len(_SPACE)
    reason = max(len(row[-1]) for row in rows)
    texts = _shortened([row[parameters] for row in rows], available - reason)
    for name in ("LAST", "REPORTS"):
        if reason + max(map(len, [*texts, "PARAMETERS"])) <= available:
            break
        at = header.index(name)
        available += max(len(line[at]) for line in (header, *rows)) + len(_SPACE)
        header = (*header[:at], *header[at + 1 :])
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
        parameters -= 1
    most = max(available - reason, int(available * PARAMETERS_SHARE), len("PARAMETERS"))
    return header, [
        (*row[:parameters], _cut(text, most), row[-1])
        for row, text in zip(rows, texts, strict=True)
    ]


# If parameters and reasons do not both fit, parameters get this share of the width.
PARAMETERS_SHARE = 0.7


def _shortened(texts: Sequence[str], most: int) -> list[str]:
    """Return parameters in fewer characters if they take more than `most`.

    First, parameters with the same value in all rows are dropped; then names are cut to unique
    prefixes, since the values are what differs between rows.
    """
    if max(map(len, texts)) <= most:
        return list(texts)
    rows = [[part.partition("=") for part in text.split(", ")] for text in texts]
    if any(not equals for row in rows for _, equals, _ in row):
        return list(texts)  # a value contains a comma
    counts = Counter((name, value) for row in rows for name, _, value in row)
    if len(rows) > 1:
        rows = [[part for part in row if counts[part[0], part[2]] < len(rows)] for row in rows]
    found = [", ".join("".join(part) for part in row) for row in rows]
    if max(map(len, found)) <= most:
        return found
    names = sorted({part[0] for row in rows for part in row})
    short = {name: _prefix(name, names) for name in names}
    return [
        ", ".join(f"{short[name]}{equals}{value}" for name, equals, value in row) for row in rows
    ]


def _prefix(name: str, names: Sequence[str]) -> str:
    """Return the shortest unique prefix of at least two characters."""
    others = [one for one in names if one != name]
    for size in range(2, len(name)):
        if not any(one.startswith(name[:size]) for one in others):
            return name[:size]
    return name


def _width(rows: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + len(_SPACE) * (len(widths) - 1)


def folded(head: str, columns: int) -> str:
    """Return a head line on as many lines as necessary, split between its facts."""
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
    """Return at most `most` rows: unfinished ones first, then the latest ended."""
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
