"""Traces: one job per line, as CSV with a header or as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.units import parse_duration
from rayjobs.injob.lazy_dataclass import dataclass

_FOLDER = Path(__file__).parent / "traces"
_REQUIRED = ("submit", "duration")
_KNOWN = (
    *_REQUIRED,
    *("job", "nodes", "gpus", "cpus", "cap", "priority", "user", "group", "preemptible"),
    "expected",
)


@dataclass(frozen=True, kw_only=True)
class TraceJob:
    """One line of a trace.

    Attributes:
        submit_s: When it is submitted, from the trace's beginning.
        duration_s: How long it runs; its cap, if any, ends it earlier.
        nodes: How many distinct nodes.
        gpus, cpus: Per node.
        cap_s: Its hard time limit; None: no limit.
        group: Id of its sweep or array; None: a single job.
        expected_s: The duration that its history predicts; None: no history.
    """

    job: str
    submit_s: float
    duration_s: float
    nodes: int = 1
    gpus: float = 0.0
    cpus: float = 1.0
    cap_s: float | None = None
    priority: int = 0
    user: str = ""
    group: str | None = None
    preemptible: bool = False
    expected_s: float | None = None

    @property
    def work_s(self) -> float:
        """How long it runs without interruption."""
        return self.duration_s if self.cap_s is None else min(self.duration_s, self.cap_s)


def shipped() -> dict[str, Path]:
    """Return the traces that come with this package, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.csv"))}


def read_trace(path: Path | str) -> list[TraceJob]:
    """Return the jobs of a trace (a file, or the name of a shipped one) by submission time.

    Raises:
        NotFoundError: no such file.
        UsageError: a line is not a job; the message has the line's number.
    """
    known = shipped()
    at = known.get(str(path), Path(path))
    try:
        text = at.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        kind = NotFoundError if isinstance(error, FileNotFoundError) else UsageError
        raise kind(
            f"the trace {str(path)!r} cannot be read ({error}); give a CSV or JSON lines file, or "
            f"one of the included traces: {', '.join(known)}."
        ) from error
    jobs = []
    for number, values in _lines(text, at):
        try:
            jobs.append(_job(values, f"line-{number}"))
        except (ValueError, TypeError, UsageError) as error:
            raise UsageError(f"line {number} of the trace {at.name}: {error}") from None
    if not jobs:
        raise UsageError(f"the trace {at.name} has no jobs; each line after the header is one.")
    names = {job.job for job in jobs}
    if len(names) != len(jobs):
        raise UsageError(f"the trace {at.name} names a job twice; give each job its own name.")
    return sorted(jobs, key=lambda job: (job.submit_s, job.job))


def _lines(text: str, path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    values = json.loads(line)
                except ValueError as error:
                    raise UsageError(
                        f"line {number} of the trace {path.name} is not JSON: {error}"
                    ) from None
                if not isinstance(values, dict):
                    raise UsageError(
                        f"line {number} of the trace {path.name} is not a JSON object."
                    )
                yield number, values
        return
    # Comments are allowed only before the header.
    lines = text.splitlines(keepends=True)
    skipped = 0
    while skipped < len(lines) and (not lines[skipped].strip() or lines[skipped][0] == "#"):
        skipped += 1
    reader = csv.DictReader(io.StringIO("".join(lines[skipped:])))
    for values in reader:
        yield skipped + reader.line_num, {k: v for k, v in values.items() if v not in (None, "")}


def _job(values: Mapping[str, Any], name: str) -> TraceJob:
    unknown = [key for key in values if key not in _KNOWN]
    if unknown:
        raise ValueError(
            f"there is no column {unknown[0]!r}; the columns are: {', '.join(_KNOWN)}."
        )
    missing = [key for key in _REQUIRED if values.get(key) in (None, "")]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing.")
    preemptible = str(values.get("preemptible", "0")).strip().lower()
    if preemptible not in ("0", "1", "true", "false", "yes", "no"):
        raise ValueError(f"preemptible is {preemptible!r}; give 1 or 0.")
    nodes = int(values.get("nodes", 1))
    if nodes < 1:
        raise ValueError(f"nodes is {nodes}; a job has at least one.")
    gpus = _amount(values, "gpus", 0.0)
    return TraceJob(
        job=str(values.get("job", name)),
        submit_s=_time(values, "submit"),
        duration_s=_time(values, "duration"),
        nodes=nodes,
        gpus=gpus,
        cpus=_amount(values, "cpus", max(1.0, 4 * gpus)),
        cap_s=_time(values, "cap") if values.get("cap") not in (None, "") else None,
        priority=int(values.get("priority", 0)),
        user=str(values.get("user", "")),
        group=str(values["group"]) if values.get("group") not in (None, "") else None,
        preemptible=preemptible in ("1", "true", "yes"),
        expected_s=_time(values, "expected") if values.get("expected") not in (None, "") else None,
    )


def _time(values: Mapping[str, Any], key: str) -> float:
    try:
        seconds = float(values[key])
    except (TypeError, ValueError):
        seconds = parse_duration(str(values[key]))
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{key} is {values[key]}; give seconds, or a duration such as 90m.")
    return seconds


def _amount(values: Mapping[str, Any], key: str, default: float) -> float:
    amount = float(values.get(key, default))
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(f"{key} is {values[key]}; give a number, 0 or more.")
    return amount
