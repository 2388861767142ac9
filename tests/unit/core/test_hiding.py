"""A user's own `rayjobs` that hides the installed package is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.hiding import hiding
from tests.unit.cli.conftest import Terminal, terminal

__all__ = ["terminal"]


def test_module_or_package_named_rayjobs_is_reported(tmp_path: Path) -> None:
    assert hiding(tmp_path) == ""
    (tmp_path / "rayjobs" / "injob").mkdir(parents=True)
    (tmp_path / "rayjobs" / "__init__.py").touch()
    assert hiding(tmp_path) == ""  # looks like a checkout of rayjobs
    (tmp_path / "rayjobs" / "injob").rmdir()
    assert hiding(tmp_path).startswith(f"rayjobs/ in {tmp_path} hides the installed package")
    (tmp_path / "rayjobs.py").touch()
    assert hiding(tmp_path).startswith(f"rayjobs.py in {tmp_path} hides")


@pytest.mark.usefixtures("own_home")
def test_submit_reports_a_hiding_module(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "rayjobs.py").touch()
    done = terminal.type("submit", "--dry-run", "train.py")
    assert "hides the installed package" in " ".join(f"{done.out} {done.err}".split())
