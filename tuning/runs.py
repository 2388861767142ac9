"""HyperDriveRun: the handle of a submitted sweep.

Source: ``azureml.train.hyperdrive.HyperDriveRun``.
"""

from __future__ import annotations

import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rayjobs.api import waiting
from rayjobs.api.run import JobRun
from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import UsageError
from rayjobs.core.paths import home as default_home
from rayjobs.jobs.run_filter import RunFilter
from rayjobs.results import run_metrics
from rayjobs.results.run_files import RunFiles
from rayjobs.submit import attaching
from rayjobs.tuning import warm_start
from rayjobs.tuning.errors import SweepUsageError
from rayjobs.tuning.results import best_trial, hyperparameters, sorted_children
from rayjobs.tuning.spec import SweepSpec, parse_sweep
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.table import load_state
from rayjobs.tuning.watch import News

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.tuning.config import HyperDriveConfig

POLL_S = 0.1


class HyperDriveRun(JobRun):
    """A sweep as its submitter sees it, during and after the run."""

    type = "hyperdrive"

    def __init__(
        self,
        experiment: Experiment | None = None,
        run_id: str = "",
        hyperdrive_config: HyperDriveConfig | None = None,
        **kwargs: Any,
    ) -> None:
        """Open the sweep `run_id` of an experiment.

        Raises:
            NotFoundError: there is no such sweep; the id of a job is also refused.
        """
        super().__init__(experiment, run_id, **kwargs)
        self._hyperdrive_config = hyperdrive_config
        self._definition = self._store.sweep(run_id).spec  # so that a wrong id fails immediately

    @cached_property
    def sweep_spec(self) -> SweepSpec:
        """The submitted spec.

        Raises:
            SweepError: a later version wrote it, so this one cannot read it. The run can still be
                listed, watched and canceled.
        """
        return parse_sweep(self._definition)

    @property
    def hyperdrive_config(self) -> HyperDriveConfig | None:
        """The submitted configuration; None if the run was found by its id.

        `sweep_spec` is available in both cases.
        """
        return self._hyperdrive_config

    @property
    def state(self) -> SweepState:
        """The current trial table."""
        return load_state(self._store, self._job(), now=SystemClock().now())

    def get_best_run_by_primary_metric(
        self,
        include_failed: bool = False,
        include_canceled: bool = False,
        include_resume_from_runs: bool = True,
    ) -> JobRun | None:
        """Return the run of the best trial, None if no trial qualifies.

        A qualifying trial has completed and its last value is finite; its best value over its
        history counts. Azure ML's defaults also let failed and canceled runs win, whose outputs are
        incomplete; the arguments include them.

        Args:
            include_failed: Let failed trials qualify by what they reported before.
            include_canceled: Likewise, let canceled trials qualify.
            include_resume_from_runs: Also let trials of the sweeps from which this one started
                qualify.
        """
        trials = self.state.trials
        if include_resume_from_runs and self.sweep_spec.resume_from:
            earlier = warm_start.load(
                self._store, self.sweep_spec, until=self._job().submitted_at
            ).earlier
            trials = (*earlier, *trials)
        best = best_trial(
            trials,
            self.sweep_spec.goal,
            include_failed=include_failed,
            include_canceled=include_canceled,
        )
        if best is None or best.job_id is None:
            return None
        return JobRun(self.experiment, best.job_id)

    def get_children_sorted_by_primary_metric(
        self, top: int = 0, reverse: bool = False, discard_no_metric: bool = False
    ) -> list[dict[str, Any]]:
        """Return run_id, hyperparameters, best_primary_metric and status, best first."""
        return sorted_children(
            self.state.trials,
            self.sweep_spec.goal,
            top=top,
            reverse=reverse,
            discard_no_metric=discard_no_metric,
        )

    def get_hyperparameters(self) -> dict[str, str]:
        """Return each trial's parameters as JSON text, by run id."""
        return {
            trial.job_id: hyperparameters(trial)
            for trial in self.state.trials
            if trial.job_id is not None
        }

    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return the logged metrics of each trial by run id.

        Args:
            name: Return only this metric.
            recursive: Also return those of the sweep itself and of the trials' child runs.
            run_type: Return only runs of this type (see `Experiment.get_runs`).
            populate: Return images as bytes instead of file names.
        """
        if recursive:
            return super().get_metrics(name, recursive, run_type, populate)
        wanted = RunFilter.of(run_type)
        return {
            trial.job_id: run_metrics.values(
                self._store,
                RunFiles(self._opened, trial.job_id),
                trial.job_id,
                name=name,
                populate=populate,
            )
            for trial in self.state.trials
            if trial.job_id is not None
            and (run_type is None or wanted.accepts(self._store.job(trial.job_id)))
        }

    def wait_for_completion(
        self,
        show_output: bool = False,
        wait_post_processing: bool = False,
        raise_on_error: bool = True,
    ) -> dict[str, Any]:
        """Wait for the sweep's end and return `get_details`.

        With `show_output`, print every trial's start, stop and end as it happens. Ctrl-C ends the
        wait and leaves the sweep running.

        Raises:
            JobFailedError: it failed, and `raise_on_error` is on.
            TargetError: the target could not be started; the sweep continues once the target runs.
        """
        if show_output:
            waiting.say(f"RunId: {self.id}")
        try:
            self._await_end(show_output)
        except KeyboardInterrupt:
            waiting.say(
                f"\nNo longer following {self.id}; the sweep keeps running. "
                f"Cancel it with run.cancel(), or `rayjobs sweep cancel {self.id}`."
            )
            raise
        job = self._job()
        if show_output:
            waiting.say(attaching.end_text(job))
        if raise_on_error:
            attaching.raise_for_end(job)
        return self.get_details()

    def _await_end(self, show_output: bool) -> None:
        from rayjobs.target.starting import ensure_target

        job = self._job()
        say = waiting.say if show_output else lambda _text: None
        if not job.state.is_final:
            ensure_target(
                job.target, home=default_home(), workspace=self._opened.path, on_stage=say
            )
        news = News(self.sweep_spec)
        while True:
            job = self._job()
            if show_output:
                for line in news.lines(self.state):
                    waiting.say(line)
                sys.stdout.flush()
            if job.state.is_final:
                return
            time.sleep(POLL_S)

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """Refuse: its trials decide how a sweep ends.

        Raises:
            SweepUsageError: always; `cancel` ends it.
        """
        raise SweepUsageError("a sweep cannot be failed from outside. End it with cancel().")

    def get_diagnostics(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as Azure ML does for sweeps.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "a sweep has no diagnostics of its own; get_children() gives its trials' runs"
        )
