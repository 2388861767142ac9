"""Finds out whether a script, or a module in its source folder that it imports, uses Horovod."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rayjobs.environments import mpi_checks

_MOST_FILES = 500


def imports_horovod(script: Path, folder: Path) -> bool:
    """Return whether a script, or a module that it imports from its source folder, names Horovod.

    Args:
        folder: The source folder; modules are imported from it and from the script's own folder.
    """
    todo, seen = [script], {script}
    roots = tuple(dict.fromkeys((script.parent, folder)))
    while todo:
        file = todo.pop()
        if mpi_checks.names_horovod(file):
            return True
        for found in _modules(file, roots):
            if found not in seen and len(seen) < _MOST_FILES:
                seen.add(found)
                todo.append(found)
    return False


def _modules(file: Path, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files of the source folder that a file imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # the job's own Python reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from _files(one.name.split("."), roots)
        elif isinstance(node, ast.ImportFrom):
            folders = roots
            if node.level:
                folders = ((file, *file.parents)[min(node.level, len(file.parents))],)
            module = node.module.split(".") if node.module else []
            for one in node.names:
                yield from _files([*module, one.name], folders)


def _files(names: list[str], roots: tuple[Path, ...]) -> Iterator[Path]:
    for root in roots:
        target = root
        for name in names:
            if name == "*":
                break
            target /= name
            for path in (target.with_suffix(".py"), target / "__init__.py"):
                if path.is_file():
                    yield path
