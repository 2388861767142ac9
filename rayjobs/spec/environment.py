"""Normalizes a spec's `environment` into the form that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError
from rayjobs.spec import conda, requirements

FILES = ("requirements", "conda")
_REQUIREMENTS = (".txt", ".in")
_CONDA = (".yml", ".yaml")


def is_file_name(text: str) -> bool:
    """Whether a text under `environment` names a package file rather than an interpreter."""
    return text.endswith((*_REQUIREMENTS, *_CONDA))


def anchored(value: Any, folder: Path) -> Any:
    """Return a spec file's `environment` with absolute file paths.

    The path of an interpreter does not change: it is a path on the target.
    """
    if isinstance(value, str) and is_file_name(value):
        return str(folder / Path(value).expanduser())
    if not isinstance(value, Mapping):
        return value
    result = dict(value)
    for key in FILES:
        if isinstance(result.get(key), str):
            result[key] = str(folder / Path(result[key]).expanduser())
    lines = result.get("pip")
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        result["pip"] = requirements.expanded(lines, folder, field="environment.pip")
    return result


def resolved(value: Any, folder: Path | None = None) -> Any:
    """Return `value` with the contents of the files that it names; invalid forms stay unchanged.

    Args:
        folder: The base of relative paths; None means the working directory.

    Raises:
        NotFoundError: a file does not exist.
        SpecError: a file is not valid.
    """
    value = anchored(value, folder or Path.cwd())
    if isinstance(value, str):
        if value.endswith(_REQUIREMENTS):
            return {"pip": requirements.read(Path(value))}
        return _of_conda(conda.read(Path(value)), {}) if value.endswith(_CONDA) else value
    if not isinstance(value, dict):
        return value
    given = dict(value)
    if isinstance(given.get("pip"), str):
        given["pip"] = [given["pip"]]
    files = {
        key: given.pop(key)
        for key in FILES
        # A list under `conda` contains packages, not a file.
        if given.get(key) is not None and not isinstance(given[key], list | tuple)
    }
    for key, file in files.items():
        if not isinstance(file, str):
            raise _refused(f"environment.{key}", f"{file!r} is not text.", "Name a file.")
    if "conda" in files:
        others = sorted({"pip", "requirements"} & {*given, *files})
        if others:
            raise _refused(
                "environment.conda",
                f"cannot be combined with {', '.join(others)}.",
                "Write all packages into one of them.",
            )
        return _of_conda(conda.read(Path(files["conda"]), field="environment.conda"), given)
    if "requirements" in files:
        own = given.get("pip") or []
        if isinstance(own, list | tuple):
            read = requirements.read(Path(files["requirements"]), field="environment.requirements")
            given["pip"] = [*read, *own]
    return given


def _of_conda(found: conda.Specification, given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"name": found.name, "python": found.python, "pip": [*found.pip]}
    if found.conda:
        values |= {"conda": [*found.conda], "channels": [*found.channels]}
    return {**{key: one for key, one in values.items() if one is not None}, **given}


def _refused(field: str, what: str, remedy: str) -> SpecError:
    return SpecError(problems=[Problem(field, what, remedy)])
