"""Converts pydantic's errors to problems in the terms of a sweep file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from rayjobs.core.errors import Problem

_EXAMPLES: Mapping[str, str] = {
    "job": "Add e.g. job: {script: train.py, source_directory: .}.",
    "sampling": "Add e.g. sampling: {type: random, parameters: {--lr: [loguniform, [-9, -2]]}}.",
    "metric": "Add the name that the script logs, e.g. metric: accuracy.",
    "goal": "Add goal: maximize or goal: minimize.",
    "limits": "Add e.g. limits: {total: 20, concurrent: 4}.",
    "limits.total": "Add e.g. total: 20.",
}


def problem_of(
    path: str, error: Mapping[str, Any], known: Mapping[str, tuple[str, ...]]
) -> Problem:
    """Return one pydantic error as a problem.

    Args:
        path: The path, with dots.
        error: One entry of ``ValidationError.errors()``.
        known: The keys of each section.
    """
    kind = str(error["type"])
    given = error.get("input")
    if kind == "extra_forbidden":
        section, _, key = path.rpartition(".")
        keys = known.get(section, ())
        near = difflib.get_close_matches(key, keys, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(keys)}."
        return Problem(path, f"there is no key {key!r}.", remedy)
    if kind == "missing":
        return Problem(path, "this key is missing.", _EXAMPLES.get(path, "Add it."))
    if kind == "value_error":
        return Problem(path, str(error.get("ctx", {}).get("error", error["msg"])))
    if kind == "string_pattern_mismatch":
        return Problem(
            path,
            f"{given!r} cannot be a name.",
            "Use letters, digits, '_', '-' and '.', beginning with a letter or digit.",
        )
    message = str(error["msg"]).removeprefix("Input ").removeprefix("Value error, ")
    return Problem(path, f"{given!r} is given, and it {message}.", _EXAMPLES.get(path, ""))
