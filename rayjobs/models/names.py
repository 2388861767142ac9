"""The rules for names of models, versions and aliases, and filters on tags and properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.injob.model_requests import NAME
from rayjobs.jobs.records import ModelVersion


def check_name(name: str) -> str:
    """Return a model's name. Raises UsageError if it is not valid."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"a model cannot be called {name!r}; use letters, digits, '.', '_' and '-', and begin "
            f"with a letter or digit"
        )
    return name


def check_alias(alias: str) -> str:
    """Return an alias. Raises UsageError if it is not valid, or could be a version."""
    if not NAME.fullmatch(alias) or alias.isdecimal() or alias == "latest":
        raise UsageError(
            f"{alias!r} cannot be an alias; use letters, digits, '.', '_' and '-', with a letter, "
            f"and not 'latest'"
        )
    return alias


def version_of(text: Any) -> int:
    """Return a version that is given as a number or string. Raises UsageError."""
    if isinstance(text, bool) or not str(text).isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a version of a model; give a number, 1 or more")
    return int(text)


def texts(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Return keys and values as strings."""
    return {str(key): str(value) for key, value in (values or {}).items()}


def tags_of(tags: Any) -> Mapping[str, Any] | None:
    """Return tags to set. Raises UsageError if they are not a mapping."""
    if tags is None or isinstance(tags, Mapping):
        return tags
    raise UsageError(f"tags is a {type(tags).__name__}; give a mapping of strings")


def has(one: ModelVersion, tags: Any, properties: Any, run_id: str | None) -> bool:
    """Return whether a version has all requested tags and properties, and the run."""
    return (
        run_id in (None, one.run)
        and _matches(one.tags, tags)
        and _matches(one.properties, properties)
    )


def _matches(kept: Mapping[str, str], wanted: Any) -> bool:
    """Return whether all requested keys, or ``[key, value]`` pairs, are in a mapping.

    Source: Azure ML's filters.
    """
    if not wanted:
        return True
    if isinstance(wanted, Mapping):
        wanted = [[key, value] for key, value in wanted.items()]
    elif isinstance(wanted, str):
        wanted = [wanted]
    for one in wanted:
        key, value = (one, None) if isinstance(one, str) else (one[0], one[1])
        if key not in kept or (value is not None and kept[key] != str(value)):
            return False
    return True
