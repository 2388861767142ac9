"""What the jobs of image models run: their code, arguments and checked parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError
from rayjobs.images.component.imagemodels import parameters
from rayjobs.images.component.imagemodels.errors import ParameterOutOfRangeError
from rayjobs.images.component.imagemodels.names import NETWORKS as NETWORKS

COMPONENT = Path(__file__).parent / "component"
"""The folder that such jobs pack: a run keeps the code that it ran."""


def checked_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are given, with their types.

    Raises:
        SpecError: some are outside of their range; all at once.
    """
    values, problems = {}, []
    for name, value in given.items():
        if value is None or name not in parameters.BY_NAME:
            continue
        try:
            values[name] = parameters.checked(name, value)
        except ParameterOutOfRangeError as error:
            problems.append(Problem(parameters.BY_NAME[name].option, str(error)))
    if problems:
        raise SpecError(problems=problems)
    return values


def options(values: Mapping[str, Any]) -> list[Any]:
    """Return a script's arguments: ``--name value`` for each value, ``--name`` for True."""
    words: list[Any] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(value if not isinstance(value, int | float) else f"{value!r}")
    return words
