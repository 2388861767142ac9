"""A sweep's driver and its jobs, simulated: jobs report step by step, the driver may die anywhere.

The table and the jobs (store and queue) outlive a driver; everything else is created again after
a crash, as by a real driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rayjobs.jobs.states import JobState
from rayjobs.tuning.spec import SweepSpec, parse_sweep
from rayjobs.tuning.state import Finish, PlanTrial, StopTrial, Submit, SweepState, conclude
from rayjobs.tuning.tune.scheduling import TuneScheduler

# A script: parameters → (reports of the metric, how it ends, names it reports)
Script = Callable[[Mapping[str, Any]], tuple[list[float], JobState, tuple[str, ...]]]


def sweep(**changes: Any) -> SweepSpec:
    """Return a small sweep with some keys changed."""
    data: dict[str, Any] = {
        "job": {"script": "train.py"},
        "sampling": {"type": "random", "seed": 1, "parameters": {"--x": ["uniform", [0, 1]]}},
        "metric": "accuracy",
        "goal": "maximize",
        "limits": {"total": 6, "concurrent": 2},
    }
    return parse_sweep({**data, **changes})


def good(parameters: Mapping[str, Any]) -> tuple[list[float], JobState, tuple[str, ...]]:
    """Report x * (0.5, 0.8, 1) and complete."""
    x = float(parameters["--x"])
    return [x * 0.5, x * 0.8, x], JobState.COMPLETED, ("accuracy",)


class Crash(Exception):
    """The driver dies."""


@dataclass
class Job:
    """A job in the queue, which knows nothing of the driver."""

    reports: list[float]
    end: JobState
    names: tuple[str, ...]
    reported: int = 0
    state: JobState = JobState.RUNNING


@dataclass
class World:
    """What outlives a driver."""

    spec: SweepSpec
    script: Script = good
    crashes: Collection[int] = ()
    state: SweepState = field(default_factory=SweepState)
    jobs: dict[str, Job] = field(default_factory=dict)
    submissions: list[str] = field(default_factory=list)
    most_at_once: int = 0
    deaths: int = 0
    steps: int = 0
    second_per_tick: float = 1.0

    def run(self, *, until: int = 2000) -> Finish:
        """Drive the sweep to its end, with a new driver after each crash."""
        while True:
            try:
                return self._drive(until)
            except Crash:
                self.deaths += 1

    def _maybe_die(self) -> None:
        self.steps += 1
        if self.steps in self.crashes:
            raise Crash

    def _submit(self, number: int) -> str:
        key = f"sweep_{number}"
        if key not in self.jobs:
            reports, end, names = self.script(self.state.trials[number].parameters)
            self.jobs[key] = Job(reports, end, names)
            self.submissions.append(key)
        running = sum(1 for job in self.jobs.values() if not job.state.is_final)
        self.most_at_once = max(self.most_at_once, running)
        return key

    def _cancel(self, number: int) -> None:
        job = self.jobs.get(f"sweep_{number}")
        if job is not None and not job.state.is_final:
            job.state = JobState.CANCELED

    def _tick(self) -> None:
        self.state = replace(self.state, elapsed_s=self.state.elapsed_s + self.second_per_tick)
        for job in self.jobs.values():
            if job.state.is_final:
                continue
            if job.reported < len(job.reports):
                job.reported += 1
            else:
                job.state = job.end

    def _synchronise(self) -> None:
        for trial in self.state.active:
            job = self.jobs.get(f"sweep_{trial.number}")
            if job is None:
                if trial.stop_requested:
                    self.state = self.state.with_trial(conclude(trial, None, self.spec))
                continue
            if self.spec.metric in job.names:
                trial = replace(trial, values=tuple(job.reports[: job.reported]))
            trial = replace(trial, metric_names=job.names)
            if job.state.is_final and trial.job_id is not None:
                trial = conclude(trial, job.state, self.spec, message="it crashed")
            self._maybe_die()
            self.state = self.state.with_trial(trial)

    def _drive(self, until: int) -> Finish:
        sampler = self.spec.sampling.sampler(self.spec.goal)
        scheduler = TuneScheduler(self.spec.policy, self.spec.goal)
        for stop in self.state.pending_stops:
            self._cancel(stop.number)
        for _ in range(until):
            self._synchronise()
            for action in self.state.next_actions(self.spec, sampler, scheduler):
                self._maybe_die()
                if isinstance(action, Finish):
                    return action
                self.state = self.state.applied(action)
                self._maybe_die()
                if isinstance(action, StopTrial):
                    self._cancel(action.number)
                elif isinstance(action, PlanTrial | Submit):
                    job_id = self._submit(action.number)
                    self._maybe_die()
                    self.state = self.state.submitted(action.number, job_id)
            self._tick()
        raise AssertionError(f"the sweep did not end: {self.state}")
