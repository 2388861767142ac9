"""Schedules on a real target: the timekeeper dies, or did not run for a while."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rayjobs.api.workspace import Workspace
from rayjobs.core.paths import home
from rayjobs.injob.identity import is_alive
from rayjobs.jobs.states import JobState
from rayjobs.pipelines import Pipeline, PythonScriptStep, Schedule, ScheduleRecurrence
from rayjobs.target import timekeeper
from tests.support.jobs import Jobs, kill, until
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray


def test_schedule_due_during_downtime_runs_once(
    jobs: Jobs, local_target: LocalTarget, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print('ran')\n")
    with closing(Workspace(path=jobs.workspace.path)) as ws:
        step = PythonScriptStep(
            "a.py",
            source_directory=str(tmp_path / "src"),
            compute_target="local",
            allow_reuse=False,
        )
        published = Pipeline(ws, [step]).publish("nightly")
        made = Schedule.create(
            ws, "daily", published.id, "runs", recurrence=ScheduleRecurrence("Day", 1)
        )
        keeper = until(lambda: timekeeper.running(home()), "the timekeeper runs")
        assert keeper is not None
        kill(keeper.pid)
        until(lambda: not is_alive(keeper), "it is dead")
        # Nothing runs for three days.
        record = jobs.store.schedule(made.id)
        due = record.created_at - timedelta(days=2)
        past = replace(record, created_at=due - timedelta(days=1), next_at=due)
        jobs.store.put_schedule(past)
        assert jobs.store.pipelines() == []
        timekeeper.mend(home=home())  # as a starting keeper does
        (run,) = until(jobs.store.pipelines, "the schedule starts a run")
        jobs.wait(run.job, JobState.COMPLETED)
        settled = until(
            lambda: (now := jobs.store.schedule(made.id)).last_run and now, "it is noted"
        )
        assert settled and settled.last_run == run.job.id
        assert "It fell due" in settled.note and "and runs once" in settled.note
        again = until(lambda: timekeeper.running(home()), "the timekeeper runs")
        assert again is not None and again.pid != keeper.pid
        timekeeper.register(jobs.workspace.path, home=home())  # only wakes the first one
        os.kill(again.pid, signal.SIGUSR1)
        jobs.store.drop_schedule(made.id)
        timekeeper.register(jobs.workspace.path, home=home())
        until(lambda: not is_alive(again), "without schedules it ends")
        assert [one.job.id for one in jobs.store.pipelines()] == [run.job.id]
    assert timekeeper.registered(home()) == {}
