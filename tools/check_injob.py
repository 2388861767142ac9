"""Checks that code that runs inside jobs imports only the standard library, and is Python 3.8.

A job's environment may have any versions of packages, and nothing of rayjobs. So `rayjobs/injob`
may import only its own modules and the standard library of Python 3.8.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from files import ROOT, project_files

FOLDER = ROOT / "rayjobs" / "injob"
OLDEST = (3, 8)
# In sys.stdlib_module_names of the Python that runs this check, but not in 3.8.
NEWER_THAN_OLDEST = {"graphlib", "tomllib", "zoneinfo", "_zoneinfo"}
# Imported by the warm interpreter or a rank only where the job's environment has them.
GUARDED = {"numpy", "torch"}


def _imports(tree: ast.AST) -> Iterator[tuple[int, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", node.level


def _is_guarded(tree: ast.AST, line: int) -> bool:
    """Return whether an import is inside a function or a `try` statement."""
    for node in ast.walk(tree):
        inside = isinstance(node, (ast.Try, ast.FunctionDef)) and node.lineno <= line
        if inside and line <= (node.end_lineno or node.lineno):  # type: ignore[attr-defined]
            return True
    return False


def problems_of(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT)
    source = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source, feature_version=OLDEST)
    except SyntaxError as exc:
        yield f"{name}:{exc.lineno}: not Python 3.8: {exc.msg}"
        return
    deepest = len(path.relative_to(FOLDER).parts)
    for line, module, level in _imports(tree):
        top = module.partition(".")[0]
        if level:
            if level > deepest:
                yield f"{name}:{line}: imports from outside rayjobs.injob"
        elif top == "rayjobs":
            if module != "rayjobs.injob" and not module.startswith("rayjobs.injob."):
                yield f"{name}:{line}: imports {module}; rayjobs.injob must not need it"
        elif top in GUARDED:
            if not _is_guarded(tree, line):
                yield f"{name}:{line}: imports {top} although the job may not have it"
        elif top not in sys.stdlib_module_names or top in NEWER_THAN_OLDEST:
            yield f"{name}:{line}: imports {top}, which the standard library of Python 3.8 lacks"


def main() -> int:
    files = [path for path in project_files(".py") if FOLDER in path.parents]
    problems = [problem for path in files for problem in problems_of(path)]
    print("\n".join(problems) if problems else f"{len(files)} modules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
