"""The code, arguments and parameters of jobs for image models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError, UsageError
from rayjobs.images.component.imagemodels import parameters
from rayjobs.images.component.imagemodels.errors import ParameterOutOfRangeError
from rayjobs.images.component.imagemodels.names import NETWORKS as NETWORKS

COMPONENT = Path(__file__).parent / "component"
"""The folder that such jobs pack, so that each run keeps the code that it ran."""


def checked_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parameters, converted to their types.

    Raises:
        SpecError: parameters are out of range; lists all of them.
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


# Options of the script `train.py` that are not parameters of Azure ML's component.
SETTINGS = (
    "image_size", "augmentation", "cache", "threads", "checkpoint_every", "precision", "compile",
    "gradient_parts", "register", "onnx",
)  # fmt: skip


def check_names(given: Iterable[str], settings: Iterable[str]) -> None:
    """Check the names of a training's parameters and settings.

    Raises:
        UsageError: a name does not exist; lists the existing ones.
    """
    for kind, names, known, other, others in (
        ("parameters", given, tuple(parameters.BY_NAME), "settings", SETTINGS),
        ("settings", settings, SETTINGS, "parameters", tuple(parameters.BY_NAME)),
    ):
        for name in names:
            if name in others:
                raise UsageError(f"{name} is given in `{kind}`; it belongs in `{other}`")
            if name not in known:
                raise UsageError(f"{name!r} is not one of the {kind}: {', '.join(known)}")


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
