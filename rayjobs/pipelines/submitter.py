"""Submits a pipeline: checks everything, packs once, writes one durable transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import RayjobsError, UsageError
from rayjobs.core.text import counted
from rayjobs.core.users import user_name
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Pipeline
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.planning import Packer, PlannedRun, new_step, plan
from rayjobs.pipelines.spec import PipelineSpec, read_pipeline
from rayjobs.spec.model import JobSpec
from rayjobs.spec.sources import OUTPUT
from rayjobs.store.requests import NewPipeline
from rayjobs.submit import submitting

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


@dataclass(frozen=True)
class SubmittedPipeline:
    """The result of a submit.

    Attributes:
        pipeline: The stored run.
        created: False if the idempotency key was known: `pipeline` is then the earlier run.
        run: The plan, with each step's decision.
        warnings: Warnings for the submitter, one sentence each.
        starting: Whether a target is being started.
    """

    pipeline: Pipeline
    created: bool
    run: PlannedRun
    warnings: tuple[str, ...] = ()
    starting: bool = False


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """How to run a pipeline.

    Attributes:
        experiment: The experiment of the run and its steps; None means the pipeline's name.
        values: Values of parameters; others have their defaults.
        regenerate: Run every step, without reuse.
        continues: After a failure, run the steps that do not depend on the failed one; None means
            the pipeline's own setting.
        resumed: Step → job of an earlier run whose results are reused.
        published: Id of the published pipeline that is run.
        tags: The run's tags.
        properties: Facts about the run.
        idempotency_key: A repeated submit with the same key returns the first run.
        user: The owner of the run; None means the caller.
    """

    experiment: str | None = None
    values: Mapping[str, Any] | None = None
    regenerate: bool = False
    continues: bool | None = None
    resumed: Mapping[str, str] | None = None
    published: str | None = None
    tags: Mapping[str, str] | None = None
    properties: Mapping[str, str] | None = None
    idempotency_key: str | None = None
    user: str | None = None


AS_DEFINED = RunRequest()


def submit_pipeline(
    workspace: OpenWorkspace,
    spec: PipelineSpec,
    request: RunRequest = AS_DEFINED,
    *,
    on_stage: Callable[[str], None] = lambda _text: None,
    wake: bool = True,
) -> SubmittedPipeline:
    """Submit a pipeline; once this has returned, the run is durable and needs no client.

    Args:
        workspace: Its workspace.
        spec: The pipeline.
        request: How to run it.
        on_stage: Called with each stage.
        wake: Wake the targets, or start them in the background if they do not run.

    Raises:
        PipelineError: something is wrong with it; lists all problems.
        CannotBePlacedError: a target can never hold a step.
        SnapshotError: a source directory cannot be packed.
        StoreError: it could not be written, so nothing was submitted.
    """
    from rayjobs.submit import copies

    experiment = request.experiment or spec.name
    notes = copies.become_own(workspace)
    run = plan(
        workspace,
        spec,
        experiment=experiment,
        values=request.values,
        regenerate=request.regenerate,
        resumed=request.resumed,
        packer=Packer(workspace, on_stage=on_stage),
    )
    warnings = [*notes, *run.warnings]
    asked: set[str] = set()
    for one in run.steps:
        needs = f"{one.spec.target} {sorted(one.spec.secrets)} {one.spec.environment_text}"
        needs += f"{sorted(put.destination.partition('/')[0] for put in one.spec.outputs.values())}"
        # Data of another job needs no copy.
        given = {put.source for put in one.spec.inputs.values()}
        needs += f"{sorted(it.partition('/')[0] for it in given if not it.startswith(OUTPUT))}"
        if needs not in asked:
            asked.add(needs)
            warnings += submitting.hand_on_credentials(workspace, one.spec)
    goes_on = spec.continue_on_step_failure if request.continues is None else request.continues
    pipeline, created = workspace.store.put_pipeline(
        NewPipeline(
            id=run.id,
            name=spec.name,
            base=_base(run),
            definition=run.spec.model_dump(mode="json"),
            parameters=run.values,
            steps=[new_step(number, one, run) for number, one in enumerate(run.steps)],
            experiment=experiment,
            user=request.user or user_name(),
            continues=goes_on,
            published=request.published,
            tags=request.tags or {},
            properties=request.properties or {},
            idempotency_key=request.idempotency_key,
        )
    )
    starting = False
    if wake and not pipeline.job.state.is_final:
        for target in dict.fromkeys(one.spec.target for one in run.steps):
            try:
                starting |= submitting.wake_or_start(workspace, target)
            except (RayjobsError, OSError) as error:
                warnings.append(
                    f"the pipeline is stored, but the target {target!r} could not be started: "
                    f"{error}"
                )
    return SubmittedPipeline(pipeline, created, run, tuple(dict.fromkeys(warnings)), starting)


def _base(run: PlannedRun) -> JobSpec:
    """Return the spec of the run's own job, which never starts."""
    first = run.steps[0].spec
    return JobSpec(
        name=run.spec.name,
        command=f"pipeline of {counted(len(run.steps), 'step')}",
        target=first.target,
        priority=max(one.spec.priority for one in run.steps),
    )


def resume_pipeline(
    workspace: OpenWorkspace, pipeline_id: str, *, wake: bool = True
) -> SubmittedPipeline:
    """Resubmit a pipeline run, reusing its completed steps.

    Args:
        wake: As in `submit_pipeline`.

    Raises:
        UsageError: it has not ended, or has completed.
        PipelineError, CannotBePlacedError, StoreError: see `submit_pipeline`.
    """
    before = workspace.store.pipeline(pipeline_id)
    if not before.job.state.is_final:
        raise UsageError(
            f"{pipeline_id} is {before.job.state}; resume it once it has ended, or cancel it first"
        )
    if before.job.state is JobState.COMPLETED:
        raise UsageError(f"{pipeline_id} has completed; there is nothing to resume")
    states = workspace.store.job_states(one.job for one in workspace.store.steps(pipeline_id))
    done = {
        one.name: one.original or one.job
        for one in workspace.store.steps(pipeline_id)
        if states.get(one.job) is JobState.COMPLETED
    }
    return submit_pipeline(
        workspace,
        read_pipeline(before.spec),
        RunRequest(
            experiment=before.job.experiment,
            values=before.parameters,
            continues=before.continues,
            resumed=done,
            published=before.published,
            properties={"resumed_from": pipeline_id},
        ),
        wake=wake,
    )
