"""`rayjobs store` reports its progress during a long upload."""

from __future__ import annotations

import pytest

from rayjobs.cli import store
from rayjobs.cli.settings import Settings


def test_new_lines_are_printed_once_and_a_long_silence_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = store._Reporter(Settings())
    reporter.show([])
    for line in ("output made: 1/3 files", "output made: 1/3 files", "output made: 2/3 files"):
        reporter.show([line])
    lines = ["output made: 1/3 files", "output made: 2/3 files"]
    assert capsys.readouterr().err.splitlines() == lines
    monkeypatch.setattr(store, "QUIET_S", 0.0)
    reporter.show(["output made: 2/3 files"])
    assert capsys.readouterr().err.startswith("still storing, for ")
