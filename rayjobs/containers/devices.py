"""Collects a node's NVIDIA device files and driver libraries for containers.

Sources: the Container Device Interface specification (`nvidia-ctk cdi generate` writes such a
file), or `ldconfig -p` without such a file.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.plan import Bind, Link

log = logging.getLogger(__name__)

CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
LIBRARY_FOLDER = "/usr/local/nvidia/lib64"
_DEVICES = re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)$")
_LIBRARY = re.compile(r"lib(cuda|cudadebugger|nvidia-[\w-]+|nvcuvid|nvoptix)\.so(\.[\w.]+)?$")
_LINE = re.compile(r"^\s*(\S+) \(([^)]*)\) => (\S+)$")
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced")
_ASK_S = 10.0


@dataclass(frozen=True)
class Devices:
    """The device files and libraries of a node for containers.

    Attributes:
        how: How they were found: "cdi", "ldconfig", or "" if there are none.
        nodes: Device files.
        binds: Libraries and programs.
        links: Names by which programs look up the libraries.
        library_folders: Folders in the container where the libraries are.
        variables: Environment variables from the CDI file.
    """

    how: str = ""
    nodes: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    links: tuple[Link, ...] = ()
    library_folders: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def find(
    root: Path = Path("/"), *, cdi_folders: tuple[str, ...] = CDI_FOLDERS, cache: str | None = None
) -> Devices:
    """Return the GPU devices and libraries, if any, for this node's containers. Blocks.

    Args:
        root: The folder that contains ``dev``.
        cache: Output of `ldconfig -p`; None: run it.
    """
    nodes = tuple(
        sorted(
            str(path)
            for folder, pattern in (("dev", "nvidia*"), ("dev/infiniband", "*"))
            for path in (root / folder).glob(pattern)
            if folder != "dev" or _DEVICES.fullmatch(path.name)
        )
    )
    if not any("nvidia" in one for one in nodes):
        return Devices()
    caps = tuple(str(path) for path in sorted((root / "dev/nvidia-caps").glob("*")))
    for folder in cdi_folders:
        for path in sorted(Path(folder).glob("*")):
            found = _of_cdi(path, (*nodes, *caps))
            if found is not None:
                return found
    return _of_ldconfig((*nodes, *caps), cache if cache is not None else _ldconfig())


def _of_cdi(path: Path, nodes: tuple[str, ...]) -> Devices | None:
    """Return the content of an NVIDIA CDI file; None if it is of another kind or unreadable."""
    try:
        text = path.read_text()
        values = json.loads(text) if path.suffix == ".json" else _yaml(text)
        if not str(values.get("kind", "")).startswith("nvidia.com/"):
            return None
        edits = [values.get("containerEdits") or {}]
        edits += [one.get("containerEdits") or {} for one in values.get("devices") or ()]
        return _of_edits(edits, nodes)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        log.warning("the CDI file %s is skipped: %s", path, error)
        return None


def _yaml(text: str) -> Any:
    from rayjobs.spec.text import parse_yaml

    return parse_yaml(text, "the CDI file")


def _of_edits(edits: list[Mapping[str, Any]], nodes: tuple[str, ...]) -> Devices:
    devices = dict.fromkeys(nodes)
    binds: dict[str, Bind] = {}
    links: dict[str, Link] = {}
    folders: dict[str, None] = {}
    variables: dict[str, str] = {}
    for edit in edits:
        for node in edit.get("deviceNodes") or ():
            devices[str(node.get("hostPath") or node["path"])] = None
        for mount in edit.get("mounts") or ():
            source, target = str(mount["hostPath"]), str(mount["containerPath"])
            if Path(source).exists():
                binds[target] = Bind(source, target, read_only=True)
        for text in edit.get("env") or ():
            name, _, value = str(text).partition("=")
            variables[name] = value
        for hook in edit.get("hooks") or ():
            words = [str(word) for word in hook.get("args") or ()]
            for option, value in itertools.pairwise(words):
                if option == "--link":
                    target, _, at = value.partition("::")
                    links[at] = Link(at, target)
                elif option == "--folder":
                    folders[value] = None
    return Devices(
        "cdi",
        tuple(devices),
        tuple(binds.values()),
        tuple(links.values()),
        tuple(folders),
        variables,
    )


def _of_ldconfig(nodes: tuple[str, ...], text: str) -> Devices:
    binds: dict[str, Bind] = {}
    links: dict[str, Link] = {}
    for name, kind, path in _cached(text):
        if "x86-64" not in kind and "AArch64" not in kind:
            continue
        real = Path(path).resolve()
        if not real.exists():
            continue
        target = f"{LIBRARY_FOLDER}/{real.name}"
        binds[target] = Bind(str(real), target, read_only=True)
        if name != real.name:
            at = f"{LIBRARY_FOLDER}/{name}"
            links[at] = Link(at, real.name)
    for name in _PROGRAMS:
        path = f"/usr/bin/{name}"
        if Path(path).exists():
            binds[path] = Bind(path, path, read_only=True, replaces=True)
    return Devices(
        "ldconfig", nodes, tuple(binds.values()), tuple(links.values()), (LIBRARY_FOLDER,)
    )


def _cached(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        found = _LINE.match(line)
        if found and _LIBRARY.fullmatch(found[1]):
            yield found[1], found[2], found[3]


def _ldconfig() -> str:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            done = subprocess.run(
                [program, "-p"], capture_output=True, text=True, timeout=_ASK_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue  # the next one may exist
        return done.stdout
    return ""
