"""Finds a program's uses of Azure ML, line by line, and whether rayjobs supports them.

Names come from imports. Variables are followed as far as assignments and the annotations of rayjobs
allow: ``ws = Workspace.from_config()``, ``ws.get_default_datastore().upload(...)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import field
from enum import StrEnum
from pathlib import Path

from rayjobs.azureml import notebooks
from rayjobs.azureml.kinds import Holding, Kinds, Thing
from rayjobs.azureml.substituted import SUBSTITUTED
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.azureml import names
from rayjobs.injob.lazy_dataclass import dataclass

TOP = "azureml"
_PIPELINES = "pipelines"  # the key of a sentence in `names.SENTENCES`


class State(StrEnum):
    """How rayjobs supports a name."""

    SUPPORTED = "supported"
    SUBSTITUTED = "substituted"
    REFUSED = "refused"
    PIPELINES = "pipelines"  # refused, since this part of pipelines is missing; counted separately
    MISSING = "missing"


@dataclass(frozen=True)
class Use:
    """One use of a name.

    Attributes:
        line: In the file; in a notebook, in the cell.
        cell: Number of the notebook's cell; None if it is not a notebook.
        note: The replacement, or the alternative to use.
    """

    name: str
    state: State
    line: int
    cell: int | None = None
    note: str = ""

    @property
    def at(self) -> str:
        """Its location as text, such as ``cell 3, line 2``."""
        return str(self.line) if self.cell is None else f"cell {self.cell}, line {self.line}"


@dataclass
class Report:
    """The uses of one program.

    Attributes:
        problem: Why it could not be read; None if it was read.
        uses: The uses in program order; a name appears once per line.
        unread: The numbers of cells that are not Python, each with the reason.
    """

    path: Path
    problem: str | None = None
    uses: list[Use] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)

    def count(self, state: State) -> int:
        """Return how many different names are in a state."""
        return len({use.name for use in self.uses if use.state is state})

    @property
    def is_driver(self) -> bool:
        """Whether it opens a workspace; other programs are the scripts of jobs."""
        return any(use.name.startswith("Workspace.") for use in self.uses)

    @property
    def is_answered(self) -> bool:
        """Whether every name is supported, substituted or refused by name."""
        return self.problem is None and not self.count(State.MISSING)


def check(paths: list[Path]) -> list[Report]:
    """Return a report for each named file, and for each program in a folder that uses azureml.

    Raises:
        NotFoundError: there is no such path.
        UsageError: a named file is neither a script nor a notebook.
    """
    reports = []
    for path in paths:
        if path.is_dir():
            found = [check_file(one) for one in sorted(_programs(path))]
            reports += [one for one in found if one.uses or one.problem is not None]
        elif not path.exists():
            raise NotFoundError(f"there is no {path}")
        elif path.suffix not in (".py", ".ipynb"):
            raise UsageError(f"{path} is neither a Python script (.py) nor a notebook (.ipynb)")
        else:
            reports.append(check_file(path))
    return reports


def _programs(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        hidden = any(part.startswith(".") and part != "." for part in inside)
        if path.suffix in (".py", ".ipynb") and path.is_file() and not hidden:
            yield path


def check_file(path: Path) -> Report:
    """Return the report of one script or notebook."""
    report = Report(path)
    reader = _Reader(report)
    try:
        if path.suffix == ".ipynb":
            for cell, text in notebooks.cells_as_python(path):
                if TOP in text or report.uses:
                    _read_cell(reader, text, cell.number)
            for cell, text in notebooks.written_scripts(path):
                if TOP in text:
                    _read_cell(_Reader(report), text, cell.number)
        else:
            text = path.read_text(encoding="utf-8-sig", errors="replace")
            if TOP in text:
                reader.read(text)
    except (SyntaxError, UsageError) as error:
        report.problem = str(error)
    return report


def _read_cell(reader: _Reader, text: str, number: int) -> None:
    try:
        reader.read(text, cell=number)
    except SyntaxError as error:  # some cells contain placeholders that the reader fills in
        reader.report.unread.append((number, error.msg))


class _Reader(ast.NodeVisitor):
    """Reads one program, or the cells of a notebook in order."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._kinds = Kinds()
        self._variables: dict[str, Holding] = {}
        self._cell: int | None = None
        self._seen: set[tuple[str, int, int | None]] = set()

    def read(self, text: str, *, cell: int | None = None) -> None:
        """Read a program or a cell. Raises SyntaxError."""
        self._cell = cell
        self.visit(ast.parse(text))

    # -- imports -------------------------------------------------------------------------------
    def visit_Import(self, node: ast.Import) -> None:
        """Note ``import azureml.core``."""
        for alias in node.names:
            if alias.name.partition(".")[0] != TOP:
                continue
            if not names.is_module(alias.name):
                self._note(alias.name, State.MISSING, node)
            elif alias.name not in names.MODULES and (why := names.refusal(alias.name)):
                self._refused(alias.name, why, node)
            else:
                self._note(alias.name, State.SUPPORTED, node)
            bound = alias.asname or TOP
            self._variables[bound] = Holding.module(alias.name if alias.asname else TOP)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Note ``from azureml.core import Run``."""
        module = node.module or ""
        if node.level or module.partition(".")[0] != TOP:
            return
        for alias in node.names:
            if alias.name == "*":
                self._note(f"{module}.*", State.SUPPORTED, node)
                for name in names.MODULES.get(module, {}):
                    self._variables[name] = self._name(module, name, None)
                continue
            self._variables[alias.asname or alias.name] = self._name(module, alias.name, node)

    def _name(self, module: str, name: str, node: ast.AST | None) -> Holding:
        """Record a name of a module, and return its meaning."""
        full = f"{module}.{name}"
        how, value = names.provided(module, name)
        if how == "unknown" and names.is_module(full):
            if node is not None:
                self._note(full, State.SUPPORTED, node)
            return Holding.module(full)
        if node is not None:
            if how == "refused":
                self._refused(full, value, node)
            elif how == "unknown":
                self._note(full, State.MISSING, node)
            else:
                note = SUBSTITUTED.get(full) or SUBSTITUTED.get(name, "")
                self._note(full, State.SUBSTITUTED if note else State.SUPPORTED, node, note)
        return self._kinds.imported(full, value) if how == "by" else Holding.nothing()

    # -- variables -----------------------------------------------------------------------------
    def visit_Assign(self, node: ast.Assign) -> None:
        """Follow ``ws = Workspace.from_config()``; note ``env.docker.enabled = True``."""
        holding = self._of(node.value)
        for target in node.targets:
            self._bind(target, holding)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Follow an annotated assignment."""
        if node.value is not None:
            self._bind(node.target, self._of(node.value))

    def visit_For(self, node: ast.For) -> None:
        """Follow ``for run in experiment.get_runs()``."""
        self._bind(node.target, self._kinds.element(self._of(node.iter)))
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_With(self, node: ast.With) -> None:
        """Follow ``with experiment.start_logging() as run``."""
        for item in node.items:
            holding = self._of(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, holding)
        for statement in node.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Read a function; its variables are local."""
        outside = dict(self._variables)
        given = node.args
        for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
            self._variables[one.arg] = Holding.nothing()
        for statement in node.body:
            self.visit(statement)
        self._variables = outside

    def _bind(self, target: ast.expr, holding: Holding) -> None:
        if isinstance(target, ast.Name):
            self._variables[target.id] = holding
        elif isinstance(target, ast.Attribute):
            self._of(target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._bind(one, Holding.nothing())
        elif isinstance(target, ast.Subscript):
            self._of(target.value)

    def generic_visit(self, node: ast.AST) -> None:
        """Infer the kind of an expression; visit the children of any other node."""
        if isinstance(node, ast.expr):
            self._of(node)
            return
        super().generic_visit(node)

    def _of(self, node: ast.expr) -> Holding:
        """Return the kind of an expression, and record its uses."""
        if isinstance(node, ast.Name):
            return self._variables.get(node.id, Holding.nothing())
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            holding = self._of(node.value)
            self._of(node.slice)
            return self._kinds.element(holding)
        if isinstance(node, (ast.Await, ast.NamedExpr)):
            holding = self._of(node.value)
            if isinstance(node, ast.NamedExpr):
                self._bind(node.target, holding)
            return holding
        if isinstance(node, ast.Lambda):
            return self._of(node.body)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                self._bind(child.target, self._kinds.element(self._of(child.iter)))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._of(child)
        return Holding.nothing()

    def _attribute(self, node: ast.Attribute) -> Holding:
        holder = self._of(node.value)
        if holder.what is Thing.MODULE:
            full = f"{holder.name}.{node.attr}"
            if names.is_module(full) and names.provided(holder.name, node.attr)[0] == "unknown":
                return Holding.module(full)
            return self._name(holder.name, node.attr, node)
        found = self._kinds.member(holder, node.attr)
        if found is None:
            return Holding.nothing()
        note = next((SUBSTITUTED[one] for one in found.names if one in SUBSTITUTED), "")
        if found.refused is not None:
            self._note(found.names[0], State.REFUSED, node, found.refused)
        elif not found.is_there:
            self._note(found.names[0], State.MISSING, node)
        else:
            self._note(found.names[0], State.SUBSTITUTED if note else State.SUPPORTED, node, note)
        return found.gives

    def _call(self, node: ast.Call) -> Holding:
        holder = self._of(node.func)
        arguments = [self._of(one) for one in node.args]
        given = {}
        for keyword in node.keywords:
            given[keyword.arg or ""] = self._of(keyword.value)
        for name in [one for one in given if one]:
            unknown = self._kinds.lacks_parameter(holder, name)
            shown = f"{holder.name}({name}=)"
            if unknown:
                self._note(shown, State.MISSING, node)
            elif shown in SUBSTITUTED:
                self._note(shown, State.SUBSTITUTED, node, SUBSTITUTED[shown])
        return self._kinds.result(holder, [*arguments, *given.values()])

    # -- the report ----------------------------------------------------------------------------
    def _refused(self, name: str, key: str, node: ast.AST) -> None:
        state = State.PIPELINES if key == _PIPELINES else State.REFUSED
        self._note(name, state, node, names.SENTENCES[key])

    def _note(self, name: str, state: State, node: ast.AST, note: str = "") -> None:
        line = getattr(node, "lineno", 0)
        key = (name, line, self._cell)
        if key not in self._seen:
            self._seen.add(key)
            self.report.uses.append(Use(name, state, line, self._cell, note))
