"""The base of all kinds of steps, and sequences of steps.

Signatures: ``azureml.pipeline.core`` 1.62.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rayjobs.api.configs import RunConfiguration, ScriptRunConfig
from rayjobs.core.errors import UsageError
from rayjobs.datastore.outputs import OutputAsInput, OutputFileDatasetConfig
from rayjobs.pipelines.data import PipelineData, PipelineParameter
from rayjobs.pipelines.spec import Reuse, StepSpec
from rayjobs.pipelines.step_data import Building, StepData, params_of, plain_values


class StepBase:
    """A step: its job, its inputs and outputs, and its predecessors.

    Args:
        name: The step's name; several steps may have the same name.
        inputs: Data that it reads.
        outputs: Data that it writes.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.
        version: Change it when the step's behavior changes, so that it runs again.
        hash_paths: Only changes of these files count as changes.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        *,
        arguments: Sequence[Any] | None = None,
        allow_reuse: bool = True,
        version: str | None = None,
        hash_paths: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"the name of a step is {name!r}; give a short name")
        self.name = name
        self.inputs = list(inputs or ())
        self.outputs = list(outputs or ())
        self.arguments = list(arguments or ())
        self.allow_reuse = allow_reuse
        self.version = version
        self.hash_paths = tuple(hash_paths or ())
        self._before: list[StepBase] = []
        for one in self.outputs:
            if not isinstance(one, PipelineData):
                continue
            if one._producer is not None and one._producer is not self:
                raise UsageError(
                    f"steps {one._producer.name!r} and {name!r} both write {one.name!r}; give "
                    f"each its own PipelineData"
                )
            one._producer = self
        for one in self.output_objects:
            if isinstance(one, OutputFileDatasetConfig):
                one.origin.makers.append(self)

    def __repr__(self) -> str:
        """Return the kind and the name."""
        return f"{type(self).__name__}(name={self.name!r})"

    def run_after(self, step: Any) -> None:
        """Wait for a step (or all steps of a list or StepSequence), without reading its outputs."""
        for one in flattened([step]):
            if one is self:
                raise UsageError(f"step {self.name!r} cannot run after itself")
            if one not in self._before:
                self._before.append(one)

    @property
    def run_after_steps(self) -> list[StepBase]:
        """The steps that `run_after` named."""
        return list(self._before)

    @property
    def output_objects(self) -> list[Any]:
        """Its outputs, including those that only its arguments name."""
        found = list(self.outputs)
        for one in self.arguments:
            if isinstance(one, OutputFileDatasetConfig) and not any(one is out for out in found):
                found.append(one)
        return found

    def needed(self) -> list[StepBase]:
        """Return the steps that it waits for, as far as its own objects show them."""
        found = list(self._before)
        for one in [*self.inputs, *self.arguments]:
            data = getattr(one, "bind_object", getattr(one, "data", one))
            producer = getattr(data, "_producer", None)
            if isinstance(producer, StepBase) and producer is not self:
                found.append(producer)
            # With several producers, the intended one is only clear if exactly one is listed.
            if isinstance(one, OutputAsInput) and len(one.output.origin.makers) == 1:
                found += [step for step in one.output.origin.makers if step is not self]
        return found

    def build(self, building: Building) -> StepSpec:
        """Return the step in its stored form.

        Raises:
            UsageError, SpecError: something is wrong with it.
        """
        raise NotImplementedError

    def _gather(self, building: Building) -> StepData:
        data = StepData(self, building)
        for one in self.outputs:
            data.add_output(one)
        for one in self.inputs:
            data.add(one)
        return data

    def _spec(
        self,
        building: Building,
        data: StepData,
        job: Mapping[str, Any],
        *,
        params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> StepSpec:
        values = dict(job)
        values["inputs"] = {**values.get("inputs", {}), **data.inputs}
        values["outputs"] = {**values.get("outputs", {}), **data.outputs}
        for name in ("version", "name", "depends_on", "umask"):
            values.pop(name, None)
        return StepSpec(
            job=values,
            after=tuple(dict.fromkeys(building.names[id(one)] for one in self._before)),
            params=params_of(self.name, params or {}, building),
            reuse=Reuse(
                allow=self.allow_reuse,
                version=None if self.version is None else str(self.version),
                hash_paths=self.hash_paths,
            ),
            title=self.name,
            pipeline_outputs={
                one._output_name: one._pipeline_output_name
                for one in self.outputs
                if isinstance(one, PipelineData) and one._pipeline_output_name
            },
            **kwargs,
        )


PipelineStep = StepBase
"""Azure ML's name for the base class."""


class ScriptStep(StepBase):
    """A step with one job configuration: a script, unless `build` is overridden.

    Attributes:
        script_name: The script, relative to `source_directory`.
        source_directory: Folder with the script; None means the pipeline's default.
        params: Values of the variables ``AML_PARAMETER_<NAME>``.
    """

    script_name: str
    source_directory: str | None
    params: dict[str, Any]
    _settings: RunConfiguration

    def build(self, building: Building) -> StepSpec:
        """See `StepBase.build`."""
        data = self._gather(building)
        job = self._job(
            building,
            data,
            self._settings,
            source_directory=self.source_directory,
            script=self.script_name,
        )
        return self._spec(building, data, job, params=self.params)

    def _job(
        self,
        building: Building,
        data: StepData,
        settings: RunConfiguration,
        *,
        source_directory: str | None,
        script: str | None = None,
        command: Sequence[Any] | str | None = None,
        resume_from: Any = None,
    ) -> dict[str, Any]:
        """Return the fields of the step's job, with placeholders for parameters."""
        settings = copy.copy(settings)
        settings.mpi = copy.copy(settings.mpi)
        open_counts = _take_parameters(settings, building)
        variables = plain_values(settings.environment_variables, building)
        settings.environment_variables = variables
        # Data that the configuration itself names belongs to the step too.
        for item in [*settings.data_references.values(), *settings.data.values()]:
            data.add(item)
        settings.data_references, settings.data = {}, {}
        for item in settings.output_data.values():
            data.add_output(item)
        settings.output_data = {}
        directory = source_directory or building.default_source_directory
        if command is not None:
            words = [command] if isinstance(command, str) else list(command)
            text = " ".join(
                f'"{data.text(word)}"' if data.is_data(word) else str(data.text(word))
                for word in words
            )
            config = ScriptRunConfig(
                directory or ".", command=text, run_config=settings, resume_from=resume_from
            )
        else:
            config = ScriptRunConfig(
                directory or ".",
                script=script,
                arguments=[data.text(item) for item in self.arguments if item is not None],
                run_config=settings,
                resume_from=resume_from,
            )
        spec = config.to_spec(keep=building.keep, workspace=building.workspace)
        job = spec.model_dump(mode="json", exclude_defaults=True)
        if directory is None:
            job.pop("source_directory", None)
        for name, text in open_counts.items():
            job.setdefault("distribution", {})[name] = text
        return job


def _take_parameters(settings: RunConfiguration, building: Building) -> dict[str, str]:
    """Replace parameters among the counts by their defaults; return their placeholders."""
    found = {}
    nodes, processes = settings.node_count, settings.mpi.process_count_per_node
    if isinstance(nodes, PipelineParameter):
        found["nodes"] = building.parameter(nodes)
        settings.node_count = nodes.default_value
    if isinstance(processes, PipelineParameter):
        found["processes_per_node"] = building.parameter(processes)
        settings.mpi.process_count_per_node = processes.default_value
    return found


def settings_of(runconfig: Any, compute_target: Any) -> RunConfiguration:
    """Return a copy of a step's run configuration, with its target."""
    if runconfig is None:
        settings = RunConfiguration()
    elif isinstance(runconfig, ScriptRunConfig):
        settings = copy.copy(runconfig.run_config)
    elif isinstance(runconfig, RunConfiguration):
        settings = copy.copy(runconfig)
    else:
        raise UsageError(f"runconfig is a {type(runconfig).__name__}; give a RunConfiguration")
    if compute_target is not None:
        settings.target = compute_target
    elif runconfig is None:
        from rayjobs.submit.project import default_target

        settings.target = default_target().name
    return settings


def applied_parameters(
    settings: RunConfiguration, params: Mapping[str, Any] | None
) -> RunConfiguration:
    """Return a run configuration with the fields that `runconfig_pipeline_params` sets."""
    for name, value in (params or {}).items():
        if not isinstance(value, PipelineParameter):
            raise UsageError(
                f"runconfig_pipeline_params[{name!r}] is a {type(value).__name__}; give a "
                f"PipelineParameter"
            )
        if name in ("node_count", "NodeCount"):
            settings.node_count = value  # type: ignore[assignment]
        elif name in ("process_count_per_node", "MpiProcessCountPerNode"):
            settings.mpi = copy.copy(settings.mpi)
            settings.mpi.process_count_per_node = value  # type: ignore[assignment]
        else:
            raise UsageError(
                f"runconfig_pipeline_params has {name!r}; node_count and process_count_per_node "
                f"can be set per run"
            )
    return settings


class StepSequence:
    """Steps that run one after the other; the steps of an inner list run at the same time.

    Args:
        steps: Steps, lists of steps, and sequences.
    """

    def __init__(self, steps: Sequence[Any] | None = None) -> None:
        self.steps = list(steps or ())
        previous: list[StepBase] = []
        for one in self.steps:
            current = flattened([one])
            firsts = flattened([one.steps[0]]) if _is_filled(one) else current
            for step in firsts:
                for before in previous:
                    step.run_after(before)
            lasts = flattened([one.steps[-1]]) if _is_filled(one) else current
            previous = lasts or previous

    def __iter__(self) -> Iterator[Any]:
        """Iterate over its items."""
        return iter(self.steps)


def _is_filled(one: Any) -> bool:
    return isinstance(one, StepSequence) and bool(one.steps)


def flattened(steps: Iterable[Any]) -> list[StepBase]:
    """Return the steps of nested lists and sequences, in order.

    Raises:
        UsageError: an item is not a step.
    """
    found: list[StepBase] = []
    for one in steps:
        if isinstance(one, StepSequence):
            found += flattened(one.steps)
        elif isinstance(one, list | tuple):
            found += flattened(one)
        elif isinstance(one, StepBase):
            found.append(one)
        else:
            raise UsageError(
                f"a {type(one).__name__} is not a step; give steps, lists of steps, or a "
                f"StepSequence"
            )
    return found
