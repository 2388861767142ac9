"""Submits small scripts to the run's real target and waits for facts about them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rayjobs.core.paths import home
from rayjobs.injob.identity import Identity
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import submit
from rayjobs.target import starting, targets
from rayjobs.workspace.folder import OpenWorkspace, locate, open_workspace

DEADLINE_S = 150.0
Fact = TypeVar("Fact")


def until(fact: Callable[[], Fact], what: str, *, deadline_s: float = DEADLINE_S) -> Fact:
    """Return the first true value of `fact`; fail when there is none in time."""
    end = time.monotonic() + deadline_s
    while True:
        value = fact()
        if value:
            return value
        assert time.monotonic() < end, f"not true within {deadline_s:g} s: {what}"
        time.sleep(0.02)


class Jobs:
    """One workspace of a test on the shared target."""

    def __init__(self, workspace: OpenWorkspace, folder: Path) -> None:
        self.workspace = workspace
        self.store = workspace.store
        self.folder = folder
        self._number = 0

    def submit(self, script: str, **spec: Any) -> Job:
        """Submit a script by its text."""
        self._number += 1
        source = self.folder / f"source{self._number}"
        source.mkdir()
        (source / "train.py").write_text(textwrap.dedent(script))
        return self.submit_folder(source, **spec)

    def submit_folder(self, source: Path, *, experiment: str = "test", **spec: Any) -> Job:
        """Submit the train.py of a folder."""
        values = {"name": "test", "script": "train.py", "grace_s": 2.0} | spec
        return submit(self.workspace, JobSpec(**values), source=source, experiment=experiment).job

    def job(self, job: Job) -> Job:
        """Return the job as it is now."""
        return self.store.job(job.id)

    def wait(self, job: Job, state: JobState | None = None, **more: Any) -> Job:
        """Return the job once it is final (or in `state`); a failure shows its reason and log."""

        def reached() -> Job | None:
            now = self.job(job)
            return now if now.state.is_final or now.state is state else None

        with self._explained(job):
            found = until(reached, f"{job.id} ends (or is {state})", **more)
        assert found is not None
        if state is not None:
            assert found.state is state, (found.state, found.reason, self.log(job))
        return found

    def attempt(self, job: Job) -> Attempt:
        """Return the newest attempt."""
        return self.store.attempts(job.id)[-1]

    def root(self, job: Job) -> Path:
        """Return the attempt's folder on this node, once its host is known."""
        return Path(self.host(job).root)

    def host(self, job: Job) -> HostRecord:
        """Return the record of the attempt's host, once it runs."""

        def record() -> HostRecord | None:
            attempts = self.store.attempts(job.id)
            hosts = attempts[-1].hosts if attempts else ()
            return hosts[0] if hosts and hosts[0].pid is not None else None

        with self._explained(job):
            return until(record, f"{job.id} has a host")  # type: ignore[return-value]

    @contextlib.contextmanager
    def _explained(self, job: Job) -> Iterator[None]:
        """Add to a failed assertion what the store and the target say of the job."""
        try:
            yield
        except AssertionError as error:
            now = self.job(job)
            target = targets.target_status(now.spec.target, home=home(), ask=True).detail
            raise AssertionError(
                f"{error}; it is {now.state} ({now.reason}), attempt {now.attempt}: "
                f"{[event.message for event in self.store.events(job.id)][-8:]}; "
                f"its target: {None if target is None else target.to_json()}"
            ) from None

    def host_process(self, job: Job) -> Identity:
        """Return the process of the attempt's host, once it runs."""
        found = self.host(job).identity
        assert found is not None
        return found

    def wait_for_output(self, job: Job, text: bytes) -> None:
        """Wait until the running job has printed `text`."""
        path = self.root(job) / "log" / "driver_0.log"
        with self._explained(job):
            until(lambda: path.exists() and text in path.read_bytes(), f"{job.id} prints {text!r}")

    def log(self, job: Job) -> bytes:
        """Return the stored driver log; empty while there is none."""
        for file in self.store.files(job.id):
            if file.name == "azureml-logs/70_driver_log.txt":
                with self.workspace.blobs.open(file.blob) as stream:
                    return stream.read()
        return b""

    def file(self, job: Job, name: str) -> bytes:
        """Return a stored file's bytes."""
        (found,) = [file for file in self.store.files(job.id) if file.name == name]
        with self.workspace.blobs.open(found.blob) as stream:
            return stream.read()

    def nothing_left(self, job: Job) -> None:
        """Wait until no process and no scratch of any attempt of the job is left.

        Not for jobs whose files could not be stored: their scratch is kept for the user.
        """
        for attempt in self.store.attempts(job.id):
            for host in attempt.hosts:
                until(
                    lambda marker=host.marker: not find_leftovers(marker),  # type: ignore[misc]
                    f"no process of {job.id} is alive",
                )
                if host.root:
                    until(
                        lambda root=host.root: not Path(root).exists(),  # type: ignore[misc]
                        f"the scratch {host.root} is gone",
                    )


@pytest.fixture
def jobs(local_target: object, tmp_path: Path) -> Iterator[Jobs]:
    """A workspace for this test on the shared real target."""
    workspace = open_workspace(locate())
    made = Jobs(workspace, tmp_path)
    yield made
    end_jobs(made)
    workspace.close()


def end_jobs(made: Jobs) -> None:
    """Cancel the jobs of a workspace, and wait until they have ended."""
    for job in made.store.jobs():
        if not job.state.is_final:
            made.store.request_cancel(job.id)
    wake(made.workspace)
    for job in made.store.jobs():
        made.wait(job)


@contextlib.contextmanager
def leaving(folder: Path) -> Iterator[None]:
    """End the jobs of a workspace and remove it, before its database and storage end.

    Otherwise, the shared target may keep their resources from all later tests: a workspace that
    it cannot read may have running jobs.
    """
    try:
        yield
    finally:
        with open_workspace(folder) as workspace:
            end_jobs(Jobs(workspace, folder))
        shutil.rmtree(folder)


def wake(workspace: OpenWorkspace) -> bool:
    """Ask the target to check the workspace; False when no target listens."""
    return starting.wake("local", home=home(), workspace=workspace.path)


def kill(pid: int) -> None:
    """Kill a process, as a crash would."""
    os.kill(pid, signal.SIGKILL)
