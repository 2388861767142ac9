"""Environments in Azure ML v1's terms: Environment, its Python section, CondaDependencies.

Signatures: ``azureml.core`` 1.61 (`azureml.core.environment`, `azureml.core.conda_dependencies`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError, UsageError
from rayjobs.spec import conda, requirements
from rayjobs.spec.text import write_yaml

_OWN = ("", "python")  # what Azure ML writes for the machine's own interpreter


class CondaDependencies:
    """Python and packages. Packages of conda are kept, shown, and refused when a job is made."""

    def __init__(self, conda_dependencies_file_path: str | Path | None = None) -> None:
        """Start empty, or with what a conda specification file says.

        Raises:
            NotFoundError: no such file.
            SpecError: it is no specification, or needs conda.
        """
        self._python: str | None = None
        self._pip: list[str] = []
        self._conda: list[str] = []
        self._channels: list[str] = []
        if conda_dependencies_file_path is not None:
            found = conda.read(Path(conda_dependencies_file_path))
            self._python, self._pip = found.python, list(found.pip)

    def __repr__(self) -> str:
        """Return Python's version and the packages, without the options of pip."""
        packages = [line for line in self._pip if not line.startswith("-")]
        conda = f", conda={self._conda!r}" if self._conda else ""
        return f"CondaDependencies(python={self._python!r}, pip={packages!r:.200}{conda})"

    @staticmethod
    def create(
        pip_indexurl: str | None = None,
        pip_packages: Sequence[str] | None = None,
        conda_packages: Sequence[str] | None = None,
        python_version: str | None = None,
        pin_sdk_version: bool = True,
    ) -> CondaDependencies:
        """Return dependencies with these packages.

        Args:
            pip_indexurl: Index to take packages from.
            pin_sdk_version: Accepted; no package of ours is needed in the environment.
        """
        made = CondaDependencies()
        if pip_indexurl:
            made.set_pip_option(f"--index-url {pip_indexurl}")
        for package in pip_packages or ():
            made.add_pip_package(package)
        for package in conda_packages or ():
            made.add_conda_package(package)
        if python_version is not None:
            made.set_python_version(python_version)
        return made

    def add_pip_package(self, pip_package: str) -> None:
        """Add a line of a requirements file; one of the same package is replaced."""
        self.remove_pip_package(pip_package)
        self._pip.append(str(pip_package))

    def remove_pip_package(self, pip_package: str) -> None:
        """Take a package away, whatever its version."""
        name = _name(pip_package)
        self._pip = [line for line in self._pip if line.startswith("-") or _name(line) != name]

    def add_conda_package(self, conda_package: str) -> None:
        """Add a package of conda; ``python=3.11`` sets the version of Python."""
        try:
            found = conda.parse({"dependencies": [conda_package]}, name="", folder=Path("/"))
        except SpecError:
            self._conda.append(str(conda_package))
        else:
            self._python = found.python or self._python

    def remove_conda_package(self, conda_package: str) -> None:
        """Take a package of conda away, whatever its version."""
        name = _name(conda_package)
        self._conda = [one for one in self._conda if _name(one) != name]

    def add_channel(self, channel: str) -> None:
        """Note a channel of conda."""
        self._channels.append(str(channel))

    def set_python_version(self, version: str) -> None:
        """Ask for a version of Python."""
        self._python = str(version)

    def set_pip_option(self, pip_option: str) -> None:
        """Add an option of requirements files, such as ``--index-url URL``."""
        self._pip.insert(0, str(pip_option))

    def set_pip_requirements(self, pip_requirements: Sequence[str]) -> None:
        """Replace all packages of pip."""
        self._pip = [str(line) for line in pip_requirements]

    @property
    def python_version(self) -> str | None:
        """The version of Python that is asked for."""
        return self._python

    @property
    def pip_packages(self) -> list[str]:
        """The packages of pip."""
        return [line for line in self._pip if not line.startswith("-")]

    @property
    def pip_options(self) -> list[str]:
        """The options of pip."""
        return [line for line in self._pip if line.startswith("-")]

    @property
    def conda_packages(self) -> list[str]:
        """The packages of conda, Python itself left out."""
        return list(self._conda)

    @property
    def conda_channels(self) -> list[str]:
        """The channels of conda."""
        return list(self._channels)

    def serialize_to_string(self) -> str:
        """Return the dependencies as a conda specification (YAML)."""
        python = f"python={self._python}" if self._python else "python"
        data: dict[str, Any] = {"dependencies": [python, *self._conda]}
        if self._pip:
            data["dependencies"].append({"pip": list(self._pip)})
        if self._channels:
            data["channels"] = list(self._channels)
        return write_yaml(data)

    def save_to_file(self, base_directory: str | Path, conda_file_path: str | None = None) -> str:
        """Write the specification into a folder; return the file's name."""
        name = conda_file_path or "conda_dependencies.yml"
        Path(base_directory, name).write_text(self.serialize_to_string())
        return name


class PythonSection:
    """``environment.python``: an interpreter that is there, or what to install."""

    def __init__(self) -> None:
        self.user_managed_dependencies = False
        self.interpreter_path: str = "python"
        self.conda_dependencies: CondaDependencies | None = None
        self.conda_dependencies_file: str | None = None


class DockerSection:
    """``environment.docker``: taken so that scripts go on; jobs run without containers."""

    def __init__(self) -> None:
        self.enabled = False
        self.base_image: str | None = None
        self.base_dockerfile: str | None = None


class Environment:
    """Where a script runs: an interpreter of the target, or packages that are installed there.

    Attributes:
        environment_variables: Set in the script, those of the run configuration on top.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"an environment's name is {name!r}; give a text")
        self.name = name
        self.version: str | None = None
        self.python = PythonSection()
        self.docker = DockerSection()
        self.environment_variables: dict[str, str] = {}

    def __repr__(self) -> str:
        """Return its name and what it is made of; no variable, since one may be secret."""
        of = self.python.conda_dependencies or self.python.interpreter_path
        return f"Environment({self.name!r}, {of!r})"

    @staticmethod
    def from_pip_requirements(
        name: str, file_path: str | Path, pip_version: str | None = None
    ) -> Environment:
        """Return an environment with the packages of a requirements file.

        Args:
            pip_version: Accepted; packages are installed by uv.

        Raises:
            NotFoundError: no such file.
            SpecError: it cannot be read.
        """
        made = Environment(name)
        made.python.conda_dependencies = CondaDependencies()
        made.python.conda_dependencies.set_pip_requirements(requirements.read(Path(file_path)))
        return made

    @staticmethod
    def from_conda_specification(name: str, file_path: str | Path) -> Environment:
        """Return an environment with the Python and the pip packages of a conda specification.

        Raises:
            NotFoundError: no such file.
            SpecError: it is no specification, or needs conda.
        """
        made = Environment(name)
        made.python.conda_dependencies = CondaDependencies(file_path)
        return made

    @staticmethod
    def from_existing_conda_environment(name: str, conda_environment_name: str) -> Environment:
        """Refused: which conda environments a target has is not known here.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"the conda environment {conda_environment_name!r} is not looked up; set "
            f"environment.python.user_managed_dependencies = True and interpreter_path to its path"
        )

    def clone(self, new_name: str) -> Environment:
        """Return a copy under another name."""
        import copy

        made = copy.deepcopy(self)
        made.name, made.version = new_name, None
        return made

    def to_spec(self) -> str | dict[str, Any] | None:
        """Return what a job's spec says under `environment`.

        Raises:
            SpecError: it asks for what only conda or a container could give.
        """
        image = self.docker.base_image or self.docker.base_dockerfile
        if image is not None:
            raise SpecError(
                problems=[
                    Problem(
                        "environment.docker",
                        f"names an image ({image[:80]!r}); jobs run without containers.",
                        "Set docker.base_image to None; what it has installed must be on the "
                        "target, or among the packages.",
                    )
                ]
            )
        if self.python.user_managed_dependencies:
            path = os.fspath(self.python.interpreter_path)
            return None if path in _OWN else path
        wanted = self.python.conda_dependencies
        if self.python.conda_dependencies_file is not None:
            wanted = CondaDependencies(self.python.conda_dependencies_file)
        if wanted is None:
            return None
        if wanted.conda_packages:
            raise SpecError(problems=[conda.needs_conda(wanted.conda_packages, "environment")])
        lines = [*wanted.pip_options, *wanted.pip_packages]
        return {"name": self.name, "python": wanted.python_version, "pip": lines}


def _name(line: str) -> str:
    """Return the name of the package that a line asks for, as indexes compare names."""
    import re

    found = re.match(r"[A-Za-z0-9._-]+", line.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else line
