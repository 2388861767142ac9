"""The measured figures, and their table: figure, ours, peer, ratio, goal, met."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured figure; every number is a median over the rounds.

    Attributes:
        name: What was measured.
        unit: The unit of `ours` and `peer`.
        peer: The peer's figure in the same run; None where there is none.
        peer_name: The name of the peer.
        most: The maximum of `ours`.
        least: The minimum of `ours`.
        faster: The minimum of the peer's figure divided by ours.
        slower: The maximum of our figure divided by the peer's.
        plus: An amount by which ours may exceed the limit of `slower`.
        share: The minimum of our figure divided by the peer's, if more is better.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    most: float | None = None
    least: float | None = None
    faster: float | None = None
    slower: float | None = None
    plus: float = 0.0
    share: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than the peer's; None without a peer."""
        if not self.peer or not self.ours:
            return None
        return self.ours / self.peer if self.share is not None else self.peer / self.ours

    @property
    def goal(self) -> str:
        """The goals in words; empty if there are none."""
        words = []
        if self.most is not None:
            words.append(f"≤ {self.most:g} {self.unit}")
        if self.least is not None:
            words.append(f"≥ {self.least:g} {self.unit}")
        if self.faster is not None:
            words.append(f"≥ {self.faster:g} × faster")
        if self.slower is not None:
            extra = f" + {self.plus:g} {self.unit}" if self.plus else ""
            words.append(f"≤ {self.slower:g} × peer{extra}")
        if self.share is not None:
            words.append(f"≥ {self.share:g} × peer")
        return ", ".join(words)

    @property
    def is_met(self) -> bool | None:
        """Whether all goals are met; None without goals."""
        checks = []
        if self.most is not None:
            checks.append(self.ours <= self.most)
        if self.least is not None:
            checks.append(self.ours >= self.least)
        if self.faster is not None:
            checks.append(self.ratio is not None and self.ratio >= self.faster)
        if self.slower is not None:
            allowed = None if self.peer is None else self.peer * self.slower + self.plus
            checks.append(allowed is not None and self.ours <= allowed)
        if self.share is not None:
            checks.append(self.ratio is not None and self.ratio >= self.share)
        return all(checks) if checks else None

    def as_dict(self) -> dict[str, Any]:
        """The figure as plain data, with ratio, goal and result."""
        return {**asdict(self), "ratio": self.ratio, "goal": self.goal, "met": self.is_met}


def median(values: Iterable[float]) -> float:
    """Return the median of at least one value."""
    return statistics.median(values)


def machine() -> dict[str, Any]:
    """Return the current facts of this machine on which the figures depend."""
    versions = {}
    for name in ("ray", "torch"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
    }


def machine_line(facts: dict[str, Any]) -> str:
    """Return the facts of `machine` on one line."""
    return (
        f"{facts['cores']} cores, load {facts['load']:g} at the start, Python {facts['python']}, "
        f"Ray {facts['ray']}, torch {facts['torch']}"
    )


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table, its columns aligned."""
    rows = [("figure", "ours", "peer", "ratio", "goal", "met?")]
    for one in figures:
        peer = "" if one.peer is None else f"{_number(one.peer)} {one.unit} ({one.peer_name})"
        rows.append(
            (
                one.name,
                f"{_number(one.ours)} {one.unit}",
                peer,
                "" if one.ratio is None else f"{_number(one.ratio)} ×",
                one.goal,
                {None: "", True: "yes", False: "no"}[one.is_met],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
