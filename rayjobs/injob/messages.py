"""The JSON form of all messages between our processes, and of the records that they write.

The rules for versions: an unknown entry comes from a later version and is dropped. A missing entry
comes from an earlier version and takes the field's default; without a default the message is
refused. Only `Message.upgraded` converts earlier shapes to the current one. A message whose
``version`` is higher than the class reads, or with an unknown value of an enum, is refused.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import typing
from typing import Any, Callable, Dict, Mapping, Optional, Type, TypeVar, Union

One = TypeVar("One", bound="Message")
_Reader = Callable[[Any], Any]
_REQUIRED = dataclasses.MISSING
_SCALARS = (str, int, float, bool, type(None))


class MessageError(ValueError):
    """A malformed message or record; the text says what is wrong."""


class Message:
    """Base of the frozen dataclasses that our processes exchange as JSON.

    Field types are str, int, float, bool, bytes, enums of text, other messages, Optional,
    ``Tuple[X, ...]``, ``Tuple[X, Y]`` and ``Mapping[str or int, X]``; `object` takes any JSON value
    unchanged.
    """

    __slots__ = ()
    # The newest version of its JSON that a class reads. None: its entry ``version`` is the version
    # of something else, such as a model.
    READS_VERSION: typing.ClassVar[Optional[int]] = 1

    def to_json(self) -> Dict[str, Any]:
        """Return the message as plain JSON data, with every field."""
        return {name: _plain(getattr(self, name)) for name in _names(type(self))}

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert `values` of an earlier version to the current shape."""
        return values

    @classmethod
    def from_json(cls: Type[One], values: object) -> One:
        """Return the message that `to_json` of this or another version wrote.

        Raises:
            MessageError: it is not such a message, or comes from a later version; the text names
                the entry.
        """
        if type(values) is not dict and not isinstance(values, Mapping):  # the second is slow
            raise MessageError(f"{_title(cls)} is one JSON object, not {values!r:.60}")
        version, newest = values.get("version", 1), cls.READS_VERSION
        if newest is not None and (not isinstance(version, int) or version > newest):
            raise MessageError(
                f"{_title(cls)} has version {version!r}; this rayjobs reads version "
                f"{newest}. Use the same rayjobs on every node"
            )
        known = cls.upgraded(values)
        given = {}
        for name, (exact, read, default) in _fields_of(cls).items():
            if name in known:
                value = known[name]
                if type(value) is exact:  # most values; a list of jobs has thousands of them
                    given[name] = value
                    continue
                try:
                    given[name] = read(value)
                except MessageError as error:
                    raise MessageError(f"{_title(cls)}, entry {name!r}: {error}") from None
                except (TypeError, ValueError, OverflowError) as error:
                    raise MessageError(
                        f"{_title(cls)} has {value!r:.60} as its {name!r}: {error}"
                    ) from None
            elif default is _REQUIRED:
                raise MessageError(f"{_title(cls)} has no entry {name!r}")
        return cls(**given)


def read_value(kind: Any, value: object) -> Any:
    """Return a value from its JSON; `kind` is a type that a field of a message may have.

    Raises:
        MessageError: it is not such a value.
    """
    return _reader(kind)(value)


def _title(cls: type) -> str:
    """Return a class's name in words: ``ExitRecord`` → ``an exit record``."""
    words = "".join(f" {one.lower()}" if one.isupper() else one for one in cls.__name__)[1:]
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _names(cls: type) -> "list[str]":
    return [one.name for one in dataclasses.fields(cls)]


# For each class: of each field, the plain type whose values need no reader (None: all need it), the
# reader, and the default.
_KNOWN: "Dict[type, Dict[str, tuple[Optional[type], _Reader, object]]]" = {}


def prepare(cls: "Type[Message]") -> None:
    """Find out now how to read messages of this class; forks of this process need not repeat it."""
    _fields_of(cls)


def _fields_of(cls: type) -> "Dict[str, tuple[Optional[type], _Reader, object]]":
    """Return how to read each field of a class; see `_KNOWN`."""
    known = _KNOWN.get(cls)
    if known is not None:
        return known
    hints = typing.get_type_hints(cls)
    found: "Dict[str, tuple[Optional[type], _Reader, object]]" = {}
    for one in dataclasses.fields(cls):
        has_default = (one.default, one.default_factory) != (_REQUIRED, _REQUIRED)
        kind = hints[one.name]
        read = _reader(kind)
        found[one.name] = (_exact(kind), read, None if has_default else _REQUIRED)
    _KNOWN[cls] = found
    return found


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:  # most values
        return value
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return value


def _reader(kind: Any) -> _Reader:
    if kind is object:
        return _unchanged
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_union(kind):
        (other,) = (one for one in arguments if one is not type(None))
        return _optional(_reader(other))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return _several(_reader(arguments[0]))
        return _fixed([_reader(one) for one in arguments])
    if origin is not None:
        return _mapping(arguments[0], _reader(arguments[1]))
    if issubclass(kind, Message):
        return lambda value: kind.from_json(value)
    if issubclass(kind, enum.Enum):
        return lambda value: kind(value)
    return _PLAIN[kind]


def _exact(kind: Any) -> Optional[type]:
    """Return the type of JSON values that a field of this type takes unchanged, if there is one."""
    if _is_union(kind):
        (kind,) = (one for one in typing.get_args(kind) if one is not type(None))
    return kind if kind in (str, int, float, bool) else None


def _is_union(kind: Any) -> bool:
    """Whether a field may also be None: no other union is allowed."""
    origin = typing.get_origin(kind)
    return origin is Union or (origin is not None and origin.__name__ == "UnionType")


def _unchanged(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise MessageError(f"{value!r:.60} is not a text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise MessageError(f"{value!r:.60} is not a whole number")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise MessageError(f"{value!r:.60} is not a number")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MessageError(f"{value!r:.60} is not true or false")
    return value


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise MessageError(f"{value!r:.60} is not in base 64: {error}") from None


_PLAIN: "Dict[type, _Reader]" = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _truth,
    bytes: _bytes,
}


def _optional(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _several(read: _Reader) -> _Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise MessageError(f"{value!r:.60} is not a list")
        return tuple(read(one) for one in value)

    return read_all


def _fixed(readers: "list[_Reader]") -> _Reader:
    def read_each(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise MessageError(f"{value!r:.60} is not a list of {len(readers)}")
        return tuple(read(one) for read, one in zip(readers, value))

    return read_each


def _mapping(key: type, read: _Reader) -> _Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise MessageError(f"{value!r:.60} is not a JSON object")
        return {key(name): read(one) for name, one in value.items()}

    return read_all
