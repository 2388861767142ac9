"""The old top-level names of the two packages, and records that hold them."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rayjobs.core.aliases import MOVED, canonical
from rayjobs.core.errors import RayjobsError
from rayjobs.engine.sweep_drivers import resolve
from rayjobs.target import stopping
from rayjobs.tuning.driver_actor import start


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tuning.driver_actor", "rayjobs.tuning.driver_actor"),
        ("tuning", "rayjobs.tuning"),
        ("datastore.cache", "rayjobs.datastore.cache"),
        ("rayjobs.tuning.runs", "rayjobs.tuning.runs"),
        ("tuningfork.space", "tuningfork.space"),
    ],
)
def test_canonical_names(old: str, new: str) -> None:
    assert canonical(old) == new


def test_a_record_of_an_older_version_finds_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may have a module of the old name."""
    monkeypatch.setitem(sys.modules, "tuning", ModuleType("tuning"))
    assert resolve("tuning.driver_actor:start") is start
    assert resolve("rayjobs.tuning.driver_actor:start") is start


def test_a_package_of_another_user_keeps_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("datastore")  # installs the finder
    theirs = ModuleType("datastore")
    theirs.__path__ = []
    monkeypatch.setitem(sys.modules, "datastore", theirs)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("datastore.settings_of_theirs")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("datastore.mountfiles")


def test_a_host_of_an_older_version_imports_a_module_by_its_old_name() -> None:
    new = importlib.import_module("rayjobs.injob.gloo_ranks")
    assert importlib.import_module("rayjobs.injob.glooranks") is new


def test_every_moved_module_exists_at_its_new_name() -> None:
    for new in MOVED.values():
        assert importlib.util.find_spec(new) is not None, new


@pytest.mark.parametrize("old", ["rayjobs.compute.raylaunch", "rayjobs.targetstart"])
@pytest.mark.long
def test_process_of_an_older_version_starts_a_module_by_its_old_name(old: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", old, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: {canonical(old)}" in done.stdout


def test_pickles_of_an_older_version_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "rayjobs.errors", raising=False)
    assert pickle.loads(b"crayjobs.errors\nRayjobsError\n.") is RayjobsError
    assert resolve("rayjobs.targetstart:main").__module__ == "rayjobs.target.background_start"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rayjobs.no_such_module")


@pytest.mark.parametrize("name", ["rayjobs.compute.raylaunch", "rayjobs.engine.starter"])
def test_a_stop_ends_a_starter_by_either_name(tmp_path: Path, name: str) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)", name, str(tmp_path)]
    starter, other = (subprocess.Popen([*words, target]) for target in ("local", "another"))
    try:
        stopping._end_starters(stopping.TargetLocation("local", tmp_path))
        assert starter.wait(timeout=30) < 0
        assert other.poll() is None
    finally:
        for process in (starter, other):
            process.kill()
            process.wait()
