"""Describes the problems of a spec in the terms of its author."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from rayjobs.core.errors import Problem, SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

# Short keys in files and options, by the part they belong to: key → field.
SHORT_KEYS: Mapping[str, Mapping[str, str]] = {
    "": {
        "max_duration": "max_duration_s",
        "stall_timeout": "stall_timeout_s",
        "grace": "grace_s",
        "log_cap": "log_cap_mib",
    },
    "resources": {"memory": "memory_gib"},
    "container": {"shm_size": "shm_mib"},
}
# The parts of a spec by their location in it; `rayjobs.spec.model` fills this.
PARTS: dict[str, type[BaseModel]] = {}
# Keys of other tools → the equivalent key.
_ELSEWHERE: Mapping[str, str] = {
    "args": "arguments",
    "script_params": "arguments",
    "entry_script": "script",
    "entrypoint": "script",
    "source_dir": "source_directory",
    "working_dir": "source_directory",
    "workdir": "source_directory",
    "env": "environment_variables",
    "envs": "environment_variables",
    "env_vars": "environment_variables",
    "python": "environment",
    "compute_target": "target",
    "image": "container",
    "docker": "container",
    "shm_size": "container.shm_size",
    "after": "depends_on",
    "dependencies": "depends_on",
    "timeout": "max_duration",
    "time_limit": "max_duration",
    "max_run_duration_seconds": "max_duration",
    "nodes": "distribution.nodes",
    "node_count": "distribution.nodes",
    "num_nodes": "distribution.nodes",
    "processes": "distribution.processes_per_node",
    "processes_per_node": "distribution.processes_per_node",
    "procs_per_node": "distribution.processes_per_node",
    "process_count_per_node": "distribution.processes_per_node",
    "backend": "distribution.backend",
    "cpu": "resources.cpus",
    "cpus": "resources.cpus",
    "gpu": "resources.gpus",
    "gpus": "resources.gpus",
    "memory": "resources.memory",
    "memory_gib": "resources.memory",
}
_UNITS: Mapping[str, str] = {
    "max_duration_s": 'seconds; `max_duration: "6h"` is easier to read',
    "stall_timeout_s": 'seconds; `stall_timeout: "30m"` is easier to read',
    "grace_s": "seconds between SIGTERM and SIGKILL",
    "memory_gib": 'GiB per process; `memory: "8GiB"` says the same',
    "log_cap_mib": "MiB per rank",
    "shm_mib": 'MiB; `shm_size: "2g"` says the same',
    "umask": 'three octal digits in quotes, such as "022"',
    "cpus": "a number of CPUs per process",
    "gpus": "a number of GPUs per process; 0.5 lets two processes share one",
}
# Parts that have a shorter form than a mapping: their depth, what they accept, and the remedy.
_FORMS: Mapping[str, tuple[int, str, str]] = {
    "retries": (
        1,
        "a whole number",
        "Write a number, for failures of the script, or lines such as `node_lost: 5`.",
    ),
    "array": (1, "a list of indices", "Write text such as 0-15%4, or `indices: 0-15` below it."),
    "depends_on": (2, "a job's id or name", "Write its id, or `job: ID` and `when: any` lines."),
    "inputs": (2, "text", "Write `datastore/path`, or `source: datastore/path` below it."),
    "outputs": (2, "text", "Write `datastore/path`, or `destination: datastore/path` below it."),
}
# Their values may be secret, so a message only names the key.
_UNSHOWN = frozenset({"secrets", "environment_variables"})
_LONGEST_SHOWN = 60
_NAMES = "Use letters, digits, `_`, `-` and `.`, a letter or digit first, 128 at most."
_NAMES_BEGIN = "Names begin with a letter or _, then letters, digits and _."


def key_text(location: Sequence[str | int]) -> str:
    """Return a location as text: ``inputs.digits.mode``, ``arguments[2]``."""
    text = ""
    for part in location:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def near(word: str, words: Sequence[str]) -> str:
    """Return a question that suggests a similar word; empty if there is none."""
    found = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"Did you mean `{found[0]}`?" if found else ""


def problem_of(error: ErrorDetails, *, in_python: bool = False) -> Problem:
    """Convert an error of pydantic to a problem.

    Args:
        in_python: The spec was written in Python, where the short forms of files are not allowed.
    """
    location, kind, context = _without_tags(error["loc"]), error["type"], error.get("ctx", {})
    at = key_text(location)
    if kind == "extra_forbidden":
        return _unknown_key(location)
    if kind == "missing":
        return Problem(at, "is missing.", "Add it.")
    given = _shown(location, error["input"])
    if location[-1:] == ("password",):
        return Problem(
            at,
            "is not a reference. Values of secrets are never part of a spec.",
            "Set RAYJOBS_SECRET_REGISTRY on the target (`rayjobs target secret`) and write "
            "`password: RAYJOBS_SECRET_REGISTRY`, or `password: {file: PATH}`.",
        )
    if (found := _of_value(error, location, given)) is not None:
        return Problem(at, *found)
    if kind in ("dict_type", "mapping_type", "model_type", "model_attributes_type"):
        if in_python:
            part = context.get("class_name")
            remedy = f"Give a {part} or a dict." if part else "Give a dict."
            return Problem(at, f"{given} is not a group of settings.", remedy)
        return _not_a_group(at, location, given)
    if kind == "value_error":
        return Problem(at, f"{context['error']}.")
    return Problem(at, *_of_type(error, given, _unit(location)))


def _unit(location: Sequence[str | int]) -> str:
    field = str(location[-1]) if location else ""
    return f"It is {_UNITS[field]}." if field in _UNITS else ""


def _not_a_group(at: str, location: Sequence[str | int], given: str) -> Problem:
    forms = _FORMS.get(str(location[0])) if location else None
    if forms is not None and len(location) == forms[0]:
        return Problem(at, f"{given} is neither {forms[1]} nor a group of settings.", forms[2])
    return Problem(
        at,
        f"{given} is a single value, but this key contains several settings.",
        "Write them as `key: value` lines below it.",
    )


def _of_value(
    error: ErrorDetails, location: Sequence[str | int], given: str
) -> tuple[str, str] | None:
    """Return message and remedy for a value of the right type that is not allowed."""
    kind, context = error["type"], error.get("ctx", {})
    if location and location[-1] == "[key]":
        return "is not a valid name.", _NAMES_BEGIN
    if kind == "literal_error":
        choices = [str(choice) for choice in _choices(location)] or [str(context["expected"])]
        return f"{given} is not one of: {', '.join(choices)}.", near(str(error["input"]), choices)
    if kind in _BOUNDS:
        sign, key = _BOUNDS[kind]
        remedy = f"It must be {sign} {context[key]:g}. {_unit(location)}".strip()
        return f"{given} is out of range.", remedy
    if kind == "string_pattern_mismatch":
        is_name = location[-1:] == ("name",)
        return f"{given} is not a valid name.", _NAMES if is_name else _NAMES_BEGIN
    return None


def _of_type(error: ErrorDetails, given: str, unit: str) -> tuple[str, str]:
    """Return message and remedy for a value of the wrong type."""
    kind = error["type"]
    if kind == "string_type":
        is_number = isinstance(error["input"], int | float)
        return f"{given} is not text.", "Put it in quotes." if is_number else "Write text."
    if kind in ("tuple_type", "list_type"):
        return f"{given} is not a list.", 'Write a list, such as ["--epochs", "3"].'
    if kind.startswith(("int_", "float_", "finite_")):
        whole = "a whole number" if kind.startswith("int_") else "a number"
        return f"{given} is not {whole}.", unit
    if kind.startswith("bool_"):
        return f"{given} is neither true nor false.", "Write true or false."
    return f"{given}: {error['msg']}.", unit


def spec_error(model: type[BaseModel], error: ValidationError) -> SpecError:
    """Return the error for a part of a spec that a program constructed, with all problems."""
    part = next((name for name, of in PARTS.items() if of is model), "")
    above = tuple(part.split(".")) if part else ()
    problems = []
    for detail in error.errors(include_url=False):
        detail["loc"] = (*above, *detail["loc"])
        found = problem_of(detail, in_python=True)
        path = found.path.removeprefix(key_text(above)).removeprefix(".")
        problems.append(replace(found, path=path or model.__name__))
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return SpecError(f"{model.__name__} has {count}", problems=problems)


_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _without_tags(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Drop the union's tag from the location of an environment: users do not write it."""
    if location[:1] == ("environment",) and location[1:2] in (("path",), ("packages",)):
        return (*location[:1], *location[2:])
    return location


def _shown(location: Sequence[str | int], value: Any) -> str:
    if location and (location[0] in _UNSHOWN or location[:2] == ("container", "registry")):
        return "the given value"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _part(location: Sequence[str | int]) -> str:
    """Return the key of `PARTS` for the part that contains the last key of a location."""
    above = location[:-1]
    return "" if not above else str(above[0]) + (".*" if len(above) > 1 else "")


def _unknown_key(location: Sequence[str | int]) -> Problem:
    key, part = str(location[-1]), _part(location)
    known = [*PARTS[part].model_fields, *SHORT_KEYS.get(part, {})]
    known += ["requirements", "conda"] if part == "environment" else []
    moved = _ELSEWHERE.get(key)
    if moved is not None and part == "":
        remedy = f"Write `{moved}`."
    elif moved is not None and moved.startswith(f"{part}."):
        remedy = f"Did you mean `{moved.rpartition('.')[2]}`?"
    else:
        remedy = near(key, known) or f"Known here: {', '.join(sorted(known))}."
    return Problem(key_text(location), "is not a known key.", remedy, is_unknown_key=True)


def _choices(location: Sequence[str | int]) -> Sequence[Any]:
    part = PARTS.get(_part(location))
    field = part.model_fields.get(str(location[-1])) if part else None
    return get_args(field.annotation) if field else ()
