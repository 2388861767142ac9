"""The handle of a submitted job: its state, outcome, logs, metrics and files.

Source: ``azureml.core.Run`` and ``ScriptRun``.
"""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.api import html
from rayjobs.api.kinds import RunFactory, add_factory, run_of
from rayjobs.api.run_files import RunFiles
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.terminal import Shower
from rayjobs.injob.metrics_file import METRIC_KINDS
from rayjobs.injob.run import LoggingRun
from rayjobs.injob.secrets import secret_of
from rayjobs.jobs.records import INTERACTIVE, Job, MetricPoint
from rayjobs.jobs.states import JobState
from rayjobs.results import details, metrics
from rayjobs.store.requests import JobChanges, JobFilter
from rayjobs.submit import attaching
from rayjobs.workspace.orphans import end_orphans

if TYPE_CHECKING:
    from rayjobs.api.environment import Environment
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.interactive import InteractiveRun
    from rayjobs.api.model import Model
    from rayjobs.api.workspace import Workspace

# The rank of values logged from outside the job, so that they sort after those of all ranks.
OUTSIDE_RANK = 1_000_000
NEVER_S = float("inf")
MOST_CHILDREN = 100  # per call. Source: azureml-core 1.61, `Run.create_children`


class JobRun(RunFiles, LoggingRun):
    """A job as its submitter sees it, while it runs and after its end."""

    def __init__(
        self,
        experiment: Experiment | None = None,
        run_id: str = "",
        outputs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Get the handle of the job `run_id` in an experiment.

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
        self._job()  # reports a wrong id now

    def _job(self) -> Job:
        job = self._store.job(self.id)
        if job.kind != INTERACTIVE or job.state.is_final or self.id not in end_orphans(self._store):
            return job
        return self._store.job(self.id)  # just ended, since its process is gone

    @property
    def _is_interactive(self) -> bool:
        return self._store.job(self.id).kind == INTERACTIVE

    def __repr__(self) -> str:
        """Return id and state."""
        return f"Run(Experiment: {self.experiment.name}, Id: {self.id}, Status: {self.status})"

    def _repr_html_(self) -> str:
        return html.run_html(self)

    # -- lookup --------------------------------------------------------------------------------
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

    @staticmethod
    def list_by_compute(
        compute: Any,
        type: str | None = None,
        tags: Any = None,
        properties: Any = None,
        status: str | None = None,
    ) -> Iterator[JobRun]:
        """Yield the unfinished runs of a compute target, newest first.

        Args:
            compute: A compute target with a ``workspace`` and a ``name``.
            type: See `Experiment.get_runs`, also for `tags` and `properties`.
            status: ``Running`` or ``Queued``; None means both.

        Raises:
            UsageError: `compute` has no workspace, or `status` is not one of these.
        """
        from rayjobs.api.experiment import Experiment
        from rayjobs.jobs.run_filter import RunFilter

        if status not in (None, "Running", "Queued"):
            raise UsageError(f"status is {status!r}; give 'Running' or 'Queued'")
        if getattr(compute, "workspace", None) is None:
            raise UsageError(
                "list_by_compute needs a compute target of a workspace: "
                "ComputeTarget(workspace, name)"
            )
        wanted = RunFilter.of(type, tags, properties, status)
        unfinished = [state for state in JobState if not state.is_final]
        for job in compute.workspace.store.jobs(
            JobFilter(target=str(compute.name), states=unfinished)
        ):
            if wanted.accepts(job):
                yield run_of(Experiment(compute.workspace, job.experiment), job)

    @staticmethod
    def add_type_provider(runtype: str, run_factory: RunFactory) -> None:
        """Register `run_factory` for the handles of all runs of a type.

        Args:
            runtype: A value of ``Run.type``, such as ``azureml.scriptrun``.
            run_factory: Called with the experiment and a `RunDto`; returns a run.

        Raises:
            ValueError: the type already has a factory.
        """
        add_factory(runtype, run_factory)

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
        """The run's display name."""
        job = self._job()
        return job.display_name or job.spec.display_name or job.spec.name

    @display_name.setter
    def display_name(self, name: str) -> None:
        self._store.update(self.id, JobChanges(display_name=name))

    @property
    def description(self) -> str:
        """The run's description."""
        return self._job().description

    @description.setter
    def description(self, text: str) -> None:
        self._store.update(self.id, JobChanges(description=str(text)))

    @property
    def status(self) -> str:
        """The state's name, e.g. ``Running``."""
        return str(self._job().state)

    @property
    def parent(self) -> JobRun | None:
        """The parent run, or None."""
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
        """Yield the child runs, newest first.

        Args:
            recursive: Also yield the children's children.
            tags: A tag that they have, or a mapping of tags to values.
            properties: The same for properties.
            type: See `Experiment.get_runs`.
            status: Their state.
        """
        from rayjobs.jobs.run_filter import RunFilter

        wanted = RunFilter.of(type, tags, properties, status)
        end_orphans(self._store)
        parents = [self.id]
        while parents:
            for job in self._store.jobs(JobFilter(parent=parents.pop(0))):
                if wanted.accepts(job):
                    yield run_of(self.experiment, job)
                if recursive:
                    parents.append(job.id)

    # -- children ------------------------------------------------------------------------------
    def child_run(
        self, name: str | None = None, run_id: str | None = None, outputs: Any = None
    ) -> InteractiveRun:
        """Start an interactive child run, to which this process logs.

        Args:
            name: Its name; None generates one.
            run_id: Its id; None generates one.
            outputs: Folder whose new and changed files are stored when it completes; None stores
                no files.

        Raises:
            UsageError: the id is taken.
        """
        child = self._start_child(name=name, run_id=run_id)
        child._watch(outputs)
        return child

    def create_children(
        self,
        count: int | None = None,
        tag_key: str | None = None,
        tag_values: Iterable[Any] | None = None,
    ) -> builtins.list[InteractiveRun]:
        """Start several child runs: `count`, or one for each of `tag_values`.

        Args:
            count: How many, at most 100. Each gets the tag ``azureml.batch_child_number``.
            tag_key: A tag that each of them gets, with one of the `tag_values`.
            tag_values: The values, at most 100.

        Raises:
            UsageError: neither or both were given, or too many.
        """
        return [
            self._start_child(tags={key: value})
            for key, value in children_tags(count, tag_key, tag_values)
        ]

    def _start_child(
        self,
        *,
        name: str | None = None,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> InteractiveRun:
        from rayjobs.api.interactive import start_run

        return start_run(
            self.experiment,
            name=name,
            run_id=run_id,
            parent=self.id,
            snapshot=self._store.job(self.id).snapshot,  # the child shares this run's code
            tags=tags,
        )

    def submit_child(
        self, config: Any, tags: Mapping[str, str] | None = None, **kwargs: Any
    ) -> JobRun:
        """Submit a job as a child of this run, in the same experiment; return its handle.

        It is queued like any other job, and does not end with this run.

        Args:
            config: A ScriptRunConfig, an estimator or a JobSpec.
            tags: Tags of the job.

        Raises:
            UsageError: the configuration is something else, such as a sweep.
            SpecError: something is wrong with it; lists all problems.
        """
        from rayjobs.api.experiment import refuse_as_child

        refuse_as_child(config)
        child: JobRun = self.experiment.submit(config, tags=tags, _parent=self.id, **kwargs)
        return child

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

        With `show_output`, stages and the output of rank 0 are printed as they arrive. Ctrl-C
        stops waiting; the job keeps running.

        Args:
            show_output: Print its stages and output.
            wait_post_processing: Accepted but unused: a run ends only once its files are stored.
            raise_on_error: Raise if it Failed.

        Raises:
            JobFailedError: it Failed, and `raise_on_error` is on.
            TargetError: the target could not be started; the job stays queued.
        """
        self._wait(show_output=show_output, raise_on_error=raise_on_error)
        return self.get_details()

    def _wait(self, *, show_output: bool, raise_on_error: bool, timeout_s: float = NEVER_S) -> None:
        """Wait for the end; raise as `wait_for_completion` does.

        Raises:
            TimeoutError: it did not end in time.
        """
        until_s = time.monotonic() + timeout_s

        def is_late() -> bool:
            return time.monotonic() > until_s

        try:
            if show_output:
                job = self._show(is_late)
            else:
                job = attaching.attach(self._opened, self.id, stop=is_late)
        except KeyboardInterrupt:
            self._say(
                f"\nNo longer following {self.id}; the job keeps running. "
                f"Cancel it with run.cancel(), or `rayjobs cancel {self.id}`."
            )
            raise
        if not job.state.is_final:
            raise attaching.not_in_time(job, timeout_s)
        if raise_on_error:
            attaching.raise_for_end(job)

    def _show(self, stop: Callable[[], bool]) -> Job:
        """Print stages and output until the end, or until `stop` returns true; return the job."""
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
        job = attaching.attach(
            self._opened, self.id, show=show, on_stage=stage, on_start=self._say, stop=stop
        )
        show(b"", final=True)
        if not at_line_start:
            _write("\n")
        if job.state.is_final:
            self._say(attaching.end_text(job))
        return job

    @staticmethod
    def _say(text: str) -> None:
        _write(text + "\n")

    def cancel(self) -> None:
        """Request the end of the job; a job that has ended does not change."""
        from rayjobs.core.users import user_name
        from rayjobs.submit.submitting import wake_or_start

        state = self._store.request_cancel(self.id, by=user_name())
        if not state.is_final:
            wake_or_start(self._opened, self._job().target)

    def get_details(self) -> dict[str, Any]:
        """Return the details of the run as a dict."""
        return details.details_of(self._opened, self._job())

    def get_details_with_logs(self) -> dict[str, Any]:
        """Return `get_details` with the logs' text in place of their addresses."""
        found = self.get_details()
        logs = self._logs()
        found["logFiles"] = {
            name: logs.read(name).decode("utf-8", "replace") for name in found["logFiles"]
        }
        return found

    def get_detailed_status(self) -> dict[str, Any]:
        """Return the state with its reason."""
        job = self._job()
        return {"status": str(job.state), "details": job.reason}

    def get_portal_url(self) -> str:
        """Return the address of the run within rayjobs: ``rayjobs://WORKSPACE/RUN``."""
        return f"rayjobs://{self._opened.name}/{self.id}"

    def get_environment(self) -> Environment:
        """Return the environment in the run's spec.

        Raises:
            UsageError: the run is interactive: its process brought its own environment.
        """
        from rayjobs.api.environment import Environment

        job = self._job()
        if job.kind == INTERACTIVE:
            raise UsageError(f"run {self.id} is interactive, so it has no environment of its own")
        return Environment.of_spec(job.spec)

    def get_secret(self, name: str) -> str:
        """Return a secret: the variable of this name in this process.

        Raises:
            NotFoundError: there is no such variable.
        """
        try:
            return secret_of(name)
        except KeyError as error:
            raise NotFoundError(str(error.args[0])) from error

    def get_secrets(self, secrets: Iterable[str]) -> dict[str, str]:
        """Return several secrets by name, see `get_secret`."""
        return {name: self.get_secret(name) for name in secrets}

    def clean(self) -> builtins.list[str]:
        """Return the run's files that are left on its target: always none.

        A target removes an attempt's folder once its files are stored.

        Raises:
            UsageError: the run has not ended.
        """
        job = self._job()
        if not job.state.is_final:
            raise UsageError(f"run {self.id} is {job.state}; its files are removed when it ends")
        return []

    def _get_outputs_datapath(self) -> JobRun:
        """Return the `resume_from` value that continues from this run's outputs."""
        return self

    # -- metrics -------------------------------------------------------------------------------
    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics: a scalar if logged once, else a list; columns for rows and tables.

        With `recursive`, return them by run id, for this run and its children.

        Args:
            name: Return only this metric.
            recursive: Include the children.
            run_type: With `recursive`, only runs of this type (see `Experiment.get_runs`).
            populate: Return images as bytes instead of file names.
        """
        from rayjobs.jobs.run_filter import RunFilter

        wanted = RunFilter.of(run_type)
        if not recursive:
            return self._metrics(name, populate) if wanted.accepts(self._job()) else {}
        by_run = {}
        for run in (self, *self.get_children(recursive=True)):
            if wanted.accepts(run._job()):
                by_run[run.id] = run._metrics(name, populate)
        return by_run

    def _metrics(self, name: str | None, populate: bool) -> dict[str, Any]:
        points = self._store.metrics(self.id, name=name)
        found = metrics.values_by_name(points)
        if populate:
            for one in {point.name for point in points if _is_image(point)}:
                files = found[one] if isinstance(found[one], builtins.list) else [found[one]]
                read = [self._bytes_of(file) for file in files]
                found[one] = read if len(read) > 1 else read[0]
        return found

    def _put(self, kind: str, name: str, value: Any, step: int | None = None) -> None:
        if kind not in METRIC_KINDS:
            return
        from rayjobs.core.clock import SystemClock

        sequence = 0
        while True:
            sequence = max(sequence + 1, time.time_ns())
            point = MetricPoint(
                attempt=max(1, self._job().attempt),
                # Everything in an interactive run is logged from outside and forms one curve.
                rank=0 if self._is_interactive else OUTSIDE_RANK,
                sequence=sequence,
                name=name,
                value=value if kind == "metric" else {"kind": kind, "value": value},
                step=step,
                at=SystemClock().now(),
            )
            if self._store.add_metrics(self.id, [point]):
                return
            # Another thread or process logged a value in the same nanosecond.

    # -- models --------------------------------------------------------------------------------
    def register_model(  # type: ignore[override]  # inside a job, the model does not exist yet
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
            model_path: A name as in `get_file_names`; None means the model's name.
            datasets: See `Model.register`, also for the samples and `resource_configuration`.
            kwargs: None are accepted.

        Raises:
            NotFoundError: the run has no such file.
            UsageError: the run has not completed, the file is incomplete, or an argument is
                unknown.
        """
        from rayjobs.api.model import Model

        if kwargs:
            raise UsageError(f"register_model does not accept {', '.join(sorted(kwargs))}")
        return Model.register(
            self.experiment.workspace,
            model_path or model_name,
            model_name,
            tags=tags,
            properties=properties,
            description=description,
            datasets=datasets,
            model_framework=model_framework,
            model_framework_version=model_framework_version,
            sample_input_dataset=sample_input_dataset,
            sample_output_dataset=sample_output_dataset,
            resource_configuration=resource_configuration,
            run=self.id,
        )

    # -- tags and properties -------------------------------------------------------------------
    def get_tags(self) -> dict[str, str | None]:
        """Return the run's tags; a tag without a value is None."""
        return {key: value or None for key, value in self._job().tags.items()}

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

    def remove_tags(self, tags: Iterable[str]) -> dict[str, str | None]:
        """Remove tags by key; return those that are left."""
        keys = [tags] if isinstance(tags, str) else tags
        self._store.update(self.id, JobChanges(tags=dict.fromkeys(keys)))
        return self.get_tags()

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties. Raises UsageError if one already has another value."""
        self._store.update(
            self.id,
            JobChanges(properties={str(key): str(value) for key, value in properties.items()}),
        )

    def complete(self, **kwargs: Any) -> None:
        """Do nothing: a submitted run ends with its script."""

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """End the job as `cancel` does, but as Failed; a job that has ended does not change.

        Args:
            error_details: What went wrong: a message or an exception.
            error_code: A short name of the error.

        Raises:
            UsageError: it is a sweep or an array, whose end depends on its jobs.
        """
        from rayjobs.api.interactive import failure_of
        from rayjobs.core.users import user_name
        from rayjobs.submit.submitting import wake_or_start

        failure = failure_of(error_details, error_code)
        state = self._store.request_fail(self.id, by=user_name(), failure=failure)
        if not state.is_final:
            wake_or_start(self._opened, self._job().target)


def children_tags(
    count: int | None, tag_key: str | None, tag_values: Iterable[Any] | None
) -> Iterator[tuple[str, str]]:
    """Yield the tag of each run that `create_children` starts.

    Source: azureml-core 1.61, ``Run.create_children``.

    Raises:
        UsageError: neither `count` nor `tag_key` and `tag_values` were given, both were, or they
            request too many runs.
    """
    if count is None and (tag_key is None or tag_values is None):
        raise UsageError("give create_children either count, or tag_key and tag_values")
    if count is not None and (tag_key is not None or tag_values is not None):
        raise UsageError("give create_children either count, or tag_key and tag_values; not both")
    values = builtins.list(range(count) if count is not None else tag_values or ())
    if len(values) > MOST_CHILDREN:
        raise UsageError(
            f"a call of create_children can create at most {MOST_CHILDREN} runs, not {len(values)}"
        )
    key = "azureml.batch_child_number" if tag_key is None else str(tag_key)
    return ((key, str(value)) for value in values)


def _is_image(point: MetricPoint) -> bool:
    return isinstance(point.value, Mapping) and point.value.get("kind") == "image"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
