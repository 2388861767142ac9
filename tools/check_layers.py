"""Checks that imports inside `rayjobs` only go down its layers, and form no cycles.

import-linter does not see imports inside functions of a lazy module, and its `layers` contract may
leave out typing-only imports; here every import statement counts. A module can also be named in a
string, which is imported or started later: `NAMED` lists these. The layers are in pyproject.toml
(`[tool.importlinter]`, the contract of type `layers`), from top to bottom; packages in the same
layer do not import each other.
"""

from __future__ import annotations

import ast
import functools
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
# Modules that are named in strings, so that no import statement shows them: why, then each module
# that names others. The list is exact. The names of its own modules in a package's `__init__.py`
# count as imports instead.
EVERY = "*"
NAMED = {
    "a script in a job finds the full package if it is installed there": (
        "injob.inputs: datastore.inputs",
        "injob.submitted: api.attempt_workspace",
    ),
    "a name of Azure ML is imported when a program asks for it": (
        "azureml.kinds: api.compute api.run injob.model_requests injob.offline injob.run "
        "injob.submitted",
        "injob.azureml.names: api.compute api.conda_dependencies api.configs api.environment "
        "api.estimators api.experiment api.model api.run api.run_context api.widgets "
        "api.workspace azureml.authentication azureml.compat azureml.mlflow_names "
        "azureml.opendatasets azureml.telemetry azureml.tensorboard datastore datastore.refs "
        "injob.azureml.exceptions injob.offline injob.submitted pipelines tuning tuning.policies "
        "tuning.samplers",
    ),
    "a sentence tells a program what to import first": ("injob.azureml.finder: azureml.install",),
    "it runs in a process of its own, which `python -m` starts": (
        "datastore.mountkeeper: datastore.fusemount",
        "datastore.mounts: datastore.mountkeeper",
        "target.keeper: engine.starter target.unfinished",
        "target.revive: target.background_start",
        "target.start_processes: engine.starter target.keeper",
        "target.timekeeper: pipelines.scheduling",
    ),
    "a record names the function that drives a sweep; the sweeps actor imports it": (
        "store.requests: tuning.driver_actor",
    ),
    "the kind of a record, or of what is submitted, chooses a class of a package above": (
        "api.kinds: api.interactive pipelines.runs tuning.runs",
        "tuning.config: tuning.submitted",
    ),
    "processes and pickles of earlier versions have the old names of modules": (
        f"core.aliases: {EVERY}",
    ),
}
_NAME = re.compile(rf"\b{PACKAGE}(?:\.\w+)+")


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
    for node in _nodes(path):
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
            module = _known(one, known)
            if module.startswith(f"{PACKAGE}."):
                yield node.lineno, module
            elif module == PACKAGE and one != PACKAGE:
                # `from rayjobs import Workspace` bypasses the layers.
                yield node.lineno, one


def named(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield line and module of each string that names one of ours; docstrings do not count."""
    nodes = _nodes(path)
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in docstrings:
            continue
        for text in _NAME.findall(node.value):
            module = _known(text, known)
            # A logger has the name of its own package.
            if module != PACKAGE and not f"{name}.".startswith(f"{module}."):
                yield node.lineno, module


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _known(name: str, known: dict[str, Path]) -> str:
    """Return the module that a dotted name is, or is in; empty if there is none."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _is_lazy_import(name: str, path: Path, module: str) -> bool:
    """Return whether a package names one of its own modules, to import it on first use."""
    return path.name == "__init__.py" and module.startswith(f"{name}.")


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


def unlisted_names(root: Path) -> Iterator[str]:
    """Yield one sentence for each string that names a module without an entry in `NAMED`.

    Entries that no longer match a string give a sentence, too.
    """
    known = modules(root)
    left = set()
    for lines in NAMED.values():
        for line in lines:
            source, _, targets = line.partition(": ")
            left |= {(f"{PACKAGE}.{source}", target) for target in targets.split()}
    every = {source for source, target in left if target == EVERY}
    found = set()
    for name, path in known.items():
        if name == PACKAGE:
            continue  # its names are imported on first use, from everywhere
        for line, module in named(name, path, known):
            if _is_lazy_import(name, path, module):
                continue
            edge = (name, EVERY if name in every else module.removeprefix(f"{PACKAGE}."))
            found.add(edge)
            if edge not in left:
                here = f"{path.relative_to(root.parent)}:{line}"
                yield f"{here}: a string names {module}; import it, or say why in NAMED"
    for source, target in sorted(left - found):
        yield f"NAMED in tools/check_layers.py: {source} does not name {target}"


def cycles(root: Path) -> Iterator[str]:
    """Yield one sentence for each group of modules that import each other and may not."""
    known = modules(root)
    graph = {
        name: {module for _line, module in imports(name, path, known) if module in known} - {name}
        | {one for _line, one in named(name, path, known) if _is_lazy_import(name, path, one)}
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
    root = ROOT / PACKAGE
    found = [*problems(root, ROOT / "pyproject.toml"), *unlisted_names(root), *cycles(root)]
    for problem in found:
        print(problem)
    if not found:
        print(f"{len(modules(root))} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
