"""Environments in Azure ML v1's terms: Environment, its sections, and its versions in a workspace.

Signatures: ``azureml.core.environment`` 1.61.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api.conda_dependencies import CondaDependencies as CondaDependencies
from rayjobs.api.environment_sections import DEFAULT_CPU_IMAGE as DEFAULT_CPU_IMAGE
from rayjobs.api.environment_sections import DEFAULT_GPU_IMAGE as DEFAULT_GPU_IMAGE
from rayjobs.api.environment_sections import DEFAULT_SHM_SIZE as DEFAULT_SHM_SIZE
from rayjobs.api.environment_sections import SECTIONS, FixedAttributes, fill, plain
from rayjobs.api.environment_sections import ContainerRegistry as ContainerRegistry
from rayjobs.api.environment_sections import DatabricksSection as DatabricksSection
from rayjobs.api.environment_sections import DockerBuildContext as DockerBuildContext
from rayjobs.api.environment_sections import DockerImagePlatform as DockerImagePlatform
from rayjobs.api.environment_sections import DockerSection as DockerSection
from rayjobs.api.environment_sections import PythonSection as PythonSection
from rayjobs.api.environment_sections import RegistryIdentity as RegistryIdentity
from rayjobs.api.environment_sections import RSection as RSection
from rayjobs.api.environment_sections import SparkSection as SparkSection
from rayjobs.core.errors import UsageError
from rayjobs.spec import requirements
from rayjobs.spec.curated import curated, curated_names, is_base_image
from rayjobs.spec.model import Container, JobSpec

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace

DEFAULT_NAME = "project"  # Source: the environment of a new RunConfiguration
CURATED_PREFIX = "AzureML"
_OWN = ("", "python")  # Azure ML's name for the machine's own interpreter
_DEFINITION = "azureml_environment.json"  # Source: files of Environment.save_to_directory
_CONDA_FILE = "conda_dependencies.yml"


class Environment(FixedAttributes):
    """Where a script runs: an interpreter on the target, packages to install, or an image.

    Attributes:
        version: The version in the workspace; None if it is not registered.
        environment_variables: Set for the script; the run configuration's variables override them.
        inferencing_stack_version: Stored but unused: rayjobs does not serve models.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        """Start with nothing to install: the target's own Python.

        Raises:
            UsageError: the name is empty or not a string, or an argument is unknown.
        """
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"the environment's name is {name!r}; give a string")
        self.name = name
        self.version: str | None = None
        self.asset_id: str | None = None
        self.python = PythonSection()
        self.docker = DockerSection()
        self.spark = SparkSection()
        self.r = RSection()
        self.databricks = DatabricksSection()
        self.environment_variables: dict[str, str] = {}
        self.inferencing_stack_version: str | None = None
        for key, value in kwargs.items():
            known = [one for one in vars(self) if not one.startswith("_")]
            if key not in known:
                raise UsageError(f"an Environment has no {key}; it has {', '.join(sorted(known))}")
            setattr(self, key, value)

    def __repr__(self) -> str:
        """Return its name and content, but no variables, which may be secret."""
        wanted = self.python.conda_dependencies
        of = self.python.interpreter_path if wanted is None or wanted.is_empty else wanted
        return f"Environment({self.name!r}, {of!r})"

    # -- constructors ------------------------------------------------------------------------------

    @staticmethod
    def from_pip_requirements(
        name: str, file_path: str | Path, pip_version: str | None = None
    ) -> Environment:
        """Return an environment with the packages of a requirements file.

        Args:
            pip_version: Accepted but unused: uv installs the packages.

        Raises:
            NotFoundError: no such file.
            SpecError: it cannot be read.
        """
        made = Environment(name)
        made.python.conda_dependencies.set_pip_requirements(requirements.read(Path(file_path)))
        return made

    @staticmethod
    def from_conda_specification(name: str, file_path: str | Path) -> Environment:
        """Return an environment with the packages of a conda specification.

        Raises:
            NotFoundError: no such file.
            SpecError: it is not a specification.
        """
        made = Environment(name)
        made.python.conda_dependencies = CondaDependencies(file_path)
        return made

    @staticmethod
    def from_existing_conda_environment(
        name: str, conda_environment_name: str
    ) -> Environment | None:
        """Return an environment that uses an existing conda environment of this machine.

        The target must have the conda environment at the same path.

        Returns:
            None if there is no conda environment of that name.
        """
        folder = _conda_environment(conda_environment_name)
        if folder is None:
            return None
        made = Environment(name)
        made.python.user_managed_dependencies = True
        made.python.interpreter_path = str(folder / "bin" / "python")
        return made

    @staticmethod
    def from_docker_image(
        name: str,
        image: str,
        container_registry: ContainerRegistry | None = None,
        conda_specification: str | Path | None = None,
        pip_requirements: str | Path | None = None,
    ) -> Environment:
        """Return an environment that uses an image, with the packages that a file lists added.

        Raises:
            UsageError: two files are given.
        """
        made = Environment(name)
        made.docker.base_image = image
        if container_registry is not None:
            made.docker.base_image_registry = container_registry
        made._add_packages(conda_specification, pip_requirements)
        return made

    @staticmethod
    def from_dockerfile(
        name: str,
        dockerfile: str | Path,
        conda_specification: str | Path | None = None,
        pip_requirements: str | Path | None = None,
    ) -> Environment:
        """Return an environment whose image a Dockerfile describes; give its text or its path.

        Raises:
            UsageError: two files are given.
        """
        made = Environment(name)
        made.docker.base_image = None
        made.docker.base_dockerfile = _text_or_file(dockerfile)
        made._add_packages(conda_specification, pip_requirements)
        return made

    @staticmethod
    def from_docker_build_context(
        name: str, docker_build_context: DockerBuildContext
    ) -> Environment:
        """Return an environment whose image is built from a folder with a Dockerfile."""
        made = Environment(name)
        made.docker.base_image = None
        made.docker.build_context = docker_build_context
        made.python.user_managed_dependencies = True
        return made

    def _add_packages(self, conda_file: str | Path | None, pip_file: str | Path | None) -> None:
        if conda_file is not None and pip_file is not None:
            raise UsageError("give conda_specification or pip_requirements, not both")
        if conda_file is not None:
            self.python.conda_dependencies = CondaDependencies(conda_file)
        elif pip_file is not None:
            lines = requirements.read(Path(pip_file))
            self.python.conda_dependencies.set_pip_requirements(lines)
        else:
            self.python.user_managed_dependencies = True

    @staticmethod
    def of_spec(spec: JobSpec) -> Environment:
        """Return the environment that a job's spec requests, or the target's own Python."""
        requested = spec.environment
        name = getattr(requested, "name", None) or "job"
        is_added = getattr(requested, "base", None) is not None
        made = FrameworkEnvironment(name) if is_added else Environment(name)
        made.environment_variables = dict(spec.environment_variables)
        if spec.container is not None:
            made.docker = _docker_of(spec.container)
        if requested is None or isinstance(requested, str):
            made.python.user_managed_dependencies = True
            if requested is not None:
                made.python.interpreter_path = requested
            return made
        packages = made.python.conda_dependencies = CondaDependencies()
        packages.set_pip_requirements(
            [*requirements.as_constraints(requested.constraints), *requested.pip]
        )
        for channel in requested.channels:
            packages.add_channel(channel)
        for one in requested.conda:
            packages.add_conda_package(one)
        if requested.python is not None:
            packages.set_python_version(requested.python)
        return made

    def clone(self, new_name: str) -> Environment:
        """Return an unregistered copy with another name.

        Raises:
            UsageError: the name is one of Azure ML's own, empty, or not a string.
        """
        if not isinstance(new_name, str) or not new_name.strip():
            raise UsageError(f"the environment's name is {new_name!r}; give a string")
        _refuse_reserved(new_name)
        made = copy.deepcopy(self)
        made.name, made.version, made.asset_id = new_name, None, None
        return made

    # -- versions in a workspace -------------------------------------------------------------------

    @staticmethod
    def get(
        workspace: Workspace, name: str, version: str | None = None, label: str | None = None
    ) -> Environment:
        """Return a registered environment, the newest version by default.

        For a curated environment of Azure ML, this is what that environment requested; a submit
        substitutes what is not available.

        Raises:
            NotFoundError: there is no such environment or version.
            UsageError: both a version and a label are given.
        """
        if version is not None and label is not None:
            raise UsageError("give a version or a label, not both")
        made = curated_environment(name)
        if made is not None:
            made.version = version or "1"
            return made
        from rayjobs.api import environment_registry as registry

        return registry.get(workspace, name, version, label)

    @staticmethod
    def list(workspace: Workspace) -> dict[str, Environment]:
        """Return the newest version of each registered environment, and the curated ones."""
        from rayjobs.api import environment_registry as registry

        found = {name: Environment.get(workspace, name) for name in curated_names()}
        return {**found, **registry.newest(workspace)}

    @staticmethod
    def label(workspace: Workspace, name: str, version: str, labels: Sequence[str]) -> None:
        """Move labels to a version of an environment.

        Raises:
            NotFoundError: there is no such version.
        """
        from rayjobs.api import environment_registry as registry

        registry.label(workspace, name, version, labels)

    def register(self, workspace: Workspace) -> Environment:
        """Store the environment under its name; return it with its version.

        An unchanged definition keeps its version; a changed one gets the next.

        Raises:
            UsageError: the name is one of Azure ML's own.
        """
        _refuse_reserved(self.name)
        from rayjobs.api import environment_registry as registry

        return registry.register(workspace, self)

    def build(self, workspace: Workspace, image_build_compute: Any = None) -> Any:
        """Build the environment on this machine's node; return the finished build.

        Args:
            image_build_compute: Accepted but unused: the build is for jobs of the local target.

        Raises:
            PrepareError: the build failed; the message is that of the resolver.
        """
        from rayjobs.api import environment_registry as registry

        return registry.build(workspace, self)

    def build_local(self, workspace: Workspace, platform: Any = None, **kwargs: Any) -> Any:
        """Build the environment on this machine, as `build` does."""
        return self.build(workspace)

    def get_image_details(self, workspace: Workspace) -> dict[str, Any]:
        """Return the environment's content, and whether this machine has built it.

        Raises:
            PrepareError: the folder of this machine's environments cannot be used.
        """
        from rayjobs.api import environment_registry as registry

        return registry.details(workspace, self)

    @staticmethod
    def add_private_pip_wheel(
        workspace: Workspace, file_path: str | Path, exist_ok: bool = False
    ) -> str:
        """Store a wheel in the workspace; return its path for `CondaDependencies.add_pip_package`.

        Raises:
            NotFoundError: no such file.
            UsageError: it is not a wheel, or already exists and `exist_ok` is not set.
        """
        from rayjobs.api import environment_registry as registry

        return registry.add_wheel(workspace, Path(file_path), exist_ok=exist_ok)

    # -- files -------------------------------------------------------------------------------------

    def save_to_directory(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the definition into a folder: ``azureml_environment.json`` and its conda file.

        Raises:
            UsageError: the folder exists, and `overwrite` is not set.
        """
        folder = Path(path)
        if folder.exists() and not overwrite:
            raise UsageError(f"{folder} exists; name another folder, or set overwrite=True")
        folder.mkdir(parents=True, exist_ok=True)
        values = self.to_dict()
        (folder / _DEFINITION).write_text(json.dumps(values, indent=4) + "\n")
        self.python.wanted().save_to_file(folder, _CONDA_FILE)
        if self.docker.base_dockerfile is not None:
            (folder / "BaseDockerfile").write_text(self.docker.base_dockerfile)

    @staticmethod
    def load_from_directory(path: str | Path) -> Environment:
        """Return the environment that `save_to_directory` wrote; its conda file takes precedence.

        Raises:
            UsageError: the folder has no readable definition.
        """
        folder = Path(path)
        try:
            values = json.loads((folder / _DEFINITION).read_text())
            made = Environment.from_dict(values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder} has no readable environment: {error}; write one with "
                f"Environment.save_to_directory"
            ) from error
        file = folder / _CONDA_FILE
        if file.is_file():
            made.python.conda_dependencies = CondaDependencies(file)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, in Azure ML's own keys."""
        values: dict[str, Any] = {"name": self.name, "version": self.version}
        values["environmentVariables"] = dict(self.environment_variables)
        values["inferencingStackVersion"] = self.inferencing_stack_version
        for name in SECTIONS:
            values[name] = plain(getattr(self, name))
        values["python"]["condaDependencies"] = self.python.wanted().as_dict()
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Environment:
        """Return the environment of a definition from `to_dict`.

        Raises:
            KeyError, TypeError, SpecError: it is not a definition.
        """
        made = Environment(values["name"])
        made.version = values.get("version")
        made.environment_variables = dict(values.get("environmentVariables") or {})
        made.inferencing_stack_version = values.get("inferencingStackVersion")
        for name in SECTIONS:
            fill(getattr(made, name), values.get(name) or {})
        return made

    # -- a job's requirements ----------------------------------------------------------------------

    @property
    def image(self) -> str | None:
        """The script's image; None if it has none or an Azure ML base image without packages."""
        image = self.docker.base_image
        return None if image is None or is_base_image(image) else image

    def container(self) -> dict[str, Any] | None:
        """Return the `container` part of a job's spec; None if it runs without a container.

        Raises:
            UsageError: the image is built from a folder, or the password is in plain text.
        """
        docker = self.docker
        if docker.build_context is not None:
            raise UsageError(
                f"the environment {self.name!r} builds its image from a folder, which is not "
                f"supported; pass its Dockerfile to Environment.from_dockerfile and put the files "
                f"into the source directory, which is the build context"
            )
        if docker.base_dockerfile is None and docker.base_image in (None, DEFAULT_CPU_IMAGE):
            return None
        made: dict[str, Any] = {"arguments": list(docker.arguments)}
        if docker.base_dockerfile is not None:
            made["dockerfile"] = docker.base_dockerfile
        else:
            made["image"] = docker.base_image
        if docker.shm_size is not None and docker.shm_size != DEFAULT_SHM_SIZE:
            made["shm_size"] = docker.shm_size
        registry = docker.base_image_registry
        access: dict[str, Any] = {}
        if registry.address:
            access["address"] = registry.address
        if registry.username:
            access |= {"username": registry.username, "password": _secret(registry.password)}
        if access:
            made["registry"] = access
        return made

    @property
    def is_default(self) -> bool:
        """Whether it is the unchanged environment of a new configuration."""
        return self.name == DEFAULT_NAME and self.is_own

    @property
    def is_own(self) -> bool:
        """Whether it means the target's own Python: nothing to install, no image."""
        docker = self.docker
        if self.image is not None or docker.base_dockerfile or docker.build_context is not None:
            return False
        if self.python.user_managed_dependencies:
            return os.fspath(self.python.interpreter_path) in _OWN
        wanted = self.python.conda_dependencies
        has_file = self.python.conda_dependencies_file is not None
        return not has_file and (wanted is None or wanted.is_empty)

    def to_spec(self) -> str | dict[str, Any] | None:
        """Return the `environment` part of a job's spec."""
        if self.python.user_managed_dependencies:
            path = os.fspath(self.python.interpreter_path)
            return None if path in _OWN else path
        wanted = self.python.wanted()
        if wanted.is_empty:
            return None
        return {
            "name": self.name,
            "python": wanted.python_version,
            "pip": [*wanted.pip_options, *wanted.pip_packages],
            "conda": wanted.conda_packages,
            "channels": wanted.conda_channels if wanted.conda_packages else [],
        }


def curated_environment(name: str) -> Environment | None:
    """Return the packages of an Azure ML curated environment; None if the name is not curated."""
    found = curated(name)
    if found is None:
        return None
    made = Environment(name)
    made.python.conda_dependencies = CondaDependencies.create(
        pip_packages=["azureml-defaults", *found.pip], python_version=found.python
    )
    made.docker.base_image = DEFAULT_GPU_IMAGE if found.gpu else DEFAULT_CPU_IMAGE
    return made


class FrameworkEnvironment(Environment):
    """The environment of an estimator: the target's own Python, with additions.

    Attributes:
        framework: Requirements of the framework, which the target provides.
        if_used: Requirements that only some scripts use.
    """

    def __init__(
        self,
        name: str,
        framework: Sequence[str] = (),
        if_used: Sequence[str] = (),
        *,
        python: str | None = None,
    ) -> None:
        super().__init__(name)
        self.framework = tuple(framework)
        self.if_used = tuple(if_used)
        self.framework_python = python

    def add(self, wanted: CondaDependencies) -> None:
        """Add packages to those of the framework."""
        self.python.conda_dependencies = wanted

    @property
    def is_default(self) -> bool:
        """Whether nothing is added to the framework, and no version of it is requested."""
        return self.framework_python is None and self.is_own

    def to_spec(self) -> str | dict[str, Any] | None:
        """Return the `environment` part of a job's spec: packages on top of the target's own."""
        own = super().to_spec()
        if isinstance(own, str) or (own is None and not self.framework):
            return own
        added = own or {"name": self.name, "python": None, "pip": []}
        return {
            **added,
            "python": added["python"] or self.framework_python,
            "pip": [*self.framework, *added["pip"]],
            "base": "target",
            "if_used": list(self.if_used),
        }


def _docker_of(container: Container) -> DockerSection:
    """Return the section that requests the container of a job's spec."""
    made = DockerSection()
    made.base_image, made.base_dockerfile = container.image, container.dockerfile
    made.arguments = list(container.arguments)
    if container.shm_mib is not None:
        made.shm_size = f"{container.shm_mib * 2**20:.0f}b"
    login = container.registry
    if login is not None:
        made.base_image_registry.address = login.address
        # The section has no form for a password in a file.
        if login.password is not None and login.password.env is not None:
            made.base_image_registry.username = login.username
            made.base_image_registry.password = f"${{{login.password.env}}}"
    return made


def _secret(password: str | None) -> str:
    """Return the variable that holds a registry's password.

    Raises:
        UsageError: the password itself was given.
    """
    name = str(password or "").removeprefix("${").removesuffix("}")
    if not name.startswith(requirements.SECRET_PREFIX):
        raise UsageError(
            f"the registry's password would be stored with the job: store it on the target "
            f"(`rayjobs target secret set {requirements.SECRET_PREFIX}REGISTRY`), and write "
            f"base_image_registry.password = '${{{requirements.SECRET_PREFIX}REGISTRY}}'"
        )
    return name


def _refuse_reserved(name: str) -> None:
    if name.lower().startswith(CURATED_PREFIX.lower()):
        raise UsageError(
            f"an environment cannot be called {name!r}: names that begin with "
            f"{CURATED_PREFIX} are reserved for Azure ML; clone it under another name"
        )


def _text_or_file(dockerfile: str | Path) -> str:
    text = str(dockerfile)
    if "\n" not in text and len(text) < 4096 and Path(text).is_file():
        return Path(text).read_text()
    return text


def _conda_environment(name: str) -> Path | None:
    """Return the folder of a conda environment of this machine."""
    home = Path.home()
    roots = [os.environ.get("CONDA_ENVS_PATH", ""), os.environ.get("CONDA_PREFIX_1", "")]
    roots += [os.environ.get("CONDA_PREFIX", ""), os.environ.get("MAMBA_ROOT_PREFIX", "")]
    folders = [Path(one) for one in roots if one]
    folders += [
        home / one for one in ("miniconda3", "anaconda3", "miniforge3", "mambaforge", ".conda")
    ]
    folders += [Path("/opt/conda"), Path("/opt/miniconda")]
    candidates = [Path(name)] if "/" in name else []
    for folder in folders:
        candidates += [folder / "envs" / name, folder / name]
        if name == "base" or folder.name == name:
            candidates.append(folder)
    return next((one for one in candidates if (one / "bin" / "python").exists()), None)
