"""Reads locks: their packages, with versions and sources."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.core.paths import ENVIRONMENT_LOCK
from rayjobs.environments import condas
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.requirements import name_of

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

_PIP = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:==\s*([^\s;\\]+)|@\s*(\S+))")
# A file that was requested only by its path or address.
_WHEEL = re.compile(r"(?:\S*/)?([A-Za-z0-9._]+)-[^-/\s]+(?:-[^-/\s]+){3,4}\.whl(?=\s|$)")
_OF_BASE = re.compile(r"# of the (target|image): ")
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)\.(?:conda|tar\.bz2)")


@dataclass(frozen=True)
class Package:
    """A package of an environment.

    Attributes:
        version: Its version, or the address or path that it comes from.
        source: "pip", "conda", or "target" or "image" for packages that its Python already has.
    """

    name: str
    version: str
    source: str


def packages(lock: str) -> list[Package]:
    """Return the packages of a lock, sorted by name and source."""
    conda_lock, rest = condas.split(lock)
    found = [*_of_conda(conda_lock)]
    for line in rest.splitlines():
        base = _OF_BASE.match(line)
        source = "pip" if base is None else base[1]
        match = _PIP.match(_OF_BASE.sub("", line))
        if (file := _WHEEL.match(line)) is not None:
            found.append(Package(name_of(file[1]), file[0], source))
        elif match is not None and not line.startswith("--"):
            found.append(Package(name_of(match[1]), match[2] or match[3], source))
    return sorted(set(found), key=lambda one: (one.name, one.source))


def stored(
    workspace: OpenWorkspace, job: str, *, attempt: int | None = None, name: str = ENVIRONMENT_LOCK
) -> str | None:
    """Return a lock that is stored with a job; None if it does not exist or cannot be read.

    Args:
        attempt: Only the lock of this attempt; None: of any attempt.
        name: The stored file; besides the lock, any text that the job's first node stores.
    """
    try:
        for file in workspace.store.files(job):
            if file.name == name and attempt in (None, file.attempt):
                with workspace.blobs.open(file.blob) as stream:
                    return stream.read().decode()
    except (StoreError, NotFoundError, OSError) as error:
        log.info("%s of %s is not known: %s", name, job, error)
    return None


def needs_horovod(lock: str) -> bool:
    """Whether a lock installs torch but not Horovod."""
    names = {one.name for one in packages(lock) if one.source not in ("target", "image")}
    return "torch" in names and "horovod" not in names


def count(lock: str) -> int:
    """Return how many packages a lock installs."""
    return sum(one.source not in ("target", "image") for one in packages(lock))


def _of_conda(text: str) -> list[Package]:
    found = []
    for line in text.splitlines():
        address = line.strip().removeprefix("- ").removeprefix("conda: ").split("#")[0]
        match = _FILE.fullmatch(PurePosixPath(address).name)
        if match is not None:
            found.append(Package(match["name"], match["version"], "conda"))
    return found


def conda_builds(lock: str) -> list[str]:
    """Return the conda packages of a lock as match specifications of exactly these builds."""
    lines = condas.split(lock)[0].splitlines()
    matches = [_FILE.fullmatch(PurePosixPath(line.strip().split("#")[0]).name) for line in lines]
    found = {f"{one['name']}={one['version']}={one['build']}" for one in matches if one}
    return sorted(found)


def differences(one: str, other: str) -> list[tuple[str, str, str]]:
    """Return (name, version in one, version in the other) for differing packages; "" if absent.

    The source of a package does not count.
    """
    first, second = _versions(one), _versions(other)
    return [
        (name, first.get(name, ""), second.get(name, ""))
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    ]


def _versions(lock: str) -> Mapping[str, str]:
    return {name_of(one.name): one.version for one in packages(lock)}


def as_conda(name: str, lock: str) -> str:
    """Return the packages of a lock as a conda specification (YAML), each with its version."""
    from rayjobs.spec.text import write_yaml

    found = packages(lock)
    channels = dict.fromkeys(
        line.strip().removeprefix("- url: ")
        for line in condas.split(lock)[0].splitlines()
        if line.strip().startswith("- url: ")
    )
    version = re.search(r"for Python ([0-9.]+)", lock)
    dependencies: list[object] = [
        f"{one.name}={one.version}" for one in found if one.source == "conda"
    ]
    if not any(str(one).startswith("python=") for one in dependencies) and version is not None:
        dependencies.insert(0, f"python={version[1]}")
    pip = [
        f"{one.name} @ {one.version}" if "/" in one.version else f"{one.name}=={one.version}"
        for one in found
        if one.source != "conda"
    ]
    if pip:
        dependencies.append({"pip": pip})
    values: dict[str, object] = {"name": name, "dependencies": dependencies}
    if channels:
        values["channels"] = list(channels)
    return write_yaml(values)
