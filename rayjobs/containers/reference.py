"""Parses a job's image: a name for engines and registries, or files of the node."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.container_files import TRANSPORTS

_NAME = re.compile(
    r"[a-z0-9A-Z]([\w.-]*[a-zA-Z0-9])?(:[0-9]+)?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*"
    r"(:[\w][\w.-]{0,127})?(@sha(256|512):[0-9a-f]{64,128})?"
)
DEFAULT_REGISTRY = "docker.io"


class Kind(StrEnum):
    """Where an image comes from."""

    NAME = "name"  # an engine of the node, or a registry
    FILE = "file"  # an archive or an OCI folder
    FOLDER = "folder"  # a root file system, used in place


@dataclass(frozen=True)
class Reference:
    """One image.

    Attributes:
        text: As written in the job.
        name: The name of an image, with registry and tag as engines complete them.
        path: The path of an image in files.
        tag: The tag of an image in an OCI folder or archive.
    """

    text: str
    kind: Kind
    name: str = ""
    path: Path = Path()
    tag: str | None = None

    @property
    def registry(self) -> str:
        """Host name and port of the registry of a name."""
        first, separator, _ = self.name.partition("/")
        is_host = separator and ("." in first or ":" in first or first == "localhost")
        return first if is_host else DEFAULT_REGISTRY

    @property
    def is_pinned(self) -> bool:
        """Whether the name has a digest, so that it always means the same image."""
        return "@" in self.name

    def pinned_to(self, digest: str) -> Reference:
        """Return the image under its name with a digest, which never changes its meaning."""
        head, slash, last = self.name.rpartition("/")
        name = f"{head}{slash}{last.partition(':')[0]}@{digest}"
        return replace(self, text=name, name=name)

    @property
    def full_name(self) -> str:
        """The name with its registry, in the form for skopeo."""
        name = self.name
        if self.registry == DEFAULT_REGISTRY and not name.startswith(f"{DEFAULT_REGISTRY}/"):
            name = f"{DEFAULT_REGISTRY}/{name if '/' in name else f'library/{name}'}"
        return name


def parse(text: str) -> Reference:
    """Return the image that a job's text refers to on this node.

    Raises:
        PrepareError: class ``environment``: it is not a valid name, or there are no such files.
    """
    transport, separator, rest = text.partition(":")
    if not separator or transport not in TRANSPORTS:
        transport, rest = ("path" if text.startswith("/") else "docker"), text
    if transport == "docker":
        name = rest.removeprefix("//")
        if _NAME.fullmatch(name) is None:
            raise _refused(f"{text!r} is neither the name of an image nor an absolute path")
        return Reference(text, Kind.NAME, name=name if "@" in name or _has_tag(name) else
                         f"{name}:latest")  # fmt: skip
    return _files(text, transport, rest)


def _has_tag(name: str) -> bool:
    return ":" in name.rpartition("/")[2]


def _files(text: str, transport: str, rest: str) -> Reference:
    path, tag = Path(rest), None
    if not path.exists() and transport != "dir":
        before, colon, after = rest.rpartition(":")
        if colon and Path(before).exists():
            path, tag = Path(before), after
    if not path.is_absolute():
        raise _refused(f"{text!r} does not contain an absolute path")
    if not path.exists():
        raise _refused(f"there is no {path} on this node")
    is_layout = (path / "oci-layout").exists()
    if path.is_dir() and (transport == "dir" or (transport == "path" and not is_layout)):
        return Reference(text, Kind.FOLDER, path=path)
    if path.is_dir() != (transport == "oci") and transport != "path":
        raise _refused(f"{path} is {'a folder' if path.is_dir() else 'a file'}, not {transport}")
    if path.is_dir() and not is_layout:
        raise _refused(f"{path} is not an OCI folder: it has no oci-layout")
    return Reference(text, Kind.FILE, path=path, tag=tag)


def _refused(what: str) -> PrepareError:
    return PrepareError(
        f"the job's image cannot be used: {what}. Give a name such as python:3.13, or the path of "
        f"an archive, an OCI folder or a root file system that is on every node of the target",
        failure_class=FailureClass.ENVIRONMENT,
        is_permanent=True,
    )
