"""The model registry: versions of files, each with a lineage.

Source: ``azureml.core.Model``.
"""

from __future__ import annotations

import builtins
import mimetypes
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rayjobs.api import html
from rayjobs.core.clock import to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.azureml.exceptions import WrongTypeError, WrongValueError
from rayjobs.injob.model_requests import datasets_of
from rayjobs.jobs.records import ModelVersion
from rayjobs.models import companions, registry, uploaded
from rayjobs.models.facts import ModelFacts
from rayjobs.models.names import check_alias, check_name, has, tags_of, texts, version_of
from rayjobs.workspace.folder import OpenWorkspace

if TYPE_CHECKING:
    from rayjobs.api.run import JobRun
    from rayjobs.api.workspace import Workspace
    from rayjobs.datastore import FileDataset, TabularDataset

MODELS_FOLDER = "azureml-models"  # Source: where Azure ML v1 looks for downloaded models


class Framework:
    """Azure ML's framework names, for `model_framework`."""

    CUSTOM = "Custom"
    TENSORFLOW = "TensorFlow"
    SCIKITLEARN = "ScikitLearn"
    ONNX = "Onnx"
    TFKERAS = "TfKeras"
    PYTORCH = "PyTorch"
    MULTI = "Multi"


def _refused(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"Model.{name} is not supported: rayjobs trains and registers models but does not "
            f"serve them. Serve the files that Model.download writes"
        )

    refuse.__name__ = name
    refuse.__doc__ = "Not supported: rayjobs does not serve models."
    return staticmethod(refuse)


class Model:
    """One version of a model."""

    Framework = Framework
    deploy = _refused("deploy")
    package = _refused("package")
    profile = _refused("profile")
    print_configuration = _refused("print_configuration")
    get_sas_urls = _refused("get_sas_urls")

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
        """Find a version: by `id`, else the newest that matches the other arguments.

        Args:
            expand: Accepted but unused: a model always has all its details.

        Raises:
            NotFoundError: no version matches.
            UsageError: neither `name` nor `id` was given.
        """
        if id is not None:
            found = registry.find(opened_of(workspace).store, id)
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
                    raise NotFoundError(
                        f"no version of model {name!r} has all the requested tags and properties, "
                        f"run and framework"
                    )
                found = matching[0]
        self.workspace: Workspace | OpenWorkspace = workspace
        self._kept = found

    @classmethod
    def of(cls, workspace: Workspace | OpenWorkspace, kept: ModelVersion) -> Model:
        """Return the model for the record of a version."""
        model = cls.__new__(cls)
        model.workspace = workspace
        model._kept = kept
        return model

    def __repr__(self) -> str:
        """Return name, version and run."""
        return f"Model(name={self.name}, version={self.version}, run_id={self.run_id})"

    # -- facts about a version --------------------------------------------------------------------
    @property
    def name(self) -> str:
        """Its name."""
        return self._kept.name

    @property
    def version(self) -> int:
        """Its version number, 1 or more."""
        return self._kept.version

    @property
    def id(self) -> str:
        """``name:version``."""
        return f"{self.name}:{self.version}"

    @property
    def url(self) -> str:
        """Its address within rayjobs."""
        return f"rayjobs://{opened_of(self.workspace).name}/models/{self.name}/{self.version}"

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self._kept.tags)

    @property
    def properties(self) -> dict[str, str]:
        """Its properties, which never change once set."""
        return dict(self._kept.properties)

    @property
    def description(self) -> str:
        """The description."""
        return self._kept.description

    @property
    def model_framework(self) -> str:
        """The name of its framework."""
        return self._kept.framework

    @property
    def model_framework_version(self) -> str:
        """The version of its framework."""
        return self._kept.framework_version

    @property
    def created_time(self) -> datetime:
        """When it was registered (UTC)."""
        return self._kept.created_at

    @property
    def created_by(self) -> str:
        """Who registered it."""
        return self._kept.created_by

    @property
    def run_id(self) -> str | None:
        """The id of the run that produced it; None if a user uploaded it."""
        return self._kept.run or None

    @property
    def run(self) -> JobRun | None:
        """The run that produced it; None if a user uploaded it."""
        from rayjobs.api.workspace import Workspace

        if self.run_id is None:
            return None

        workspace = self.workspace
        if isinstance(workspace, OpenWorkspace):
            workspace = Workspace(path=workspace.path)
        return workspace.get_run(self.run_id)

    @property
    def experiment_name(self) -> str | None:
        """The experiment of the run that produced it; None if a user uploaded it."""
        run = self.run
        return None if run is None else str(run.experiment.name)

    @property
    def mime_type(self) -> str:
        """MIME type guessed from its name; `inode/directory` for a folder."""
        main = companions.main_of(one.name for one in self._kept.files)
        if main != self._kept.path.rpartition("/")[2]:
            return "inode/directory"
        guessed = mimetypes.guess_type(self._kept.path)[0]
        return guessed or "application/octet-stream"

    @property
    def unpack(self) -> bool:
        """False: a download writes the files themselves, never an archive."""
        return False

    @property
    def sample_input_dataset(self) -> FileDataset | TabularDataset | None:
        """The registered dataset with sample inputs, or None."""
        return self._sample("sample_input")

    @property
    def sample_output_dataset(self) -> FileDataset | TabularDataset | None:
        """The registered dataset with sample outputs, or None."""
        return self._sample("sample_output")

    def _sample(self, purpose: str) -> FileDataset | TabularDataset | None:
        from rayjobs.datastore import Dataset

        for row in reversed(self.datasets):
            if row.get("name") == purpose and row.get("dataset_id"):
                return Dataset.get_by_id(opened_of(self.workspace), str(row["dataset_id"]))
        return None

    @property
    def aliases(self) -> list[str]:
        """Names that currently point to this version."""
        return [*self._kept.aliases]

    @property
    def lineage(self) -> dict[str, Any]:
        """Its origin, see docs/guides/models.md."""
        return dict(self._kept.lineage)

    @property
    def datasets(self) -> list[dict[str, Any]]:
        """The datasets of its lineage: those that the run read, and those named at registration."""
        return [dict(one) for one in self._kept.lineage.get("data", ())]

    @property
    def lineage_text(self) -> str:
        """Its origin, in a few words."""
        if uploaded.UPLOADED in self._kept.lineage:
            return uploaded.sentence(self._kept.lineage)
        return f"run {self._kept.run}"

    @property
    def resource_configuration(self) -> str:
        """The resources requested for a deployment; "" if none."""
        return str(self._kept.lineage.get("resources", ""))

    @property
    def record(self) -> ModelVersion:
        """The full record of the version."""
        return self._kept

    # -- registration and lookup ---------------------------------------------------------------
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
        """Register a file or folder on this machine or of a run.

        A path on this machine is copied into the workspace; the lineage records who uploaded it
        and from where. To register files of a run without copying them, pass `run` (an addition
        to Azure ML) or the path ``runs:/RUN/path``.

        Args:
            datasets: Pairs of purpose and dataset, stored in the lineage.
            child_paths: The files that belong to the model, if the path is a local folder.
            sample_input_dataset: Stored in the lineage, as is `sample_output_dataset`.
            resource_configuration: Resources for a deployment; stored in the lineage as text.

        Raises:
            NotFoundError: there is no such file or folder.
            UsageError: the name is not valid; also see `rayjobs.models.registry.register`.
        """
        path = str(model_path)
        run_id = getattr(run, "id", run)
        if run_id is None and path.startswith("runs:/"):
            run_id, _, path = path.removeprefix("runs:/").partition("/")
        samples = (("sample_input", sample_input_dataset), ("sample_output", sample_output_dataset))
        given = [pair for pair in samples if pair[1] is not None]
        data = dataset_rows([*(datasets or ()), *given])
        facts = ModelFacts(
            description=description,
            tags=tags_of(tags) or {},
            properties=properties or {},
            framework=model_framework or "",
            framework_version=model_framework_version or "",
            resources="" if resource_configuration is None else str(resource_configuration),
        )
        if run_id is None:
            uploaded_one = registry.register_path(
                opened_of(workspace),
                name=model_name,
                path=path,
                child_paths=child_paths,
                data=data,
                facts=facts,
            )
            return Model.of(workspace, uploaded_one)
        if child_paths:
            raise UsageError(
                "child_paths selects files from a folder on this machine; for a run, name a folder "
                "that contains only the model"
            )
        registered = registry.register(
            opened_of(workspace),
            name=model_name,
            run=str(run_id),
            path=path,
            facts=facts,
        )
        made = Model.of(workspace, registered)
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
        """Return the versions that match all arguments, by name, newest first.

        Args:
            tags: A list of keys or ``[key, value]`` pairs; the same for `properties`.
            dataset_id: Id of a dataset version in the lineage.
            model_framework: The framework of the registration.
            expand: Accepted but unused, as is `page_count`: all models come with all details.
        """
        kept = opened_of(workspace).store.models(name=name, run=run_id, latest=latest)
        return [
            Model.of(workspace, one)
            for one in kept
            if has(one, tags, properties, None)
            and model_framework in (None, one.framework)
            and (dataset_id is None or _names_dataset(one, dataset_id))
        ]

    @staticmethod
    def get_model_path(
        model_name: str, version: int | None = None, _workspace: Workspace | None = None
    ) -> str:
        """Return the path of a model's files below ``azureml-models/``.

        With a workspace, they are downloaded first.

        Raises:
            NotFoundError: they do not exist there, and no workspace was given.
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
                    f"model, or pass the workspace"
                )
            inside = folder / str(chosen)
            main = companions.main_of(one.name for one in inside.iterdir())
            return str(inside if main is None else inside / main)
        model = Model(_workspace, name, version=version)
        return model.download(str(folder / str(model.version)), exist_ok=True)

    # -- changes ---------------------------------------------------------------------------------
    def add_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self._change(tags=texts(tags))

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags by key."""
        self._change(tags=dict.fromkeys([tags] if isinstance(tags, str) else tags))

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties. Raises UsageError if one already has another value."""
        self._change(properties=texts(properties))

    def update(
        self,
        tags: Mapping[str, Any] | None = None,
        description: str | None = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: Any = None,
    ) -> None:
        """Replace the tags or the description, or add sample datasets to the lineage.

        Raises:
            UsageError: a `resource_configuration` was given, which only the registration can set.
        """
        if resource_configuration is not None:
            raise UsageError(
                "only Model.register can set resource_configuration; to change it, register the "
                "model again"
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
            UsageError: a property already has another value.
        """
        tags = {**dict.fromkeys(remove_tags or ()), **texts(add_tags)}
        self._change(tags=tags, properties=texts(add_properties))

    def add_dataset_references(self, datasets: Any) -> None:
        """Add datasets to the lineage, as pairs of purpose and dataset.

        Raises:
            UsageError: a dataset is not registered, or an item is not a pair.
        """
        self._change(data=dataset_rows(datasets))

    def add_alias(self, alias: str) -> None:
        """Make an alias point to this version only."""
        opened_of(self.workspace).store.set_model_alias(self.name, check_alias(alias), self.version)
        self._change()

    def delete(self) -> None:
        """Remove the version from the registry; its number is never reused."""
        opened_of(self.workspace).store.delete_model(self.name, self.version, force=True)

    def _change(self, **changes: Any) -> None:
        store = opened_of(self.workspace).store
        self._kept = store.update_model(self.name, self.version, **changes)

    # -- download --------------------------------------------------------------------------------
    def download(
        self, target_dir: str | Path = ".", exist_ok: bool = False, exists_ok: bool | None = None
    ) -> str:
        """Write its file or folder below `target_dir`; return the path.

        All files are checked against their digests before any of them appears. With `exist_ok`,
        the model's files replace files of the same name; other files in the folder stay.
        `exists_ok` is the older name of `exist_ok`.

        Raises:
            UsageError: it already exists, and `exist_ok` is off.
            StoreError: a stored file is damaged; nothing was written.
        """
        blobs, replaces = opened_of(self.workspace).blobs, bool(exists_ok or exist_ok)
        return str(registry.download(blobs, self._kept, target_dir, exist_ok=replaces))

    # -- plain data and display --------------------------------------------------------------------
    def serialize(self) -> dict[str, Any]:
        """Return the version as plain data; `deserialize` restores it."""
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


def dataset_rows(datasets: Any) -> list[dict[str, Any]]:
    """Return rows for a lineage's ``data`` from pairs of purpose and registered dataset.

    Raises:
        UsageError: a dataset is not registered, or an item is not a pair.
    """
    try:
        return [dict(one.row()) for one in datasets_of(datasets)]
    except (WrongTypeError, WrongValueError) as error:
        raise UsageError(str(error)) from error


def opened_of(workspace: Workspace | OpenWorkspace) -> OpenWorkspace:
    """Return the open workspace behind either kind of object."""
    return workspace if isinstance(workspace, OpenWorkspace) else workspace.opened
