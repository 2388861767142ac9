"""Finds scripts that request nccl themselves, which would fail when they run on CPUs."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

NCCL = "nccl"


def sentence(script: Path | None, arguments: Sequence[str]) -> str | None:
    """Return a notice for a job that runs on CPUs; None if nothing requests nccl.

    Args:
        script: The entry script; None for a command.
        arguments: As the script or the shell gets them.
    """
    where = _where(script, arguments)
    if where is None:
        return None
    return (
        f"the script itself requests nccl ({where}), which needs GPUs: it will fail on CPUs unless "
        f"it requests gloo there"
    )


def _where(script: Path | None, arguments: Sequence[str]) -> str | None:
    words = [word for one in arguments for word in one.replace("=", " ").split()]
    if any(word.strip("'\"").casefold() == NCCL for word in words):
        return "in its arguments"
    line = None if script is None else _line_of(script)
    return None if line is None or script is None else f"{script.name}:{line}"


def _line_of(script: Path) -> int | None:
    """Return the line of a call to `init_process_group` that names nccl."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # the submit or the script itself will report the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "init_process_group":
            given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "backend")]
            for one in given:
                if isinstance(one, ast.Constant) and str(one.value).casefold() == NCCL:
                    return node.lineno
    return None


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", "") or getattr(function, "id", "")
