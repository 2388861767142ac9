"""Write the signatures of Azure ML's public classes as data, read from unpacked azureml wheels.

Usage: python tools/azureml_signatures.py FOLDER > rayjobs/azureml/signatures.json

FOLDER contains the unpacked wheels (`pip download --no-deps azureml-core …`, `unzip`). They are not
imported. For each name of `rayjobs.injob.azureml.names` that the wheels define, the data has the
parameters of the constructor, and the public members with their parameters.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from rayjobs.injob.azureml import names


class Wheels:
    """The sources of all wheels, found by module."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            base = self.root.joinpath(*module.split("."))
            file = next(
                (one for one in (base / "__init__.py", base.with_suffix(".py")) if one.is_file()),
                None,
            )
            try:
                self._trees[module] = None if file is None else ast.parse(file.read_text())
            except SyntaxError:
                self._trees[module] = None
        return self._trees[module]

    def find(self, module: str, name: str, depth: int = 0) -> tuple[str, ast.AST] | None:
        """Return where a name is defined, following imports."""
        tree = self.tree(module)
        if tree is None or depth > 8:
            return None
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                return module, node
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                if (alias.asname or alias.name) == name or alias.name == "*":
                    source = self._absolute(module, node)
                    found = self.find(source, name if alias.name == "*" else alias.name, depth + 1)
                    if found is not None:
                        return found
        return None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.split(".")
        is_package = self.root.joinpath(*package, "__init__.py").is_file()
        keep = len(package) - node.level + (1 if is_package else 0)
        return ".".join([*package[:keep], *((node.module or "").split(".") if node.module else [])])

    def class_of(self, module: str, node: ast.ClassDef) -> dict[str, Any]:
        """Return the constructor and the members, including those of its bases."""
        found: dict[str, Any] = {"init": None, "members": {}}
        for base in reversed(node.bases):
            text = ast.unparse(base).rpartition(".")[2]
            above = self.find(module, text)
            if above is not None and isinstance(above[1], ast.ClassDef):
                inherited = self.class_of(above[0], above[1])
                found["init"] = inherited["init"] or found["init"]
                found["members"].update(inherited["members"])
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                decorators = {ast.unparse(one).partition("(")[0] for one in item.decorator_list}
                if item.name == "__init__":
                    found["init"] = parameters(item, method=True)
                    self._attributes(item, found)
                elif not item.name.startswith("_"):
                    is_property = any(
                        "property" in one or one.endswith(".setter") for one in decorators
                    )
                    found["members"][item.name] = (
                        None
                        if is_property
                        else parameters(item, method="staticmethod" not in decorators)
                    )
            elif isinstance(item, ast.Assign):
                for target in item.targets:
                    if isinstance(target, ast.Name) and not target.id.startswith("_"):
                        found["members"][target.id] = None
        return found

    @staticmethod
    def _attributes(init: ast.FunctionDef, found: dict[str, Any]) -> None:
        for node in ast.walk(init):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                    and not target.attr.startswith("_")
                ):
                    found["members"].setdefault(target.attr, None)


def parameters(function: ast.FunctionDef, *, method: bool) -> list[list[Any]]:
    """Return ``[name, default as source or null, kind]`` of each parameter."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    defaults += given.defaults
    found: list[list[Any]] = [
        [one.arg, None if default is None else ast.unparse(default), "positional"]
        for one, default in zip(plain, defaults, strict=True)
    ]
    if method and found:
        found = found[1:]
    if given.vararg:
        found.append([given.vararg.arg, None, "rest"])
    found += [
        [one.arg, None if default is None else ast.unparse(default), "keyword"]
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        found.append([given.kwarg.arg, None, "options"])
    return found


def main() -> int:
    root = Path(sys.argv[1])
    wheels = Wheels(root)
    versions = {}
    for metadata in sorted(root.glob("azureml_*.dist-info/METADATA")):
        text = metadata.read_text()
        name, version = (
            re.search(rf"^{key}: (.+)$", text, re.MULTILINE) for key in ("Name", "Version")
        )
        assert name and version
        versions[name[1]] = version[1]
    classes: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for module, table in sorted(names.MODULES.items()):
        for name in sorted(table):
            found = wheels.find(module, name)
            if found is None:
                continue
            where, node = found
            defined = f"{where}.{node.name}"  # type: ignore[attr-defined]
            aliases[f"{module}.{name}"] = defined
            if isinstance(node, ast.ClassDef):
                classes[defined] = wheels.class_of(where, node)
            elif isinstance(node, ast.FunctionDef):
                classes[defined] = {"init": parameters(node, method=False), "members": {}}
    lines = [f'"source": {json.dumps(versions)}']
    lines += [f'"aliases": {{\n{_lines(aliases)}\n}}', f'"classes": {{\n{_lines(classes)}\n}}']
    print("{\n" + ",\n".join(lines) + "\n}")
    return 0


def _lines(values: dict[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(values[key])}" for key in sorted(values))


if __name__ == "__main__":
    sys.exit(main())
