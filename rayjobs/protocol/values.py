"""Converts records of a workspace to JSON and back: arguments and results of a job's calls.

A record is ``{"$": class, "of": {field: value}}``. Only instances of the classes listed here are
created, so received data cannot run code. Fields that a class does not know are dropped.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum

from rayjobs.core.clock import from_text, to_text
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.datastore.catalogue import DatasetRecord, DatastoreRecord
from rayjobs.injob import exit_record
from rayjobs.injob.outcomes import EndReason, Outcome
from rayjobs.jobs import hosts, queue_records, records
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import AttemptWriter, ProcessWriter
from rayjobs.store import requests
from rayjobs.workspace.blobs import Blob

_RECORDS: dict[str, type] = {
    one.__name__: one
    for one in (
        *(
            value
            for module in (records, requests, queue_records, hosts, exit_record)
            for value in vars(module).values()
            if isinstance(value, type)
            and value.__module__ == module.__name__
            and (dataclasses.is_dataclass(value) or hasattr(value, "_fields"))
        ),
        AttemptWriter,
        Blob,
        DatasetRecord,
        DatastoreRecord,
        Failure,
        ProcessWriter,
    )
}
_ENUMS: dict[str, type[Enum]] = {
    one.__name__: one
    for one in (FailureClass, JobState, Outcome, EndReason, records.AllocationState)
}


class ValueFormError(ValueError):
    """A value that cannot be sent, or data that is not an encoded value."""


def encode(value: object) -> object:
    """Return a value as JSON data.

    Raises:
        ValueFormError: its class is not listed here.
    """
    if isinstance(value, Enum):
        return {"$": type(value).__name__, "is": value.value}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes):
        return {"$": "bytes", "is": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"$": "datetime", "is": to_text(value)}
    if hasattr(value, "model_dump_json"):  # the only pydantic model that is sent
        return {"$": "JobSpec", "is": value.model_dump_json()}
    kind = type(value).__name__
    if kind in _RECORDS and type(value) is _RECORDS[kind]:
        return {"$": kind, "of": {name: encode(getattr(value, name)) for name in _names(value)}}
    if isinstance(value, Mapping):
        return {"$": "dict", "is": [[encode(key), encode(one)] for key, one in value.items()]}
    if isinstance(value, list | tuple | set | frozenset):
        kind = "tuple" if isinstance(value, tuple) else "list"
        kind = "frozenset" if isinstance(value, set | frozenset) else kind
        return {"$": kind, "is": [encode(one) for one in value]}
    raise ValueFormError(f"a {type(value).__name__} cannot be sent")


def decode(value: object) -> object:
    """Return the value of `encode`'s JSON data.

    Raises:
        ValueFormError: it is not such data.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("$"), str):
        raise ValueFormError(f"{value!r:.60} is not a value")
    kind = value["$"]
    try:
        if "of" in value:
            known = set(_fields(_RECORDS[kind]))
            given = {name: decode(one) for name, one in value["of"].items() if name in known}
            return _RECORDS[kind](**given)
        if kind in _ENUMS:
            return _ENUMS[kind](value["is"])
        return _PLAIN[kind](value["is"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueFormError(f"{value!r:.60} cannot be read as a {kind}: {error}") from error


def _names(value: object) -> list[str]:
    return _fields(type(value))


def _fields(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", ()))  # a named tuple


def _spec(text: str) -> object:
    from rayjobs.spec.model import JobSpec  # imports pydantic, which few calls need

    return JobSpec.model_validate_json(text)


_PLAIN: Mapping[str, Callable[..., object]] = {
    "bytes": base64.b64decode,
    "datetime": from_text,
    "JobSpec": _spec,
    "dict": lambda pairs: {decode(key): decode(one) for key, one in pairs},
    "list": lambda items: [decode(one) for one in items],
    "tuple": lambda items: tuple(decode(one) for one in items),
    "frozenset": lambda items: frozenset(decode(one) for one in items),
}
