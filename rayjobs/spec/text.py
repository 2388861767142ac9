"""Reads and writes YAML and JSON texts of specs, safely and within limits.

YAML is read as version 1.2 (``yes`` and ``12:30`` are text, ``010`` is the number 10), one event
at a time, so that data beyond the limits is never built. Values under `arguments`, `environment`,
`environment_variables` and `tags` keep their original text, except for null.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import SpecError

if TYPE_CHECKING:
    import yaml

DEPTH_LIMIT = 32
VALUES_LIMIT = 20_000  # total number of values; each alias counts with all its content
TEXT_KEYS = frozenset({"arguments", "environment", "environment_variables", "tags"})

_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
        r"|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
_TAG = "tag:yaml.org,2002:"


class _Builder:
    """Builds plain data from the events of one document."""

    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self._loader: Any = loader  # its event methods have no types
        self._name = name
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def build(self) -> Any:
        import yaml

        events = self._loader
        events.get_event()  # start of the stream
        if events.check_event(yaml.StreamEndEvent):
            return None
        events.get_event()  # start of the document
        value = self._value(0, keeps_text=False)
        events.get_event()  # end of the document
        if not events.check_event(yaml.StreamEndEvent):
            raise SpecError(f"{self._name} has several documents (`---`); give only one")
        return value

    def _value(self, depth: int, *, keeps_text: bool) -> Any:
        import yaml

        event = self._loader.get_event()
        at = _at(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise SpecError(f"{self._name}, {at}: there is no anchor &{event.anchor} before it")
            value, count = self._anchors[event.anchor]
            self._count(count, at)
            return value
        before = self._values
        self._count(1, at)
        if depth > DEPTH_LIMIT:
            raise SpecError(f"{self._name}, {at}: nested deeper than {DEPTH_LIMIT} levels")
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, at, keeps_text=keeps_text)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event.tag, "seq", at)
            value = self._sequence(depth, keeps_text=keeps_text)
        else:
            self._check_tag(event.tag, "map", at)
            value = self._mapping(depth, keeps_text=keeps_text)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._values - before)
        return value

    def _sequence(self, depth: int, *, keeps_text: bool) -> list[Any]:
        import yaml

        values = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            values.append(self._value(depth + 1, keeps_text=keeps_text))
        self._loader.get_event()
        return values

    def _mapping(self, depth: int, *, keeps_text: bool) -> dict[str, Any]:
        import yaml

        values: dict[str, Any] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            at = _at(self._loader.peek_event().start_mark)
            if not self._loader.check_event(yaml.ScalarEvent):
                raise SpecError(f"{self._name}, {at}: a key must be plain text")
            key = self._value(depth + 1, keeps_text=True)
            if key in values:
                raise SpecError(f"{self._name}, {at}: the key {key!r} appears twice. Remove one")
            is_text = depth == 0 and key in TEXT_KEYS
            values[key] = self._value(depth + 1, keeps_text=keeps_text or is_text)
        self._loader.get_event()
        return values

    def _scalar(self, event: yaml.ScalarEvent, at: str, *, keeps_text: bool) -> Any:
        import yaml

        text: str = event.value
        if event.tag is not None:
            self._check_tag(event.tag, "str", at)
            return text
        if event.style is not None:
            return text  # quoted
        tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit).removeprefix(_TAG)
        if tag == "null":
            return None
        if keeps_text:
            return text
        if tag == "bool":
            return text.lower() == "true"
        if tag == "int" and len(text) < 100:
            return int(text)
        if tag in ("int", "float"):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        return text

    def _check_tag(self, tag: str | None, allowed: str, at: str) -> None:
        if tag not in (None, "!", _TAG + allowed):
            raise SpecError(
                f"{self._name}, {at}: the tag {tag!r} is not allowed. Write plain values"
            )

    def _count(self, values: int, at: str) -> None:
        self._values += values
        if self._values > VALUES_LIMIT:
            raise SpecError(
                f"{self._name}, {at}: more than {VALUES_LIMIT:,} values, including the content "
                f"of aliases. Put data in files"
            )


def _loader_class() -> type[yaml.SafeLoader]:
    import yaml  # only when a spec file is read or written

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - pyyaml's own name

    _add_resolvers(Loader)
    return Loader


def _add_resolvers(kind: Any) -> None:
    for tag, pattern, first in _RESOLVERS:
        kind.add_implicit_resolver(_TAG + tag, re.compile(rf"(?:{pattern})\Z"), first)


def _at(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def parse_yaml(text: str, name: str) -> Any:
    """Return the data of a YAML text.

    Raises:
        SpecError: the text is not valid; names the text, line and column.
    """
    import yaml

    loader = None
    try:
        loader = _loader_class()(text)
        return _Builder(loader, name).build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", {_at(mark)}" if mark else ""
        raise SpecError(f"{name}{where} is not YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        raise SpecError(
            f"{name}, line {line}, column {column} is not YAML: the character "
            f"{text[error.position]!r} is not allowed"
        ) from error
    except RecursionError as error:
        raise SpecError(f"{name} is nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()


def write_yaml(data: dict[str, Any]) -> str:
    """Return the data as a YAML text; `parse_yaml` returns equal data."""
    import yaml

    class Dumper(yaml.SafeDumper):
        # The writer must quote text that the reader would read as a number.
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - pyyaml's own name

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        # pyyaml's other styles lose some characters that it treats as line breaks.
        style = None if value.isprintable() else '"'
        return dumper.represent_scalar(_TAG + "str", value, style=style)

    _add_resolvers(Dumper)
    Dumper.add_representer(str, text)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**9)


class _WrittenFloat(float):
    """A number that remembers how it was written."""

    def __new__(cls, text: str) -> _WrittenFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


def parse_json(text: str, name: str) -> Any:
    """Return the data of a JSON text. Raises SpecError."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise SpecError(f"{name}: the key {key!r} appears twice. Remove one")
            found[key] = value
        return found

    def constant(word: str) -> Any:
        raise SpecError(f"{name}: {word} is not a JSON number")

    try:
        data = json.loads(
            text, object_pairs_hook=mapping, parse_float=_WrittenFloat, parse_constant=constant
        )
    except json.JSONDecodeError as error:
        raise SpecError(f"{name}, line {error.lineno} is not JSON: {error.msg}") from error
    except ValueError as error:
        raise SpecError(f"{name}: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{name} is nested too deeply") from error
    _check_json(data, name, depth=0)
    if isinstance(data, dict):
        for entry in TEXT_KEYS & data.keys():
            data[entry] = _as_written(data[entry])
    return data


def _check_json(value: Any, name: str, *, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise SpecError(f"{name}: nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_json(inner, name, depth=depth + 1)


def _as_written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_written(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_written(inner) for inner in value]
    if isinstance(value, _WrittenFloat):
        return value.text
    return json.dumps(value) if isinstance(value, int) else value
