"""Conda specifications: Python, conda packages with their channels, and pip packages.

A specification with only Python and pip packages needs no conda: it is equivalent to a list of
those packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec import requirements
from rayjobs.spec.text import parse_yaml

_PYTHON = re.compile(r"python\s*(?:={1,2}\s*([0-9][0-9.]*?)(?:\.?\*)?|([<>!~][^\s\[]*))?\s*")
_PIP = re.compile(r"(?:pip|setuptools|wheel)\s*(?:[<>=!~ ].*)?")
_EXACT = re.compile(r"([A-Za-z0-9_.-]+)\s*(={1,2})\s*([0-9][^\s=]*)(?:=[^\s=]+)?")
_BOUNDS = re.compile(r"([A-Za-z0-9_.-]+)\s*([<>!~=][^\s|]*)")
# The location and name of conda's environment: they do not change what is installed.
_WITHOUT_EFFECT = frozenset({"name", "prefix"})
_KNOWN = _WITHOUT_EFFECT | {"channels", "dependencies", "platforms"}


@dataclass(frozen=True)
class Specification:
    """The content of a conda specification.

    Attributes:
        python: A version, or None for any.
        pip: Lines of requirements.
        conda: Conda packages other than Python, as match specifications.
        channels: Channels of the conda packages, by decreasing priority.
    """

    name: str | None
    python: str | None
    pip: tuple[str, ...]
    conda: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()


def read(path: Path, *, field: str = "environment") -> Specification:
    """Return the content of a conda specification file.

    Raises:
        NotFoundError: there is no such file.
        SpecError: it is not a specification.
    """
    path = path.expanduser().absolute()
    text = requirements.text_of(path, field)
    return parse(parse_yaml(text, str(path)), name=str(path), folder=path.parent, field=field)


def parse(data: Any, *, name: str, folder: Path, field: str = "environment") -> Specification:
    """Return the content of a conda specification from its data; see `read`.

    Args:
        name: Name of the file, for messages.
        folder: The base of relative paths of its pip packages.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("dependencies"), list):
        raise _refused(
            field, f"{name} is not a conda specification.", "It needs a list `dependencies:`."
        )
    unknown = sorted(set(map(str, data)) - _KNOWN)
    if unknown:
        raise _refused(
            field,
            f"{name} has {', '.join(unknown)}, which rayjobs does not support.",
            "Remove it; set variables of the script in environment_variables.",
        )
    channels = data.get("channels") or []
    if not isinstance(channels, list):
        raise _refused(field, f"{name} has channels that are not a list.", "Write one per line.")
    python, lines, packages = None, [], []
    for item in data["dependencies"]:
        if isinstance(item, Mapping) and set(item) == {"pip"} and isinstance(item["pip"], list):
            lines += [str(line) for line in item["pip"]]
            continue
        text = str(item).strip()
        plain = text.rpartition("::")[2].strip()
        if (found := _PYTHON.fullmatch(plain)) is not None:
            python = found[1] or found[2] or python
        elif _PIP.fullmatch(plain) is None:
            packages.append(text)
    named = data.get("name")
    return Specification(
        name=str(named) if named is not None else None,
        python=python,
        pip=tuple(requirements.expanded(lines, folder, field=field)),
        conda=tuple(packages),
        channels=tuple(_channel(str(one), folder) for one in channels if str(one) != "nodefaults"),
    )


def _channel(text: str, folder: Path) -> str:
    """Return a channel; a folder becomes an address with its full path."""
    if text.startswith(("./", "../", "~/")):
        return f"file://{(folder / Path(text).expanduser()).resolve()}"
    return f"file://{text}" if text.startswith("/") else text


def name_of(package: str) -> str:
    """Return the package name in a match specification, in lower case."""
    plain = package.rpartition("::")[2].strip()
    found = re.match(r"[A-Za-z0-9_.-]+", plain)
    return found[0].lower() if found else plain


def as_requirement(package: str, name: str) -> str:
    """Return a match specification as a pip requirement with another name, without the build.

    In conda, ``numpy=1.16`` means any 1.16, so it becomes ``numpy==1.16.*``.
    """
    plain = package.rpartition("::")[2].strip()
    if (found := _EXACT.fullmatch(plain)) is not None:
        version = found[3].removesuffix(".*").removesuffix("*").rstrip(".")
        is_prefix = found[2] == "=" or found[3].endswith("*")
        return f"{name}=={version}{'.*' if is_prefix else ''}"
    if (found := _BOUNDS.fullmatch(plain)) is not None:
        return f"{name}{found[2]}"
    return name


def _refused(field: str, what: str, remedy: str) -> SpecError:
    return SpecError(problems=[Problem(field, what, remedy)])
