"""Figures of an undisturbed target: the time until it recovers or ends its jobs."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.target import wake_client
from rayjobs.target.answers import StatusAnswer
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace.folder import open_workspace
from tests.faults.test_processes_killed import actor_pid, rank_pid
from tests.support.jobs import Jobs, until, wake
from tests.support.local_target import LocalTarget

TIMES = 3
RUNNING = 6
GRACE_S = 1.0
WAITS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1)
"""


@dataclass(frozen=True)
class Figure:
    """One figure, measured several times.

    Attributes:
        goal_s: The limit that it should stay within.
    """

    what: str
    goal_s: float
    seconds: list[float]

    @property
    def row(self) -> str:
        """The figure's row of the report's table."""
        worst = max(self.seconds)
        return f"| {self.what} | {self.goal_s:g} | {median(self.seconds):.2f} | {worst:.2f} |"


def measure(home: Path, root: Path) -> list[Figure]:
    """Measure on the running target of a home, in a workspace below `root`."""
    workspace = open_workspace(root)
    try:
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            return _Measuring(Jobs(workspace, Path(folder)), LocalTarget(home, ())).all()
    finally:
        workspace.close()


class _Measuring:
    def __init__(self, jobs: Jobs, target: LocalTarget) -> None:
        self._jobs = jobs
        self._target = target

    def all(self) -> list[Figure]:
        running = [self._begin() for _ in range(RUNNING)]
        adopted = [self._kill_actor(running) for _ in range(TIMES)]
        attempts = [self._jobs.job(job).attempt for job in running]
        relaunches = sum(attempts) - len(attempts)
        crashed = [self._crash_rank(job) for job in running[:TIMES]]
        canceled = [self._cancel(job) for job in running[TIMES:]]
        adoption = f"target actor killed → all {RUNNING} running jobs are supervised again"
        cancel = f"cancel of a job that ignores SIGTERM, grace {GRACE_S:g} s → nothing is left"
        return [
            Figure(f"{adoption} ({relaunches} relaunches)", 5.0, adopted),
            Figure("rank crashed → its job is `Failed`", 2.0, crashed),
            Figure(cancel, GRACE_S + 2.0, canceled),
        ]

    def _begin(self) -> Job:
        job = self._jobs.submit(WAITS, grace_s=GRACE_S)
        self._jobs.wait_for_output(job, b"up")
        return self._jobs.wait(job, JobState.RUNNING)

    def _kill_actor(self, running: list[Job]) -> float:
        old, ids = actor_pid(self._target), {job.id for job in running}
        began_s = time.monotonic()
        os.kill(old, signal.SIGKILL)
        socket = wake_client.socket_of("local", self._target.home)

        def adopted() -> bool:
            answer = wake_client.ask(socket, TargetRequest("status"), StatusAnswer, timeout_s=10.0)
            if answer is None or answer.pid == old:
                return False
            return {key.rpartition("::")[2] for key in answer.live} == ids

        until(adopted, "a new actor has taken over all running jobs")
        return time.monotonic() - began_s

    def _crash_rank(self, job: Job) -> float:
        pid = rank_pid(self._jobs.root(job))
        began_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self._jobs.wait(job, JobState.FAILED)
        return time.monotonic() - began_s

    def _cancel(self, job: Job) -> float:
        host = self._jobs.host(job)
        began_s = time.monotonic()
        self._jobs.store.request_cancel(job.id)
        wake(self._jobs.workspace)
        self._jobs.wait(job, JobState.CANCELED)
        until(lambda: not find_leftovers(host.marker), "no process of the job is left")
        until(lambda: not Path(host.root).exists(), "no file of the job is left on its node")
        return time.monotonic() - began_s
