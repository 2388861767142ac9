"""A separate local head for benchmarks, with a short folder; ends everything that it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

DEADLINE_S = 300.0
WRITES_TIME = "import sys, time\nopen(sys.argv[1], 'w').write(repr(time.time()))\n"
IMPORTS_TORCH = "import torch\n" + WRITES_TIME
TRIVIAL = "print('done')\n"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Yield a new folder with a short path, for RAYJOBS_HOME and RAYJOBS_WORKSPACE; remove it."""
    folder = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    before = dict(os.environ)
    os.environ["RAYJOBS_HOME"] = str(folder / "h")
    os.environ["RAYJOBS_WORKSPACE"] = str(folder / "w")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        until(lambda: _remove(folder), f"{folder} can be removed")


def _remove(folder: Path) -> bool:
    # A process that is ending, such as a mount keeper, may still write a file.
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@dataclass(frozen=True)
class Head:
    """A running target and a workspace it serves."""

    folder: Path
    workspace: OpenWorkspace

    def source(self, text: str) -> Path:
        """Return a source folder whose train.py is `text`."""
        return make_source(self.folder, text)

    def submit(self, source: Path, *arguments: str, **more: Any) -> Job:
        """Submit a source folder's train.py; `more` goes into its spec."""
        from rayjobs.submit.submitting import submit

        values = {"name": "bench", "script": "train.py", "arguments": arguments, **more}
        spec = JobSpec.model_validate(values)
        return submit(self.workspace, spec, source=source).job

    def wait(self, jobs: list[Job]) -> None:
        """Wait until all are Completed."""
        for job in jobs:
            until(lambda one=job: self.workspace.store.job(one.id).state.is_final, job.id)  # type: ignore[misc]
            found = self.workspace.store.job(job.id)
            if found.state is not JobState.COMPLETED:
                raise SystemExit(f"{job.id} ended as {found.state}: {found.reason}")

    def peer(self) -> Any:
        """Return a Ray Jobs client of this head."""
        from rayjobs.core.paths import TargetPaths
        from rayjobs.target import local_head

        paths = TargetPaths.of("local", under=self.folder / "h")
        record = local_head.load_record(paths)
        assert record is not None
        os.environ.update(local_head.auth_environment(paths.token))
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(record.dashboard_url)


@contextlib.contextmanager
def running_head() -> Iterator[Head]:
    """Yield a head that has already run a job; stop it at the end."""
    from rayjobs.target import targets

    with own_folder() as folder:
        home = folder / "h"
        try:
            targets.start_target(home=home)
            with open_workspace(folder / "w") as workspace:
                head = Head(folder, workspace)
                head.wait([head.submit(head.source(IMPORTS_TORCH), str(folder / "first"))])
                yield head
        finally:
            targets.stop_target(force=True, home=home)


def make_source(folder: Path, text: str) -> Path:
    """Return a source folder with `text` as train.py."""
    source = Path(tempfile.mkdtemp(prefix="src-", dir=folder))
    (source / "train.py").write_text(text)
    return source


def until(fact: Callable[[], object], what: str) -> None:
    """Wait until `fact` is true; end the benchmark if it takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up after {DEADLINE_S:g} s: {what}")
        time.sleep(0.005)


def written_time(path: Path) -> float:
    """Wait until a script has written a time to `path`; return it."""
    until(lambda: path.exists() and path.read_text(), str(path))
    return float(path.read_text())
