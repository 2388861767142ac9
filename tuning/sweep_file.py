"""sweep.yaml in and out: a safe loader, YAML 1.2 numbers, all errors at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rayjobs.core.errors import Problem
from rayjobs.core.text import counted
from rayjobs.tuning.errors import SweepError, problem
from rayjobs.tuning.spec import SweepSpec, parse_sweep


def load_sweep(path: str | Path) -> SweepSpec:
    """Return the sweep in a YAML or JSON file.

    A relative ``job.source_directory`` is taken from the file's folder; without one, the
    file's folder is the source directory.

    Raises:
        SweepError: the file cannot be read or is wrong; lists everything with path and remedy.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise problem(
            str(file), "there is no such file.", "Give the path of a sweep's YAML file."
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise problem(str(file), f"the file cannot be read: {exc}.", "") from exc
    data = read_yaml(text, where=str(file))
    job = data.get("job")
    if isinstance(job, dict):
        folder = Path(str(job.get("source_directory") or "."))
        data["job"] = {**job, "source_directory": str((file.parent / folder).absolute())}
    try:
        return parse_sweep(data, where=str(file))
    except SweepError as error:
        if not isinstance(job, dict):
            raise
        from rayjobs.tuning.submitter import job_problems  # only on the way to an error

        problems = [*error.problems, *job_problems(data["job"])]
        message = f"{file} has {counted(len(problems), 'problem')}"
        raise SweepError(message, problems=problems) from None


def read_yaml(text: str, *, where: str = "the sweep") -> dict[str, Any]:
    """Return the mapping in a YAML text.

    Raises:
        SweepError: no YAML, a key that is there twice, or no mapping.
    """
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  # a subclass of the safe loader
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = str(getattr(exc, "problem", None) or exc)
        twice = "appears twice" in message
        remedy = "Remove one of them." if twice else "Check the indentation and the colons."
        raise SweepError(
            f"{where} is not valid YAML",
            problems=[Problem(line, f"{message}.", remedy)],
        ) from exc
    if not isinstance(data, dict):
        raise SweepError(
            f"{where} is not a sweep",
            problems=[
                Problem("", f"it holds {type(data).__name__} data.", "Write keys and values.")
            ],
        )
    return {str(key): value for key, value in data.items()}


def write_yaml(spec: SweepSpec) -> str:
    """Return the sweep as YAML that `load_sweep` reads back, defaults written."""
    return yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """The safe loader; 1e-3 is a number, as in YAML 1.2, and no key is silently overwritten."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                continue  # the base class says what is wrong with it
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
