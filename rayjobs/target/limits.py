"""A target's settings for its queue: how many jobs and GPUs, aging, backfill, preemption."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.core.files import write_private
from rayjobs.core.numbers import is_number, is_whole
from rayjobs.core.paths import TargetPaths
from rayjobs.policy import Limits
from rayjobs.target.record import load_target

log = logging.getLogger(__name__)

_NAMES = tuple(field.name for field in fields(Limits))
_SWITCHES = ("backfill", "preemption")
_WHOLE = ("jobs", "jobs_per_user")


def limits_path(target: str, *, home: Path) -> Path:
    """Return the file with a target's limits; if it does not exist, the defaults apply."""
    return TargetPaths.of(target, under=home).root / "queue.json"


def load_limits(target: str, *, home: Path) -> Limits:
    """Return a target's limits.

    Raises:
        NotFoundError: no such target.
        UsageError: the file is damaged.
    """
    load_target(target, home=home)
    return _read(limits_path(target, home=home)) or Limits()


def save_limits(target: str, limits: Limits, *, home: Path) -> None:
    """Apply limits; a running target applies them within a second.

    Raises:
        NotFoundError: no such target.
        UsageError: a limit is not a positive number.
    """
    load_target(target, home=home)
    values = asdict(limits)
    _checked(values)
    write_private(limits_path(target, home=home), json.dumps({"version": 1, **values}) + "\n")


class LimitsFile:
    """The current limits, for a caller that needs them every second. Rereads a changed file."""

    def __init__(self, target: str, *, home: Path) -> None:
        self._path = limits_path(target, home=home)
        self._seen: tuple[int, int, int] | None = None
        self._limits = Limits()

    def __call__(self) -> Limits:
        """Return the limits; if the file is damaged, log that and keep the previous limits."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            self._seen, self._limits = None, Limits()
            return self._limits
        if seen != self._seen:
            self._seen = seen
            try:
                self._limits = _read(self._path) or Limits()
            except UsageError as error:
                log.warning("%s", error)
        return self._limits


def _read(path: Path) -> Limits | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
        # A newer version may have written more; this one ignores it.
        return _checked({name: values[name] for name in _NAMES if name in values})
    except (ValueError, TypeError, KeyError, UsageError) as error:
        raise UsageError(
            f"the limits in {path} cannot be read ({error}). Remove the file, and set them "
            f"again with `rayjobs target limits`."
        ) from error


def _checked(values: dict[str, Any]) -> Limits:
    for name, value in values.items():
        if name in _SWITCHES:
            if not isinstance(value, bool):
                raise UsageError(f"{name} is {value!r}; it can be true or false.")
        elif value is not None and not _is_amount(name, value):
            kind = "a whole number" if name in _WHOLE else "a number"
            raise UsageError(f"{name} is {value!r}; give {kind} above 0, or none.")
    return Limits(**values)


def _is_amount(name: str, value: object) -> bool:
    return is_number(value) and value > 0 and (name not in _WHOLE or is_whole(value))
