"""Jobs run in environments that have none of our dependencies, or other versions of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.launch import hostclient
from tests.conformance.hosts import Attempt, base_env

pytestmark = pytest.mark.timeout(600)  # the first one makes an environment

# Dependencies of rayjobs that the user's environment has in an incompatible version.
REFUSED = ("pydantic", "sqlalchemy", "click", "ray", "psutil", "rich", "platformdirs", "fsspec")
SOURCE = """
import sys
from rayjobs import Run
import rayjobs.injob
for name in {refused!r}:
    assert name not in sys.modules, name
    try:
        __import__(name)
    except ImportError as error:
        assert str(error) == "another version", error
    else:
        raise AssertionError(name)
print("ran with", sys.prefix)
"""


def _oldest_python() -> str | None:
    """Return a Python 3.8 of this machine, from PATH or pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.8"), *map(str, sorted(pyenv.glob("versions/3.8.*/bin/python")))]
    for python in filter(None, found):
        reported = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if reported.stdout.strip() == "(3, 8)":  # a shim of pyenv may answer for another version
            return python
    return None


@pytest.fixture(scope="module", params=["ours", "3.8"])
def other_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment whose only packages clash with ours."""
    python = sys.executable if request.param == "ours" else _oldest_python()
    if python is None:
        pytest.skip("this machine has no Python 3.8")
    folder = tmp_path_factory.mktemp("env")
    command = [python, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=200)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in REFUSED:
        (packages / f"{name}.py").write_text("raise ImportError('another version')\n")
    (packages / "rayjobs").mkdir()
    (packages / "rayjobs/__init__.py").write_text("raise ImportError('an old rayjobs')\n")
    return str(folder / "bin/python")


@pytest.fixture(scope="module")
def injob_only(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that holds rayjobs and none of its dependencies."""
    folder = tmp_path_factory.mktemp("lib")
    (folder / "rayjobs").symlink_to(Path(hostclient.__file__).parent.parent)
    return str(folder)


def test_cold_rank_needs_no_rayjobs_package(
    short_path: Path, other_python: str, injob_only: str
) -> None:
    """The user's own package of the same name wins, as it would under plain python."""
    source = "import sys; print('ray' in sys.modules, sys.path[-1]); import click"
    attempt = Attempt.make(short_path, source, python=other_python, injob_path=injob_only)
    record = attempt.start_cold().wait()
    assert record["ranks"][0]["exit_code"] == 1
    assert attempt.log().startswith(f"False {injob_only}\n".encode())
    assert b"ImportError: another version" in attempt.log()


def test_warm_interpreter_and_run_work_next_to_clashing_packages(
    short_path: Path, other_python: str, injob_only: str
) -> None:
    socket = str(short_path / "w.sock")

    async def ensure() -> hostclient.WarmInterpreter:
        return await hostclient.ensure_warm(
            socket,
            python=other_python,
            env=base_env(),
            log_file=str(short_path / "warm.log"),
            preload=("json", "pydantic"),
        )

    found = asyncio.run(ensure())
    try:
        assert found.preloaded == ("json",)
        assert found.not_preloaded == {"pydantic": "ImportError: another version"}
        attempt = Attempt.make(
            short_path,
            SOURCE.format(refused=REFUSED),
            python=other_python,
            injob_path=injob_only,
        )
        record = attempt.start(socket).wait()
        assert record["outcome"] == "completed", attempt.log()
        assert record["cold"] is None
        assert attempt.log().startswith(b"ran with ")
    finally:
        asyncio.run(hostclient.stop_warm(socket))
