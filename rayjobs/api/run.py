"""The handle of a submitted job: its state, outcome, logs, metrics and files.

Source: ``azureml.core.Run`` and ``ScriptRun``.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api import html, waiting
from rayjobs.api.kinds import RunFactory, add_factory, run_of
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.run import LoggingRun
from rayjobs.injob.secrets import secret_of
from rayjobs.jobs.records import INTERACTIVE, Job, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.results import details, run_metrics, uploading
from rayjobs.results.logs import Logs
from rayjobs.results.run_files import RunFiles, save_snapshot
from rayjobs.store.requests import JobChanges, JobFilter
from rayjobs.workspace.orphans import end_orphans

if TYPE_CHECKING:
    from rayjobs.api.environment import Environment
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.interactive import InteractiveRun
    from rayjobs.api.model import Model
    from rayjobs.api.workspace import Workspace


class JobRun(LoggingRun):
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
        self._files = RunFiles(self._opened, run_id)

    def _job(self) -> Job:
        job = self._store.job(self.id)
        if job.kind != INTERACTIVE or job.state.is_final or self.id not in end_orphans(self._store):
            return job
        return self._store.job(self.id)  # just ended, since its process is gone

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
        """Yield the unfinished runs on the target of a compute target, newest first.

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
        # A compute target may run its jobs on a target of another name.
        target = str(getattr(compute, "target", compute.name))
        for job in compute.workspace.store.jobs(JobFilter(target=target, states=unfinished)):
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
        from rayjobs.injob.attempt_runs import children_tags

        with _usage_errors():
            tags = children_tags(count, tag_key, tag_values)
        return [self._start_child(tags={key: value}) for key, value in tags]

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
        waiting.wait(self._opened, self.id, show_output=show_output, raise_on_error=raise_on_error)
        return self.get_details()

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
        logs = Logs(self._opened, self.id)
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

    # -- files ---------------------------------------------------------------------------------
    def get_all_logs(self, destination: str | None = None) -> Sequence[str]:
        """Write all logs below a folder; return their paths."""
        folder = self._files.run_id if destination is None else destination
        return self._files.save_logs(Path(folder))

    def get_file_names(self) -> Sequence[str]:
        """Return the names of the run's files, including its logs."""
        return self._files.names()

    def download_file(self, name: str, output_file_path: str | Path | None = None) -> None:
        """Write one of the run's files to `output_file_path` (default: its base name).

        Raises:
            NotFoundError: the run has no such file; lists the existing ones.
        """
        self._files.save(name, output_file_path)

    def download_files(
        self,
        prefix: str | None = None,
        output_directory: str | Path | None = None,
        output_paths: Sequence[str | Path] | None = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        timeout_seconds: float | None = None,
    ) -> None:
        """Write the run's files whose names begin with `prefix` below a folder.

        Args:
            output_paths: One path for each file, in the order of `get_file_names`.
            batch_size: Accepted but unused: files are fetched one by one.
            append_prefix: Keep the prefix in the paths.
            timeout_seconds: Start no further file after this time; None sets no limit.

        Raises:
            TimeoutError: the time is up; the files fetched so far are complete.
            NotFoundError: no file name begins with the prefix.
            UsageError: the number of `output_paths` differs from the number of files.
        """
        self._files.save_all(
            prefix or "",
            Path(output_directory) if output_directory else Path.cwd(),
            paths=output_paths,
            keep_prefix=append_prefix,
            timeout_s=timeout_seconds,
        )

    def upload_file(
        self, name: str, path_or_stream: Any, datastore_name: str | None = None
    ) -> StoredFile:
        """Store a file (path or binary stream) with the run under `name`.

        Raises:
            UsageError: the run already has such a file or has ended, or the name leads out of its
                folder.
            NotFoundError: there is no such file.
        """
        if hasattr(path_or_stream, "read"):
            return uploading.add_stream(self._opened, self.id, name, path_or_stream)
        return self.upload_files([name], [path_or_stream], datastore_name=datastore_name)[0]

    def upload_files(
        self,
        names: Sequence[str],
        paths: Sequence[str | Path],
        return_artifacts: bool = False,
        timeout_seconds: float | None = None,
        datastore_name: str | None = None,
    ) -> Sequence[StoredFile]:
        """Store several files with the run: all of them, or none.

        Args:
            return_artifacts: Accepted but unused: the stored files are always returned.
            timeout_seconds: Store no file if not all bytes are stored within this time; None sets
                no limit.
            datastore_name: Refused, except for Azure ML's name for the storage of run files.

        Raises:
            UsageError: see `upload_file`; also if the numbers of names and paths differ.
            NotFoundError: there is no such file.
            TimeoutError: the time is up.
        """
        _refuse_datastore(datastore_name)
        return uploading.add_files(self._opened, self.id, names, paths, timeout_s=timeout_seconds)

    def upload_folder(
        self, name: str, path: str | Path, datastore_name: str | None = None
    ) -> Sequence[StoredFile]:
        """Store all files below a folder under `name`/…; see `upload_files`."""
        _refuse_datastore(datastore_name)
        return uploading.add_folder(self._opened, self.id, name, path)

    def _keep_image(self, name: str, path: str | None, plot: Any) -> str:
        return uploading.add_image(self._opened, self.id, name, path, plot)

    # -- code ----------------------------------------------------------------------------------
    def get_snapshot_id(self) -> str | None:
        """Return the id (the digest) of the run's snapshot; None if it has none."""
        return self._store.job(self.id).snapshot

    def take_snapshot(self, file_or_folder_path: str | Path) -> str:
        """Store a file or folder as the code of an interactive run; return the snapshot's id.

        Raises:
            UsageError: the run already has a snapshot or is a job, or there is no such path.
            SnapshotError: it cannot be packed.
        """
        from rayjobs.api.interactive import take_snapshot

        return take_snapshot(self._opened, self.id, Path(file_or_folder_path))

    def restore_snapshot(
        self, snapshot_id: str | None = None, path: str | Path | None = None
    ) -> str:
        """Write the run's snapshot as a zip file; return its path.

        Args:
            snapshot_id: Another snapshot; None means the run's own.
            path: The zip file, or an existing folder for it; None means the working directory.

        Raises:
            NotFoundError: the run has no snapshot, or it was pruned.
        """
        digest = snapshot_id or self.get_snapshot_id()
        if digest is None:
            raise NotFoundError(f"run {self.id} has no snapshot")
        return save_snapshot(self._opened, digest, path)

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
        return run_metrics.values(self._store, self._files, self.id, name=name, populate=populate)

    def _put(self, kind: str, name: str, value: Any, step: int | None = None) -> None:
        run_metrics.add(self._store, self._job(), kind, name, value, step)

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


def _refuse_datastore(name: str | None) -> None:
    from rayjobs.injob.attempt_runs import refuse_datastore

    with _usage_errors():
        refuse_datastore(name)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Raise the refusals of `rayjobs.injob` as UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
