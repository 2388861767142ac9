"""Fixtures of every unit test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_real_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not let commands start Ray for unfinished jobs: unit tests have no real target."""
    from rayjobs.target import revive

    monkeypatch.setattr(revive, "in_background", lambda *_arguments, **_more: None)
