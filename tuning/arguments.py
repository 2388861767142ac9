"""A trial's command line: the base job's arguments, overridden by the sampled values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rayjobs.tuning.space import Parameters, stripped


def override_arguments(base: Sequence[Any], parameters: Parameters) -> tuple[Any, ...]:
    """Return `base` with the sampled values in place of the values of the same arguments.

    ``--lr 0.1`` and ``--lr=0.1`` are replaced in place (repeats are removed); arguments that `base`
    lacks are appended as ``--key value``, or with the dashes of the given key. Everything after a
    lone ``--`` is left unchanged. Items that are not text (data references) are passed through
    untouched.

    Args:
        base: The base job's flat argument list.
        parameters: A trial's parameters; keys with or without leading dashes.
    """
    wanted = {stripped(key): (key, as_text(value)) for key, value in parameters.items()}
    done: set[str] = set()
    result: list[Any] = []
    items = list(base)
    tail: list[Any] = []
    if "--" in items:
        cut = items.index("--")
        items, tail = items[:cut], items[cut:]
    position = 0
    while position < len(items):
        item = items[position]
        position += 1
        if not _is_option(item):
            result.append(item)
            continue
        option, equals, _ = item.partition("=")
        name = stripped(option)
        if name not in wanted:
            result.append(item)
            continue
        if not equals and position < len(items) and not _is_option(items[position]):
            position += 1  # its old value
        if name in done:
            continue
        done.add(name)
        value = wanted[name][1]
        result.extend([f"{option}={value}"] if equals else _pair(option, value))
    for name, (key, value) in wanted.items():
        if name not in done:
            result.extend(_pair(key if key.startswith("-") else f"--{key}", value))
    return (*result, *tail)


def override_script_params(
    base: Mapping[str, Any] | None, parameters: Parameters
) -> dict[str, Any]:
    """Return an estimator's `script_params`, overridden by the sampled values.

    Keys are compared without leading dashes; the base's spelling of a key is kept.
    """
    result = dict(base or {})
    spelling = {stripped(key): key for key in result}
    for key, value in parameters.items():
        known = spelling.get(stripped(key))
        result[known or (key if key.startswith("-") else f"--{key}")] = value
    return result


def as_text(value: Any) -> str:
    """Return a sampled value as the script sees it: numbers exactly, lists and dicts as JSON."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    return str(value)


def _pair(option: str, value: str) -> list[str]:
    # argparse treats "-1e-05" after a space as an option (it accepts -1 and -0.5, but no
    # exponents).
    if value.startswith("-") and not _is_plain_negative(value):
        return [f"{option}={value}"]
    return [option, value]


def _is_plain_negative(text: str) -> bool:
    return text[1:].replace(".", "", 1).isdigit()


def _is_option(item: Any) -> bool:
    if not isinstance(item, str) or not item.startswith("-") or item == "-":
        return False
    try:
        float(item)
    except ValueError:
        return True
    return False
