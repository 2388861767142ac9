"""A job on Python 3.13, which no package of this machine has: from a Debian image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.hosts import Attempt
from tests.containers import ENV, in_image, needs_containers
from tests.unit.containers.conftest import ImageNode

pytestmark = [
    pytest.mark.slow,  # makes the image from Debian packages: half a minute
    pytest.mark.timeout(900),
    needs_containers,
    pytest.mark.skipif(
        shutil.which("mmdebstrap") is None, reason="needs mmdebstrap: apt-get install mmdebstrap"
    ),
]
SCRIPT = """
import sys
from rayjobs import Run
Run.get_context()
print(sys.version_info[:2], sys.executable)
"""


def mirror() -> str:
    """The mirror of Debian that apt of this machine uses."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return next(
        line for line in said.splitlines() if "debian" in line and not line.endswith("security")
    )


def test_python_3_13_of_debian_runs_a_script(short_path: Path, tmp_path: Path) -> None:
    tar = tmp_path / "trixie.tar"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", "trixie", str(tar),
         mirror()],
        check=True,
    )  # fmt: skip
    found = ImageNode(tmp_path / "node").realise(f"tar:{tar}")
    assert found.answer.python == "/usr/bin/python3"
    assert found.answer.python_version.startswith("3.13.")
    attempt = in_image(Attempt.make(short_path, SCRIPT), found.root)
    attempt.plan["python"] = found.answer.python
    attempt.plan["env"] = {**ENV, "PATH": "/usr/bin:/bin"}
    assert attempt.start_cold().wait()["outcome"] == "completed", attempt.log()
    assert attempt.log() == b"(3, 13) /usr/bin/python3\n"
