"""The probes of a node run by their path, without the packages of its Python.

If a probe cannot run, a node works as if it had no namespaces, and the tests that need namespaces
are skipped, so no other test would fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.injob import container, namespace, views


@pytest.mark.parametrize("module", [container, namespace, views], ids=lambda one: one.__name__)
def test_a_probe_runs_by_its_path_and_answers(module: object, tmp_path: Path) -> None:
    file = str(module.__file__)  # type: ignore[attr-defined]
    done = subprocess.run(
        [sys.executable, "-S", "-E", file, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert "why" in json.loads(done.stdout)
