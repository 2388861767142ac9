"""Imports inside `rayjobs` go down its floors only and form no circles, lazy and typing-only too.

import-linter does not see imports inside functions of a lazy module, and its `layers` contract may
leave typing-only ones out; here every import statement counts. The floors stand in pyproject.toml
(`[tool.importlinter]`, the contract of type `layers`): from top to bottom, packages of one line
do not know each other.
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
# Packages whose classes return each other, as those of Azure ML v1 do.
MAY_HAVE_CIRCLES = {
    "api": "a Workspace has Experiments, which have Runs, which know both",
    "injob": "Run.get_context() returns either of Run's own kinds",
    "pipelines": "a Pipeline has runs and published versions, which know it; data name their step",
}
MAY_CLOSE_A_CIRCLE = {
    ("rayjobs.tuning.runs", "rayjobs.tuning.config"): "a sweep's run returns its configuration",
    ("rayjobs.azureml.running", "rayjobs.azureml.notebooks"): "a notebook runs as a script does",
}


def modules(root: Path) -> dict[str, Path]:
    """Return every module of the package by name; linked folders count as what they are here."""
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
    """Yield line and module of each import of ours, wherever in the file it stands."""
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
                # `from rayjobs import Workspace` goes round the floors.
                yield node.lineno, one


def contract(pyproject: Path) -> tuple[dict[str, int], set[str]]:
    """Return each package's floor, counted from the top, and the imports that are let through."""
    settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [one for one in settings["contracts"] if one["type"] == "layers"]
    found: dict[str, int] = {}
    for floor, line in enumerate(layers["layers"]):
        for package in re.split(r"[|:]", line):
            found[package.strip()] = floor
    return found, set(layers.get("ignore_imports", ()))


def problems(root: Path, pyproject: Path) -> Iterator[str]:
    """Yield one sentence for each import that goes up, or to a neighbour."""
    known = modules(root)
    floor_of, let_through = contract(pyproject)
    packages = {name.split(".")[1] for name in known if "." in name}
    for package in sorted(packages - set(floor_of)):
        yield f"{PACKAGE}/{package} has no floor: add it to the layers in pyproject.toml"
    for package in sorted(set(floor_of) - packages):
        yield f"{PACKAGE}/{package} is a layer in pyproject.toml, and is not there"
    for name, path in known.items():
        if name == PACKAGE:
            continue  # its names are imported on first use, from everywhere
        own = name.split(".")[1]
        for line, module in imports(name, path, known):
            other = module.split(".")[1]
            if other == own or own not in floor_of or f"{name} -> {module}" in let_through:
                continue
            here = f"{path.relative_to(root.parent)}:{line}"
            if other not in floor_of:
                yield f"{here}: import {other!r} from the module that has it"
            elif floor_of[other] <= floor_of[own]:
                where = "on the floor of" if floor_of[other] == floor_of[own] else "above"
                yield f"{here}: {module} is {where} {own}"


def circles(root: Path) -> Iterator[str]:
    """Yield one sentence for each group of modules of a package that import each other."""
    known = modules(root)
    graph = {
        name: {
            module
            for _line, module in imports(name, path, known)
            if module != name and (name, module) not in MAY_CLOSE_A_CIRCLE
        }
        for name, path in known.items()
        if name != PACKAGE and name.split(".")[1] not in MAY_HAVE_CIRCLES
    }
    # What imports none of the rest is in no circle; what is left after all those are taken is.
    left = dict(graph)
    while ends := [name for name, below in left.items() if not below & left.keys()]:
        for name in ends:
            del left[name]
    while tops := left.keys() - set().union(*(below & left.keys() for below in left.values())):
        for name in tops:
            del left[name]
    if left:
        yield f"these modules import each other: {', '.join(sorted(left))}"


def main() -> int:
    """Print what is wrong; the exit code is 1 when something is."""
    found = [*problems(ROOT / PACKAGE, ROOT / "pyproject.toml"), *circles(ROOT / PACKAGE)]
    for problem in found:
        print(problem)
    if not found:
        print(f"{len(modules(ROOT / PACKAGE))} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
