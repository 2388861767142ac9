"""The signatures of Azure ML's public classes, read from its wheels.

Source: the wheels named under ``source`` in `signatures.json`, read by
`tools/azureml_signatures.py`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass

_FILE = Path(__file__).with_name("signatures.json")


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        default: Its source text; None if the parameter has none, or cannot be given by name.
        kind: ``positional``, ``keyword``, ``rest`` (``*args``) or ``options`` (``**kwargs``).
    """

    name: str
    default: str | None
    kind: str


@dataclass(frozen=True)
class AzureClass:
    """A class in the wheels.

    Attributes:
        name: Full name, with the module that defines it.
        init: Parameters of its constructor; None if it is that of `object`.
        members: Public members: a method's parameters, None for a property or attribute.
    """

    name: str
    init: tuple[Parameter, ...] | None
    members: dict[str, tuple[Parameter, ...] | None]


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def source() -> dict[str, str]:
    """Return the version of each wheel, by name."""
    return dict(_data()["source"])


@cache
def azure_class(full_name: str) -> AzureClass | None:
    """Return a class by its import name, such as ``azureml.core.Run``; None if it is unknown."""
    defined = _data()["aliases"].get(full_name)
    values = _data()["classes"].get(defined)
    if values is None:
        return None
    return AzureClass(
        defined,
        _parameters(values["init"]),
        {name: _parameters(given) for name, given in values["members"].items()},
    )


def _parameters(given: list[list[Any]] | None) -> tuple[Parameter, ...] | None:
    return None if given is None else tuple(Parameter(*one) for one in given)
