"""Conda specifications: their Python and their pip packages; anything else of conda is refused.

No conda is run here. A specification that asks for nothing but Python and packages of pip says
the same as a list of those packages, and is taken as such.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError
from rayjobs.spec import requirements
from rayjobs.spec.text import parse_yaml

_PYTHON = re.compile(r"python\s*(?:={1,2}\s*([0-9][0-9.]*?)(?:\.?\*)?|([<>!~][^\s\[]*))?\s*")
_PIP = re.compile(r"(?:pip|setuptools|wheel)\s*(?:[<>=!~ ].*)?")
# Where and under which name conda installs: they do not change what is installed.
_WITHOUT_EFFECT = frozenset({"name", "channels", "prefix"})
_MOST_NAMED = 8


@dataclass(frozen=True)
class Specification:
    """The part of a conda specification that pip can install.

    Attributes:
        python: A version, or None for any.
        pip: Lines of requirements.
    """

    name: str | None
    python: str | None
    pip: tuple[str, ...]


def read(path: Path, *, field: str = "environment") -> Specification:
    """Return what a conda specification file asks for.

    Raises:
        NotFoundError: no such file.
        SpecError: not a specification, or it needs conda; names every package that does.
    """
    path = path.expanduser().absolute()
    text = requirements.text_of(path, field)
    return parse(parse_yaml(text, str(path)), name=str(path), folder=path.parent, field=field)


def parse(data: Any, *, name: str, folder: Path, field: str = "environment") -> Specification:
    """Return what the content of a conda specification asks for; see `read`.

    Args:
        name: Of the file, for messages.
        folder: What relative paths of its pip packages are relative to.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("dependencies"), list):
        raise _refused(
            field, f"{name} is not a conda specification.", "It needs a list `dependencies:`."
        )
    unknown = sorted(set(map(str, data)) - _WITHOUT_EFFECT - {"dependencies"})
    if unknown:
        raise _refused(
            field,
            f"{name} has {', '.join(unknown)}, which cannot be carried out without conda.",
            "Take it out; variables of the script go to environment_variables.",
        )
    python, lines, foreign = None, [], []
    for item in data["dependencies"]:
        if isinstance(item, Mapping) and set(item) == {"pip"} and isinstance(item["pip"], list):
            lines += [str(line) for line in item["pip"]]
            continue
        text = str(item).rpartition("::")[2].strip()
        if (found := _PYTHON.fullmatch(text)) is not None:
            python = found[1] or found[2] or python
        elif _PIP.fullmatch(text) is None:
            foreign.append(text)
    if foreign:
        raise SpecError(problems=[needs_conda(foreign, field)])
    named = data.get("name")
    return Specification(
        name=str(named) if named is not None else None,
        python=python,
        pip=tuple(requirements.expanded(lines, folder, field=field)),
    )


def needs_conda(packages: Sequence[str], field: str) -> Problem:
    """Return the problem of packages that only conda could install."""
    more = f" and {len(packages) - _MOST_NAMED} more" if len(packages) > _MOST_NAMED else ""
    return Problem(
        field,
        f"asks conda for {', '.join(packages[:_MOST_NAMED])}{more}; rayjobs installs only pip "
        f"packages.",
        "Move them to the pip packages where they exist there, or make the conda environment on "
        "the node yourself and name its path as environment.",
    )


def _refused(field: str, what: str, remedy: str) -> SpecError:
    return SpecError(problems=[Problem(field, what, remedy)])
