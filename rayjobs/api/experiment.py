"""Experiments: names under which runs are submitted and found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api import html
from rayjobs.api.configs import ScriptRunConfig
from rayjobs.api.estimators import Estimator
from rayjobs.api.notices import notice
from rayjobs.api.submitters import register, submitter_of
from rayjobs.core.errors import UsageError
from rayjobs.core.refusing import refuses
from rayjobs.spec import problems, substitutes
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter
from rayjobs.submit.submitting import Entry, submit
from rayjobs.workspace.azure import AzureSettings
from rayjobs.workspace.orphans import end_orphans

if TYPE_CHECKING:
    from rayjobs.api.interactive import InteractiveRun
    from rayjobs.api.run import JobRun
    from rayjobs.api.workspace import Workspace
    from rayjobs.injob.run import Run

LONGEST_NAME = 255


@refuses(
    "each submit names the folder of code: ScriptRunConfig(source_directory)",
    "from_directory",
)
class Experiment:
    """Runs of one workspace that belong together.

    Source: ``azureml.core.Experiment``.
    """

    def __init__(self, workspace: Workspace, name: str) -> None:
        """Get an existing experiment or a new one, which exists once it has a run.

        Raises:
            UsageError: the name is not valid for an experiment.
        """
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UsageError(f"an experiment cannot be called {name!r}; give a printable name")
        if len(name) > LONGEST_NAME:
            raise UsageError(
                f"the experiment's name has {len(name)} characters; at most {LONGEST_NAME} are "
                f"allowed"
            )
        self.workspace = workspace
        self.name = name

    @property
    def id(self) -> str:
        """The workspace's id and the name."""
        return f"{self.workspace.id}/{self.name}"

    # -- tags and archive ----------------------------------------------------------------------
    def _kept(self) -> dict[str, Any]:
        return AzureSettings(self.workspace.store).experiment(self.name)

    def _keep(self, values: Mapping[str, Any]) -> None:
        given = {name: value for name, value in values.items() if value}
        AzureSettings(self.workspace.store).put_experiment(self.name, given)

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self._kept().get("tags") or {})

    @property
    def archived_time(self) -> str | None:
        """When it was archived (ISO 8601, UTC); None if it is active."""
        return self._kept().get("archived_time")

    def tag(self, key: str, value: Any = None) -> None:
        """Set one tag."""
        self.set_tags({key: value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        ready = {str(key): "" if value is None else str(value) for key, value in tags.items()}
        self._keep({**self._kept(), "tags": {**self.tags, **ready}})

    def remove_tags(self, tags: Iterable[str]) -> dict[str, str]:
        """Remove tags by key; return those that are left."""
        gone = {tags} if isinstance(tags, str) else {*tags}
        left = {key: value for key, value in self.tags.items() if key not in gone}
        self._keep({**self._kept(), "tags": left})
        return left

    def archive(self) -> None:
        """Hide it from listings of active experiments; its runs stay."""
        from rayjobs.core.clock import SystemClock, to_text

        self._keep({**self._kept(), "archived_time": to_text(SystemClock().now())})

    def reactivate(self, new_name: str | None = None) -> None:
        """Undo `archive`.

        Raises:
            UsageError: `new_name` is given: an experiment that has runs cannot be renamed.
        """
        if new_name not in (None, self.name):
            raise UsageError(
                f"experiment {self.name!r} cannot be renamed to {new_name!r}, because its runs are "
                f"stored under its name; reactivate it without new_name"
            )
        self._keep({**self._kept(), "archived_time": None})

    def refresh(self) -> None:
        """Do nothing: each access reads the current values."""

    def get_portal_url(self) -> str:
        """Return an address for messages; there is no web page."""
        return f"rayjobs://{self.workspace.opened.name}/{self.name}"

    @staticmethod
    def delete(workspace: Workspace, experiment_id: str) -> None:
        """Delete an experiment that has no runs.

        Args:
            experiment_id: Its id, or its name.

        Raises:
            UsageError: it has runs.
        """
        name = experiment_id.removeprefix(f"{workspace.id}/")
        if workspace.store.jobs(JobFilter(experiment=name)):
            raise UsageError(
                f"experiment {name!r} has runs, so it cannot be deleted; remove old runs with "
                f"`rayjobs prune`, or archive it"
            )
        AzureSettings(workspace.store).put_experiment(name, {})

    def __repr__(self) -> str:
        """Return name and workspace."""
        return f"Experiment(name={self.name!r}, workspace={self.workspace.name!r})"

    def _repr_html_(self) -> str:
        return html.experiment_html(self)

    def submit(self, config: Any, tags: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        """Submit a configuration and return the handle of its run at once.

        Takes a ScriptRunConfig, an estimator, a JobSpec, or a type that another package registered.

        Raises:
            SpecError: something is wrong with it; lists all problems.
            CannotBePlacedError: the target can never run it.
            UsageError: objects of this class cannot be submitted.
        """
        submitter = submitter_of(config)
        return submitter(self, config, tags=dict(tags) if tags else None, **kwargs)

    def start_logging(
        self,
        name: str | None = None,
        run_id: str | None = None,
        outputs: str | Path | bool | None = None,
        snapshot_directory: str | Path | None = ".",
        display_name: str | None = None,
    ) -> InteractiveRun:
        """Start an interactive run, to which this process logs; it needs no target.

        The run is stored at once. End it with ``run.complete()`` or ``run.fail()``, or use it as a
        context manager. If the process ends before that, the run is Failed.

        Args:
            name: Name of the run; None generates one.
            run_id: Id of the run; None generates one.
            outputs: Folder whose new and changed files ``run.complete()`` stores below
                ``outputs/``; False means none. None and True mean ``./outputs``, which is
                created if it does not exist, and removed at the end if it is empty.
            snapshot_directory: Folder whose code is stored with the run, or None.
            display_name: The same as `name`.

        Raises:
            SnapshotError: the folder cannot be packed, for example because it is too large.
            UsageError: the id is taken, or there is no such folder.
        """
        from rayjobs.api.interactive import start_logging

        return start_logging(
            self,
            name=name,
            run_id=run_id,
            outputs=outputs,
            snapshot_directory=snapshot_directory,
            display_name=display_name,
        )

    def get_runs(
        self,
        type: str | None = None,
        tags: Any = None,
        properties: Any = None,
        include_children: bool = False,
    ) -> Iterator[JobRun]:
        """Yield the experiment's runs, newest first.

        `type` is ``job``, ``sweep`` or ``interactive``, or Azure ML's name for it
        (``azureml.scriptrun``, ``hyperdrive``); ``azureml.StepRun`` means the steps of pipelines.
        `tags` and `properties` are a key, or a mapping of keys to values, that a run must have.
        """
        from rayjobs.api.kinds import run_of
        from rayjobs.jobs.run_filter import RunFilter

        wanted = RunFilter.of(type, tags, properties)
        end_orphans(self.workspace.store)
        for job in self.workspace.store.jobs(JobFilter(experiment=self.name)):
            if (job.parent is None or include_children) and wanted.accepts(job):
                yield run_of(self, job)

    @staticmethod
    def list(
        workspace: Workspace,
        experiment_name: str | None = None,
        view_type: str = "ActiveOnly",
        tags: Any = None,
    ) -> list[Experiment]:
        """Return the workspace's experiments that have runs or tags, by name.

        Args:
            view_type: ``ActiveOnly``, ``ArchivedOnly`` or ``All``.
            tags: A key, or a mapping of keys to values (None: any), that it must have.

        Raises:
            UsageError: the view is unknown.
        """
        views = {"ActiveOnly": (False,), "ArchivedOnly": (True,), "All": (False, True)}
        if view_type not in views:
            raise UsageError(f"view_type is {view_type!r}; use one of: {', '.join(views)}")
        wanted = {tags: None} if isinstance(tags, str) else dict(tags or {})
        kept = AzureSettings(workspace.store).experiments()
        names = {job.experiment for job in workspace.store.jobs()} | {*kept}
        return [
            Experiment(workspace, name)
            for name in sorted(names)
            if experiment_name in (None, name)
            and bool(kept.get(name, {}).get("archived_time")) in views[view_type]
            and _has_tags(kept.get(name, {}).get("tags") or {}, wanted)
        ]


def _has_tags(tags: Mapping[str, str], wanted: Mapping[str, Any]) -> bool:
    return all(
        key in tags and (value is None or tags[key] == str(value)) for key, value in wanted.items()
    )


def _submit_spec(
    experiment: Experiment,
    config: JobSpec,
    *,
    tags: dict[str, str] | None = None,
    **kwargs: Any,
) -> Run:
    """Submit a spec unchanged; `idempotency_key` is the only option."""
    return _submit_job(experiment, config, tags=tags, numbered=False, **kwargs)


def _submit_job(
    experiment: Experiment,
    config: JobSpec,
    *,
    tags: dict[str, str] | None = None,
    numbered: bool,
    **kwargs: Any,
) -> Run:
    from rayjobs.api.run import JobRun

    key = kwargs.pop("idempotency_key", None)
    parent = kwargs.pop("_parent", None)  # see `Run.submit_child`
    _refuse_options(kwargs)
    if tags:
        config = config.model_copy(update={"tags": {**config.tags, **tags}})
    source = None if config.source_directory is None else Path(config.source_directory)
    done = submit(
        experiment.workspace.opened,
        config,
        source=source,
        experiment=experiment.name,
        entry=Entry(idempotency_key=key, parent=parent, is_numbered=numbered),
        wake=experiment.workspace.wakes_targets,
    )
    run = JobRun(experiment, done.job.id)
    run.warnings = done.warnings
    run.notes = done.notes
    for sentence in substitutes.sentences(done.job.spec.substitutes):
        notice(sentence)  # results depend on the substitutes, and nothing else reports them
    return run


def _submit_script(
    experiment: Experiment,
    config: ScriptRunConfig,
    *,
    tags: dict[str, str] | None = None,
    **kwargs: Any,
) -> Run:
    keep = experiment.workspace.catalogue.put_manifest
    workspace = experiment.workspace
    spec = config.to_spec(tags=tags, keep=keep, workspace=workspace)
    # Numbered, because all jobs of a script have its name by default.
    return _submit_job(experiment, spec, numbered=True, **kwargs)


def _submit_estimator(
    experiment: Experiment,
    config: Estimator,
    *,
    tags: dict[str, str] | None = None,
    **kwargs: Any,
) -> Run:
    params = kwargs.pop("script_params", None)
    inputs = kwargs.pop("inputs", None)
    if kwargs.pop("source_directory_data_store", None) is not None:
        raise UsageError(
            "source_directory_data_store is not supported: rayjobs packs the source directory into "
            "the workspace's own storage; leave it out"
        )
    script = config.to_script_run_config(params, inputs)
    return _submit_script(experiment, script, tags=tags, **kwargs)


def refuse_as_child(config: Any) -> None:
    """Refuse types that cannot be submitted as a child run.

    Raises:
        UsageError: it is a sweep, or it cannot be submitted at all.
    """
    if not isinstance(config, JobSpec | ScriptRunConfig | Estimator):
        raise UsageError(
            f"a {type(config).__name__} cannot be submitted as a child run; give a "
            f"ScriptRunConfig, an estimator or a JobSpec, or use experiment.submit()"
        )


def _refuse_options(options: Mapping[str, Any]) -> None:
    if options:
        known = ("tags", "idempotency_key", "script_params", "inputs")
        names = sorted(options)
        hints = " ".join(filter(None, (problems.near(name, known) for name in names)))
        raise UsageError(f"submit does not accept {', '.join(names)}. {hints}".rstrip())


register(JobSpec, _submit_spec)
register(ScriptRunConfig, _submit_script)
register(Estimator, _submit_estimator)
