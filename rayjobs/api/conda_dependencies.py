"""CondaDependencies of Azure ML v1: Python, pip and conda packages, options and channels.

Signatures: ``azureml.core.conda_dependencies`` 1.61.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rayjobs.core.errors import SpecError, UsageError
from rayjobs.spec import conda, requirements
from rayjobs.spec.text import write_yaml

_FILE = "conda_dependencies.yml"


class CondaDependencies:
    """A version of Python and packages, as in a conda specification file."""

    def __init__(self, conda_dependencies_file_path: str | Path | None = None) -> None:
        """Start empty, or with the content of a conda specification file.

        Raises:
            NotFoundError: there is no such file.
            SpecError: it is not a specification.
        """
        self._python: str | None = None
        self._pip: list[str] = []
        self._conda: list[str] = []
        self._channels: list[str] = []
        if conda_dependencies_file_path is not None:
            found = conda.read(Path(conda_dependencies_file_path))
            self._python, self._pip = found.python, list(found.pip)
            self._conda, self._channels = list(found.conda), list(found.channels)

    def __repr__(self) -> str:
        """Return Python's version and the packages, without pip's options."""
        packages = [line for line in self._pip if not line.startswith("-")]
        conda = f", conda={self._conda!r}" if self._conda else ""
        return f"CondaDependencies(python={self._python!r}, pip={packages!r:.200}{conda})"

    def __eq__(self, other: object) -> bool:
        """Whether both request the same packages, options and channels, in the same order."""
        return isinstance(other, CondaDependencies) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

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
            pip_indexurl: Package index to install from.
            pin_sdk_version: Accepted but unused; rayjobs stands in for the SDK's packages.
        """
        made = CondaDependencies()
        if pip_indexurl:
            made.set_pip_index_url(pip_indexurl)
        for package in pip_packages or ():
            made.add_pip_package(package)
        for package in conda_packages or ():
            made.add_conda_package(package)
        if python_version is not None:
            made.set_python_version(python_version)
        return made

    @staticmethod
    def merge_requirements(requirements: Iterable[str]) -> list[str]:
        """Join the requirements of each package: ``a>=1`` and ``a<2`` become ``a>=1,<2``.

        Raises:
            UsageError: a line is not a requirement.
        """
        from rayjobs.spec.requirements import name_of

        merged: dict[str, tuple[str, list[str]]] = {}
        for line in requirements:
            text = str(line).strip()
            name = text.split(";")[0]
            for sign in "=<>!~ [":
                name = name.partition(sign)[0]
            if not name:
                raise UsageError(f"{line!r} is not a requirement; write it like 'numpy>=1.26'")
            versions = merged.setdefault(name_of(text), (name, []))[1]
            version = text[len(name) :].strip()
            if version and version not in versions:
                versions.append(version)
        return [f"{shown}{','.join(versions)}" for shown, versions in merged.values()]

    # -- pip packages ------------------------------------------------------------------------------

    def add_pip_package(self, pip_package: str) -> None:
        """Add a line of a requirements file; it replaces the line of the same package."""
        self.remove_pip_package(pip_package)
        self._pip.append(str(pip_package))

    def remove_pip_package(self, pip_package: str) -> None:
        """Remove a package, whatever its version."""
        name = requirements.name_of(pip_package)
        self._pip = [
            line for line in self._pip if line.startswith("-") or requirements.name_of(line) != name
        ]

    def set_pip_option(self, pip_option: str) -> None:
        """Add an option of requirements files, such as ``--index-url URL``, if it is missing."""
        if str(pip_option) not in self._pip:
            self._pip.insert(0, str(pip_option))

    def remove_pip_option(self, pip_option: str) -> None:
        """Remove an option, whatever its value."""
        wanted, _ = requirements.option_of(str(pip_option))
        self._pip = [line for line in self._pip if requirements.option_of(line)[0] != wanted]

    def set_pip_index_url(self, index_url: str) -> None:
        """Install packages from this index."""
        self.remove_pip_option("--index-url")
        url = str(index_url).removeprefix("--index-url").strip(" =")
        self.set_pip_option(f"--index-url {url}")

    def set_pip_requirements(self, pip_requirements: Sequence[str]) -> None:
        """Replace all pip packages."""
        self._pip = [str(line) for line in pip_requirements]

    def add_tensorflow_pip_package(
        self, core_type: str = "cpu", version: str | None = None
    ) -> None:
        """Add TensorFlow; one package serves CPUs and GPUs."""
        self._check_core(core_type)
        self.add_pip_package(f"tensorflow=={version}" if version else "tensorflow")

    def add_cntk_package(self, core_type: str = "cpu") -> None:
        """Refuse: CNTK has had no release since 2019.

        Raises:
            UsageError: always.
        """
        raise UsageError("CNTK has had no release since 2019; use PyTorch or TensorFlow")

    # -- conda packages ----------------------------------------------------------------------------

    def add_conda_package(self, conda_package: str) -> None:
        """Add or replace a conda package; ``python=3.11`` sets the version of Python."""
        try:
            found = conda.parse({"dependencies": [conda_package]}, name="", folder=Path("/"))
        except SpecError as error:
            raise UsageError(f"{conda_package!r} is not a conda package") from error
        if found.conda:
            self.remove_conda_package(conda_package)
        self._conda.extend(found.conda)
        self._python = found.python or self._python

    def remove_conda_package(self, conda_package: str) -> None:
        """Remove a conda package, whatever its version."""
        name = conda.name_of(conda_package)
        self._conda = [one for one in self._conda if conda.name_of(one) != name]

    def add_tensorflow_conda_package(
        self, core_type: str = "cpu", version: str | None = None
    ) -> None:
        """Add TensorFlow as a conda package."""
        self._check_core(core_type)
        self.add_conda_package(f"tensorflow={version}" if version else "tensorflow")

    def add_channel(self, channel: str) -> None:
        """Add a conda channel, which is searched after those added before it."""
        if str(channel) not in self._channels:
            self._channels.append(str(channel))

    def remove_channel(self, channel: str) -> None:
        """Remove a channel."""
        self._channels = [one for one in self._channels if one != str(channel)]

    def set_python_version(self, version: str) -> None:
        """Request a version of Python."""
        self._python = str(version)

    def get_python_version(self) -> str | None:
        """Return the requested version of Python."""
        return self._python

    @staticmethod
    def _check_core(core_type: str) -> None:
        if core_type not in ("cpu", "gpu"):
            raise UsageError(f"core_type is {core_type!r}; give 'cpu' or 'gpu'")

    # -- the packages ------------------------------------------------------------------------------

    @property
    def python_version(self) -> str | None:
        """The requested version of Python."""
        return self._python

    @property
    def pip_packages(self) -> list[str]:
        """The pip packages."""
        return [line for line in self._pip if not line.startswith("-")]

    @property
    def pip_options(self) -> list[str]:
        """The pip options."""
        return [line for line in self._pip if line.startswith("-")]

    @property
    def pip_lines(self) -> list[str]:
        """The pip options and packages, in their order."""
        return list(self._pip)

    @property
    def conda_packages(self) -> list[str]:
        """The conda packages, without Python itself."""
        return list(self._conda)

    @property
    def conda_channels(self) -> list[str]:
        """The conda channels."""
        return list(self._channels)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is requested."""
        return not (self._python or self._pip or self._conda)

    def as_dict(self) -> dict[str, Any]:
        """Return the dependencies as the content of a conda specification."""
        python = f"python={self._python}" if self._python else "python"
        data: dict[str, Any] = {"dependencies": [python, *self._conda]}
        if self._pip:
            data["dependencies"].append({"pip": list(self._pip)})
        if self._channels:
            data["channels"] = list(self._channels)
        return data

    @staticmethod
    def from_dict(data: Any) -> CondaDependencies:
        """Return the dependencies of a conda specification's content.

        Raises:
            SpecError: it is not a specification.
        """
        found = conda.parse(data, name="the specification", folder=Path.cwd())
        made = CondaDependencies()
        made._python, made._pip = found.python, list(found.pip)
        made._conda, made._channels = list(found.conda), list(found.channels)
        return made

    def serialize_to_string(self) -> str:
        """Return the dependencies as a conda specification (YAML)."""
        return write_yaml(self.as_dict())

    def save_to_file(self, base_directory: str | Path, conda_file_path: str | None = None) -> str:
        """Write the specification into a folder; return the file's name."""
        name = conda_file_path or _FILE
        Path(base_directory, name).write_text(self.serialize_to_string())
        return name

    def save(self, path: str | Path | None = None) -> str:
        """Write the specification to a file, or into a folder; return its path."""
        file = Path(path or ".")
        if file.is_dir():
            file = file / _FILE
        file.write_text(self.serialize_to_string())
        return str(file)
