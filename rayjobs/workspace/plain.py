"""Values as plain JSON by their type hints: encoded, decoded, and described as a JSON schema.

This is the form of everything that travels over HTTP. A record is an object with its fields, a
time is ISO 8601, bytes are base64, a mapping whose keys are not texts or numbers is a list of
pairs. A number that JSON cannot represent is ``{"$": "NaN"}``. Decoding checks types: a value whose
type differs from its hint is refused. A `Message` reads and writes itself.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import math
import types
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from rayjobs.core.clock import to_text
from rayjobs.injob.messages import Message, MessageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
Change = Callable[[Any], Any]
DESCRIBED_AS = "described_as"
"""The key in a field's metadata of a hint that the schema shows instead of the field's type."""
MOST_DEEP = 100
_INFINITE = (math.inf, -math.inf)
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class PlainFormError(ValueError):
    """A value does not fit its type hint."""


class _Names(dict[str, Any]):
    """Names that modules import only for type checkers; each is imported when first used."""

    def __missing__(self, name: str) -> Any:
        if name == "JobSpec":
            from rayjobs.spec.model import JobSpec

            return JobSpec
        if name == "HostRecord":
            from rayjobs.jobs.hosts import HostRecord

            return HostRecord
        if name == "ExitRecord":
            from rayjobs.injob.exit_record import ExitRecord

            return ExitRecord
        if name == "datetime":
            return datetime
        if name == "Failure":
            from rayjobs.core.failures import Failure

            return Failure
        if name in ("Catalogue", "DatasetRecord", "DatastoreRecord"):
            from rayjobs.datastore import catalogue

            return getattr(catalogue, name)
        raise KeyError(name)


def hints_of(what: Any) -> dict[str, Any]:
    """Return the type hints of a method or a class."""
    return get_type_hints(what, localns=_Names())


@cache
def fields_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a record class: the hint, and whether the field is required."""
    hints = hints_of(kind)
    if dataclasses.is_dataclass(kind):
        nothing = dataclasses.MISSING
        return {
            one.name: (
                hints[one.name],
                one.init and one.default is nothing and one.default_factory is nothing,
            )
            for one in dataclasses.fields(kind)
            if get_origin(hints[one.name]) is not ClassVar
        }
    defaults = getattr(kind, "_field_defaults", {})
    return {name: (hints[name], name not in defaults) for name in kind._fields}  # type: ignore[attr-defined]


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Message)


def _is_spec(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "model_validate_json")


def _optional(hint: Any) -> Any:
    """Return X of ``X | None``; None for other hints."""
    kinds = _kinds(hint)
    if type(None) not in kinds:
        return None
    others = tuple(one for one in kinds if one is not type(None))
    return Union[others]  # noqa: UP007 - the number of types is not known here


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union; none for other hints."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()


def _has_text_keys(key: Any) -> bool:
    return key is str or key is int or (isinstance(key, type) and issubclass(key, Enum))


# -- out -------------------------------------------------------------------------------------------
@cache
def encoder(hint: Any) -> Change:
    """Return a function that converts a value of this type to JSON data."""
    if (inner := _optional(hint)) is not None:
        change = encoder(inner)
        return lambda value: None if value is None else change(value)
    if kinds := _kinds(hint):
        of_kind = {one: encoder(one) for one in kinds}
        return lambda value: of_kind[type(value)](value)
    origin = get_origin(hint)
    if origin is not None and origin is not Literal:
        return _encoder_of_parts(origin, get_args(hint))
    if hint is datetime:
        return to_text
    if hint is bytes:
        return lambda value: base64.b64encode(value).decode("ascii")
    if hint is float or hint is Any or hint is object:
        return _loose
    if _is_spec(hint):
        return lambda value: json.loads(value.model_dump_json())
    if _is_message(hint):
        return lambda value: _loose(value.to_json())
    if _is_record(hint):
        changes = [(name, encoder(one)) for name, (one, _) in fields_of(hint).items()]
        return lambda value: {name: change(getattr(value, name)) for name, change in changes}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: value.value
    return _same


def _same(value: Any) -> Any:
    return value


def _loose(value: Any) -> Any:
    """Return strict JSON data for Python's JSON-like data with tuples or NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _loose(one) for key, one in value.items()}
    if isinstance(value, Collection) and not isinstance(value, bytes):
        return [_loose(one) for one in value]
    raise PlainFormError(f"a {type(value).__name__} cannot be sent")


def _encoder_of_parts(origin: Any, inner: tuple[Any, ...]) -> Change:
    if issubclass(origin, Mapping):
        key, one = encoder(inner[0]), encoder(inner[1])
        if _has_text_keys(inner[0]):
            return lambda value: {str(key(name)): one(each) for name, each in value.items()}
        return lambda value: [[key(name), one(each)] for name, each in value.items()]
    if origin is tuple and Ellipsis not in inner:
        changes = [encoder(one) for one in inner]
        return lambda value: [change(each) for change, each in zip(changes, value, strict=True)]
    change = encoder(inner[0])
    return lambda value: [change(each) for each in value]


# -- in --------------------------------------------------------------------------------------------
def read(kind: TypeForm[T], value: object, *, strict: bool = False) -> T:
    """Return the value of JSON data; see `decoder`.

    Raises:
        PlainFormError: the data is not of this type.
    """
    hint: Any = kind
    made: T = decoder(hint, strict)(value)
    return made


def written(kind: TypeForm[T], value: T) -> Any:
    """Return a value of this type as JSON data."""
    hint: Any = kind
    return encoder(hint)(value)


@cache
def decoder(hint: Any, strict: bool = False) -> Change:
    """Return a function that converts JSON data to this type; it raises PlainFormError.

    Args:
        strict: Refuse unknown fields of a record, for requests. In answers, later versions may add
            fields, which are ignored.
    """
    if (inner := _optional(hint)) is not None:
        change = decoder(inner, strict)
        return lambda value: None if value is None else change(value)
    if kinds := _kinds(hint):
        # Records that are distinguished by their required fields.
        ways = [decoder(one, strict) for one in kinds]
        return lambda value: _first(ways, hint, value)
    origin = get_origin(hint)
    if origin is Literal:
        return lambda value: value if value in get_args(hint) else _refuse(hint, value)
    if origin is not None:
        return _decoder_of_parts(hint, get_args(hint), strict)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if _is_spec(hint):
        return lambda value: _spec(hint, value)
    if _is_message(hint):
        return lambda value: _message(hint, value)
    if _is_record(hint):
        return _decoder_of_record(hint, strict)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: _member(hint, value)
    raise TypeError(f"{hint} has no plain form")


def _refuse(hint: Any, value: object) -> Any:
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    raise PlainFormError(f"{value!r:.60} is not of the type {name}")


def _first(ways: list[Change], hint: Any, value: Any) -> Any:
    for way in ways:
        with contextlib.suppress(PlainFormError):
            return way(value)
    return _refuse(hint, value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        _refuse(str, value)
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(str, value)
    return str(value)


def _whole(value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not -(2**63) <= value < 2**63:
        _refuse(int, value)
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, Mapping) and value.get("$") in _NUMBERS:
        return _NUMBERS[value["$"]]
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _INFINITE:
        _refuse(float, value)
    return value if isinstance(value, float) else _whole(value)


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else bool(_refuse(bool, value))


def _nothing(value: Any) -> None:
    if value is not None:
        _refuse(type(None), value)


def _time(value: Any) -> datetime:
    try:
        at = datetime.fromisoformat(_text(value))
        return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError):
        raise PlainFormError(f"{value!r:.60} is not a time such as 2026-01-31T12:00:00Z") from None


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except ValueError:
        raise PlainFormError(f"{value!r:.60} is not base64") from None


def _member(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except (ValueError, TypeError):
        known = ", ".join(str(one.value) for one in kind)
        raise PlainFormError(f"{value!r:.60} is not one of {known}") from None


def _spec(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        _refuse(kind, value)
    try:
        return kind.model_validate_json(json.dumps(_free(value)))
    except ValueError as error:  # pydantic's ValidationError is one
        raise PlainFormError(str(error)) from error


def _message(kind: type[Message], value: Any) -> Message:
    try:
        # No store keeps it: a target's answer may have any text.
        return kind.from_json(_free(value, read_text=_same))
    except MessageError as error:
        raise PlainFormError(str(error)) from None


def _free(value: Any, depth: int = 0, read_text: Change | None = None) -> Any:
    """Return JSON data of any form, after checking for values that no store keeps."""
    if depth > MOST_DEEP:
        raise PlainFormError(f"a value is nested more than {MOST_DEEP} levels deep")
    if isinstance(value, str):
        return (read_text or _text)(value)
    if isinstance(value, Mapping):
        if len(value) == 1 and value.get("$") in _NUMBERS:
            return _NUMBERS[value["$"]]
        read = read_text or _text
        return {read(key): _free(one, depth + 1, read_text) for key, one in value.items()}
    if isinstance(value, list):
        return [_free(one, depth + 1, read_text) for one in value]
    if isinstance(value, float):
        return _number(value)  # 1e999 is a valid number in JSON
    return value


_SIMPLE: dict[Any, Change] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _flag,
    type(None): _nothing,
    datetime: _time,
    bytes: _bytes,
    Any: _free,
    object: _free,
}


def _decoder_of_record(kind: type, strict: bool) -> Change:
    fields = fields_of(kind)
    changes = {name: decoder(hint, strict) for name, (hint, _) in fields.items()}
    needed = {name for name, (_, is_needed) in fields.items() if is_needed}

    def decode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            _refuse(kind, value)
        if absent := needed - value.keys():
            raise PlainFormError(f"{kind.__name__} needs {', '.join(sorted(absent))}")
        if strict and (unknown := value.keys() - changes.keys()):
            raise PlainFormError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
        given = {}
        for name, change in changes.items():
            if name in value:
                try:
                    given[name] = change(value[name])
                except PlainFormError as error:
                    raise PlainFormError(f"{name}: {error}") from None
        return kind(**given)

    return decode


def _decoder_of_parts(hint: Any, inner: tuple[Any, ...], strict: bool) -> Change:
    origin: Any = get_origin(hint)
    if issubclass(origin, Mapping):
        key, one = _key_decoder(inner[0]), decoder(inner[1], strict)

        def decode_map(value: Any) -> Any:
            if isinstance(value, Mapping) and _has_text_keys(inner[0]):
                return {key(name): one(each) for name, each in value.items()}
            is_pairs = isinstance(value, list) and all(
                isinstance(each, list) and len(each) == 2 for each in value
            )
            if not is_pairs or _has_text_keys(inner[0]):
                _refuse(hint, value)
            return {key(name): one(each) for name, each in value}

        return decode_map
    if origin is tuple and Ellipsis not in inner:
        changes = [decoder(one, strict) for one in inner]

        def decode_tuple(value: Any) -> Any:
            if not isinstance(value, list) or len(value) != len(changes):
                _refuse(hint, value)
            return tuple(change(each) for change, each in zip(changes, value, strict=True))

        return decode_tuple
    change = decoder(inner[0], strict)
    made = origin if origin in (list, frozenset) else tuple

    def decode_all(value: Any) -> Any:
        if not isinstance(value, list):
            _refuse(hint, value)
        return made([change(each) for each in value])

    return decode_all


def _key_decoder(hint: Any) -> Change:
    if hint is int:
        return lambda text: from_query(int, text)
    return decoder(hint)


def from_query(hint: Any, text: str) -> Any:
    """Return the value of an argument in a path or query, where scalars are plain text."""
    inner = _optional(hint) or hint
    if inner is int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
            raise PlainFormError(f"{text!r:.60} is not a whole number")
        return _whole(int(text))
    if inner is bool:
        if text not in ("true", "false"):
            raise PlainFormError(f"{text!r:.60} is neither true nor false")
        return text == "true"
    if inner is str or inner is datetime:
        return decoder(inner)(text)
    return decoder(hint)(json.loads(text))


def to_query(hint: Any, value: Any) -> str:
    """Return an argument as written in a query; the inverse of `from_query`."""
    inner = _optional(hint) or hint
    made = encoder(inner)(value)
    return made if isinstance(made, str) else json.dumps(made)


# -- described -------------------------------------------------------------------------------------
_DESCRIBED: dict[str, Any] = {}  # each record by its name in the document


def schema(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a type; those of records are added to `named`."""
    if (inner := _optional(hint)) is not None:
        return {"anyOf": [schema(inner, named), {"type": "null"}]}
    if kinds := _kinds(hint):
        return {"anyOf": [schema(one, named) for one in kinds]}
    origin = get_origin(hint)
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if origin is not None:
        return _schema_of_parts(origin, get_args(hint), named)
    if hint in _SCHEMAS:
        return dict(_SCHEMAS[hint])
    name = hint.__name__
    if _DESCRIBED.setdefault(name, hint) is not hint:
        raise TypeError(f"two records are called {name}: rename one, or the document mixes them up")
    if name not in named:
        named[name] = {}  # a class may refer to itself
        if _is_spec(hint):
            made = hint.model_json_schema(ref_template="#/components/schemas/{model}")
            named.update(made.pop("$defs", {}))
            named[name] = made
        elif issubclass(hint, Enum):
            named[name] = {"enum": [one.value for one in hint]}
        else:
            fields = fields_of(hint)
            shown = _described(hint)
            named[name] = {
                "type": "object",
                "properties": {
                    each: schema(shown.get(each, one), named) for each, (one, _) in fields.items()
                },
                "required": [each for each, (_, is_needed) in fields.items() if is_needed],
            }
    return {"$ref": f"#/components/schemas/{name}"}


def _described(kind: type) -> dict[str, Any]:
    """Return the hints that the schema of a record shows instead of its fields' types."""
    found = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {one.name: one.metadata[DESCRIBED_AS] for one in found if DESCRIBED_AS in one.metadata}


def _schema_of_parts(origin: Any, inner: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    if issubclass(origin, Mapping):
        if _has_text_keys(inner[0]):
            return {"type": "object", "additionalProperties": schema(inner[1], named)}
        pair = [schema(one, named) for one in inner]
        return {"type": "array", "items": _fixed(pair)}
    if origin is tuple and Ellipsis not in inner:
        return _fixed([schema(one, named) for one in inner])
    return {"type": "array", "items": schema(inner[0], named)}


def _fixed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    size = len(parts)
    return {"type": "array", "prefixItems": parts, "minItems": size, "maxItems": size}


_SCHEMAS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    float: {"anyOf": [{"type": "number"}, {"type": "object"}]},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Any: {},
    object: {},
}
