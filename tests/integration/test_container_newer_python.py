"""A job on Python 3.13, which this machine need not have: from an image of Debian's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.hosts import Attempt
from tests.support.containers import ENV, in_image, needs_containers, newer_python
from tests.support.debian_python import PYTHON
from tests.unit.containers.conftest import ImageNode

__all__ = ["newer_python"]
pytestmark = [pytest.mark.timeout(300), needs_containers]
SCRIPT = """
import sys
from rayjobs import Run
Run.get_context()
print(sys.version_info[:2], sys.executable)
"""


def test_python_3_13_of_debian_runs_a_script(
    short_path: Path, tmp_path: Path, newer_python: Path
) -> None:
    found = ImageNode(tmp_path / "node").realise(f"dir:{newer_python}")
    assert found.answer.python == "/usr/bin/python3"
    assert found.answer.python_version.startswith("3.13.")
    attempt = in_image(Attempt.make(short_path, SCRIPT), found.root)
    attempt.plan["python"] = PYTHON
    attempt.plan["env"] = {**ENV, "PATH": "/usr/bin:/bin"}
    assert attempt.start_cold().wait()["outcome"] == "completed", attempt.log()
    assert attempt.log() == f"(3, 13) {PYTHON}\n".encode()
