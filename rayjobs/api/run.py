"""The handle on a submitted job: its state, end, logs, metrics and files.

Source: ``azureml.core.Run`` and ``ScriptRun``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.api import html
from rayjobs.api.kinds import run_of
from rayjobs.api.run_files import RunFiles
from rayjobs.core.clock import to_text
from rayjobs.core.errors import UsageError
from rayjobs.core.terminal import Shower
from rayjobs.data import pins
from rayjobs.injob.metricsfile import METRIC_KINDS
from rayjobs.injob.run import LoggingRun
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.jobs.states import JobState
from rayjobs.results import metrics
from rayjobs.store.requests import JobChanges, JobFilter
from rayjobs.submit import attaching

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.model import Model
    from rayjobs.api.workspace import Workspace

# What is logged from outside is kept beside the ranks' points, after all of them.
OUTSIDE_RANK = 1_000_000


class JobRun(RunFiles, LoggingRun):
    """A job as its submitter sees it, while it runs and for ever after."""

    def __init__(
        self,
        experiment: Experiment | None = None,
        run_id: str = "",
        outputs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take hold of the job `run_id` of an experiment.

        Raises:
            NotFoundError: there is no such job.
        """
        if experiment is None:
            raise UsageError("give Run(experiment, run_id)")
        self.experiment = experiment
        self._opened = experiment.workspace.opened
        self._store = self._opened.store
        self.id = run_id
        self.warnings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._job()  # so that a wrong id is told now

    def _job(self) -> Job:
        return self._store.job(self.id)

    def __repr__(self) -> str:
        """Return id and state."""
        return f"Run(Experiment: {self.experiment.name}, Id: {self.id}, Status: {self.status})"

    def _repr_html_(self) -> str:
        return html.run_html(self)

    # -- found ---------------------------------------------------------------------------------
    @staticmethod
    def get(workspace: Workspace, run_id: str) -> JobRun:
        """Return a run by its id."""
        return workspace.get_run(run_id)

    @staticmethod
    def list(experiment: Experiment, **filters: Any) -> Iterator[JobRun]:
        """Yield an experiment's runs, see `Experiment.get_runs`."""
        status = filters.pop("status", None)
        for run in experiment.get_runs(**filters):
            if status is None or run.status == status:
                yield run

    # -- identity ------------------------------------------------------------------------------
    @property
    def number(self) -> int:
        """Its number in the order of submission."""
        return self._job().serial

    @property
    def name(self) -> str:
        """The job's name."""
        return self._job().spec.name

    @property
    def display_name(self) -> str:
        """What people call it."""
        job = self._job()
        return job.display_name or job.spec.display_name or job.spec.name

    @display_name.setter
    def display_name(self, name: str) -> None:
        self._store.update(self.id, JobChanges(display_name=name))

    @property
    def status(self) -> str:
        """The state's name, e.g. ``Running``."""
        return str(self._job().state)

    @property
    def parent(self) -> JobRun | None:  # type: ignore[override]
        """The run that this one belongs to."""
        parent = self._job().parent
        return None if parent is None else run_of(self.experiment, self._store.job(parent))

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: str | None = None,
        status: str | None = None,
    ) -> Iterator[JobRun]:
        """Yield the runs that belong to this one, newest first."""
        for job in self._store.jobs(JobFilter(parent=self.id)):
            child = run_of(self.experiment, job)
            if status in (None, str(job.state)):
                yield child
            if recursive:
                yield from child.get_children(recursive=True, status=status)

    # -- state and end -------------------------------------------------------------------------
    def get_status(self) -> str:
        """Return the state's name."""
        return self.status

    def wait_for_completion(
        self,
        show_output: bool = False,
        wait_post_processing: bool = False,
        raise_on_error: bool = True,
    ) -> dict[str, Any]:
        """Wait for the end and return `get_details`.

        With `show_output`, stages and the output of rank 0 are printed as they come. Ctrl-C
        ends the waiting and leaves the job.

        Raises:
            JobFailedError: it Failed, and `raise_on_error` is on.
            TargetError: the target could not be started; the job stays queued.
        """
        try:
            if show_output:
                job = self._show()
            else:
                job = attaching.attach(self._opened, self.id)
        except KeyboardInterrupt:
            self._say(
                f"\nNo longer following {self.id}; the job keeps running. "
                f"Cancel it with run.cancel(), or `rayjobs cancel {self.id}`."
            )
            raise
        if raise_on_error:
            attaching.raise_for_end(job)
        return self.get_details()

    def _show(self) -> Job:
        shower = Shower(colour=sys.stdout.isatty())
        at_line_start = True

        def show(data: bytes, *, final: bool = False) -> None:
            nonlocal at_line_start
            text = shower.show(data, final=final)
            if text:
                _write(text)
                at_line_start = text.endswith("\n")

        def stage(name: str, job: Job) -> None:
            nonlocal at_line_start
            if not at_line_start:
                _write("\n")
                at_line_start = True
            reason = f": {job.reason}" if job.reason and job.state is JobState.QUEUED else ""
            self._say(f"[{name}{reason}]")

        self._say(f"RunId: {self.id}")
        job = attaching.attach(self._opened, self.id, show=show, on_stage=stage, on_start=self._say)
        show(b"", final=True)
        if not at_line_start:
            _write("\n")
        self._say(attaching.end_text(job))
        return job

    @staticmethod
    def _say(text: str) -> None:
        _write(text + "\n")

    def cancel(self) -> None:
        """Ask for the job's end; of one that has ended nothing changes."""
        from rayjobs.submit.submitting import user_name, wake_or_start

        state = self._store.request_cancel(self.id, by=user_name())
        if not state.is_final:
            wake_or_start(self._opened, self._job().target)

    def get_details(self) -> dict[str, Any]:
        """Return what is known about the run as a dict."""
        job = self._job()
        spec = job.spec
        details: dict[str, Any] = {
            "runId": job.id,
            "target": job.target,
            "status": str(job.state),
            "startTimeUtc": None if job.started_at is None else to_text(job.started_at),
            "endTimeUtc": None if job.ended_at is None else to_text(job.ended_at),
            "properties": {"ContentSnapshotId": job.snapshot or "", **job.properties},
            "inputDatasets": pins.input_datasets(self._store, job),
            "outputDatasets": [],
            "runDefinition": {
                "script": spec.script,
                "command": spec.command,
                "arguments": list(spec.arguments),
                "target": job.target,
                "nodeCount": spec.distribution.nodes,
                "environmentVariables": dict(spec.environment_variables),
                "maxRunDurationSeconds": spec.max_duration_s,
            },
            "logFiles": {name: self._url(name) for name in self._logs().names()},
            "submittedBy": job.user,
            "tags": dict(job.tags),
            "attempt": job.attempt,
        }
        if job.failure is not None:
            details["error"] = {
                "error": {
                    "code": str(job.failure.failure_class),
                    "message": job.failure.message,
                    "details": [*job.failure.lines],
                    "rank": job.failure.rank,
                    "exitCode": job.failure.exit_code,
                    "signal": job.failure.signal,
                }
            }
        return details

    def get_details_with_logs(self) -> dict[str, Any]:
        """Return `get_details` with the logs' text in place of their addresses."""
        details = self.get_details()
        logs = self._logs()
        details["logFiles"] = {
            name: logs.read(name).decode("utf-8", "replace") for name in details["logFiles"]
        }
        return details

    def get_detailed_status(self) -> dict[str, Any]:
        """Return the state with its reason."""
        job = self._job()
        return {"status": str(job.state), "details": job.reason}

    def _url(self, name: str) -> str:
        for one in self._store.files(self.id):
            if one.name == name:
                return f"rayjobs://{self._opened.name}/{self.id}/{name}"
        return ""

    # -- metrics -------------------------------------------------------------------------------
    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return what was logged: a scalar if once, else a list; columns for rows and tables.

        With `recursive`, by run id, for this run and those that belong to it.
        """
        found = metrics.values_by_name(self._store.metrics(self.id, name=name))
        if not recursive:
            return found
        by_run = {self.id: found}
        for child in self.get_children(recursive=True):
            by_run[child.id] = child.get_metrics(name)
        return by_run

    def _put(self, kind: str, name: str, value: Any, step: int | None = None) -> None:
        if kind not in METRIC_KINDS:
            return
        from rayjobs.core.clock import SystemClock

        point = MetricPoint(
            attempt=max(1, self._job().attempt),
            rank=OUTSIDE_RANK,
            sequence=time.time_ns(),
            name=name,
            value=value if kind == "metric" else {"kind": kind, "value": value},
            step=step,
            at=SystemClock().now(),
        )
        self._store.add_metrics(self.id, [point])

    def _keep_image(self, name: str, path: str | None, plot: Any) -> str:
        raise UsageError("images are logged by the script itself (Run.get_context())")

    # -- models --------------------------------------------------------------------------------
    def register_model(  # type: ignore[override]  # inside a job the model is still to be
        self,
        model_name: str,
        model_path: str | None = None,
        tags: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        description: str | None = None,
        datasets: Any = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: Any = None,
        **kwargs: Any,
    ) -> Model:
        """Register one of this run's files or folders as the next version of a model.

        Args:
            model_path: As in `get_file_names`; None takes the model's name.

        Raises:
            NotFoundError: the run has no such file.
            UsageError: the run has not completed, or the file is not whole.
        """
        from rayjobs.api.model import register

        return register(
            self.experiment.workspace,
            name=model_name,
            run=self.id,
            path=model_path,
            tags=tags,
            properties=properties,
            description=description,
            framework=model_framework or "",
            framework_version=model_framework_version or "",
        )

    # -- tags and properties -------------------------------------------------------------------
    def get_tags(self) -> dict[str, str]:
        """Return the run's tags."""
        return dict(self._job().tags)

    def get_properties(self) -> dict[str, str]:
        """Return the run's properties."""
        return dict(self._job().properties)

    def tag(self, key: str, value: Any = None) -> None:
        """Set one tag."""
        self._store.update(
            self.id, JobChanges(tags={str(key): "" if value is None else str(value)})
        )

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        self._store.update(
            self.id,
            JobChanges(
                tags={str(key): "" if value is None else str(value) for key, value in tags.items()},
            ),
        )

    def remove_tags(self, tags: Iterable[str]) -> dict[str, str]:
        """Remove tags by key; return those that are left."""
        keys = [tags] if isinstance(tags, str) else tags
        return dict(self._store.update(self.id, JobChanges(tags=dict.fromkeys(keys))).tags)

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties. Raises UsageError when one has another value already."""
        self._store.update(
            self.id,
            JobChanges(properties={str(key): str(value) for key, value in properties.items()}),
        )

    def complete(self, **kwargs: Any) -> None:
        """Do nothing: a submitted run ends with its script."""

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """Note an error in the run's history; its end is decided by its exit code."""
        self._store.add_event(self.id, "error_noted", str(error_details or error_code or ""))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
