"""Only one package imports Ray Tune."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def imports_of(path: Path) -> Iterator[str]:
    """Yield what a module imports, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.long
def test_one_package_imports_ray_tune() -> None:
    found = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("rayjobs", "tuning", "datastore")
        for path in (ROOT / package).rglob("*.py")
        if any(name.startswith("ray.tune") for name in imports_of(path))
    }
    assert found == {"tuning/tune"}
