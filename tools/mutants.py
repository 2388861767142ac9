"""Mutants: small changes of the code, each of which switches off the handler of one fault.

A mutant names a function and what to change in it. Code is compared as syntax trees, so that
comments, line breaks and the rest of the file do not matter. `tests/faults/mutants/README.md`
describes the fields of an entry.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path("tests") / "faults" / "mutants"
CHANGES = ("never", "always", "drop", "replace", "body")

_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


class MutantError(ValueError):
    """A mutant does not fit the code: what it names is missing or ambiguous, or nothing changes."""


@dataclass(frozen=True)
class Mutant:
    """One handler switched off.

    Attributes:
        fault: Its number in the list of faults.
        handler: What is switched off, in words.
        place: ``module`` or ``module:function``; methods and inner functions with dots.
        at: Words of the comment ``# fault N: words`` on the statement to change; empty without one.
        change: One of `CHANGES`.
        code: What to change: a condition, an expression or statements; for `body`, the new body.
        by: For `replace`, the new code.
        tests: Ids of the tests that must fail under it.
    """

    fault: int
    handler: str
    place: str
    at: str
    change: str
    code: str
    by: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The number and the handler, as in lists."""
        return f"{self.fault:>3}  {self.handler}"


@dataclass(frozen=True)
class Mutation:
    """A file as a mutant changes it.

    Attributes:
        file: The file, below the root of the tree.
        module: Its syntax tree with the handler switched off.
    """

    file: Path
    module: ast.Module

    @property
    def before(self) -> str:
        """The file's code, formatted as `after` is, so that the change is all that differs."""
        return ast.unparse(_tree(_text(self.file))) + "\n"

    @property
    def after(self) -> str:
        """The file's code with the handler switched off."""
        return ast.unparse(self.module) + "\n"


def load(folder: Path) -> list[Mutant]:
    """Return all mutants of a folder's lists, by fault.

    Raises:
        MutantError: An entry has fields that do not belong together.
    """
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            found.append(_parsed(entry, path))
    return sorted(found, key=lambda mutant: mutant.fault)


def _parsed(entry: dict[str, Any], path: Path) -> Mutant:
    changes = [name for name in CHANGES if name in entry]
    expected = {"fault", "handler", "in", "tests", *changes}
    expected |= {"by"} if "replace" in entry else set()
    if len(changes) != 1 or set(entry) - {"at"} != expected:
        raise MutantError(
            f"{path.name}: {entry.get('handler')}: an entry has fault, handler, in, tests and one "
            f"of {', '.join(CHANGES)}; `replace` also needs by; at is optional"
        )
    return Mutant(
        fault=entry["fault"],
        handler=entry["handler"],
        place=entry["in"],
        at=entry.get("at", ""),
        change=changes[0],
        code=entry[changes[0]],
        by=entry.get("by", ""),
        tests=tuple(entry["tests"]),
    )


def mutation(root: Path, mutant: Mutant) -> Mutation:
    """Return the file of the tree below `root` that a mutant changes, before and after.

    Raises:
        MutantError: The mutant does not fit the code.
    """
    file = _file(root, mutant.place)
    source = _text(file)
    module = ast.parse(source)
    scope = _scope(module, mutant.place)
    assert scope is not None  # `_file` has found it
    before = ast.unparse(scope)
    if mutant.change == "body":
        _slot_of_body(scope, mutant).put(_parsed_as(ast.stmt, mutant.code))
    else:
        marker = f"fault {mutant.fault}: {mutant.at}" if mutant.at else ""
        slot = _slot(scope, mutant, _marked(scope, source, marker) if marker else None)
        slot.put(_new(slot, mutant))
    ast.fix_missing_locations(scope)
    after = ast.unparse(scope)
    if after == before:
        raise MutantError(f"{mutant.place}: the change changes nothing")
    try:
        ast.parse(after)
    except SyntaxError as error:
        raise MutantError(f"{mutant.place}: the changed code is not valid Python") from error
    return Mutation(file, module)


def fingerprint(root: Path, mutant: Mutant) -> str:
    """Return a digest of what a mutant's proof depends on; the proof is valid until it changes.

    It covers the code of `code_digest`, the file and name of the function, and the ids of the
    tests. Words do not count: neither comments and docstrings, nor the mutant's description.

    Raises:
        MutantError: The mutant does not fit the code, or a test of it does not exist.
    """
    file = _file(root, mutant.place).relative_to(root).as_posix()
    name = mutant.place.partition(":")[2]
    return _digest([file, name, *mutant.tests, code_digest(root, mutant)])


def code_digest(root: Path, mutant: Mutant) -> str:
    """Return a digest of the code that a mutant's proof depends on, in whichever files it is.

    It covers the syntax trees of the function, of the function with its handler switched off, and
    of the tests, without comments and docstrings. It does not cover fixtures and other functions.

    Raises:
        MutantError: The mutant does not fit the code, or a test of it does not exist.
    """
    changed = mutation(root, mutant)
    _remove_docstrings(changed.module)
    parts = []
    for module in (_undocumented(_text(changed.file)), changed.module):
        scope = _scope(module, mutant.place)
        assert scope is not None  # `mutation` has found it
        parts.append(ast.dump(scope))
    for test in mutant.tests:
        parts += [ast.dump(node) for node in _code_of_test(root, test)]
    return _digest(parts)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _code_of_test(root: Path, test: str) -> list[ast.AST]:
    name, *names = re.sub(r"\[.*", "", test, flags=re.DOTALL).split("::")
    own = root / name
    # A class may inherit its tests from a class in another file of its folder.
    files = [own] if len(names) == 1 else [own, *sorted(own.parent.glob("*.py"))]
    for file in files:
        if file.is_file() and (found := _by_name(_text(file)).get(names[-1])):
            return found
    raise MutantError(f"there is no test {test}")


@functools.lru_cache(maxsize=256)
def _by_name(source: str) -> dict[str, list[ast.AST]]:
    """Return what some code defines, by name, without docstrings."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(_undocumented(source)):
        if isinstance(node, _Documented) and not isinstance(node, ast.Module):
            found.setdefault(node.name, []).append(node)
    return found


@functools.lru_cache(maxsize=256)
def _undocumented(source: str) -> ast.Module:
    """Return the syntax tree of some code without docstrings; nothing may change it."""
    module = ast.parse(source)
    _remove_docstrings(module)
    return module


def _remove_docstrings(module: ast.Module) -> None:
    for node in ast.walk(module):
        if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]


# --- names ---------------------------------------------------------------------------------------


def _file(root: Path, place: str) -> Path:
    """Return the file with a place; its module may have moved inside its package."""
    path = root.joinpath(*place.partition(":")[0].split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file() and _scope(_tree(_text(file)), place) is not None:
            return file
    if ":" not in place:
        raise MutantError(f"{place}: there is no such module")
    files = sorted(path.parent.rglob("*.py"))
    holders = [file for file in files if _scope(_tree(_text(file)), place) is not None]
    if len(holders) != 1:
        raise MutantError(
            f"{place}: the module has no such name, and {len(holders)} others near it have it"
        )
    return holders[0]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.lru_cache(maxsize=256)
def _tree(source: str) -> ast.Module:
    """Return the syntax tree of some code; it is shared, so nothing may change it."""
    return ast.parse(source)


def _scope(module: ast.Module, place: str) -> ast.AST | None:
    node: ast.AST = module
    for name in filter(None, place.partition(":")[2].split(".")):
        found = [one for one in _defined(node) if one.name == name]
        if not found:
            return None
        node = found[-1]  # the last definition counts, as it does for Python
    return node


def _defined(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield what a module, class or function defines, also under conditions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _defined(child)


def _marked(scope: ast.AST, source: str, marker: str) -> ast.stmt:
    """Return the statement that has the marker's comment on its first line or the line above."""
    numbers = {
        number + line.lstrip().startswith("#")
        for number, line in enumerate(source.splitlines(), 1)
        if re.search(rf"# {re.escape(marker)}\s*$", line)
    }
    found = [
        node for node in ast.walk(scope) if isinstance(node, ast.stmt) and node.lineno in numbers
    ]
    if len(found) != 1:
        raise MutantError(f"the comment '# {marker}' marks {len(found)} statements")
    return found[0]


# --- what is changed -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slot:
    """The position of nodes in their parent; without an index, the field holds a single node."""

    parent: ast.AST
    field: str
    index: int | None
    count: int = 1

    @property
    def nodes(self) -> list[ast.AST]:
        value = getattr(self.parent, self.field)
        return [value] if self.index is None else value[self.index : self.index + self.count]

    def put(self, new: Sequence[ast.AST]) -> None:
        """Replace the nodes."""
        if self.index is not None:
            members = getattr(self.parent, self.field)
            members[self.index : self.index + self.count] = new
            if self.field == "body" and not members:
                members.append(ast.Pass())
        elif len(new) == 1:
            setattr(self.parent, self.field, new[0])
        else:
            raise MutantError(f"{ast.unparse(self.nodes[0])}: it cannot be dropped here")


def _slot(scope: ast.AST, mutant: Mutant, marked: ast.stmt | None) -> _Slot:
    """Return the one slot of a scope that the mutant names."""
    is_condition = mutant.change in ("never", "always")
    if mutant.code == "...":
        if marked is None:
            raise MutantError(f"{mutant.place}: '...' alone stands for a marked statement")
        wanted = getattr(marked, "test", None) if is_condition else marked
        found = [slot for slot in _slots(scope, 1) if slot.nodes[0] is wanted]
    else:
        inside = None if marked is None else set(ast.walk(marked))
        found = [
            slot
            for pattern in _patterns(mutant.code)
            for slot in _slots(scope, len(pattern))
            if all(_same(*pair) for pair in zip(pattern, slot.nodes, strict=True))
            if inside is None or inside.issuperset(slot.nodes)
            if not is_condition or _is_condition(slot)
        ]
    if len(found) != 1:
        raise MutantError(f"{mutant.place}: {len(found)} places match: {mutant.code}")
    return found[0]


def _slot_of_body(scope: ast.AST, mutant: Mutant) -> _Slot:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) or mutant.at:
        raise MutantError(f"{mutant.place}: body replaces that of a function")
    start = int(ast.get_docstring(scope) is not None)
    return _Slot(scope, "body", start, len(scope.body) - start)


def _slots(scope: ast.AST, count: int) -> Iterator[_Slot]:
    """Yield the positions of `count` nodes; an expression on its own counts as a statement."""
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                for index in range(len(value) - count + 1):
                    # A dictionary with `**other` in it has None among its keys.
                    if all(isinstance(one, ast.AST) for one in value[index : index + count]):
                        yield _Slot(parent, field, index, count)
            elif count == 1 and isinstance(value, ast.AST) and not isinstance(parent, ast.Expr):
                yield _Slot(parent, field, None)


def _is_condition(slot: _Slot) -> bool:
    return slot.field in ("test", "guard", "ifs") or isinstance(slot.parent, ast.BoolOp)


def _new(slot: _Slot, mutant: Mutant) -> Sequence[ast.AST]:
    if mutant.change in ("never", "always"):
        return [ast.Constant(mutant.change == "always")]
    if mutant.change == "drop":
        return []
    kinds = (ast.stmt, ast.keyword, ast.expr)
    return _parsed_as(next(kind for kind in kinds if isinstance(slot.nodes[0], kind)), mutant.by)


def _patterns(code: str) -> list[Sequence[ast.AST]]:
    """Return what code can mean: statements, an expression, a keyword with its argument."""
    found = []
    for kind in (ast.stmt, ast.expr, ast.keyword):
        try:
            found.append(_parsed_as(kind, code))
        except MutantError:
            continue
    if not found:
        raise MutantError(f"this is not valid Python: {code}")
    return found


def _parsed_as(kind: type[ast.AST], code: str) -> Sequence[ast.AST]:
    code = textwrap.dedent(code).strip()
    try:
        if kind is ast.stmt:
            # In a function: `return`, `yield` and `await` are allowed there.
            inner = ast.parse(f"async def _():\n{textwrap.indent(code, ' ')}").body[0]
            assert isinstance(inner, ast.AsyncFunctionDef)
            return inner.body
        if kind is ast.expr:
            return [ast.parse(f"({code})", mode="eval").body]
        call = ast.parse(f"_({code})", mode="eval").body
        assert isinstance(call, ast.Call)
        if len(call.keywords) == 1 and not call.args:
            return call.keywords
    except SyntaxError:
        pass
    raise MutantError(f"this is not allowed here: {code}")


# --- comparison ----------------------------------------------------------------------------------


def _same(pattern: object, found: object) -> bool:
    """Return whether code matches a pattern.

    `...` stands for any expression; as the last argument of a call for any further arguments; as
    a body for any body.
    """
    if _is_any(pattern) and isinstance(found, ast.expr):
        return True
    if isinstance(pattern, list) and isinstance(found, list):
        if len(pattern) == 1 and isinstance(pattern[0], ast.Expr) and _is_any(pattern[0].value):
            return bool(found)
        return len(pattern) == len(found) and all(map(_same, pattern, found))
    if isinstance(pattern, ast.Call) and isinstance(found, ast.Call) and _has_open_end(pattern):
        count = len(pattern.args) - 1
        return (
            _same(pattern.func, found.func)
            and len(found.args) >= count
            and _same(pattern.args[:count], found.args[:count])
            and all(any(_same(one, other) for other in found.keywords) for one in pattern.keywords)
        )
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(found) and all(
            _same(getattr(pattern, field, None), getattr(found, field, None))
            for field in pattern._fields
            if field not in ("ctx", "kind", "type_comment")
        )
    return type(pattern) is type(found) and pattern == found


def _is_any(node: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _has_open_end(call: ast.Call) -> bool:
    return bool(call.args) and _is_any(call.args[-1])
