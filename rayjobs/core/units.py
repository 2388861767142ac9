"""Reads durations and sizes as people write them; `rayjobs.core.text` writes them."""

from __future__ import annotations

import math
import re

from rayjobs.core.errors import UsageError
from rayjobs.injob.text import bytes_of

DURATIONS = 'write it like "6h", "30m", "1d12h", "90s", or as a number of seconds'
SIZES = 'write it like "8GiB" or "512MiB"'

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT_WORDS = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "min": "m",
    "mins": "m",
    "minute": "m",
    "minutes": "m",
    "hr": "h",
    "hrs": "h",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    "week": "w",
    "weeks": "w",
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_ORDER = "wdhms"


def parse_duration(text: str | float) -> float:
    """Return seconds: ``"6h"``, ``"30m"``, ``"1d12h"``, ``"1.5h"``, or a number of seconds.

    Raises:
        UsageError: it is not a duration.
    """
    number = _number(text)
    if number is not None:
        return number
    lowered = str(text).strip().lower()
    total, at, last = 0.0, 0, -1
    while at < len(lowered):
        part = _PART.match(lowered, at)
        unit = _UNIT_WORDS.get(part[2], part[2]) if part else ""
        order = len(_ORDER) if unit == "ms" else _ORDER.find(unit)
        if part is None or unit not in _SECONDS or order <= last:
            raise UsageError(f"{text!r} is not a valid duration; {DURATIONS}")
        total += float(part[1]) * _SECONDS[unit]
        at, last = part.end(), order
    if not lowered:
        raise UsageError(f"the duration is empty; {DURATIONS}")
    return total


def parse_size(text: str | float, *, unit: int) -> float:
    """Return a size in multiples of `unit` bytes: ``"8GiB"``, ``"512 MiB"``, ``"8GB"`` (10⁹).

    ``G`` and ``Gi`` mean GiB. A bare number counts in `unit`.

    Raises:
        UsageError: it is not a size.
    """
    number = _number(text)
    if number is not None:
        return number
    size = bytes_of(str(text))
    if size is None:
        raise UsageError(f"{text!r} is not a valid size; {SIZES}")
    return size / unit


def _number(text: str | float) -> float | None:
    if isinstance(text, bool):
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
