"""Search spaces: named expressions, read from and written to HyperDrive's wire form."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rayjobs.core.errors import Problem
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning import expressions
from rayjobs.tuning.errors import SweepError, joined, problem
from rayjobs.tuning.expressions import KINDS, Expression

Parameters = Mapping[str, Any]  # a trial's parameters: given key → JSON value


def stripped(key: str) -> str:
    """Return the key without leading dashes: ``--lr``, ``-lr`` and ``lr`` are one parameter."""
    return key.lstrip("-")


@dataclass(frozen=True)
class SearchSpace(Mapping[str, Expression]):
    """Parameters and their expressions, in the given order and with the given keys.

    Two keys that differ only in leading dashes are refused, since both would be the same argument
    of the script.
    """

    expressions: Mapping[str, Expression]

    def __getitem__(self, key: str) -> Expression:
        return self.expressions[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.expressions)

    def __len__(self) -> int:
        return len(self.expressions)

    def __hash__(self) -> int:
        return hash(frozenset(self.expressions))

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_space, (self.to_wire(),)

    def to_wire(self) -> dict[str, list[Any]]:
        """Return ``{key: [name, [args]]}``, plain JSON data that `parse_space` reads back."""
        return {key: expression.to_wire() for key, expression in self.expressions.items()}


def parse_space(given: object) -> SearchSpace:
    """Return the search space written in `given`.

    Args:
        given: Key → expression, where an expression is what `choice`, `uniform` … return, the
            wire form ``["uniform", [0, 1]]``, or ``{"uniform": [0, 1]}`` as users write it in a
            file.

    Raises:
        SweepError: lists every parameter that is wrong, with its key as the path.
    """
    if isinstance(given, SearchSpace):
        return given
    if not isinstance(given, Mapping):
        raise problem("", f"a search space is a mapping, but {given!r} is not.", _SPACE_EXAMPLE)
    if not given:
        raise problem("", "the search space is empty, so there is nothing to try.", _SPACE_EXAMPLE)
    problems: list[Problem] = []
    parsed: dict[str, Expression] = {}
    seen: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(key, str) or not stripped(key) or any(c in key for c in " =\t\n"):
            problems.append(
                Problem(
                    str(key),
                    f"the key {key!r} cannot be an argument's name.",
                    "Use the script's own, with or without --, e.g. --learning-rate.",
                )
            )
            continue
        if stripped(key) in seen:
            problems.append(
                Problem(
                    key,
                    f"{seen[stripped(key)]!r} and {key!r} are the same argument.",
                    "Remove one of them.",
                )
            )
            continue
        seen[stripped(key)] = key
        try:
            parsed[key] = parse_expression(value)
        except SweepError as found:
            problems.extend(joined(key, found))
    if problems:
        raise SweepError(problems=problems)
    return SearchSpace(MappingProxyType(parsed))


def parse_expression(given: object) -> Expression:
    """Return the expression in `given` (an expression, its wire form, or a one-entry mapping).

    Raises:
        SweepError: no such expression, or it does not take these arguments.
    """
    if isinstance(given, Expression):
        return given
    name, args = _name_and_args(given)
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=1)
        raise problem(
            "",
            f"there is no expression {name!r}.",
            f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(KINDS)}.",
        )
    function = getattr(expressions, name)
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        takes = ", ".join(inspect.signature(function).parameters)
        raise problem(
            "", f"{name} got {len(args)} arguments: {args!r}.", f"It takes {name}({takes})."
        ) from None
    found = function(*args)
    assert isinstance(found, Expression)
    return found


_SPACE_EXAMPLE = "Give at least one parameter, e.g. {'--lr': ['loguniform', [-9, -2]]}."
_EXPRESSION_EXAMPLE = "Write e.g. ['uniform', [0.1, 0.9]] or ['choice', [[16, 32, 64]]]."


def _name_and_args(given: object) -> tuple[str, list[Any]]:
    if isinstance(given, Mapping) and len(given) == 1:
        [(name, args)] = given.items()
        # {randint: 8} is as clear as {randint: [8]}.
        listed = list(args) if isinstance(args, list | tuple) else [args]
        return str(name), listed
    if (
        isinstance(given, Sequence)
        and not isinstance(given, str)
        and len(given) == 2
        and isinstance(given[0], str)
        and isinstance(given[1], list | tuple)
    ):
        return given[0], list(given[1])
    if isinstance(given, list | tuple):
        raise problem(
            "",
            f"{given!r} is a list of values, not an expression.",
            f"Write ['choice', [{list(given)!r}]] to try each of them.",
        )
    raise problem("", f"{given!r} is a fixed value, not an expression.", _EXPRESSION_EXAMPLE)
