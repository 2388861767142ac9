"""Infers the kind of a program's expressions (class, object, method) from annotations."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Any

from rayjobs.azureml.signatures import AzureClass, azure_class
from rayjobs.core.refusing import sentence_of
from rayjobs.injob.azureml import names
from rayjobs.injob.azureml.exceptions import NotProvidedError
from rayjobs.injob.azureml.finder import load
from rayjobs.injob.lazy_dataclass import dataclass


class Thing(Enum):
    """The kind of an expression's value."""

    NOTHING = "nothing that is known"
    MODULE = "module"
    CLASS = "class"
    OBJECT = "object"
    METHOD = "method"
    MANY = "several objects"


@dataclass(frozen=True)
class Holding:
    """The value of an expression.

    Attributes:
        name: Name of the module, the class, or the method (``Run.log``).
        kind: The class; for MANY, the class of each object.
        method: The function of a METHOD.
    """

    what: Thing = Thing.NOTHING
    name: str = ""
    kind: type | None = None
    method: Any = None

    @classmethod
    def nothing(cls) -> Holding:
        """Return a value of which nothing is known."""
        return cls()

    @classmethod
    def module(cls, name: str) -> Holding:
        """Return a module."""
        return cls(Thing.MODULE, name)


@dataclass(frozen=True)
class Member:
    """A member of a class that a program uses.

    Attributes:
        names: ``Class.member``, for the class as programs know it and for each base class.
        gives: The value that it has or, for a method, the method itself.
        is_there: Whether the rayjobs class has it.
        refused: Why it is refused; None if it is not.
    """

    names: tuple[str, ...]
    gives: Holding
    is_there: bool = True
    refused: str | None = None


class Kinds:
    """Looks up members of rayjobs classes, and what they return."""

    def imported(self, full_name: str, target: str) -> Holding:
        """Return the meaning of an imported name."""
        try:
            found = load(target, full_name)
        except (NotProvidedError, AttributeError):
            return Holding.nothing()
        if isinstance(found, type):
            return Holding(Thing.CLASS, found.__name__, found)
        return Holding(Thing.METHOD, full_name.rpartition(".")[2], None, found)

    def member(self, holder: Holding, attribute: str) -> Member | None:
        """Return a member of a class or object; None if nothing is known about it."""
        if holder.kind is None or holder.what not in (Thing.CLASS, Thing.OBJECT):
            return None
        if attribute.startswith("__") or issubclass(holder.kind, (str, dict, BaseException)):
            return None
        kind = _concrete(holder.kind)
        shown = (
            f"{_shown_name(kind)}.{attribute}",
            *(f"{one.__name__}.{attribute}" for one in kind.__mro__),
        )
        found = inspect.getattr_static(kind, attribute, None)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        if found is not None and (sentence := sentence_of(found)) is not None:
            return Member(shown, Holding.nothing(), refused=sentence)
        if found is None:
            given = instance_attributes(kind)
            if attribute in given:
                return Member(shown, _object_of(given[attribute]))
            azure = _azure_of(kind)
            if azure is None or attribute not in azure.members:
                return None  # not in Azure's class either: the variable holds something else
            return Member(shown, Holding.nothing(), is_there=False)
        if isinstance(found, property):
            return Member(shown, _by_annotation(found.fget))
        if callable(found):
            if isinstance(found, type):
                return Member(shown, Holding(Thing.CLASS, found.__name__, found))
            method = Holding(Thing.METHOD, f"{_shown_name(kind)}.{attribute}", kind, found)
            return Member(shown, method)
        return Member(shown, Holding.nothing())

    def lacks_parameter(self, holder: Holding, name: str) -> bool:
        """Return whether the called rayjobs function or class lacks a parameter."""
        if holder.what is Thing.CLASS and holder.kind is not None:
            function: Any = _concrete(holder.kind).__init__  # type: ignore[misc]
        elif holder.what is Thing.METHOD:
            function = holder.method
        else:
            return False
        if function is object.__init__:
            return True
        try:
            given = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return False
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())
        return name not in given and not takes_any

    def result(self, holder: Holding, arguments: Sequence[Holding]) -> Holding:
        """Return the value of a call."""
        if holder.what is Thing.CLASS and holder.kind is not None:
            return Holding(Thing.OBJECT, holder.name, holder.kind)
        if holder.what is not Thing.METHOD:
            return Holding.nothing()
        if holder.name == "Experiment.submit":
            known = [one for one in arguments if one.what is Thing.OBJECT]
            if not known:
                return Holding.nothing()
            swept = any("HyperDrive" in one.name for one in known)
            return _object_of("HyperDriveRun" if swept else "JobRun")
        if holder.kind is not None and _returns_itself(holder.method):
            return Holding(Thing.OBJECT, holder.kind.__name__, holder.kind)
        return _by_annotation(holder.method)

    @staticmethod
    def element(holder: Holding) -> Holding:
        """Return the value of an item, as a loop or an index takes it."""
        if holder.what is Thing.MANY and holder.kind is not None:
            return Holding(Thing.OBJECT, holder.kind.__name__, holder.kind)
        return Holding.nothing()


def _concrete(kind: type) -> type:
    """Return the class whose objects a program actually gets."""
    swapped = {"ComputeTarget": "AmlCompute", "Run": "JobRun", "LoggingRun": "SubmittedRun"}
    return _classes().get(swapped.get(kind.__name__, ""), kind)


def _shown_name(kind: type) -> str:
    return {"JobRun": "Run", "SubmittedRun": "Run", "OfflineRun": "Run"}.get(
        kind.__name__, kind.__name__
    )


@cache
def _classes() -> dict[str, type]:
    """Return all classes that programs can hold, by the names that annotations use."""
    found: dict[str, type] = {}
    targets = {value for table in names.MODULES.values() for value in table.values()}
    targets |= {
        "rayjobs.api.run:JobRun",
        "rayjobs.injob.submitted:SubmittedRun",
        "rayjobs.injob.offline:OfflineRun",
        "rayjobs.injob.run:LoggingRun",
        "rayjobs.api.compute:AmlComputeStatus",
        "rayjobs.api.compute:ComputeTargets",
        "rayjobs.injob.model_requests:ModelRequest",
    }
    for target in sorted(targets):
        if target.startswith("-"):
            continue
        try:
            value = load(target, target)
        except (NotProvidedError, AttributeError):
            continue
        if isinstance(value, type):
            found.setdefault(value.__name__, value)
    return found


@cache
def _azure_names() -> dict[type, str]:
    """Return the import name of the Azure class that each rayjobs class replaces."""
    found: dict[type, str] = {}
    for module, table in names.MODULES.items():
        for name, target in table.items():
            if target.startswith("-"):
                continue
            try:
                value = load(target, name)
            except (NotProvidedError, AttributeError):
                continue
            if isinstance(value, type):
                found.setdefault(value, f"{module}.{name}")
    for own in ("JobRun", "SubmittedRun", "OfflineRun"):
        found[_classes()[own]] = "azureml.core.Run"
    return found


def _azure_of(kind: type) -> AzureClass | None:
    return azure_class(_azure_names().get(kind, ""))


def _object_of(name: str) -> Holding:
    kind = _classes().get(name)
    return Holding.nothing() if kind is None else Holding(Thing.OBJECT, kind.__name__, kind)


def _by_annotation(function: Any) -> Holding:
    annotation = getattr(function, "__annotations__", {}).get("return")
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") or ""
    try:
        tree = ast.parse(text.strip("'\""), mode="eval").body
    except SyntaxError:
        return Holding.nothing()
    return _of_annotation(tree)


def _of_annotation(tree: ast.expr) -> Holding:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return _of_annotation(ast.parse(tree.value, mode="eval").body)
    if isinstance(tree, ast.BinOp):  # ``A | None``; of two classes, either may be meant
        left, right = _of_annotation(tree.left), _of_annotation(tree.right)
        if left.what is not Thing.NOTHING and right.what is not Thing.NOTHING:
            return Holding.nothing()
        return left if left.what is not Thing.NOTHING else right
    if isinstance(tree, ast.Subscript):
        inner = tree.slice.elts[-1] if isinstance(tree.slice, ast.Tuple) else tree.slice
        found = _of_annotation(inner)
        if isinstance(tree.value, ast.Name) and tree.value.id == "Optional":
            return found
        return Holding(Thing.MANY, found.name, found.kind) if found.kind is not None else found
    name = tree.id if isinstance(tree, ast.Name) else getattr(tree, "attr", "")
    if name == "ComputeTargets":
        kind = _classes()["AmlCompute"]
        return Holding(Thing.MANY, kind.__name__, kind)
    return _object_of(name)


def _returns_itself(function: Any) -> bool:
    return getattr(function, "__annotations__", {}).get("return") in ("Self", "typing.Self")


@cache
def instance_attributes(kind: type) -> dict[str, str]:
    """Return the attributes that constructors set, with their class, or "" if unknown."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        for base in vars(one).get("__annotations__", {}):
            found.setdefault(base, "")
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            targets: list[ast.expr] = []
            value: ast.expr | None = None
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign):
                targets, value = [node.target], node.value
                annotated = _of_annotation(node.annotation)
                if annotated.kind is not None and isinstance(node.target, ast.Attribute):
                    found[node.target.attr] = annotated.kind.__name__
                    continue
            for target in targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    called = value.func if isinstance(value, ast.Call) else None
                    made = called.id if isinstance(called, ast.Name) else ""
                    if target.value.id == "self" and not found.get(target.attr):
                        found[target.attr] = made
    return found
