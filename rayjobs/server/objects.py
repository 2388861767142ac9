"""Describes the object of a change for the audit: ids and names, never contents or addresses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rayjobs.remote.operations import Operation
from rayjobs.store.requests import JobChanges

MOST = 200
HIDDEN = {"by", "user", "value", "definition", "spec"}


def object_of(one: Operation, given: Mapping[str, Any], answer: Any) -> str:
    """Return what an operation made or changed, with the short arguments of the change."""
    made = answer[0] if isinstance(answer, tuple) and answer else answer
    parts = [_name_of(made)]
    shown = {*one.in_path, *HIDDEN}
    for name, value in given.items():
        if isinstance(value, JobChanges):
            parts += [_text(part, each) for part, each in vars(value).items()]
        elif name not in shown:
            parts.append(_text(name, value))
    return " ".join(part for part in parts if part)[:MOST]


def _name_of(made: Any) -> str:
    record = getattr(made, "job", made)
    record = made if isinstance(record, str) else record
    name, version = getattr(record, "name", None), getattr(record, "version", None)
    if isinstance(version, int) and isinstance(name, str):
        return f"{name}:{version}"
    found = getattr(record, "id", None)
    return found if isinstance(found, str) else ""


def _text(name: str, value: Any) -> str:
    if value is None or (value is False and name in ("release", "force")):
        return ""
    if hasattr(value, "id") and isinstance(value.id, str):
        value = value.id
    if isinstance(value, Mapping):
        return f"{name}={','.join(map(str, value))}" if value else ""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        texts = [one for one in value if isinstance(one, str)]
        return f"{name}={','.join(texts)}" if texts else ""
    if isinstance(value, str | int | float):
        return f"{name}={value}"
    return ""
