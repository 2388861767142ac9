"""Checks that imports inside `rayjobs` only go down its layers, and form no cycles.

import-linter does not see imports inside functions of a lazy module, and its `layers` contract may
leave out typing-only imports; here every import statement counts. The layers are in pyproject.toml
(`[tool.importlinter]`, the contract of type `layers`), from top to bottom; packages in the same
layer do not import each other.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from files import ROOT

PACKAGE = "rayjobs"
# Modules whose classes return each other, as those of Azure ML v1 do. Each group is exact: a module
# that joins one is a new cycle, and one that has left must be removed here.
CYCLES = {
    "a Workspace has Experiments, which have Runs, which know both": (
        "api: attempt_workspace compute configs environment environment_registry estimator_checks "
        "estimators experiment interactive kinds mlflow_runs model placing run run_config_file "
        "submitters workspace"
    ),
    "the data of a pipeline name the step that makes them": "pipelines: data step_data steps",
    "a Pipeline has runs and published versions, which know it": (
        "pipelines: pipeline published runs"
    ),
    "a notebook runs as a script does": "azureml: notebooks running",
}


def modules(root: Path) -> dict[str, Path]:
    """Return every module of the package by name; linked folders count as packages."""
    found: dict[str, Path] = {}

    def walk(folder: Path, name: str) -> None:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and (path / "__init__.py").is_file():
                walk(path, f"{name}.{path.name}")
            elif path.suffix == ".py":
                found[name if path.stem == "__init__" else f"{name}.{path.stem}"] = path

    walk(root, root.name)
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield line and module of each import of ours, anywhere in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                above = len(parts) - node.level + (path.name == "__init__.py")
                base = ".".join([*parts[:above], *([base] if base else [])])
            wanted = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for one in wanted:
            module = one
            while module and module not in known:
                module = module.rpartition(".")[0]
            if module.startswith(f"{PACKAGE}."):
                yield node.lineno, module
            elif module == PACKAGE and one != PACKAGE:
                # `from rayjobs import Workspace` bypasses the layers.
                yield node.lineno, one


def contract(pyproject: Path) -> tuple[dict[str, int], set[str]]:
    """Return each package's layer, counted from the top, and the imports that are allowed."""
    settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [one for one in settings["contracts"] if one["type"] == "layers"]
    found: dict[str, int] = {}
    for layer, line in enumerate(layers["layers"]):
        for package in re.split(r"[|:]", line):
            found[package.strip()] = layer
    return found, set(layers.get("ignore_imports", ()))


def problems(root: Path, pyproject: Path) -> Iterator[str]:
    """Yield one sentence for each import of a higher package, or of one in the same layer."""
    known = modules(root)
    layer_of, allowed = contract(pyproject)
    packages = {name.split(".")[1] for name in known if "." in name}
    for package in sorted(packages - set(layer_of)):
        yield f"{PACKAGE}/{package} is in no layer: add it to the layers in pyproject.toml"
    for package in sorted(set(layer_of) - packages):
        yield f"{PACKAGE}/{package} is in a layer in pyproject.toml, but does not exist"
    for name, path in known.items():
        if name == PACKAGE:
            continue  # its names are imported on first use, from everywhere
        own = name.split(".")[1]
        for line, module in imports(name, path, known):
            other = module.split(".")[1]
            if other == own or own not in layer_of or f"{name} -> {module}" in allowed:
                continue
            here = f"{path.relative_to(root.parent)}:{line}"
            if other not in layer_of:
                yield f"{here}: import {other!r} from the module that defines it"
            elif layer_of[other] <= layer_of[own]:
                where = "in the layer of" if layer_of[other] == layer_of[own] else "above"
                yield f"{here}: {module} is {where} {own}"


def cycles(root: Path) -> Iterator[str]:
    """Yield one sentence for each group of modules that import each other and may not."""
    known = modules(root)
    graph = {
        name: {module for _line, module in imports(name, path, known) if module in known} - {name}
        for name, path in known.items()
        if name != PACKAGE
    }
    allowed = {_group(text) for text in CYCLES.values()}
    found = {group for group in _components(graph) if len(group) > 1}
    for group in sorted(map(sorted, found - allowed)):
        yield f"these modules import each other: {', '.join(group)}"
    for group in sorted(map(sorted, allowed - found)):
        names = ", ".join(group)
        yield f"CYCLES in tools/check_layers.py names a group that is not a cycle: {names}"


def _group(text: str) -> frozenset[str]:
    package, _, names = text.partition(": ")
    return frozenset(f"{PACKAGE}.{package}.{name}" for name in names.split())


def _components(graph: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """Yield the strongly connected components of a graph (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(node: str) -> Iterator[frozenset[str]]:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for below in graph[node]:
            if below not in number:
                yield from visit(below)
                lowest[node] = min(lowest[node], lowest[below])
            elif below in path:
                lowest[node] = min(lowest[node], number[below])
        if lowest[node] == number[node]:
            at = path.index(node)
            yield frozenset(path[at:])
            del path[at:]

    for node in graph:
        if node not in number:
            yield from visit(node)


def main() -> int:
    """Print the problems; return 1 if there are any."""
    found = [*problems(ROOT / PACKAGE, ROOT / "pyproject.toml"), *cycles(ROOT / PACKAGE)]
    for problem in found:
        print(problem)
    if not found:
        print(f"{len(modules(ROOT / PACKAGE))} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
