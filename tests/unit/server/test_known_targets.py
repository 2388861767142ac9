"""Facts of targets are looked up once a second, and their problems each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rayjobs.core.errors import Problem
from rayjobs.server import known_targets
from rayjobs.server.known_targets import KnownTargets
from rayjobs.submit.submitting import TargetFacts


def test_facts_are_kept_for_a_second_and_problems_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[str] = []
    now_s = 100.0
    problems = {"gone": (Problem("target", "there is no target 'gone'"),)}

    def facts(_workspace: object, target: str) -> TargetFacts:
        looked_up.append(target)
        return TargetFacts(None, None, problems.get(target, ()))

    monkeypatch.setattr(known_targets, "facts_of", facts)
    monkeypatch.setattr(known_targets, "time", SimpleNamespace(monotonic=lambda: now_s))
    known = KnownTargets(cast(Any, None))
    assert known.of("local") is known.of("local")
    assert known.of("gone").problems and known.of("gone").problems
    assert looked_up == ["local", "gone", "gone"]
    problems.clear()
    assert not known.of("gone").problems
    now_s += known_targets.KNOWN_FOR_S
    known.of("local")
    assert looked_up == ["local", "gone", "gone", "gone", "local"]
