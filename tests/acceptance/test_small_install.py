"""`pip install rayjobs`: a client without Ray and PyTorch, in a separate environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.environments.settings import find_uv
from rayjobs.workspace import users
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served, serve, served

pytestmark = pytest.mark.long
__all__ = ["serve", "served"]

ROOT = Path(__file__).parents[2]
LARGEST_BYTES = 100 << 20


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of this checkout and its dependencies only.

    Packages come from the sources of this machine's uv or pip.
    """
    folder = tmp_path_factory.mktemp("bare")
    uv = find_uv()
    wheels = folder / "wheels"
    _run(uv, "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("rayjobs-*.whl")
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    started_s = time.monotonic()
    python = str(folder / "venv" / "bin" / "python")
    _run(uv, "pip", "install", "--quiet", "--python", python, str(wheel))
    spent_s = time.monotonic() - started_s
    print(f"{_size_of(folder / 'venv') >> 20} MiB, installed in {spent_s:.1f} s")
    return folder / "venv"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def command(bare: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "laptop"),
            "RAYJOBS_HOME": str(tmp_path / "laptop" / "rayjobs"),
            **variables,
        }
        (tmp_path / "laptop").mkdir(exist_ok=True)
        return subprocess.run(
            [str(bare / "bin" / "rayjobs"), *arguments],
            env=environment,
            cwd=tmp_path / "laptop",
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_small_install_is_small(bare: Path) -> None:
    packages = bare / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    there = {path.name for path in packages.iterdir()}
    assert "rayjobs" in there
    assert not there & {"ray", "torch", "torchvision", "pandas", "pyarrow", "botocore"}
    assert _size_of(bare) < LARGEST_BYTES


def test_small_install_submits_to_a_server_and_lists_jobs(
    served: Served,
    command: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing runs jobs here: they stay queued.
    monkeypatch.setattr("rayjobs.target.revive.in_background", lambda *_one, **_more: None)
    _, token = users.add(served.workspace.store, "ada", Role.SUBMITTER, by="root")
    server = {"RAYJOBS_ADDRESS": served.address, "RAYJOBS_TOKEN": token}
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "train.py").write_text("print('here')\n")

    sent = command("submit", "train.py", "--name", "first", **server)
    assert sent.returncode == 0, sent.stderr
    assert served.workspace.store.job(sent.stdout.strip()).user == "ada"

    listed = command("ls", **server)
    assert listed.returncode == 0, listed.stderr
    assert "first" in listed.stdout


def test_small_install_without_a_server_explains_what_is_needed(
    command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "train.py").write_text("print('here')\n")
    for done in (command("submit", "train.py"), command("target", "start", "local")):
        assert done.returncode == 2
        (line,) = [one for one in done.stderr.splitlines() if one.startswith("error: ")]
        assert "pip install 'rayjobs[local]'" in line and "rayjobs login" in line
        assert "Traceback" not in done.stderr
    assert "first" not in command("ls").stdout  # nothing was queued


def test_table_needs_the_data_extra(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    code = (
        "from rayjobs.core.extras import explained\n"
        "try:\n"
        "    from rayjobs.datastore import Dataset\n"
        "    Dataset.Tabular.from_delimited_files('rows.csv').to_pandas_dataframe()\n"
        "except ModuleNotFoundError as error:\n"
        "    print(explained(error))\n"
    )
    done = subprocess.run(
        [str(bare / "bin" / "python"), "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "rayjobs[data]" in done.stdout, done.stderr
