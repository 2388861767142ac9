"""Checks the types of what a client sends, before a store sees it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rayjobs.core.failures import Failure
from rayjobs.datastore.catalogue import Catalogue
from rayjobs.remote import operations
from rayjobs.spec.model import JobSpec

# Names that modules import for type checkers alone.
_NAMES = {"JobSpec": JobSpec, "Catalogue": Catalogue, "datetime": datetime, "Failure": Failure}


@cache
def hints_of(method: str) -> dict[str, Any]:
    """Return the types of a method's arguments."""
    return get_type_hints(operations.method_of(method), localns=_NAMES)


@cache
def _fields_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns=_NAMES)


def problem(hint: Any, value: object) -> str:
    """Return where a value is not of a type; empty if it is."""
    origin = get_origin(hint)
    if hint is Any or hint is object:
        return ""
    if origin in (Union, types.UnionType):
        return "" if any(not problem(one, value) for one in get_args(hint)) else _is_no(hint, value)
    if origin is Literal:
        return "" if value in get_args(hint) else _is_no(hint, value)
    if hint is None or hint is type(None):
        return "" if value is None else _is_no(hint, value)
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if is_number else _is_no(hint, value)
    if hint is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return "" if is_whole and -(2**63) <= int(str(value)) < 2**63 else _is_no(hint, value)
    if origin is None:
        if not isinstance(value, hint) or (hint is str and "\0" in str(value)):
            return _is_no(hint, value)
        return _of_fields(value) if dataclasses.is_dataclass(value) else ""
    return _of_parts(origin, get_args(hint), hint, value)


def _of_fields(value: Any) -> str:
    kind: type = type(value)
    kinds = _fields_of(kind)
    for field in dataclasses.fields(value):
        if found := problem(kinds[field.name], getattr(value, field.name)):
            return f"{field.name}: {found}"
    return ""


def _of_parts(origin: Any, inner: tuple[Any, ...], hint: Any, value: object) -> str:
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _is_no(hint, value)
        pairs = [(inner[0], key) for key in value] + [(inner[1], one) for one in value.values()]
    elif not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        return _is_no(hint, value)
    elif origin is tuple and Ellipsis not in inner:
        if len(value) != len(inner):
            return _is_no(hint, value)
        pairs = list(zip(inner, value, strict=True))
    else:
        pairs = [(inner[0], one) for one in value]
    return next((found for kind, one in pairs if (found := problem(kind, one))), "")


def _is_no(hint: Any, value: object) -> str:
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return f"{value!r:.60} is not of the type {name}"
