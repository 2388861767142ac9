"""The sections of an Azure ML v1 environment: Python, Docker, and those that are only stored.

Signatures: ``azureml.core.environment`` and ``azureml.core.container_registry`` 1.61.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.api.conda_dependencies import CondaDependencies

DEFAULT_CPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04"
DEFAULT_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.1-cudnn8-ubuntu20.04"
DEFAULT_SHM_SIZE = "2g"


class FixedAttributes:
    """Accepts only the attributes that its constructor sets, to catch typing mistakes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let the constructor set attributes of any name."""
        super().__init_subclass__(**kwargs)
        if "__init__" not in vars(cls):
            return
        original = cls.__init__

        @functools.wraps(original)
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            is_outermost = _OPEN not in vars(self)
            vars(self)[_OPEN] = True
            try:
                original(self, *args, **kwargs)
            finally:
                if is_outermost:
                    del vars(self)[_OPEN]

        cls.__init__ = construct  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an existing attribute.

        Raises:
            AttributeError: there is no such attribute.
        """
        if name not in vars(self) and _OPEN not in vars(self):
            known = ", ".join(sorted(vars(self)))
            raise AttributeError(
                f"the {type(self).__name__} has no attribute {name!r}; it has: {known}"
            )
        object.__setattr__(self, name, value)


_OPEN = "_is_open"  # an attribute that exists while the constructor runs


class Section(FixedAttributes):
    """A part of an environment; sections with the same values are equal."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the attributes that differ from those of a new section, without a password."""
        usual = vars(type(self)())
        given = {
            key: "***" if _is_plain_password(key, value) else value
            for key, value in vars(self).items()
            if value != usual.get(key)
        }
        shown = ", ".join(f"{key}={value!r:.80}" for key, value in given.items())
        return f"{type(self).__name__}({shown})"


class PythonSection(Section):
    """``environment.python``: an existing interpreter, or the packages to install.

    Attributes:
        user_managed_dependencies: Install nothing: the interpreter has the script's packages.
        interpreter_path: That interpreter, or its virtual environment, on the target.
        conda_dependencies: The packages to install.
        conda_dependencies_file: A file that lists them instead.
        base_conda_environment: Accepted but unused; the environment is self-contained.
    """

    def __init__(self) -> None:
        self.user_managed_dependencies = False
        self.interpreter_path: str = "python"
        self.conda_dependencies: CondaDependencies = CondaDependencies()
        self.conda_dependencies_file: str | None = None
        self.base_conda_environment: str | None = None

    def wanted(self) -> CondaDependencies:
        """Return the packages to install, from the file if there is one.

        Raises:
            NotFoundError, SpecError: see `CondaDependencies`.
        """
        if self.conda_dependencies_file is not None:
            return CondaDependencies(self.conda_dependencies_file)
        return self.conda_dependencies or CondaDependencies()


class RegistryIdentity(Section):
    """A managed identity for a registry; accepted but unused."""

    def __init__(self, resource_id: str | None = None, client_id: str | None = None) -> None:
        self.resource_id = resource_id
        self.client_id = client_id


class ContainerRegistry(Section):
    """The registry of an image, and the user who may pull from it.

    Attributes:
        username, password: Give the password by reference, as ``${RAYJOBS_SECRET_REGISTRY}``,
            because the definition is stored.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        self.username: str | None = None
        self.password: str | None = None
        self.registry_identity: RegistryIdentity | None = None


class DockerImagePlatform(Section):
    """The platform of an image."""

    def __init__(self, os: str = "Linux", architecture: str = "amd64") -> None:
        self.os = os
        self.architecture = architecture


class DockerBuildContext(Section):
    """A folder with a Dockerfile."""

    def __init__(
        self,
        location_type: str = "localfile",
        location: str = ".",
        dockerfile_path: str = "Dockerfile",
    ) -> None:
        self.location_type = location_type
        self.location = location
        self.dockerfile_path = dockerfile_path

    @staticmethod
    def from_local_directory(
        workspace: Any = None, path: str = ".", dockerfile_path: str = "Dockerfile"
    ) -> DockerBuildContext:
        """Return the build context of a folder on this machine."""
        return DockerBuildContext("localfile", str(Path(path).absolute()), dockerfile_path)


class DockerSection(Section):
    """``environment.docker``: the image that a script runs in.

    Attributes:
        enabled: Accepted but unused: a job runs in an image if one is named.
        base_image: The image; Azure ML's default image has no packages of its own and stands for
            the target's own environment.
    """

    def __init__(self) -> None:
        self.enabled = False
        self.base_image: str | None = DEFAULT_CPU_IMAGE
        self.base_dockerfile: str | None = None
        self.base_image_registry = ContainerRegistry()
        self.build_context: DockerBuildContext | None = None
        self.platform = DockerImagePlatform()
        self.arguments: list[str] = []
        self.shared_volumes = True
        self.gpu_support = False
        self.shm_size: str | None = DEFAULT_SHM_SIZE


class SparkSection(Section):
    """``environment.spark``: stored but unused, because rayjobs does not run Spark."""

    def __init__(self) -> None:
        self.repositories: list[str] = []
        self.packages: list[Any] = []
        self.precache_packages = True


class RSection(Section):
    """``environment.r``: stored but unused; run R with ``command``."""

    def __init__(self) -> None:
        self.r_version: str | None = None
        self.user_managed = False
        self.rscript_path: str | None = None
        self.snapshot_date: str | None = None
        self.cran_packages: list[Any] = []
        self.github_packages: list[Any] = []
        self.custom_url_packages: list[str] = []
        self.bioconductor_packages: list[str] = []


class DatabricksSection(Section):
    """``environment.databricks``: stored but unused, because rayjobs runs no Databricks jobs."""

    def __init__(self) -> None:
        self.maven_libraries: list[Any] = []
        self.pypi_libraries: list[Any] = []
        self.rcran_libraries: list[Any] = []
        self.jar_libraries: list[Any] = []
        self.egg_libraries: list[Any] = []


SECTIONS: Mapping[str, type[Section]] = {
    "python": PythonSection,
    "docker": DockerSection,
    "spark": SparkSection,
    "r": RSection,
    "databricks": DatabricksSection,
}


def _is_plain_password(name: str, value: Any) -> bool:
    """Return whether a field holds a registry's password itself, not a reference to it."""
    return name == "password" and bool(value) and not str(value).startswith("${")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def plain(section: Section) -> dict[str, Any]:
    """Return a section as plain data, without a registry's password unless it is a reference."""
    values: dict[str, Any] = {}
    for name, value in vars(section).items():
        if isinstance(value, CondaDependencies):
            value = value.as_dict()
        elif isinstance(value, Section):
            value = plain(value)
        elif _is_plain_password(name, value):
            value = None
        values[_camel(name)] = value
    return values


def fill(section: Section, values: Mapping[str, Any]) -> None:
    """Set a section's fields from plain data; fields that are not in the data stay unchanged."""
    for name, old in list(vars(section).items()):
        key = _camel(name)
        if key not in values:
            continue
        value = values[key]
        if isinstance(old, CondaDependencies):
            value = CondaDependencies.from_dict(value)
        elif isinstance(old, Section):
            fill(old, value or {})
            continue
        elif name == "build_context" and isinstance(value, Mapping):
            made = DockerBuildContext()
            fill(made, value)
            value = made
        setattr(section, name, value)
