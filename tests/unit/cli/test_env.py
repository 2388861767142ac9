"""`rayjobs env` on a separate machine: build, lock, compare, export and remove."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.core.paths import home
from tests.support.wheels import make_wheel
from tests.unit.cli.conftest import Queue, Terminal

pytestmark = pytest.mark.timeout(300)


class Env:
    """Types `rayjobs env …`."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def __call__(self, *words: object, code: int = 0) -> str:
        done = self.terminal.type("env", *map(str, words))
        assert done.code == code, done
        return done.out


@pytest.fixture
def env(terminal: Terminal) -> Env:
    return Env(terminal)


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    make_wheel(tmp_path / "wheels", "tiny-tool")
    file = tmp_path / "requirements.txt"
    file.write_text("--no-index\n--find-links wheels\ntiny-tool\n")
    return file


def test_environments_in_the_scratch_folder_that_the_user_names_are_listed(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(tmp_path / "fast"))
    found: list[Path] = []

    def built(root: Path) -> list[Path]:
        found.append(root)
        return []

    monkeypatch.setattr("rayjobs.environments.listing.built", built)
    env("ls")
    assert found == [tmp_path / "fast" / "environments"]


@pytest.mark.long
def test_an_environment_from_its_file_to_its_removal(
    env: Env, requirements: Path, tmp_path: Path
) -> None:
    assert json.loads(env("ls", "--json"))["built"] == []
    assert "Built here  no" in env("show", requirements)
    key = env("build", requirements).strip()
    assert env("build", requirements).strip() == key
    (built,) = json.loads(env("ls", "--json"))["built"]
    assert (built["key"], built["kind"], built["packages"]) == (key, "pip", 1)
    assert built["bytes"] > 1000
    assert key[:12] in env("ls")
    shown = json.loads(env("show", key[:8], "--json"))
    assert shown["list"] == [{"name": "tiny-tool", "version": "1.0", "source": "pip"}]
    lock = env("lock", requirements)
    assert "--hash=sha256:" in lock
    assert env("export", key) == lock
    out = tmp_path / "environment.yml"
    env("export", key, "--as", "conda", "-o", out)
    assert "tiny-tool==1.0" in out.read_text()
    assert "python=3.11" in out.read_text()
    make_wheel(tmp_path / "wheels", "tiny-tool", "2.0")
    (row,) = json.loads(env("diff", key, requirements, "--json", code=1))
    assert row == {"package": "tiny-tool", "first": "1.0", "second": "2.0"}
    env("diff", key, key)
    assert env("prune", "--max-size", "1GiB") == ""
    assert key[:12] in env("prune", "--max-size", "0", "--dry-run")
    assert key[:12] in env("prune", "--max-size", "0")
    assert json.loads(env("ls", "--json"))["built"] == []


@pytest.mark.long
def test_environment_in_use_is_never_removed(env: Env, requirements: Path) -> None:
    key = env("build", requirements).strip()
    attempt = home() / "node" / "attempts" / "job1" / "a1"
    attempt.mkdir(parents=True)
    (attempt / "environment.json").write_text(json.dumps({"key": key, "python": "p"}))
    assert env("prune", "--max-size", "0") == ""
    assert env("prune", "--older-than", "0s") == ""
    (built,) = json.loads(env("ls", "--json"))["built"]
    assert built["used_by"] == ["job1/a1"]


def test_unknown_environment_names_are_refused(terminal: Terminal, queue: Queue) -> None:
    done = terminal.type("env", "show", "absent")
    assert done.code == 3
    assert "no environment 'absent'" in done.err
    assert terminal.type("env", "build", "absent.txt").code == 3
    job = queue.completed()
    done = terminal.type("env", "lock", job.id)
    assert done.code == 2
    assert "has no environment of packages" in done.err


@pytest.mark.long
def test_curated_name_shows_its_substitute(env: Env, terminal: Terminal) -> None:
    shown = env("show", "AzureML-PyTorch-1.6-GPU")
    assert "torch==1.6.0 → torch==" in shown
    assert "Python 3.6.2 → Python 3.11" in shown
    done = terminal.type("env", "build", "--strict", "AzureML-PyTorch-1.6-GPU")
    assert done.code == 2
    assert "would be replaced by" in done.err
