"""The run's one real Ray head, shared by all tests that use `local_target`."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Imported where they are used: every test's worker loads this module.
if TYPE_CHECKING:
    from rayjobs.core.paths import TargetPaths
    from rayjobs.target.local_head import HeadRecord

# More than a small machine has: jobs in tests compute almost nothing, and Ray does not check GPUs.
SETTINGS = {
    "RAYJOBS_LOCAL_CPUS": "8",
    "RAYJOBS_LOCAL_GPUS": "4",
    "RAYJOBS_LOCAL_IDLE_S": "3600",
    # A secret in the shell that starts the target (test_target_environment).
    "AWS_SECRET_ACCESS_KEY": "exported-where-the-target-was-started",
}


# A disk that is busy with the other worker's tests may answer late.
READABLE_S = 30.0


@dataclass(frozen=True)
class LocalTarget:
    """A running `local` target.

    Attributes:
        home: Its RAYJOBS_HOME; `local_target` sets the variable for the test.
        stages: The messages of the start.
    """

    home: Path
    stages: tuple[str, ...]
    name: str = "local"

    @property
    def paths(self) -> TargetPaths:
        """Files of the target."""
        from rayjobs.core.paths import TargetPaths

        return TargetPaths.of(self.name, under=self.home)

    @property
    def head(self) -> HeadRecord:
        """The record of its head."""
        from rayjobs.target import local_head

        record = local_head.load_record(self.paths)
        assert record is not None
        return record

    @property
    def token(self) -> str:
        """Ray's token."""
        return self.paths.token.read_text()


def remove_runtime_folder(home: Path) -> None:
    """Remove the folder of a home's sockets, which is outside the home to have a short path."""
    digest = hashlib.sha256(str(home).encode()).hexdigest()[
        :10
    ]  # as rayjobs.core.paths.runtime_dir
    shutil.rmtree(f"/tmp/rayjobs-{os.getuid()}-{digest}", ignore_errors=True)


@pytest.fixture(scope="session")
def shared_head(session_root: Path) -> Iterator[LocalTarget]:
    """Start the head at its first use, and check at the end that nothing of it is left."""
    from rayjobs.target import local_head, targets

    home = session_root / "s"
    stages: list[str] = []
    before = {name: os.environ.get(name) for name in SETTINGS}
    os.environ.update(SETTINGS)
    try:
        targets.start_target(home=home, on_stage=stages.append)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    folder = local_head.ray_folder(home)
    yield LocalTarget(home, tuple(stages))
    targets.stop_target(force=True, home=home)
    assert not list(local_head.processes_of(folder))
    assert not folder.exists()
    remove_runtime_folder(home)


@pytest.fixture
def local_target(
    shared_head: LocalTarget,
    own_home: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LocalTarget]:
    """The running `local` target, with RAYJOBS_HOME set to its home.

    RAYJOBS_WORKSPACE stays the test's own. Tests that use it are marked `ray`: all of them then
    run in one worker, with one head.
    """
    assert request.node.get_closest_marker("ray"), "mark this test with pytest.mark.ray"
    monkeypatch.setenv("RAYJOBS_HOME", str(shared_head.home))
    yield shared_head
    _check_workspaces(shared_head)


def _check_workspaces(target: LocalTarget) -> None:
    """Check that the target can read every workspace whose folder exists.

    It keeps the resources of the others, whose jobs may run, from all later tests.
    """
    from rayjobs.target import targets

    end_s = time.monotonic() + READABLE_S
    while True:
        detail = targets.target_status(target.name, home=target.home, ask=True).detail
        unread = {} if detail is None else detail.refused
        left = {path: why for path, why in unread.items() if Path(path).is_dir()}
        if not left:
            return
        assert time.monotonic() < end_s, f"remove them in the test, see `leaving`: {left}"
        time.sleep(0.1)
