"""Defaults of a project and of a user: `rayjobs.yaml`, ``RAYJOBS_TARGET``, ``target use``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, RayjobsError, SpecError
from rayjobs.core.files import write_atomic
from rayjobs.core.paths import home as default_home
from rayjobs.core.text import counted, size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.workspace import server_choice

FILE = "rayjobs.yaml"
TARGET_VARIABLE = "RAYJOBS_TARGET"
LOCAL = "local"
_KEYS = ("target", "experiment", "job")
# Keys that each job sets itself.
_NOT_DEFAULTS = ("script", "command", "version", "name", "array", "source_directory")


@dataclass(frozen=True)
class Project:
    """The settings of a project's `rayjobs.yaml`; all empty without such a file.

    Attributes:
        path: The file.
        job: Keys of job files, as written there: the defaults of every job of the project.
    """

    path: Path | None = None
    target: str | None = None
    experiment: str | None = None
    job: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetChoice:
    """The default target of jobs, and its origin."""

    name: str
    origin: str


def find_file(start: Path | None = None) -> Path | None:
    """Return the nearest `rayjobs.yaml` of this user, from `start` (the working directory) up."""
    here = Path.cwd() if start is None else start
    for folder in (here, *here.parents):
        found = folder / FILE
        # Another user's file in a parent folder (such as /tmp) does not count.
        if found.is_file() and found.stat().st_uid == os.getuid():
            return found
    return None


def load_project(start: Path | None = None) -> Project:
    """Return the defaults of the project that `start` (the working directory) belongs to.

    Raises:
        SpecError: the file is not YAML, or has invalid keys or values; all problems at once.
    """
    path = find_file(start)
    if path is None:
        return Project()
    data = _read(path)
    problems: list[Problem] = []
    for key in data:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            remedy = (
                f"Did you mean `{near[0]}`?"
                if near
                else f"Its keys are {', '.join(_KEYS)}; defaults of jobs go below `job`."
            )
            problems.append(Problem(str(key), "is not a known key.", remedy, is_unknown_key=True))
    for key in ("target", "experiment"):
        if key in data and (not isinstance(data[key], str) or not data[key]):
            problems.append(Problem(key, f"{data[key]!r} is not a name."))
    job = data.get("job") or {}
    if not isinstance(job, dict):
        problems.append(Problem("job", "must hold `key: value` lines, such as `priority: 5`."))
        job = {}
    for key in _NOT_DEFAULTS:
        if job.pop(key, None) is not None:
            problems.append(
                Problem(f"job.{key}", "cannot be a default of all jobs.", "Write it in a job file.")
            )
    if "target" in job and "target" in data:
        problems.append(Problem("job.target", "repeats `target`.", "Give only one of them."))
    from rayjobs.spec.environment import anchored

    if "environment" in job:
        job["environment"] = anchored(job["environment"], path.absolute().parent)
    problems += _problems_of(job)
    if problems:
        raise SpecError(f"{path} has {counted(len(problems), 'problem')}", problems=problems)
    target = data.get("target") or job.pop("target", None)
    return Project(path, target, data.get("experiment"), job)


def default_target(project: Project | None = None) -> TargetChoice:
    """Return the target of jobs that name none.

    Order: ``RAYJOBS_TARGET``, the project's `rayjobs.yaml`, ``rayjobs target use``, the default
    target of the server that this process uses, ``local``.

    Args:
        project: The project's defaults; None looks for them from the working directory upward.

    Raises:
        SpecError: `project` is None and the project's file is wrong.
    """
    named = os.environ.get(TARGET_VARIABLE)
    if named:
        return TargetChoice(named, TARGET_VARIABLE)
    found = load_project() if project is None else project
    if found.target:
        return TargetChoice(found.target, str(found.path))
    chosen = stored_choice()
    if chosen:
        return TargetChoice(chosen, "rayjobs target use")
    if (server := server_choice.active()) is not None:
        return TargetChoice(server.workspace().default_target, server.address)
    return TargetChoice(LOCAL, "default")


def stored_choice() -> str:
    """Return the target that `use_target` stored last; empty if none."""
    try:
        return _choice_file().read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def use_target(name: str) -> None:
    """Make `name` this user's default target on this machine; ``local`` removes the choice."""
    path = _choice_file()
    if name == LOCAL:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, f"{name}\n")


def with_defaults(data: Mapping[str, Any], project: Project) -> dict[str, Any]:
    """Merge a job file and options with the project's and the user's defaults."""
    from rayjobs.spec.file import merge

    merged = merge(project.job, data)
    if merged.get("target") is None:
        merged["target"] = default_target(project).name
    return merged


def _read(path: Path) -> dict[str, Any]:
    from rayjobs.spec.file import FILE_LIMIT
    from rayjobs.spec.text import parse_yaml

    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_LIMIT + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if len(text) > FILE_LIMIT:
        raise SpecError(f"{path} is larger than {size_text(FILE_LIMIT)}")
    data = parse_yaml(text, str(path))
    if data is None:  # only comments
        return {}
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold `key: value` lines, such as `target: local`")
    return data


def _choice_file() -> Path:
    return default_home() / "default-target"


def _problems_of(job: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a job with only these defaults and a script."""
    from rayjobs.spec.file import build_spec, merge

    try:
        build_spec(merge(job, {"script": "-", "name": "defaults"}))
    except SpecError as error:
        if error.problems:
            return [Problem(f"job.{one.path}", one.message, one.remedy) for one in error.problems]
        return [Problem("job", f"{error.message}.")]
    except RayjobsError as error:  # it names a missing file
        return [Problem("job", f"{error.message}.")]
    return []
