"""Workspaces in the Python API: find, create and query them.

Source: ``azureml.core.Workspace``; subscription and resource group are accepted but have no effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api import html, program_rules
from rayjobs.api.notices import notice
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.paths import WORKSPACE_DIR
from rayjobs.core.paths import home as default_home
from rayjobs.core.refusing import refuses
from rayjobs.injob.azureml.exceptions import WorkspaceException
from rayjobs.injob.channel import own_channel
from rayjobs.injob.run_token import has_token
from rayjobs.workspace import server_choice
from rayjobs.workspace.azure import AzureSettings, Identity
from rayjobs.workspace.folder import ENVIRONMENT, OpenWorkspace, id_of, locate, open_workspace

if TYPE_CHECKING:
    from rayjobs.api.compute import ComputeTarget, ComputeTargets
    from rayjobs.api.environment import Environment
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.model import Model
    from rayjobs.api.run import JobRun
    from rayjobs.datastore import Datastore, FileDataset, TabularDataset
    from rayjobs.datastore.catalogue import Catalogue
    from rayjobs.store.base import Store


class WorkspaceNotFoundError(NotFoundError, WorkspaceException):
    """There is no such workspace."""


CONFIG_NAMES = (".azureml/config.json", "config.json", "aml_config/config.json")
_PATH_KEY = "rayjobs_workspace"


@refuses(
    "azure",
    "add_private_endpoint",
    "delete_connection",
    "delete_private_endpoint_connection",
    "diagnose_workspace",
    "get_connection",
    "list_connections",
    "list_keys",
    "set_connection",
    "setup",
    "sync_keys",
    "update",
    "update_dependencies",
    properties=("DEFAULT_CPU_CLUSTER_CONFIGURATION", "DEFAULT_GPU_CLUSTER_CONFIGURATION"),
)
@refuses("a workspace is a folder; remove the folder when none of its jobs runs", "delete")
@refuses(
    "azure",
    properties=("discovery_url", "linked_services", "private_endpoints", "service_context"),
)
@refuses("serving", properties=("images", "webservices"))
@refuses("secrets", "get_default_keyvault")
class Workspace:
    """A folder with the records and stored files of jobs, datasets and models."""

    wakes_targets = True  # whether a submit wakes or starts the target
    sku = "Basic"
    DEFAULT_CPU_CLUSTER_NAME = "cpucluster"
    DEFAULT_GPU_CLUSTER_NAME = "gpucluster"

    def __init__(
        self,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        workspace_name: str | None = None,
        auth: Any = None,
        *,
        path: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        """Open an existing workspace by its folder, its name, or from the working directory.

        After ``rayjobs login``, or with ``RAYJOBS_ADDRESS``, this is the server's workspace unless
        `path` is given. In a job, it is the job's own, see `from_config`.

        Raises:
            NotFoundError: there is no such workspace.
            UnreachableError: the server cannot be reached, or refuses the token.
        """
        self._identity: Identity | None = None
        if path is None and (own := _of_this_job(workspace_name)) is not None:
            self.opened: OpenWorkspace = own.opened
            self.wakes_targets = False
            return
        if path is None and (served := _served(workspace_name)) is not None:
            self.opened = served
            if workspace_name is not None and program_rules.rules.unknown_is_local:
                self._identify(subscription_id, resource_group, workspace_name)
            return
        if path is None and workspace_name is not None and program_rules.rules.unknown_is_local:
            self.opened = open_workspace(locate())
            self.opened.map_addresses()
            self._identify(subscription_id, resource_group, workspace_name)
            return
        folder = Path(path) if path is not None else _folder_of(workspace_name)
        self.opened = open_workspace(folder, create=False)
        self.opened.map_addresses()

    @classmethod
    def _of(cls, opened: OpenWorkspace, *, is_named: bool = True) -> Workspace:
        workspace = cls.__new__(cls)
        workspace.opened = opened
        if is_named:
            opened.map_addresses()
        workspace._identity = None
        return workspace

    def _identify(
        self, subscription_id: str | None, resource_group: str | None, name: str | None
    ) -> None:
        """Store a program's name for this workspace, so that the name refers to it."""
        identity = Identity(
            name or self.opened.name, subscription_id or "local", resource_group or "local"
        )
        if identity != Identity(self.opened.name):
            AzureSettings(self.store).keep_identity(identity)
        self._identity = identity

    @property
    def identity(self) -> Identity:
        """The workspace's name for programs: from the last Azure config, else its own name."""
        if self._identity is None:
            kept = AzureSettings(self.store).identity
            self._identity = kept or Identity(self.opened.name)
        return self._identity

    # -- lookup and creation -------------------------------------------------------------------
    @classmethod
    def from_config(
        cls,
        path: str | Path | None = None,
        auth: Any = None,
        _logger: Any = None,
        _file_name: str | None = None,
    ) -> Workspace:
        """Open the workspace that a ``config.json`` in this or a parent folder names.

        If the file does not name a rayjobs workspace (or, without `path`, if there is no file),
        this is the workspace that the command line would use here; it is created if missing. In a
        job, it is the job's own workspace, reached through the node agent, unless
        ``RAYJOBS_WORKSPACE`` or ``RAYJOBS_ADDRESS`` is set, or the folder of the named workspace
        (or of the job's own) is on this machine: that one is opened directly.

        Raises:
            NotFoundError: `path` was given and has no config.
            UsageError: `path` was given, and a config there is not a JSON object.
        """
        start = Path.cwd() if path is None else Path(path).expanduser().absolute()
        found = [start] if start.is_file() else _configs_above(start, _file_name)
        named, config = None, None
        for file in found:
            try:
                values = _read_config(file)
            except UsageError:
                if path is not None:
                    raise
                continue  # many projects have a config.json of another kind
            if values.get(_PATH_KEY):
                named, config = file.parent / str(values[_PATH_KEY]), values
                break
            if config is None and values.get("workspace_name"):
                config = values
        if path is not None and not found:
            raise NotFoundError(
                f"there is no config.json in {start} or its parent folders; write one with "
                f"workspace.write_config(), or leave out the path"
            )
        if (own := _of_this_job(None, named)) is not None:
            if config is not None and config.get("workspace_name"):
                ids = (config.get("subscription_id"), config.get("resource_group"))
                own._identity = Identity(
                    str(config["workspace_name"]), *(i or "local" for i in ids)
                )
            return own
        served = None if named is not None else _served(None)
        opened = cls._of(served or open_workspace(named or locate()))
        if config is not None:
            ids = (config.get("subscription_id"), config.get("resource_group"))
            opened._identify(*ids, config.get("workspace_name"))
        return opened

    @classmethod
    def create(
        cls,
        name: str,
        auth: Any = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        create_resource_group: bool = True,
        exist_ok: bool = False,
        *,
        path: str | Path | None = None,
        **kwargs: Any,
    ) -> Workspace:
        """Create a workspace in `path` or in the user's data folder.

        Args:
            kwargs: Azure ML's other settings (tags, a key vault …); a notice says that they have no
                effect.

        Raises:
            UsageError: it exists and `exist_ok` is off, or the name is not valid.
        """
        if given := sorted(key for key, value in kwargs.items() if value is not None):
            notice(f"Workspace.create: {', '.join(given)}: no effect; a workspace is a folder")
        if path is None and program_rules.rules.unknown_is_local:
            return cls(subscription_id, resource_group, name)
        folder = Path(path) if path is not None else _named_folder(name)
        if (folder / "workspace.json").exists() and not exist_ok:
            raise UsageError(
                f"there is already a workspace in {folder}; use Workspace.get({name!r}), or "
                f"exist_ok=True"
            )
        return cls._of(open_workspace(folder, create=True))

    @classmethod
    def get(
        cls,
        name: str,
        auth: Any = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        **kwargs: Any,
    ) -> Workspace:
        """Open a workspace by its name. Raises NotFoundError."""
        return cls(workspace_name=name)

    def write_config(self, path: str | Path | None = None, file_name: str | None = None) -> None:
        """Write ``.azureml/config.json`` below `path` (the working directory)."""
        folder = Path(path) if path is not None else Path.cwd()
        folder = folder if folder.name == ".azureml" else folder / ".azureml"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "subscription_id": self.subscription_id,
            "resource_group": self.resource_group,
            "workspace_name": self.name,
            _PATH_KEY: str(self.opened.path),
        }
        target = folder / (file_name or "config.json")
        target.write_text(json.dumps(values, indent=4) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Release the store; do not use the workspace afterwards."""
        self.opened.close()

    # -- content ---------------------------------------------------------------------------------
    def urls(self) -> dict[str, str]:
        """Return the local path that replaces each web address, by address."""
        return self.opened.urls()

    @property
    def store(self) -> Store:
        """Its records."""
        return self.opened.store

    @property
    def name(self) -> str:
        """Its name: from the Azure config that opened it, else from its folder."""
        return self.identity.name

    @property
    def subscription_id(self) -> str:
        """The subscription of the Azure config, else ``local``."""
        return self.identity.subscription_id

    @property
    def resource_group(self) -> str:
        """The resource group of the Azure config, else ``local``."""
        return self.identity.resource_group

    @property
    def location(self) -> str:
        """Always ``local``."""
        return self.identity.location

    @property
    def id(self) -> str:
        """Its id, which never changes."""
        return self.opened.id

    @property
    def tags(self) -> dict[str, str]:
        """Always empty: rayjobs workspaces have no tags."""
        return {}

    @property
    def experiments(self) -> dict[str, Experiment]:
        """The experiments that have runs or tags and are not archived, by name."""
        from rayjobs.api.experiment import Experiment

        return {one.name: one for one in Experiment.list(self)}

    @property
    def environments(self) -> dict[str, Environment]:
        """The registered environments and the curated ones, by name."""
        from rayjobs.api.environment import Environment

        return Environment.list(self)

    def get_default_compute_target(self, type: str = "CPU") -> ComputeTarget | None:
        """Return the compute target with Azure ML's default name for a type, or None.

        Args:
            type: ``CPU`` or ``GPU``.

        Raises:
            UsageError: the type is another one.
        """
        named = {"CPU": self.DEFAULT_CPU_CLUSTER_NAME, "GPU": self.DEFAULT_GPU_CLUSTER_NAME}
        if type.upper() not in named:
            raise UsageError(f"type is {type!r}; give 'CPU' or 'GPU'")
        return dict(self.compute_targets).get(named[type.upper()])

    @staticmethod
    def list(
        subscription_id: str | None = None, auth: Any = None, resource_group: str | None = None
    ) -> dict[str, list[Workspace]]:
        """Return this user's named workspaces, and the one found from the working directory."""
        folders = [locate(), *sorted((default_home() / "workspaces").glob("*"))]
        found: dict[str, list[Workspace]] = {}
        for folder in dict.fromkeys(one.resolve() for one in folders):
            if (folder / "workspace.json").is_file():
                opened = open_workspace(folder, create=False)
                one = Workspace._of(opened, is_named=False)
                found.setdefault(one.name, []).append(one)
        return found

    @property
    def compute_targets(self) -> ComputeTargets:
        """The compute targets that programs created in it, and this user's targets, by name."""
        from rayjobs.api.compute import compute_targets

        return compute_targets(self)

    # -- data ------------------------------------------------------------------------------------
    @property
    def catalogue(self) -> Catalogue:
        """The records of its datastores and datasets."""
        return self.opened.catalogue

    @property
    def datastores(self) -> dict[str, Datastore]:
        """Its datastores, by name."""
        from rayjobs.datastore import Datastore

        catalogue = self.catalogue
        return {
            record.name: Datastore.from_record(record, catalogue)
            for record in catalogue.datastores()
        }

    @property
    def datasets(self) -> dict[str, FileDataset | TabularDataset]:
        """The latest version of every registered dataset, by name."""
        from rayjobs.datastore import Dataset

        return Dataset.get_all(self)

    @property
    def models(self) -> dict[str, Model]:
        """The newest version of every registered model, by name."""
        from rayjobs.api.model import Model

        return {one.name: one for one in Model.list(self, latest=True)}

    def get_default_datastore(self) -> Datastore:
        """Return the default datastore (`workspaceblobstore` unless another one was set)."""
        from rayjobs.datastore import Datastore

        return Datastore.get_default(self)

    def set_default_datastore(self, name: str) -> None:
        """Make a datastore the default. Raises DatastoreNotFound."""
        self.catalogue.set_default_datastore(getattr(name, "name", name))

    def get_mlflow_tracking_uri(self) -> str:
        """Return the address for ``mlflow.set_tracking_uri``: an endpoint in this process.

        Runs that MLflow starts there are interactive runs of this workspace; MLflow can also read
        other runs. The endpoint serves this process and its child processes, which get the token
        from the variable ``MLFLOW_TRACKING_TOKEN``; it ends with this process.
        """
        from rayjobs.api.mlflow_runs import tracking_uri

        return tracking_uri(self)

    def get_run(self, run_id: str) -> JobRun:
        """Return a run by its id or a unique prefix of it.

        Raises:
            NotFoundError: no run has this id.
            UsageError: several ids begin with it.
        """
        from rayjobs.api.experiment import Experiment
        from rayjobs.api.kinds import run_of

        job = self.store.find(run_id)
        return run_of(Experiment(self, job.experiment), job)

    def get_details(self) -> dict[str, Any]:
        """Return the workspace's details as a dict."""
        return {
            "id": self.id,
            "name": self.name,
            "location": self.location,
            "type": "rayjobs.api.workspace",
            "path": str(self.opened.path),
        }

    def __repr__(self) -> str:
        """Return its name and folder."""
        return f"Workspace(name={self.name!r}, path={str(self.opened.path)!r})"

    def _repr_html_(self) -> str:
        return html.workspace_html(self)


def _configs_above(start: Path, file_name: str | None) -> list[Path]:
    names = CONFIG_NAMES if file_name is None else (f".azureml/{file_name}", file_name)
    folders = (start, *start.parents)
    return [folder / name for folder in folders for name in names if (folder / name).is_file()]


def _read_config(file: Path) -> dict[str, Any]:
    """Return the content of a config. Raises UsageError if it is not a JSON object."""
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"))
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is not a valid workspace config: {error}") from error
    return values


def _named_folder(name: str) -> Path:
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise UsageError(f"a workspace cannot be called {name!r}; use letters, digits and dashes")
    return default_home() / "workspaces" / name


def _served(name: str | None) -> OpenWorkspace | None:
    """Return the workspace of this program's server; None if it uses a folder.

    Raises:
        WorkspaceNotFoundError: the server's workspace has another name.
    """
    server = server_choice.of_program()
    if server is None:
        return None
    from rayjobs.remote.workspace import open_server

    opened = open_server(server)
    if name in (None, opened.name) or program_rules.rules.unknown_is_local:
        return opened
    raise WorkspaceNotFoundError(
        f"{server.address} serves the workspace {opened.name!r}, not {name!r}; leave out the name, "
        f"or use a folder of this machine with path= after `rayjobs logout`"
    )


def _of_this_job(name: str | None, named: Path | None = None) -> Workspace | None:
    """Return the workspace of this process's job, through the node agent.

    Returns None outside a job, if another workspace is meant, or if it can be opened directly.

    A job does not run in the folder from which it was submitted, so the search from its working
    directory would not find its workspace: it would create a new, empty one in the data folder of
    the node's user.

    Args:
        name: The workspace that the program requests; None means any.
        named: The folder that a ``config.json`` names.
    """
    if not has_token() or os.environ.get(ENVIRONMENT) or os.environ.get(server_choice.ADDRESS):
        return None
    names = {
        os.environ.get(one) for one in ("RAYJOBS_WORKSPACE_NAME", "AZUREML_ARM_WORKSPACE_NAME")
    }
    if name is not None and name not in names and not program_rules.rules.unknown_is_local:
        return None
    found = id_of(named or locate())
    if found is not None and (named is not None or found == os.environ.get("AZUREML_WORKSPACE_ID")):
        return None  # the folder is on this machine: open it directly, with all rights
    from rayjobs.api.attempt_workspace import workspace_of

    return workspace_of(own_channel())


def _folder_of(name: str | None) -> Path:
    """Return the folder of a named workspace, or of the one found from the working directory."""
    here = locate()
    if name is None:
        return here
    for folder in _candidates(here, name):
        try:
            if json.loads((folder / "workspace.json").read_text())["name"] == name:
                return folder
        except (OSError, ValueError, KeyError):
            continue
        with open_workspace(folder, create=False) as opened:
            kept = AzureSettings(opened.store).identity
        if kept is not None and kept.name == name:
            return folder
    raise WorkspaceNotFoundError(
        f"there is no workspace called {name!r} here or in {default_home() / 'workspaces'}; "
        f"create it with Workspace.create({name!r})"
    )


def _candidates(here: Path, name: str) -> Iterator[Path]:
    yield here
    yield _named_folder(name)
    yield Path.cwd() / name / WORKSPACE_DIR
