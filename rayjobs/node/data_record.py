"""The file in an attempt's folder that says where its data is and what is held for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.files import write_atomic
from rayjobs.injob import recordfiles
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)


def new(on: AttemptOnNode) -> dict[str, Any]:
    """Return the record of an attempt that has nothing yet."""
    return {"job": on.job, "attempt": on.attempt, **_empty()}


def read(path: Path) -> dict[str, Any]:
    """Return what an attempt's record says; one without data has none."""
    try:
        return {**_empty(), **recordfiles.read_json(str(path.parent), path.name)}
    except FileNotFoundError:
        return _empty()


def read_what_is_left(path: Path) -> dict[str, Any]:
    """Return what an attempt's record says; one that its job has spoilt says nothing."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        log.warning("the record %s cannot be read: %s", path, error)
        return _empty()


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record, whole or not at all."""
    write_atomic(path, json.dumps(record), mode=0o600)


def sentence_of(error: Exception) -> str:
    """Return what people are told of an error met while data was brought or stored."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _empty() -> dict[str, Any]:
    return {"inputs": {}, "outputs": {}, "held": [], "stored": [], "refused": {}}
