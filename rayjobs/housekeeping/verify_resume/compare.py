"""Compares the metric curves and final checkpoints of an undisturbed and a resumed run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs.core.errors import RayjobsError
from rayjobs.housekeeping.verify_resume import tensors
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import MetricPoint
from rayjobs.results import metrics
from rayjobs.results.checkpoints import StoredCheckpoint

COMPARE_TIMEOUT_S = 600.0
MOST_NAMED = 5


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference: ``|a - b| <= atol + rtol * |a|``; a is the undisturbed value."""

    rtol: float = 1e-5
    atol: float = 1e-8

    def allows(self, one: float, other: float) -> bool:
        """Return whether two numbers count as the same; NaN is the same as NaN."""
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other or abs(one - other) <= self.atol + self.rtol * abs(one)


@dataclass(frozen=True)
class CurveFinding:
    """One metric of both runs.

    Attributes:
        missing: Steps of the undisturbed run that the resumed one lacks.
        extra: Steps that only the resumed run has.
        doubled: Steps that the resumed run has more often than the undisturbed one.
        first_step: The first step whose values differ; None if all are the same.
        by: The difference at that step.
        most: The largest difference over all steps.
    """

    name: str
    points: int
    missing: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()
    first_step: int | None = None
    by: float | None = None
    most: float | None = None

    @property
    def sentences(self) -> list[str]:
        """The differences as sentences; empty if there are none."""
        found = []
        if self.missing:
            found.append(f"metric {self.name!r} has a gap: {_steps(self.missing)} missing")
        if self.doubled:
            found.append(f"metric {self.name!r} is doubled at {_steps(self.doubled)}")
        if self.extra:
            found.append(
                f"metric {self.name!r} has {_steps(self.extra)}, which the undisturbed run lacks"
            )
        if self.first_step is not None:
            found.append(
                f"metric {self.name!r} first differs at step {self.first_step}: by {self.by:.3g} "
                f"there, by {self.most:.3g} at most"
            )
        return found


def _steps(steps: Sequence[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:MOST_NAMED])
    more = f" and {len(steps) - MOST_NAMED} more" if len(steps) > MOST_NAMED else ""
    return f"step{'s' if len(steps) > 1 else ''} {shown}{more}"


def curves(
    undisturbed: Sequence[MetricPoint],
    resumed: Sequence[MetricPoint],
    *,
    tolerance: Tolerance,
    ignore: Collection[str] = (),
) -> tuple[list[CurveFinding], list[str]]:
    """Compare all metrics that were logged with a step; return them, and the names of the others.

    The others cannot be put in order across attempts, so they are not compared.
    """
    ours, theirs = metrics.series(undisturbed), metrics.series(resumed)
    findings, left_out = [], []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name in ignore:
            continue
        sides = [one[name] for one in (ours, theirs) if name in one]
        if not all(side.has_steps for side in sides):
            left_out.append(name)
            continue
        findings.append(_curve(name, ours.get(name), theirs.get(name), tolerance))
    return findings, left_out


def _curve(
    name: str, one: metrics.Series | None, other: metrics.Series | None, tolerance: Tolerance
) -> CurveFinding:
    ours = Counter(one.steps if one else ())
    theirs = Counter(other.steps if other else ())
    before = dict(zip(one.steps, one.values, strict=True)) if one else {}
    after = dict(zip(other.steps, other.values, strict=True)) if other else {}
    unlike = [
        step
        for step in sorted(before.keys() & after.keys())
        if not tolerance.allows(before[step], after[step])
    ]
    apart = [abs(before[step] - after[step]) for step in unlike]
    return CurveFinding(
        name,
        len(ours),
        missing=tuple(sorted(ours.keys() - theirs.keys())),
        extra=tuple(sorted(theirs.keys() - ours.keys())),
        doubled=tuple(sorted(step for step in ours if theirs[step] > ours[step])),
        first_step=unlike[0] if unlike else None,
        by=apart[0] if apart else None,
        most=max(apart) if apart else None,
    )


@dataclass(frozen=True)
class FileFinding:
    """The differences in one file of the last checkpoint, as sentences and as data."""

    name: str
    sentences: tuple[str, ...]
    facts: Mapping[str, Any]


def weights(
    undisturbed: StoredCheckpoint,
    resumed: StoredCheckpoint,
    folders: tuple[Path, Path],
    *,
    tolerance: Tolerance,
    python: str | None,
) -> list[FileFinding]:
    """Return the differences between two checkpoints whose files were written to `folders`.

    Files with the same bytes are equal. The others are loaded in a separate process with the job's
    interpreter, and their tensors are compared by name.

    Args:
        python: The interpreter (or the folder of its environment) that the jobs ran with.

    Raises:
        RayjobsError: that process failed.
    """
    ours, theirs = undisturbed.files, resumed.files
    found = [
        FileFinding(name, (f"{name} is missing in the resumed run's last checkpoint",), {})
        for name in sorted(ours.keys() - theirs.keys())
    ]
    found += [
        FileFinding(name, (f"{name} is only in the resumed run's last checkpoint",), {})
        for name in sorted(theirs.keys() - ours.keys())
    ]
    manifest = {"manifest.json"}  # lists hashes: differs whenever a file does
    unlike = [
        name
        for name in sorted((ours.keys() & theirs.keys()) - manifest)
        if ours[name].digest != theirs[name].digest
    ]
    if unlike:
        found += [_finding(facts) for facts in _compared(unlike, folders, tolerance, python)]
    return found


def _compared(
    names: Sequence[str], folders: tuple[Path, Path], tolerance: Tolerance, python: str | None
) -> list[dict[str, Any]]:
    command = [
        interpreter(python),
        str(Path(tensors.__file__)),
        *(str(folder) for folder in folders),
        str(tolerance.rtol),
        str(tolerance.atol),
        *names,
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMPARE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RayjobsError(f"the checkpoints could not be compared: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RayjobsError(f"the checkpoints could not be compared by {command[0]}: {last}")
    compared: list[dict[str, Any]] = json.loads(done.stdout)
    return compared


def interpreter(python: str | None) -> str:
    """Return the interpreter of a job's environment; for None, that of this process."""
    if python is None:
        return sys.executable
    path = Path(python).expanduser()
    return str(path / "bin" / "python") if path.is_dir() else str(path)


def _finding(facts: Mapping[str, Any]) -> FileFinding:
    name = facts["file"]
    if "unread" in facts:
        sentence = f"{name} differs byte for byte; it cannot be compared further: {facts['unread']}"
        return FileFinding(name, (sentence,), facts)
    sentences = [f"{name}: {one} is missing" for one in facts["missing"]]
    sentences += [f"{name}: {one} is new" for one in facts["extra"]]
    for one in facts["largest"]:
        if "why" in one:
            how = one["why"]
        else:
            how = "NaN on one side" if one["by"] is None else f"by {one['by']:.3g}"
        sentences.append(f"{name}: {one['name']} differs ({how})")
    more = facts["differ"] - len(facts["largest"])
    if more:
        sentences.append(f"{name}: {more} more of its {facts['values']} values differ")
    # Without sentences, only bytes differ: all values are equal within the tolerance.
    return FileFinding(name, tuple(sentences), facts)
