"""Fixtures of every unit test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_real_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no Ray for unfinished jobs of a target that never was, as commands do."""
    from rayjobs.target import revive

    monkeypatch.setattr(revive, "in_background", lambda *_arguments, **_more: None)
