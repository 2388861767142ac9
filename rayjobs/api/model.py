"""The model registry: versions of files with a lineage that may not be empty.

Source: ``azureml.core.Model``.
"""

from __future__ import annotations

import builtins
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rayjobs.api import html
from rayjobs.api.model_facts import ModelFacts, dataset_rows, opened_of
from rayjobs.core.clock import to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.ids import token
from rayjobs.jobs.records import ModelDraft, ModelVersion
from rayjobs.models import files as modelfiles
from rayjobs.models import lineage, uploaded
from rayjobs.models.names import check_alias, check_name, has, tags_of, texts, version_of
from rayjobs.resume import checkpoints
from rayjobs.submit.submitting import user_name

if TYPE_CHECKING:
    from rayjobs.api.run import JobRun
    from rayjobs.api.workspace import Workspace
    from rayjobs.workspace.folder import OpenWorkspace

MODELS_FOLDER = "azureml-models"  # Source: where Azure ML v1 looks for downloaded models


def register(
    workspace: Workspace | OpenWorkspace,
    *,
    name: str,
    run: str,
    path: str | None = None,
    tags: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    description: str | None = None,
    aliases: Sequence[str] = (),
    framework: str = "",
    framework_version: str = "",
    primary_metric: str | None = None,
    value: float | None = None,
    configuration: Mapping[str, Any] | None = None,
    sweep: str | None = None,
) -> Model:
    """Register a completed run's file or folder as the next version of a model.

    Done again with the same files of the same run, it gives the same version; tags are added and
    aliases moved. Nothing is copied: the model has the run's stored bytes.

    Args:
        run: Whatever names the run.
        path: The run's file or folder; None takes the model's name.
        primary_metric: A metric that must be finite, kept in the lineage with its value.
        value: Its value that the model was chosen by; None takes the last one.
        configuration: Parameters that the run was given, for the lineage.

    Raises:
        NotFoundError: there is no such run or file.
        UsageError: a sentence that says why this is no model: the run has not completed, the
            metric is not finite, a file is torn, or the lineage is not known.
    """
    opened = opened_of(workspace)
    check_name(name)
    for alias in aliases:
        check_alias(alias)
    store = opened.store
    job = lineage.find_run(store, run)
    lineage.refuse_without(job)
    points = store.metrics(job.id)
    primary = lineage.primary_of(store, job, points, primary_metric, value)
    chosen = modelfiles.choose(store, opened.blobs, job, path or name)
    draft = ModelDraft(
        name=name,
        path=chosen.path,
        digest=chosen.digest,
        files=chosen.files,
        sources=chosen.sources,
        lineage=lineage.lineage_of(
            store,
            job,
            chosen,
            points,
            primary=primary,
            configuration=configuration,
            sweep=sweep,
        ),
        user=user_name(),
        framework=framework,
        framework_version=framework_version,
        description=description,
        tags=texts(tags),
        properties=texts(properties),
        aliases=tuple(aliases),
    )
    kept, _ = store.put_model(job.id, draft)
    return Model._of(workspace, kept)


def register_path(
    workspace: Workspace | OpenWorkspace, *, name: str, path: str | Path, **facts: Any
) -> Model:
    """Register a file or folder of this machine as the next version of a model.

    Args:
        facts: As `rayjobs.models.uploaded.put` takes them.

    Raises:
        NotFoundError: there is nothing at `path`.
        UsageError: the name is not valid, or the folder has no files.
        StoreError: a file cannot be stored.
    """
    for alias in facts.get("aliases", ()):
        check_alias(alias)
    opened = opened_of(workspace)
    kept = uploaded.put(opened, name=check_name(name), path=path, user=user_name(), **facts)
    return Model._of(workspace, kept)


def register_best(
    workspace: Workspace | OpenWorkspace,
    *,
    name: str,
    run_id: str,
    metric_name: str,
    value: float,
    configuration: Mapping[str, Any],
    sweep_id: str,
    path: str = "outputs",
    tags: Mapping[str, Any] | None = None,
) -> Model:
    """Register the best run of a sweep; see `register`.

    Raises:
        NotFoundError: there is no such run or file.
        UsageError: the run has not completed, or has not logged this finite value.
    """
    return register(
        workspace,
        name=name,
        run=run_id,
        path=path,
        tags=tags,
        primary_metric=metric_name,
        value=value,
        configuration=configuration,
        sweep=sweep_id,
    )


def find(workspace: Workspace | OpenWorkspace, text: str) -> Model:
    """Return the model that ``NAME``, ``NAME:VERSION`` or ``NAME@ALIAS`` names.

    Raises:
        NotFoundError: there is no such model, version or alias.
        UsageError: the version is no number.
    """
    store = opened_of(workspace).store
    name, at, alias = text.partition("@")
    if at:
        return Model._of(workspace, store.model(name, alias=alias))
    name, colon, version = text.partition(":")
    number = version_of(version) if colon and version != "latest" else None
    return Model._of(workspace, store.model(name, version=number))


class Model(ModelFacts):
    """One version of a model."""

    def __init__(
        self,
        workspace: Workspace,
        name: str | None = None,
        id: str | None = None,
        tags: Any = None,
        properties: Any = None,
        version: int | None = None,
        run_id: str | None = None,
        model_framework: str | None = None,
        expand: bool = True,
    ) -> None:
        """Find a version: the newest that has all that is given.

        Args:
            expand: Accepted; a model always has all its facts.

        Raises:
            NotFoundError: there is none.
            UsageError: neither `name` nor `id` was given.
        """
        if id is not None:
            found = find(workspace, id)._kept
        elif name is None:
            raise UsageError("give Model(workspace, name), or id='name:version'")
        else:
            store = opened_of(workspace).store
            number = None if version is None else version_of(version)
            found = store.model(name, version=number)
            if tags or properties or run_id or model_framework:
                matching = [
                    one
                    for one in store.models(name=name)
                    if version in (None, one.version)
                    and has(one, tags, properties, run_id)
                    and model_framework in (None, one.framework)
                ]
                if not matching:
                    raise NotFoundError(f"no version of model {name!r} has all that was asked for")
                found = matching[0]
        self.workspace = workspace
        self._kept = found

    @classmethod
    def _of(cls, workspace: Any, kept: ModelVersion) -> Model:
        model = cls.__new__(cls)
        model.workspace = workspace
        model._kept = kept
        return model

    def __repr__(self) -> str:
        """Return name, version and run."""
        return f"Model(name={self.name}, version={self.version}, run_id={self.run_id})"

    # -- registered and found ------------------------------------------------------------------
    @staticmethod
    def register(
        workspace: Workspace,
        model_path: str | Path,
        model_name: str,
        tags: Any = None,
        properties: Mapping[str, Any] | None = None,
        description: str | None = None,
        datasets: Any = None,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        child_paths: Any = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: Any = None,
        *,
        run: JobRun | str | None = None,
    ) -> Model:
        """Register a file or folder: of this machine, or of a run.

        A path of this machine is copied into the workspace, and the lineage says who uploaded it
        from where. A run is given as `run` (ours), or in the path as ``runs:/RUN/path``; then
        nothing is copied.

        Args:
            datasets: Pairs of purpose and dataset, kept in the lineage.
            child_paths: Of a folder of this machine, the files that belong to the model.
            sample_input_dataset: Kept in the lineage, as `sample_output_dataset`.
            resource_configuration: What a deployment would need; kept in the lineage as text.

        Raises:
            NotFoundError: there is no such file or folder.
            UsageError: the name is not valid, or see `register` of this module.
        """
        path = str(model_path)
        run_id = getattr(run, "id", run)
        if run_id is None and path.startswith("runs:/"):
            run_id, _, path = path.removeprefix("runs:/").partition("/")
        samples = (("sample_input", sample_input_dataset), ("sample_output", sample_output_dataset))
        given = [pair for pair in samples if pair[1] is not None]
        data = dataset_rows([*(datasets or ()), *given])
        if run_id is None:
            return register_path(
                workspace,
                name=model_name,
                path=path,
                child_paths=child_paths,
                data=data,
                resources="" if resource_configuration is None else str(resource_configuration),
                framework=model_framework or "",
                framework_version=model_framework_version or "",
                description=description,
                tags=texts(tags_of(tags)),
                properties=texts(properties),
            )
        if child_paths:
            raise UsageError(
                "child_paths choose files of a folder of this machine; name the run's folder that "
                "holds just the model"
            )
        made = register(
            workspace,
            name=model_name,
            run=str(run_id),
            path=path,
            tags=tags_of(tags),
            properties=properties,
            description=description,
            framework=model_framework or "",
            framework_version=model_framework_version or "",
        )
        if data:
            made._change(data=data)
        return made

    @staticmethod
    def list(
        workspace: Workspace,
        name: str | None = None,
        tags: Any = None,
        properties: Any = None,
        run_id: str | None = None,
        latest: bool = False,
        dataset_id: str | None = None,
        expand: bool = True,
        page_count: int = 255,
        model_framework: str | None = None,
    ) -> builtins.list[Model]:
        """Return versions that have all that is given, by name, newest first.

        Args:
            tags: Keys, or ``[key, value]`` pairs, in a list; so are `properties`.
            dataset_id: Of a dataset version that the lineage names.
            model_framework: As it was registered with.
            expand: Accepted, as is `page_count`: all facts of all models are returned.
        """
        kept = opened_of(workspace).store.models(name=name, run=run_id, latest=latest)
        return [
            Model._of(workspace, one)
            for one in kept
            if has(one, tags, properties, None)
            and model_framework in (None, one.framework)
            and (dataset_id is None or _names_dataset(one, dataset_id))
        ]

    @staticmethod
    def get_model_path(
        model_name: str, version: int | None = None, _workspace: Workspace | None = None
    ) -> str:
        """Return where a model's files are here: below ``azureml-models/``, else fetched there.

        Raises:
            NotFoundError: they are not here, and no workspace was given.
        """
        name, colon, numbered = model_name.partition(":")
        if colon:
            version = version_of(numbered)
        folder = Path(MODELS_FOLDER) / check_name(name)
        if _workspace is None:
            known = sorted(int(one.name) for one in folder.glob("*") if one.name.isdecimal())
            chosen = version if version is not None else (known or [0])[-1]
            if chosen not in known:
                raise NotFoundError(
                    f"there is no {folder / str(chosen) if chosen else folder} here; download the "
                    f"model, or give the workspace"
                )
            inside = builtins.list((folder / str(chosen)).iterdir())
            return str(inside[0] if len(inside) == 1 else folder / str(chosen))
        model = Model(_workspace, name, version=version)
        return model.download(str(folder / str(model.version)), exist_ok=True)

    # -- changed ---------------------------------------------------------------------------------
    def add_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self._change(tags=texts(tags))

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags by key."""
        self._change(tags=dict.fromkeys([tags] if isinstance(tags, str) else tags))

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties. Raises UsageError when one has another value already."""
        self._change(properties=texts(properties))

    def update(
        self,
        tags: Mapping[str, Any] | None = None,
        description: str | None = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: Any = None,
    ) -> None:
        """Replace the tags, or the description; add sample datasets to the lineage.

        Raises:
            UsageError: a `resource_configuration` was given: it is written at the registration.
        """
        if resource_configuration is not None:
            raise UsageError(
                "resource_configuration is written once, by Model.register; register the model "
                "again to have another"
            )
        samples = (("sample_input", sample_input_dataset), ("sample_output", sample_output_dataset))
        data = dataset_rows([pair for pair in samples if pair[1] is not None])
        wanted: dict[str, str | None] | None = None
        if tags is not None:
            wanted = {**dict.fromkeys(self._kept.tags), **texts(tags)}
        self._change(tags=wanted, description=description, data=data)

    def update_tags_properties(
        self,
        add_tags: Mapping[str, Any] | None = None,
        remove_tags: Sequence[str] | None = None,
        add_properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Add and remove tags, and add properties, in one step.

        Raises:
            UsageError: a property has another value already.
        """
        tags = {**dict.fromkeys(remove_tags or ()), **texts(add_tags)}
        self._change(tags=tags, properties=texts(add_properties))

    def add_dataset_references(self, datasets: Any) -> None:
        """Add datasets to the lineage, as pairs of purpose and dataset.

        Raises:
            UsageError: a dataset is not registered, or the pairs are not pairs.
        """
        self._change(data=dataset_rows(datasets))

    def add_alias(self, alias: str) -> None:
        """Let an alias point to this version, and to no other of the model."""
        opened_of(self.workspace).store.set_model_alias(self.name, check_alias(alias), self.version)
        self._change()

    def delete(self) -> None:
        """Take the version out of the registry; its number is not given again."""
        opened_of(self.workspace).store.delete_model(self.name, self.version, force=True)

    def _change(self, **changes: Any) -> None:
        store = opened_of(self.workspace).store
        self._kept = store.update_model(self.name, self.version, **changes)

    # -- fetched ---------------------------------------------------------------------------------
    def download(
        self, target_dir: str | Path = ".", exist_ok: bool = False, exists_ok: bool | None = None
    ) -> str:
        """Write its file, or its folder, below `target_dir`; return the path.

        Each is checked against its digest before any of them appears. With `exist_ok` the model's
        own files replace those of the same name; whatever else stands in the folder stays.
        `exists_ok` is its older name.

        Raises:
            UsageError: it is there already, and `exist_ok` is off.
            StoreError: a stored file is damaged; nothing was written.
        """
        target = Path(target_dir) / PurePosixPath(self._kept.path).name
        if target.exists() and not (exists_ok or exist_ok):
            raise UsageError(
                f"{target} exists; give another folder, or replace the model's files there "
                f"(--force, exist_ok=True)"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        blobs = opened_of(self.workspace).blobs
        files = self._kept.files
        if len(files) == 1 and files[0].name == target.name:
            blobs.get_to(files[0].blob, target, digest=files[0].digest)
            return str(target)
        rows = {one.name: (one.blob, one.digest) for one in files}
        if not target.exists():
            checkpoints.write_to(blobs, rows, target)
            return str(target)
        if not target.is_dir():
            raise UsageError(f"{target} is a file, and the model is a folder; name another folder")
        fresh = target.with_name(f".{target.name}.{os.getpid()}-{token(4)}")
        try:
            checkpoints.write_to(blobs, rows, fresh)
            for one in sorted(path for path in fresh.rglob("*") if not path.is_dir()):
                place = target / one.relative_to(fresh)
                place.parent.mkdir(parents=True, exist_ok=True)
                one.replace(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return str(target)

    # -- shown and written -------------------------------------------------------------------------
    def serialize(self) -> dict[str, Any]:
        """Return what is known of the version as plain data; `deserialize` finds it again."""
        kept = self._kept
        return {
            "name": kept.name,
            "version": kept.version,
            "id": self.id,
            "createdTime": to_text(kept.created_at),
            "createdBy": kept.created_by,
            "description": kept.description,
            "framework": kept.framework,
            "frameworkVersion": kept.framework_version,
            "tags": dict(kept.tags),
            "properties": dict(kept.properties),
            "runId": kept.run or None,
            "url": self.url,
        }

    @staticmethod
    def deserialize(workspace: Workspace, model_payload: Mapping[str, Any]) -> Model:
        """Return the model that `serialize` described. Raises NotFoundError."""
        return Model(workspace, id=str(model_payload["id"]))

    def _repr_html_(self) -> str:
        return html.model_html(self)


def _names_dataset(one: ModelVersion, dataset_id: str) -> bool:
    return any(row.get("dataset_id") == dataset_id for row in one.lineage.get("data", ()))
