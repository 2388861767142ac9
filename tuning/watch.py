"""A sweep as lines of text: its news since the last call, its table, its summary line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results.metrics import number_text
from rayjobs.tuning.results import Row, Summary, best_trial, rows, summary
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.state import MetricNotice, SweepState, metric_missing
from rayjobs.tuning.trials import TrialCause, TrialRecord, TrialState

Pairs = tuple[tuple[str, str], ...]  # name and value of each parameter, as text


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
    return _joined(_pairs(trial))


def _pairs(trial: TrialRecord) -> Pairs:
    return tuple((key.lstrip("-"), number_text(value)) for key, value in trial.parameters.items())


def _joined(parameters: Pairs) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters)


def head_line(
    state: SweepState, spec: SweepSpec, *, now: datetime, shown: Mapping[int, str] | None = None
) -> str:
    """Return the best value so far, counts and the remaining time, on one line.

    Args:
        shown: Displayed states of unfinished trials by number, where they differ from the table's.
    """
    return _BETWEEN.join(head_facts(state, spec, now=now, shown=shown))


def head_facts(
    state: SweepState, spec: SweepSpec, *, now: datetime, shown: Mapping[int, str] | None = None
) -> list[str]:
    """Return the facts of `head_line`."""
    return _facts(summary(state, spec, now=now), spec, list((shown or {}).values()))


def _facts(found: Summary, spec: SweepSpec, shown: Sequence[str]) -> list[str]:
    parts = [
        f"{found.completed + found.stopped + found.failed} of {found.total} trials ended"
        f" ({found.completed} completed, {found.stopped} stopped, {found.failed} failed)"
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
    return parts


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


@dataclass(frozen=True)
class Line:
    """A trial in the table, as values and as text.

    Attributes:
        is_open: It has not ended.
        short_state: The state for a narrow terminal.
        parameters: Name and value of each.
        reason: Why it was stopped or failed, without its number; otherwise empty.
        short_reason: The reason for a narrow terminal.
    """

    number: int
    is_best: bool
    is_open: bool
    state: str
    short_state: str
    best: str
    last: str
    reports: str
    job: str
    parameters: Pairs
    reason: str
    short_reason: str

    @property
    def name(self) -> str:
        """Its number; the best has a star."""
        return f"{self.number}{'*' if self.is_best else ''}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row below `HEADER`."""
        return (
            self.name,
            self.state,
            self.best,
            self.last,
            self.reports,
            self.job,
            _joined(self.parameters),
            self.reason,
        )


def table_lines(
    state: SweepState, spec: SweepSpec, shown: Mapping[int, str] | None = None
) -> list[Line]:
    """Return the table, a line for each trial.

    Args:
        shown: See `head_line`.
    """
    trials = {trial.number: trial for trial in state.trials}
    return [_line(row, trials[row.number], shown or {}) for row in rows(state.trials, spec.goal)]


STOPPED_EARLY = "Stopped early"
_STOPPED = "Stopped"
_STOPPING = "Stopping"


def state_text(trial: TrialRecord) -> str:
    """Return a trial's state for people: a trial stopped by its sweep is not called canceled."""
    return STOPPED_EARLY if trial.is_stopped_early else str(trial.state)


def _line(row: Row, trial: TrialRecord, shown: Mapping[int, str]) -> Line:
    if trial.stop_requested and not trial.is_final:
        state = short = _STOPPING
    elif trial.is_stopped_early:
        state, short = STOPPED_EARLY, _STOPPED
    else:
        state = short = shown.get(trial.number) or state_text(trial)
    reason = short_reason = " ".join((trial.detail or row.note).split())
    if trial.detail and trial.cause is TrialCause.POLICY:
        reason = f"at {reason}"
    return Line(
        number=row.number,
        is_best=row.is_best,
        is_open=not trial.is_final,
        state=state,
        short_state=short,
        best=number_text(row.best),
        last=number_text(row.last),
        reports=str(row.intervals),
        job=row.job_id.rpartition("_")[2] if row.job_id else "-",
        parameters=_pairs(trial),
        reason=reason,
        short_reason=short_reason,
    )


def fitted(lines: Sequence[Line], columns: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of a table, with the trials' reasons, that fits into `columns`.

    If there is too little space, the jobs are left out and the reasons shortened, and if that is
    not enough, the names of parameters are cut and the columns LAST and REPORTS left out. Then
    parameters get the space that the reasons leave, but at least `PARAMETERS_SHARE` of both: they
    are what distinguishes the trials, and the terminal cuts a long reason.
    """
    cells = [line.cells for line in lines]
    if _width([HEADER, *cells]) <= columns:
        return HEADER, cells
    fixed = {
        "TRIAL": [line.name for line in lines],
        "STATE": [line.short_state for line in lines],
        "BEST": [line.best for line in lines],
        "LAST": [line.last for line in lines],
        "REPORTS": [line.reports for line in lines],
    }
    reasons = [line.short_reason for line in lines]
    widths = {name: max(map(len, [name, *column])) for name, column in fixed.items()}
    available = columns - sum(widths.values()) - len(_SPACE) * (len(widths) + 1)
    reason = max(map(len, reasons), default=0)
    texts = _shortened([line.parameters for line in lines], available - reason)
    for name in ("LAST", "REPORTS"):
        if reason + max(map(len, [*texts, "PARAMETERS"])) <= available:
            break
        del fixed[name]
        available += widths[name] + len(_SPACE)
    most = max(available - reason, int(available * PARAMETERS_SHARE), len("PARAMETERS"))
    shown = [*fixed.values(), [_cut(text, most) for text in texts], reasons]
    return (*fixed, "PARAMETERS", ""), list(zip(*shown, strict=True))


# If parameters and reasons do not both fit, parameters get this share of the width.
PARAMETERS_SHARE = 0.7


def _shortened(rows: Sequence[Pairs], most: int) -> list[str]:
    """Return parameters in fewer characters if they take more than `most`.

    First, parameters with the same value in all rows are dropped; then names are cut to unique
    prefixes, since the values are what differs between rows.
    """
    texts = [_joined(row) for row in rows]
    if max(map(len, texts), default=0) <= most:
        return texts
    counts = Counter(pair for row in rows for pair in row)
    if len(rows) > 1:
        rows = [tuple(pair for pair in row if counts[pair] < len(rows)) for row in rows]
    texts = [_joined(row) for row in rows]
    if max(map(len, texts), default=0) <= most:
        return texts
    names = sorted({name for row in rows for name, _ in row})
    short = {name: _prefix(name, names) for name in names}
    return [_joined(tuple((short[name], value) for name, value in row)) for row in rows]


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


def folded(facts: Sequence[str], columns: int) -> str:
    """Return the facts of a head line on as many lines as necessary, split between facts."""
    lines = [""]
    for fact in facts:
        longer = f"{lines[-1]}{_BETWEEN}{fact}" if lines[-1] else fact
        if lines[-1] and len(longer) > columns:
            lines.append(fact)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def newest(lines: Sequence[Line], most: int) -> list[Line]:
    """Return at most `most` lines in their order: the best, unfinished ones, and the latest."""
    if len(lines) <= most:
        return list(lines)
    first = [line for line in lines if line.is_best]
    first += [line for line in lines if line.is_open]
    kept = {line.number for line in first[:most]}
    for line in reversed(lines):
        if len(kept) >= most:
            break
        kept.add(line.number)
    return [line for line in lines if line.number in kept]
