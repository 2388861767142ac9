"""Pipelines in Python, and their stored form.

Source: ``azureml.pipeline.core.Pipeline`` and ``StepSequence``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api.experiment import Experiment
from rayjobs.api.submitters import register
from rayjobs.core.errors import UsageError
from rayjobs.core.text import name_from
from rayjobs.datastore.refs import datastore_name_of
from rayjobs.pipelines.graph import graph_of
from rayjobs.pipelines.spec import PipelineSpec
from rayjobs.pipelines.step_data import Building
from rayjobs.pipelines.steps import StepBase, StepSequence, flattened

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace
    from rayjobs.pipelines.published import PublishedPipeline
    from rayjobs.pipelines.runs import PipelineRun


class Pipeline:
    """Steps that run as a unit: each starts as soon as its inputs exist.

    Args:
        workspace: Its workspace.
        steps: The steps, in any order; lists may be nested.
        description: A description for users; its first words name the pipeline.
        default_datastore: Datastore of outputs that name none; None means the workspace's default.
        default_source_directory: Source directory of steps that name none.
        resolve_closure: Add the steps that produce the given steps' inputs.

    Raises:
        UsageError: there are no steps, or an item is not a step.
    """

    def __init__(
        self,
        workspace: Workspace,
        steps: Any,
        description: str | None = None,
        default_datastore: Any = None,
        default_source_directory: str | Path | None = None,
        resolve_closure: bool = True,
        **kwargs: Any,
    ) -> None:
        self.workspace = workspace
        self.description = description or ""
        self.name = name_from(description or "", default="")[:60]
        self._default_datastore = default_datastore
        self._default_source_directory = default_source_directory
        found = list(dict.fromkeys(flattened(steps if isinstance(steps, list) else [steps])))
        if not found:
            raise UsageError("a pipeline needs at least one step; give steps=[...]")
        self.steps: list[StepBase] = closed(found) if resolve_closure else found

    def __repr__(self) -> str:
        """Return the steps."""
        return f"Pipeline(steps=[{', '.join(repr(one.name) for one in self.steps)}])"

    def to_spec(self, name: str | None = None) -> PipelineSpec:
        """Return the pipeline in its stored form.

        Args:
            name: The pipeline's name; None takes it from the description.

        Raises:
            UsageError, SpecError: something is wrong with a step.
        """
        names = _keys(self.steps)
        default = self._default_datastore
        if default is None:
            default = self.workspace.get_default_datastore()
        source = self._default_source_directory
        building = Building(
            names={id(step): names[index] for index, step in enumerate(self.steps)},
            default_datastore=datastore_name_of(default),
            keep=self.workspace.catalogue.put_manifest,
            workspace=self.workspace,
            default_source_directory=None if source is None else str(source),
        )
        for step in self.steps:
            for output in step.output_objects:
                building.add_producer(step, output, output_name_of(output))
        self._check_listed(building)
        built = {names[index]: step.build(building) for index, step in enumerate(self.steps)}
        return PipelineSpec(
            name=name or self.name or "pipeline",
            description=self.description,
            parameters=building.parameters,
            steps=built,
        )

    def _check_listed(self, building: Building) -> None:
        for step in self.steps:
            for before in step._before:
                if id(before) not in building.names:
                    raise UsageError(
                        f"step {step.name!r} runs after {before.name!r}, which is not a step of "
                        f"the pipeline; add it to `steps`"
                    )

    def validate(self) -> list[str]:
        """Check the pipeline without submitting it; return one sentence per problem."""
        from rayjobs.core.errors import RayjobsError, SpecError
        from rayjobs.pipelines.planning import Packer, plan

        try:
            spec = self.to_spec()
            graph_of(spec)
            plan(
                self.workspace.opened,
                spec,
                experiment="validate",
                values=defaults_of(spec),
                packer=Packer(self.workspace.opened, stores=False),
            )
        except SpecError as error:
            return [str(one) for one in error.problems]
        except RayjobsError as error:
            return [str(error)]
        return []

    def publish(
        self,
        name: str | None = None,
        description: str | None = None,
        version: str | None = None,
        continue_on_step_failure: bool | None = None,
        **kwargs: Any,
    ) -> PublishedPipeline:
        """Store the pipeline with its code, so that it can be run by its id.

        Raises:
            PipelineError: something is wrong with it; lists all problems.
        """
        from rayjobs.pipelines.published import PublishedPipeline, publish

        title = name or self.name or "pipeline"
        spec = self.to_spec(name_from(title, default="pipeline"))
        if continue_on_step_failure is not None:
            spec = spec.model_copy(update={"continue_on_step_failure": continue_on_step_failure})
        record = publish(
            self.workspace.opened,
            spec,
            name=title,
            version=version,
            description=description or self.description,
        )
        return PublishedPipeline(self.workspace, record)

    def submit(
        self,
        experiment_name: str,
        pipeline_parameters: Mapping[str, Any] | None = None,
        continue_on_step_failure: bool = False,
        regenerate_outputs: bool = False,
        parent_run_id: str | None = None,
        credential_passthrough: bool | None = None,
        **kwargs: Any,
    ) -> PipelineRun:
        """Submit the pipeline; see `Experiment.submit`.

        Returns:
            The run's handle.
        """
        return submit_built(
            Experiment(self.workspace, experiment_name),
            self,
            pipeline_parameters=pipeline_parameters,
            continue_on_step_failure=continue_on_step_failure,
            regenerate_outputs=regenerate_outputs,
            **kwargs,
        )


def closed(steps: Iterable[StepBase]) -> list[StepBase]:
    """Return the steps and all steps that produce their inputs or must run before them."""
    found: dict[StepBase, None] = {}
    pending = [*steps][::-1]
    open_ones: set[StepBase] = set()  # already visited, so that cycles end here
    while pending:
        step = pending[-1]
        missing = [one for one in step.needed() if one not in found and one not in open_ones]
        if missing and step not in open_ones:
            open_ones.add(step)
            pending += missing[::-1]
            continue
        pending.pop()
        found.setdefault(step)
    return [*found]


def defaults_of(spec: PipelineSpec) -> dict[str, Any]:
    """Return the default of each parameter that has one."""
    return {name: one.default for name, one in spec.parameters.items() if one.default is not None}


def output_name_of(output: Any) -> str:
    """Return the name of an output in its step's job."""
    found = getattr(output, "_output_name", None) or getattr(output, "data_reference_name", None)
    return str(found or getattr(output, "name", output))


def _keys(steps: list[StepBase]) -> list[str]:
    """Return a key for each step: its name, with a number if several steps have it."""
    wanted = [name_from(step.name, default="step") for step in steps]
    counts, taken = Counter(wanted), set(wanted)
    seen: Counter[str] = Counter()
    keys = []
    for name in wanted:
        seen[name] += 1
        key = name
        if counts[name] > 1 and seen[name] > 1:
            number = seen[name]
            while f"{name}-{number}" in taken:
                number += 1
            key = f"{name}-{number}"
            taken.add(key)
        keys.append(key)
    return keys


def parameter_values(given: Mapping[str, Any] | None, workspace: Workspace) -> dict[str, Any]:
    """Return the values of a run's parameters, with references in place of data."""
    building = Building({}, "", workspace.catalogue.put_manifest)
    found = {}
    for name, value in (given or {}).items():
        is_plain = isinstance(value, str | int | float | bool)
        found[str(name).replace(" ", "_")] = value if is_plain else building.data_text(value)
    return found


def submit_built(
    experiment: Experiment,
    config: Pipeline,
    *,
    tags: dict[str, str] | None = None,
    pipeline_parameters: Mapping[str, Any] | None = None,
    continue_on_step_failure: bool = False,
    regenerate_outputs: bool = False,
    **options: Any,
) -> PipelineRun:
    """Submit a Pipeline under an experiment (`Experiment.submit` calls this).

    Raises:
        UsageError: a pipeline has no such option.
        PipelineError, CannotBePlacedError, StoreError: see `submit_pipeline`.
    """
    from rayjobs.pipelines.runs import PipelineRun
    from rayjobs.pipelines.submitter import RunRequest, submit_pipeline

    key = options.pop("idempotency_key", None)
    for ignored in ("parent_run_id", "credential_passthrough"):
        options.pop(ignored, None)
    if options:
        raise UsageError(
            f"submit() does not accept {', '.join(sorted(options))} for a Pipeline; its options "
            f"are pipeline_parameters, continue_on_step_failure, regenerate_outputs, tags and "
            f"idempotency_key"
        )
    done = submit_pipeline(
        experiment.workspace.opened,
        config.to_spec(config.name or name_from(experiment.name, default="pipeline")),
        RunRequest(
            experiment=experiment.name,
            values=parameter_values(pipeline_parameters, experiment.workspace),
            regenerate=regenerate_outputs,
            continues=continue_on_step_failure,
            tags=tags,
            idempotency_key=key,
        ),
    )
    run = PipelineRun(experiment, done.pipeline.job.id)
    run.warnings, run.notes = done.warnings, done.run.notes
    return run


register(Pipeline, submit_built)


def _submit_steps(
    experiment: Experiment,
    config: StepSequence,
    *,
    tags: dict[str, str] | None = None,
    **kwargs: Any,
) -> PipelineRun:
    return submit_built(experiment, Pipeline(experiment.workspace, [config]), tags=tags, **kwargs)


register(StepSequence, _submit_steps)
