"""PipelineRun and StepRun: the handles of a submitted pipeline and its steps.

Source: ``azureml.pipeline.core.run``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api import waiting
from rayjobs.api.run import JobRun
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.paths import home as default_home
from rayjobs.core.text import counted
from rayjobs.data import made
from rayjobs.jobs.records import Job, StepRow
from rayjobs.jobs.run_filter import STEP_TYPE, RunFilter
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.data import InputPortBinding
from rayjobs.pipelines.spec import outputs_of, read_pipeline
from rayjobs.pipelines.views import StepView, views_of
from rayjobs.results.run_files import RunFiles
from rayjobs.submit import attaching
from rayjobs.tuning.runs import HyperDriveRun

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.workspace import Workspace
    from rayjobs.datastore.refs import DataPath, DataReference

POLL_S = 0.1
# Azure ML's name for the state of a completed pipeline or step.
FINISHED = "Finished"
_ONLY_STEPS = (
    "the children of a pipeline run are its steps; use a step (find_step_run(NAME)[0]), or submit "
    "to the experiment: run.experiment.submit(config)"
)


def status_of(state: JobState | str) -> str:
    """Return Azure ML's name for a state of a pipeline or step."""
    return FINISHED if str(state) == JobState.COMPLETED else str(state)


class PipelineRun(JobRun):
    """A run of a pipeline as its submitter sees it, while it runs and afterwards."""

    type = "azureml.PipelineRun"

    def __init__(self, experiment: Experiment | None = None, run_id: str = "", **kwargs: Any):
        """Get the handle of the run `run_id` in an experiment.

        Raises:
            NotFoundError: there is no such pipeline run.
        """
        super().__init__(experiment, run_id)
        self._pipeline = self._store.pipeline(run_id)

    # -- lookup ----------------------------------------------------------------------------------
    @staticmethod
    def get(workspace: Workspace, run_id: str) -> PipelineRun:
        """Return a pipeline run by its id."""
        from rayjobs.api.experiment import Experiment

        job = workspace.opened.store.pipeline(run_id).job
        return PipelineRun(Experiment(workspace, job.experiment), job.id)

    @staticmethod
    def get_pipeline_runs(workspace: Workspace, pipeline_id: str) -> list[PipelineRun]:
        """Return the runs of a published pipeline, newest first."""
        return [
            PipelineRun.get(workspace, one.job.id)
            for one in workspace.opened.store.pipelines()
            if one.published == pipeline_id
        ]

    # -- steps -----------------------------------------------------------------------------------
    def get_steps(self) -> Iterator[StepRun]:
        """Yield the steps, in the order of the pipeline."""
        for row in self._store.steps(self.id):
            yield step_run(self.experiment, row.job)

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: str | None = None,
        status: str | None = None,
    ) -> Iterator[JobRun]:
        """Yield the steps; with `recursive`, also the trials of sweeps.

        Args:
            recursive: Also yield the children of steps.
            tags: A tag that they have, or a mapping of tags to values.
            properties: The same for properties.
            type: See `Experiment.get_runs`; ``azureml.StepRun`` means the steps.
            status: Their state; Finished means the same as Completed.
        """
        state = str(JobState.COMPLETED) if status == FINISHED else status
        wanted = RunFilter.of(type, tags, properties, state)
        for step in self.get_steps():
            if wanted.accepts(step._job()):
                yield step
            if recursive:
                yield from JobRun.get_children(
                    step,
                    recursive=True,
                    tags=tags,
                    properties=properties,
                    type=type,
                    status=state,
                )

    def find_step_run(self, name: str) -> list[StepRun]:
        """Return all steps with this name."""
        titles = {
            key: str(one.get("title") or key) for key, one in self._pipeline.spec["steps"].items()
        }
        return [
            step_run(self.experiment, row.job)
            for row in self._store.steps(self.id)
            if name in (row.name, titles[row.name])
        ]

    def views(self) -> list[StepView]:
        """Return the steps with their states and times, as they are now."""
        return views_of(self._opened, self._store.pipeline(self.id))

    def get_graph(self) -> PipelineGraph:
        """Return the graph of the pipeline, with each step's run."""
        return PipelineGraph(self)

    # -- results ---------------------------------------------------------------------------------
    def get_pipeline_output(self, pipeline_output_name: str) -> PortDataReference:
        """Return an output by the `pipeline_output_name` of its `PipelineData`.

        Raises:
            NotFoundError: no step has such an output.
        """
        for row in self._store.steps(self.id):
            definition = self._pipeline.spec["steps"][row.name]
            names = definition.get("pipeline_outputs") or {}
            for output, shown in names.items():
                if shown == pipeline_output_name:
                    return step_run(self.experiment, row.job).get_output_data(output)
        raise NotFoundError(
            f"pipeline {self.id} has no output {pipeline_output_name!r}; give a PipelineData "
            f"pipeline_output_name={pipeline_output_name!r}, or ask a step: "
            f"find_step_run(NAME)[0].get_output_data(OUTPUT)"
        )

    def publish_pipeline(
        self,
        name: str,
        description: str,
        version: str,
        continue_on_step_failure: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Publish the pipeline of this run, with the code that it ran.

        Returns:
            The PublishedPipeline.
        """
        from rayjobs.pipelines.published import PublishedPipeline, publish

        spec = read_pipeline(self._pipeline.spec)
        if continue_on_step_failure is not None:
            spec = spec.model_copy(update={"continue_on_step_failure": continue_on_step_failure})
        record = publish(
            self._opened, spec, name=name, version=version, description=description or ""
        )
        return PublishedPipeline(self.experiment.workspace, record)

    # -- state and end -----------------------------------------------------------------------------
    def get_status(self) -> str:
        """Return Queued, Running, Finished, Failed or Canceled."""
        job = self._job()
        if job.state is JobState.RUNNING and job.placed_at is None:
            return str(JobState.QUEUED)
        return status_of(job.state)

    def wait_for_completion(  # type: ignore[override]  # Azure ML's, which returns the status
        self,
        show_output: bool = True,
        timeout_seconds: float = sys.maxsize,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> str:
        """Wait for the end of all steps and return the status.

        Args:
            show_output: Print each step's start and end.
            timeout_seconds: Stop waiting after this time; the pipeline continues.
            raise_on_error: Raise if the pipeline failed.

        Raises:
            JobFailedError: it failed, and `raise_on_error` is on; names the first failed step.
            TimeoutError: it did not end in time.
            TargetError: the target could not be started; the pipeline stays queued.
        """
        from rayjobs.target.starting import ensure_target

        def quiet(_text: str) -> None:
            pass

        say = waiting.say if show_output else quiet
        say(f"PipelineRunId: {self.id}")
        until_s = time.monotonic() + timeout_seconds
        job = self._job()
        if not job.state.is_final:
            targets = dict.fromkeys(view.job.target for view in self.views() if not view.is_final)
            for target in targets:
                ensure_target(
                    target, home=default_home(), workspace=self._opened.path, on_stage=say
                )
        printed: dict[str, str] = {}
        try:
            while True:
                job = self._job()
                if show_output:
                    self._print_changes(printed)
                if job.state.is_final:
                    break
                if time.monotonic() > until_s:
                    raise attaching.not_in_time(job, timeout_seconds)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            waiting.say(
                f"\nNo longer following {self.id}; the pipeline continues. Cancel it with "
                f"run.cancel(), or `rayjobs pipeline cancel {self.id}`."
            )
            raise
        say(attaching.end_text(job))
        if raise_on_error:
            attaching.raise_for_end(job)
        return status_of(job.state)

    def _print_changes(self, printed: dict[str, str]) -> None:
        """Print the steps' changes since the last call."""
        for view in self.views():
            status = view.status
            if printed.get(view.name) != status and status != JobState.QUEUED:
                printed[view.name] = status
                waiting.say(f"[{view.name}] {view.text}")

    def cancel(self) -> None:
        """Request the end of all steps; steps that have ended do not change."""
        from rayjobs.core.users import user_name
        from rayjobs.submit.submitting import wake_or_start

        targets = dict.fromkeys(view.job.target for view in self.views() if not view.is_final)
        state = self._store.request_cancel(self.id, by=user_name())
        if not state.is_final:
            for target in targets:
                wake_or_start(self._opened, target)

    def complete(self, **kwargs: Any) -> None:
        """Refuse: a pipeline ends with its steps.

        Raises:
            UsageError: always.
        """
        raise UsageError("a pipeline run ends with its last step; cancel() ends it earlier")

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """Refuse: a pipeline ends with its steps.

        Raises:
            UsageError: always.
        """
        raise UsageError("a pipeline run ends with its last step; cancel() ends it earlier")

    def child_run(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the children of a pipeline run are its steps.

        Raises:
            UsageError: always.
        """
        raise UsageError(_ONLY_STEPS)

    def create_children(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the children of a pipeline run are its steps.

        Raises:
            UsageError: always.
        """
        raise UsageError(_ONLY_STEPS)

    def submit_child(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the children of a pipeline run are its steps.

        Raises:
            UsageError: always.
        """
        raise UsageError(_ONLY_STEPS)


class StepRun(JobRun):
    """A step of a pipeline run: a job; a reused step shows the original's results."""

    type = STEP_TYPE

    def __init__(self, experiment: Experiment | None = None, run_id: str = "", **kwargs: Any):
        """Get the handle of the step `run_id`.

        Raises:
            NotFoundError: there is no such step.
        """
        super().__init__(experiment, run_id)
        row = self._store.step_of(run_id)
        if row is None:
            raise NotFoundError(f"{run_id} is not a step of a pipeline", job=run_id)
        self._row = row
        if row.original is not None:  # a reused step has no files of its own
            self._files = RunFiles(self._opened, row.original)

    @property
    def pipeline_run_id(self) -> str:
        """Id of the pipeline run."""
        return self._row.pipeline

    @property
    def step_name(self) -> str:
        """The step's key in its pipeline."""
        return self._row.name

    @property
    def is_reused(self) -> bool:
        """Whether it reuses the results of an earlier run."""
        return self._row.original is not None

    @property
    def original(self) -> JobRun:
        """The run that produced the results: this one, or the one that it reuses."""
        if self._row.original is None:
            return self
        return JobRun(self.experiment, self._row.original)

    @property
    def decision(self) -> Mapping[str, Any]:
        """Why the step was reused, or ran: reason, compared_with, differs."""
        return self._row.decision

    def get_status(self) -> str:
        """Return the state; a completed step is Finished."""
        return status_of(self._job().state)

    def wait_for_completion(  # type: ignore[override]  # Azure ML's, which returns the status
        self,
        show_output: bool = True,
        timeout_seconds: float = sys.maxsize,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> str:
        """Wait for the step's end and return its status.

        Args:
            show_output: Print its stages and output.
            timeout_seconds: Stop waiting after this time; the step continues.
            raise_on_error: Raise if it failed.

        Raises:
            JobFailedError: it failed, and `raise_on_error` is on.
            TimeoutError: it did not end in time.
        """
        if not self._job().state.is_final:
            waiting.wait(
                self._opened,
                self.id,
                show_output=show_output,
                raise_on_error=raise_on_error,
                timeout_s=timeout_seconds,
            )
        elif raise_on_error:
            attaching.raise_for_end(self._job())
        return self.get_status()

    # -- outputs -----------------------------------------------------------------------------------
    def get_outputs(self) -> dict[str, StepRunOutput]:
        """Return the step's outputs by name."""
        definition = read_pipeline(self._store.pipeline(self._row.pipeline).spec)
        step = definition.steps[self._row.name]
        return {name: StepRunOutput(self, name) for name in outputs_of(step)}

    def get_output(self, name: str) -> StepRunOutput:
        """Return an output.

        Raises:
            NotFoundError: the step has no such output.
        """
        outputs = self.get_outputs()
        if name not in outputs:
            raise NotFoundError(
                f"step {self.step_name!r} has no output {name!r}; it has: "
                f"{', '.join(outputs) or 'none'}"
            )
        return outputs[name]

    def get_output_data(self, name: str) -> PortDataReference:
        """Return the stored location of an output.

        Raises:
            NotFoundError: the step has no such output.
        """
        return self.get_output(name).get_port_data_reference()

    # -- logs, metrics and files of the run that produced them ---------------------------------
    def get_stdout_log(self) -> str:
        """Return the script's output (rank 0), stdout and stderr combined."""
        logs = self._files.logs
        first = next((one for one in logs.names() if "driver_log" in one), None)
        return "" if first is None else logs.read(first).decode("utf-8", "replace")

    def get_stderr_log(self) -> str:
        """Return the same as `get_stdout_log`: both streams go to one log, as they are written."""
        return self.get_stdout_log()

    def get_job_log(self) -> str:
        """Return the history of the step's job, one line per event."""
        return "".join(
            f"{event.at:%Y-%m-%d %H:%M:%S} {event.message}\n"
            for event in self._store.events(self.original.id)
        )

    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return the logged values, see `JobRun.get_metrics`."""
        if self._row.original is None:
            return JobRun.get_metrics(self, name, recursive, run_type, populate)
        return self.original.get_metrics(name, recursive, run_type, populate)


def step_run(experiment: Experiment, job_id: str) -> StepRun:
    """Return the handle of a step."""
    return StepRun(experiment, job_id)


class HyperDriveStepRun(HyperDriveRun):
    """The sweep of a step: trials, best run, metrics.

    Source: ``azureml.pipeline.steps.HyperDriveStepRun``.
    """

    def __init__(self, step_run: StepRun) -> None:
        """Get the sweep of a step; for a reused step, the original sweep.

        Raises:
            NotFoundError: the step is not a sweep.
        """
        super().__init__(step_run.experiment, step_run.original.id)
        self.step_run = step_run


class StepRunOutput:
    """An output of a step run.

    Source: ``azureml.pipeline.core.StepRunOutput``.
    """

    def __init__(self, step_run: StepRun, name: str) -> None:
        self.step_run = step_run
        self.name = name

    @property
    def pipeline_run_id(self) -> str:
        """Id of the pipeline run."""
        return self.step_run.pipeline_run_id

    def get_port_data_reference(self) -> PortDataReference:
        """Return the stored location of the output."""
        return PortDataReference(self.step_run, self.name)


class PortDataReference:
    """The location of a step's output in its datastore.

    Source: ``azureml.pipeline.core.PortDataReference``.
    """

    def __init__(self, step_run: StepRun, name: str) -> None:
        self.step_run = step_run
        self.name = name
        row: StepRow = step_run._row
        self._job: Job = step_run._store.job(row.original or row.job)

    def _made(self) -> made.MadeOutput | None:
        opened = self.step_run._opened
        found = made.outputs_made(opened.store, opened.catalogue, self._job.id, name=self.name)
        return found.get(self.name)

    def _location(self) -> tuple[str, str]:
        stored = self._made()
        if stored is not None:
            return stored.datastore, stored.path
        output = self._job.spec.outputs.get(self.name)
        if output is None:
            raise NotFoundError(f"{self._job.id} is {self._job.state}: {self.name} is not stored")
        store, _, template = output.destination.partition("/")
        path = template.replace("{run-id}", self._job.id).replace("{output-name}", self.name)
        return store, path

    @property
    def datastore(self) -> Any:
        """The datastore."""
        return self.step_run.experiment.workspace.datastores[self._location()[0]]

    @property
    def datastore_name(self) -> str:
        """The datastore's name."""
        return self._location()[0]

    @property
    def path_on_datastore(self) -> str:
        """The path in the datastore."""
        return self._location()[1]

    @property
    def data_reference_name(self) -> str:
        """The output's name."""
        return self.name

    @property
    def pipeline_run_id(self) -> str:
        """Id of the pipeline run."""
        return self.step_run.pipeline_run_id

    def __repr__(self) -> str:
        """Return its name and location."""
        return f"PortDataReference({self.name!r}, {'/'.join(self._location())!r})"

    def create_input_binding(
        self,
        input_name: str | None = None,
        mode: str | None = None,
        path_on_compute: str | None = None,
        overwrite: bool | None = None,
    ) -> InputPortBinding:
        """Return it as an input for a step of another pipeline."""
        return InputPortBinding(
            input_name or self.name,
            self.data_reference,
            mode or "mount",
            path_on_compute,
            overwrite,
        )

    def as_input(self, input_name: str | None = None) -> InputPortBinding:
        """Return it as an input for a step of another pipeline, under another name."""
        return self.create_input_binding(input_name)

    def as_mount(self, input_name: str | None = None) -> InputPortBinding:
        """Return it as a mounted input for a step of another pipeline."""
        return self.create_input_binding(input_name, "mount")

    def as_download(
        self,
        input_name: str | None = None,
        path_on_compute: str | None = None,
        overwrite: bool | None = None,
    ) -> InputPortBinding:
        """Return it as a downloaded input for a step of another pipeline."""
        return self.create_input_binding(input_name, "download", path_on_compute, overwrite)

    @property
    def data_reference(self) -> DataReference:
        """The location as a DataReference."""
        from rayjobs.datastore.refs import DataReference

        store, path = self._location()
        return DataReference(store, self.name, path)

    @property
    def data_path(self) -> DataPath:
        """The location as a DataPath."""
        from rayjobs.datastore.refs import DataPath

        store, path = self._location()
        return DataPath(store, path)

    def download(
        self, local_path: str, overwrite: bool | None = None, show_progress: bool | None = None
    ) -> int:
        """Download the files of the output below `local_path`, under their paths on the datastore.

        Args:
            local_path: A folder; created if needed.
            overwrite: Replace existing files.
            show_progress: Accepted but unused.

        Returns:
            The number of downloaded files.

        Raises:
            NotFoundError: the step has stored nothing there.
            DataChanged: a file differs from what the step stored.
        """
        from rayjobs.datastore.backends import StoredFile, open_backend

        stored = self._made()
        if stored is None:
            raise NotFoundError(
                f"step {self.step_run.step_name!r} ({self._job.id}) is {self._job.state} and has "
                f"stored no output {self.name!r}"
            )
        backends = {record.name: open_backend(record) for record in stored.records}
        count = 0
        for entry in stored.files:
            to = Path(local_path).expanduser() / entry.key
            if to.exists():
                if not overwrite:
                    continue
                to.unlink()
            to.parent.mkdir(parents=True, exist_ok=True)
            one = StoredFile(entry.key, entry.size, entry.etag, entry.digest)
            backends[entry.datastore].fetch(one, to)
            count += 1
        return count


class PipelineGraph:
    """The graph of a pipeline run.

    Attributes:
        nodes: The steps, with their states at the time of the request.
        edges: (before, after, output or None).
    """

    def __init__(self, run: PipelineRun) -> None:
        from rayjobs.pipelines.graph import graph_of

        self.run = run
        graph = graph_of(read_pipeline(run._pipeline.spec))
        self.nodes = run.views()
        self.edges = tuple((one.before, one.after, one.output) for one in graph.edges)

    def __repr__(self) -> str:
        """Return its size."""
        steps, edges = counted(len(self.nodes), "step"), counted(len(self.edges), "edge")
        return f"PipelineGraph({steps}, {edges})"

    def to_json(self) -> str:
        """Return nodes and edges as JSON text."""
        return json.dumps(
            {
                "nodes": [{"name": one.name, "job": one.job.id} for one in self.nodes],
                "edges": [list(one) for one in self.edges],
            }
        )
