"""Registered environments of a workspace, and builds of environments on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayjobs.api.environment import Environment
from rayjobs.api.workspace import Workspace
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.files import replacing
from rayjobs.core.users import user_name
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import EnvironmentVersion

WHEELS = "wheels"  # below the workspace's folder


def get(workspace: Workspace, name: str, version: str | None, label: str | None) -> Environment:
    """Return a registered environment, the newest by default.

    Raises:
        NotFoundError: there is no such environment, version or label.
    """
    number = None if version is None else _number(name, version)
    return _made(workspace.store.environment(name, version=number, label=label))


def newest(workspace: Workspace) -> dict[str, Environment]:
    """Return the newest version of every registered environment."""
    return {one.name: _made(one) for one in workspace.store.environments()}


def register(workspace: Workspace, environment: Environment) -> Environment:
    """Store a definition; return it with its version."""
    values = {**environment.to_dict(), "version": None}
    text = json.dumps(values, sort_keys=True)
    stored = workspace.store.put_environment(environment.name, text, user=user_name())
    environment.version = str(stored.version)
    environment.asset_id = f"{environment.name}:{stored.version}"
    return _made(stored)


def label(workspace: Workspace, name: str, version: str, labels: Sequence[str]) -> None:
    """Move labels to a version.

    Raises:
        NotFoundError: there is no such version.
    """
    number = _number(name, version)
    for one in [labels] if isinstance(labels, str) else labels:
        workspace.store.set_environment_label(name, one, number)


def _made(stored: EnvironmentVersion) -> Environment:
    made = Environment.from_dict(json.loads(stored.definition))
    made.version = str(stored.version)
    made.asset_id = f"{stored.name}:{stored.version}"
    return made


def _number(name: str, version: str) -> int:
    if not str(version).isdecimal():
        raise NotFoundError(f"the environment {name!r} has no version {version!r}; give a number")
    return int(version)


def add_wheel(workspace: Workspace, file: Path, *, exist_ok: bool) -> str:
    """Store a wheel in the workspace; return its path there. The submit of a job packs it.

    Raises:
        NotFoundError: no such file.
        UsageError: it is not a wheel, or it already exists.
    """
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}. Check its name")
    if file.suffix != ".whl":
        raise UsageError(f"{file} is not a wheel; build one with `uv build --wheel`")
    target = workspace.opened.path / WHEELS / file.name
    if target.exists() and not exist_ok:
        raise UsageError(f"the workspace already has {file.name}; set exist_ok=True to replace it")
    target.parent.mkdir(exist_ok=True)
    with replacing(target) as draft:
        shutil.copyfile(file, draft)
    return str(target)


@dataclass(frozen=True)
class ImageBuild:
    """A successful build. Source: ``azureml.core.environment.ImageBuildDetails``.

    Attributes:
        key: The environment's name on this machine's node.
        lock: Its packages with their hashes.
        log: The build's log.
    """

    name: str
    key: str
    lock: str
    log: str
    status: str = "Succeeded"

    def wait_for_completion(self, show_output: bool = False) -> str:
        """Return the status at once: the build has ended."""
        if show_output:
            import sys

            sys.stdout.write(self.log)
        return self.status


def build(workspace: Workspace, environment: Environment) -> ImageBuild:
    """Build an environment on this machine's node, or use the existing build.

    Raises:
        UsageError: it names an interpreter or the target's own Python, so nothing is built.
        PrepareError: the build failed.
    """
    from rayjobs.submit import environments

    found, log = environments.build_here(_spec_to_build(environment))
    return ImageBuild(environment.name, found.key, found.lock, log)


def details(workspace: Workspace, environment: Environment) -> dict[str, Any]:
    """Return an environment's content, and whether this machine has built it.

    Raises:
        PrepareError: the folder of this machine's environments cannot be used.
    """
    from rayjobs.submit import environments

    spec = environment.to_spec()
    key = environments.key_here(spec) if isinstance(spec, dict) else None
    return {
        "name": environment.name,
        "version": environment.version,
        "pythonEnvironment": spec if isinstance(spec, dict) else {"interpreter": spec},
        "imageExistsInRegistry": key is not None,
        "key": key,
        "ingredients": environment.python.wanted().as_dict(),
    }


def _spec_to_build(environment: Environment) -> dict[str, Any]:
    spec = environment.to_spec()
    if not isinstance(spec, dict):
        raise UsageError(
            f"the environment {environment.name!r} uses {spec or 'the Python of the target'} "
            f"unchanged: there is nothing to build"
        )
    return spec
