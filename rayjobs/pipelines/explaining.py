"""Explains in detail why a step ran again: each part that differs, with its old and new value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import RayjobsError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import StepRow
from rayjobs.pipelines.reuse import PACKAGES, changed_packages

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

LONGEST = 300
FILES_SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """A part that differs.

    Attributes:
        part: Its name.
        lines: The old and the new value.
    """

    part: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Explained:
    """Why a step ran, or was reused.

    Attributes:
        step: Its name.
        reason: One sentence.
        original: The job whose results it reuses; None: it ran itself.
        compared_with: The job that it was compared with.
        differences: The parts that differ from it.
    """

    step: str
    reason: str
    original: str | None
    compared_with: str | None
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data; its keys are part of the command line's contract."""
        return {
            "step": self.step,
            "reason": self.reason,
            "original": self.original,
            "compared_with": self.compared_with,
            "differences": [
                {"part": one.part, "lines": list(one.lines)} for one in self.differences
            ],
        }


def explained(workspace: OpenWorkspace, row: StepRow) -> Explained:
    """Return why a step ran, or was reused."""
    decision = row.decision
    other = decision.get("compared_with")
    earlier = None if other is None else workspace.store.step_of(other)
    found = []
    for part in decision.get("differs") or ():
        if earlier is None:
            found.append(Difference(part, (f"{other} was pruned",)))
        elif part == PACKAGES:
            found.append(Difference(part, changed_packages(workspace, earlier.job, row.job)))
        elif part == "source":
            found.append(Difference(part, _files(workspace, earlier.job, row.job)))
        else:
            lines = _lines(earlier.parts.get(part), row.parts.get(part))
            found.append(Difference(part, lines))
    return Explained(
        row.name,
        str(decision.get("reason") or ""),
        row.original,
        other,
        tuple(found),
    )


def _lines(then: Any, now: Any) -> tuple[str, ...]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return tuple(
            f"{key}: {_short(then.get(key))} → {_short(now.get(key))}"
            for key in sorted({*then, *now})
            if then.get(key) != now.get(key)
        )
    return (f"was {_short(then)}", f"is  {_short(now)}")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _files(workspace: OpenWorkspace, then: str, now: str) -> tuple[str, ...]:
    """Return the files of two jobs' code that differ."""
    from rayjobs.snapshots.listing import files_of

    listings = []
    for one in (then, now):
        try:
            digest = workspace.store.job(one).snapshot
            listings.append({} if digest is None else files_of(digest, workspace.blobs.open))
        except RayjobsError as error:
            return (f"the code of {one} cannot be read: {error}",)
    before, after = listings
    changes = [
        f"{path}: {_change(path, before, after)}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]
    more = len(changes) - FILES_SHOWN
    shown = tuple(changes[:FILES_SHOWN])
    return (*shown, f"and {more} more files") if more > 0 else shown


def _change(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if path not in before:
        return "added"
    return "changed" if path in after else "removed"
