"""A workspace with sweeps, and a target that simulates their jobs in the store, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from rayjobs.core.failures import Failure, FailureClass
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.base import Store
from rayjobs.store.requests import JobFilter
from rayjobs.tuning.driver import Driver
from rayjobs.tuning.spec import SweepSpec, parse_sweep
from rayjobs.tuning.submitter import submit_sweep
from rayjobs.tuning.table import load_trials
from rayjobs.tuning.trials import TrialRecord
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

# parameters → (reports, how it ends, the metric's name)
Script = Callable[[Mapping[str, str]], tuple[list[Any], JobState, str]]

AT = datetime(2026, 3, 1, tzinfo=UTC)


def good(parameters: Mapping[str, str]) -> tuple[list[Any], JobState, str]:
    """Report x * (0.5, 0.8, 1) and complete."""
    x = float(parameters["--x"])
    return [x * 0.5, x * 0.8, x], JobState.COMPLETED, "accuracy"


def sweep(source: Path, **changes: Any) -> SweepSpec:
    """Return a small sweep of a script in `source`."""
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text("print('never run here')\n")
    data: dict[str, Any] = {
        "name": "digits",
        "job": {"script": "train.py", "source_directory": str(source), "arguments": ["--x", "9"]},
        "sampling": {"type": "random", "seed": 1, "parameters": {"--x": ["uniform", [0, 1]]}},
        "metric": "accuracy",
        "goal": "maximize",
        "limits": {"total": 6, "concurrent": 2},
    }
    return parse_sweep({**data, **changes})


class World:
    """A workspace whose jobs are simulated by `play`."""

    def __init__(self, folder: Path, script: Script = good) -> None:
        self.folder = folder
        self.workspace: OpenWorkspace = open_workspace(folder / "w")
        self.store: Store = self.workspace.store
        self.script = script
        self._reported: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self.workspace.close()

    def submit(self, *, begun: bool = True, **changes: Any) -> str:
        """Submit a sweep.

        Args:
            begun: Let a driver take a first turn, which submits the first trials.
        """
        spec = sweep(self.folder / "source", **changes)
        submitted = submit_sweep(self.workspace, spec, wake=False).sweep.job.id
        if begun:
            self.driver(submitted).turn()
        return submitted

    def driver(self, sweep_id: str) -> Driver:
        driver = Driver(self.workspace, sweep_id)
        assert driver.take_up()
        return driver

    def finish(self, driver: Driver, *, turns: int = 500) -> JobState:
        """Alternate driver and target until the sweep has ended."""
        for _ in range(turns):
            ended = driver.turn()
            if ended is not None:
                return ended
            self.play()
        raise AssertionError(f"the sweep did not end: {driver.state}")

    def jobs(self, sweep_id: str) -> list[Job]:
        return self.store.jobs(JobFilter(parent=sweep_id, newest_first=False))

    def trials(self, sweep_id: str) -> tuple[TrialRecord, ...]:
        return load_trials(self.store, sweep_id)

    # -- what a target would do ----------------------------------------------------------------
    def play(self) -> None:
        """Let every job take one step: start, one report, or its end."""
        open_states = [state for state in JobState if state not in FINAL]
        for job in self.store.jobs(JobFilter(states=open_states, newest_first=False)):
            if job.kind == "job":
                self.step(job)

    def step(self, job: Job) -> None:
        if job.state is JobState.QUEUED:
            self.begin(job)
            return
        if job.cancel_requested_at is not None:
            self.store.finish(job.id, attempt=job.attempt, state=JobState.CANCELED)
            return
        reports, end, name = self.script(parameters_of(job))
        count = self._reported.get((job.id, job.attempt), 0)
        if count < len(reports):
            self.report(job, count, reports[count], name=name)
        else:
            self.end(job, end)

    def begin(self, job: Job) -> None:
        attempt = self.store.start(job.id, attempt=job.attempt, allocation="a")
        assert attempt is not None
        way = (JobState.PROVISIONING, JobState.PREPARING, JobState.RUNNING)
        for old, new in pairwise(way):
            assert self.store.move(job.id, attempt=attempt.number, old=old, new=new)

    def report(
        self, job: Job, index: int, value: Any, *, name: str = "accuracy", after_s: float = 0.0
    ) -> None:
        point = MetricPoint(
            attempt=job.attempt,
            rank=0,
            sequence=index * 100,
            name=name,
            value=value,
            step=index,
            at=AT + timedelta(seconds=after_s),
        )
        assert self.store.add_metrics(job.id, [point]) == 1
        self._reported[job.id, job.attempt] = index + 1

    def end(self, job: Job, state: JobState) -> None:
        failure = None
        if state is JobState.FAILED:
            failure = Failure(FailureClass.USER, "ValueError: no", rank=0, exit_code=1)
        number = job.attempt
        self.store.move(job.id, attempt=number, old=JobState.RUNNING, new=JobState.FINALIZING)
        assert self.store.finish(job.id, attempt=number, state=state, failure=failure)


def parameters_of(job: Job) -> dict[str, str]:
    """Return a job's arguments by name."""
    arguments = job.spec.arguments
    return dict(zip(arguments[::2], arguments[1::2], strict=True))
