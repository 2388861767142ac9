"""Published pipelines and endpoints: run a pipeline by its id or name, without its program.

Source: ``azureml.pipeline.core`` (PublishedPipeline, PipelineEndpoint).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayjobs.api.experiment import Experiment
from rayjobs.core.errors import UsageError
from rayjobs.core.users import user_name
from rayjobs.jobs.records import EndpointVersion, PublishedRecord
from rayjobs.pipelines.pipeline import Pipeline, parameter_values
from rayjobs.pipelines.planning import packed
from rayjobs.pipelines.runs import PipelineRun
from rayjobs.pipelines.spec import PipelineSpec, read_pipeline
from rayjobs.pipelines.submitter import AS_DEFINED, RunRequest, SubmittedPipeline, submit_pipeline

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace
    from rayjobs.workspace.folder import OpenWorkspace

ACTIVE, DISABLED = "Active", "Disabled"


def publish(
    workspace: OpenWorkspace,
    spec: PipelineSpec,
    *,
    name: str,
    version: str | None = None,
    description: str = "",
) -> PublishedRecord:
    """Store a pipeline with its code, so that it can be run by its id.

    Raises:
        PipelineError: something is wrong with it; lists all problems.
        SnapshotError: a source directory cannot be packed.
    """
    from rayjobs.submit import copies

    copies.become_own(workspace)  # a copy may not add to the original's records
    ready = packed(workspace, spec)
    return workspace.store.publish_pipeline(
        ready.model_dump(mode="json"),
        name=name,
        version=version,
        description=description,
        user=user_name(),
    )


def run_published(
    workspace: OpenWorkspace,
    record: PublishedRecord,
    request: RunRequest = AS_DEFINED,
    *,
    wake: bool = True,
) -> SubmittedPipeline:
    """Submit a published pipeline; see `submit_pipeline` for `request` and `wake`.

    Raises:
        UsageError: it is disabled.
    """
    request = replace(request, published=record.id)
    return submit_pipeline(workspace, definition_of(record), request, wake=wake)


def definition_of(record: PublishedRecord) -> PipelineSpec:
    """Return the pipeline of an active record.

    Raises:
        UsageError: it is disabled.
    """
    if not record.is_active:
        raise UsageError(
            f"the published pipeline {record.name!r} ({record.id}) is disabled; enable it first"
        )
    return read_pipeline(record.spec)


class PublishedPipeline:
    """A published pipeline; `Pipeline.publish` makes one."""

    def __init__(self, workspace: Workspace, record: PublishedRecord) -> None:
        self._workspace = workspace
        self._record = record

    def __repr__(self) -> str:
        """Return name, id and status."""
        return f"PublishedPipeline(Name: {self.name}, Id: {self.id}, Status: {self.status})"

    @staticmethod
    def get(workspace: Workspace, id: str, **kwargs: Any) -> PublishedPipeline:
        """Return a published pipeline by its id (or its name).

        Raises:
            NotFoundError: it does not exist.
        """
        return PublishedPipeline(workspace, workspace.opened.store.published_pipeline(id))

    @staticmethod
    def list(
        workspace: Workspace, active_only: bool = True, **kwargs: Any
    ) -> list[PublishedPipeline]:
        """Return published pipelines, newest first."""
        found = workspace.opened.store.published_pipelines(active=active_only)
        return [PublishedPipeline(workspace, one) for one in found]

    get_all = list

    @property
    def id(self) -> str:
        """Its id."""
        return self._record.id

    @property
    def name(self) -> str:
        """Its name, for users."""
        return self._record.name

    @property
    def version(self) -> str | None:
        """The version that its author gave it."""
        return self._record.version

    @property
    def description(self) -> str:
        """Its description, for users."""
        return self._record.description

    @property
    def status(self) -> str:
        """``Active`` or ``Disabled``."""
        return ACTIVE if self._record.is_active else DISABLED

    @property
    def endpoint(self) -> str:
        """The command that runs it (rayjobs has no web service)."""
        return f"rayjobs pipeline run --published {self.id}"

    @property
    def workspace(self) -> Workspace:
        """The workspace that contains it."""
        return self._workspace

    @property
    def continue_on_step_failure(self) -> bool:
        """Whether its runs continue after a step has failed, unless the submit overrides it."""
        return read_pipeline(self._record.spec).continue_on_step_failure

    @property
    def total_run_steps(self) -> int:
        """The number of its steps."""
        return len(self.get_step_names())

    def get_step_names(self) -> Sequence[str]:
        """Return the names of its steps."""
        steps = read_pipeline(self._record.spec).steps
        return [step.title or name for name, step in steps.items()]

    @property
    def graph_id(self) -> str:
        """The same as `id`."""
        return self.id

    def submit(
        self,
        workspace: Workspace | None = None,
        experiment_name: str | None = None,
        pipeline_parameters: Mapping[str, Any] | None = None,
        _workflow_provider: Any = None,
        _service_endpoint: Any = None,
        parent_run_id: str | None = None,
        continue_on_step_failure: bool | None = None,
        regenerate_outputs: bool | None = None,
        **kwargs: Any,
    ) -> PipelineRun:
        """Run it.

        Raises:
            UsageError: it is disabled.
            PipelineError: a parameter is wrong.
        """
        chosen = workspace or self._workspace
        record = chosen.opened.store.published_pipeline(self.id)
        done = run_published(
            chosen.opened,
            record,
            RunRequest(
                experiment=experiment_name or record.name,
                values=parameter_values(pipeline_parameters, chosen),
                regenerate=bool(regenerate_outputs),
                continues=continue_on_step_failure,
            ),
        )
        return PipelineRun(Experiment(chosen, done.pipeline.job.experiment), done.pipeline.job.id)

    def enable(self) -> None:
        """Allow runs again."""
        self._set(active=True)

    def disable(self) -> None:
        """Refuse further runs."""
        self._set(active=False)

    def _set(self, *, active: bool) -> None:
        store = self._workspace.opened.store
        store.set_published_active(self.id, active=active)
        self._record = store.published_pipeline(self.id)


class PipelineEndpoint:
    """A name whose versions are published pipelines; one version is the default."""

    def __init__(self, workspace: Workspace, versions: list[EndpointVersion]) -> None:
        self._workspace = workspace
        self._versions = versions

    def __repr__(self) -> str:
        """Return name and default version."""
        return f"PipelineEndpoint(Name: {self.name}, Default: {self.default_version})"

    @staticmethod
    def publish(
        workspace: Workspace, name: str, pipeline: Any, description: str = "", **kwargs: Any
    ) -> PipelineEndpoint:
        """Create an endpoint with its first version.

        Raises:
            UsageError: the endpoint exists.
        """
        known = {one.name for one in workspace.opened.store.endpoint_versions()}
        if name in known:
            raise UsageError(
                f"the pipeline endpoint {name!r} already exists; add a version: "
                f"PipelineEndpoint.get(ws, name={name!r}).add(pipeline)"
            )
        published = _published_of(workspace, pipeline, name)
        workspace.opened.store.add_endpoint_version(
            name, published.id, description=description or ""
        )
        return PipelineEndpoint.get(workspace, name=name)

    @staticmethod
    def get(
        workspace: Workspace, id: str | None = None, name: str | None = None, **kwargs: Any
    ) -> PipelineEndpoint:
        """Return an endpoint by its name or id.

        Raises:
            NotFoundError: it does not exist.
        """
        text = name or id
        if not text:
            raise UsageError("give the id or the name of a pipeline endpoint")
        return PipelineEndpoint(workspace, workspace.opened.store.endpoint_versions(text))

    @staticmethod
    def list(
        workspace: Workspace, active_only: bool = True, **kwargs: Any
    ) -> list[PipelineEndpoint]:
        """Return all endpoints, by name."""
        names = dict.fromkeys(
            one.name
            for one in workspace.opened.store.endpoint_versions()
            if one.is_active or not active_only
        )
        return [PipelineEndpoint.get(workspace, name=name) for name in names]

    get_all = list

    @property
    def id(self) -> str:
        """Its id."""
        return self._versions[0].id

    @property
    def name(self) -> str:
        """Its name, which also identifies it."""
        return self._versions[0].name

    @property
    def description(self) -> str:
        """The description of its newest version."""
        return self._versions[-1].description

    @property
    def status(self) -> str:
        """``Active`` or ``Disabled``."""
        return ACTIVE if self._versions[0].is_active else DISABLED

    @property
    def endpoint(self) -> str:
        """The command that runs its default version: rayjobs has no web service."""
        return self.get_pipeline().endpoint

    @property
    def default_version(self) -> str:
        """The version that runs unless another one is named."""
        return str(next(one.version for one in self._versions if one.is_default))

    def get_default_version(self) -> str:
        """Return the default version."""
        return self.default_version

    def get_all_versions(self) -> Sequence[str]:
        """Return all versions, oldest first."""
        return [str(one.version) for one in self._versions]

    list_versions = get_all_versions

    def get_pipeline(self, version: str | None = None) -> PublishedPipeline:
        """Return the published pipeline of a version; None means the default version.

        Raises:
            UsageError: there is no such version.
        """
        wanted = self.default_version if version is None else str(version)
        for one in self._versions:
            if str(one.version) == wanted:
                return PublishedPipeline.get(self._workspace, one.pipeline)
        raise UsageError(
            f"the endpoint {self.name!r} has no version {wanted!r}; it has: "
            f"{', '.join(self.get_all_versions())}"
        )

    def list_pipelines(self, active_only: bool = True) -> Sequence[PublishedPipeline]:
        """Return the published pipelines of all versions, or only the active ones."""
        found = [self.get_pipeline(version) for version in self.get_all_versions()]
        return [one for one in found if one.status == ACTIVE or not active_only]

    get_all_pipelines = list_pipelines

    def add(self, pipeline: Any) -> None:
        """Add a version."""
        self._add(pipeline, is_default=False)

    def add_default(self, pipeline: Any) -> None:
        """Add a version, and make it the default."""
        self._add(pipeline, is_default=True)

    def _add(self, pipeline: Any, *, is_default: bool) -> None:
        published = _published_of(self._workspace, pipeline, self.name)
        store = self._workspace.opened.store
        store.add_endpoint_version(self.name, published.id, is_default=is_default)
        self._versions = store.endpoint_versions(self.name)

    def set_default_version(self, version: str) -> None:
        """Make a version the default.

        Raises:
            UsageError: there is no such version.
        """
        store = self._workspace.opened.store
        known = {str(one.version): one.version for one in store.endpoint_versions(self.name)}
        if str(version) not in known:
            raise UsageError(
                f"the endpoint {self.name!r} has no version {version}; it has: {', '.join(known)}"
            )
        store.set_endpoint_default(self.name, known[str(version)])
        self._versions = store.endpoint_versions(self.name)

    def set_default(self, pipeline: PublishedPipeline) -> None:
        """Make the newest version of a published pipeline the default.

        Raises:
            UsageError: the pipeline is not a version of this endpoint.
        """
        wanted = pipeline.id if isinstance(pipeline, PublishedPipeline) else None
        versions = [one.version for one in self._versions if one.pipeline == wanted]
        if not versions:
            raise UsageError(
                f"the endpoint {self.name!r} has no version for {pipeline!r}; "
                f"add_default(pipeline) adds one and makes it the default"
            )
        self.set_default_version(str(versions[-1]))

    def set_name(self, name: str) -> None:
        """Rename the endpoint.

        Raises:
            UsageError: another endpoint has this name, or it is empty.
        """
        if not name:
            raise UsageError("the name of a pipeline endpoint is empty; give one")
        store = self._workspace.opened.store
        store.rename_endpoint(self.name, name)
        self._versions = store.endpoint_versions(self.id)

    def enable(self) -> None:
        """Allow runs again."""
        self._set(active=True)

    def disable(self) -> None:
        """Refuse further runs."""
        self._set(active=False)

    def _set(self, *, active: bool) -> None:
        store = self._workspace.opened.store
        store.set_endpoint_active(self.name, active=active)
        self._versions = store.endpoint_versions(self.name)

    def archive(self) -> None:
        """The same as `disable`."""
        self.disable()

    def reactivate(self) -> None:
        """The same as `enable`."""
        self.enable()

    def submit(
        self,
        experiment_name: str,
        pipeline_parameters: Mapping[str, Any] | None = None,
        pipeline_version: str | None = None,
        **options: Any,
    ) -> PipelineRun:
        """Run a version; None means the default version.

        Raises:
            UsageError: the endpoint is disabled, or has no such version.
        """
        if not self._versions[0].is_active:
            raise UsageError(f"the pipeline endpoint {self.name!r} is disabled; enable() it first")
        published = self.get_pipeline(pipeline_version)
        return published.submit(self._workspace, experiment_name, pipeline_parameters, **options)


def _published_of(workspace: Workspace, pipeline: Any, name: str) -> PublishedPipeline:
    if isinstance(pipeline, PublishedPipeline):
        return pipeline
    if isinstance(pipeline, Pipeline):
        return pipeline.publish(name)
    raise UsageError(
        f"a {type(pipeline).__name__} cannot be published; give a Pipeline or a PublishedPipeline"
    )
