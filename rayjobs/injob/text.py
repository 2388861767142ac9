"""Formats durations and sizes in the same way for all messages."""

from __future__ import annotations

import math
import re
from typing import Optional

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b?)|b)", re.IGNORECASE)
_UNITS_S = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration_text(seconds: Optional[float], *, exact: bool = False) -> str:
    """Return seconds as text: ``0.4s``, ``12s``, ``3m5s``, ``2h7m``, ``4d3h``; a dash for None.

    `rayjobs.core.units.parse_duration` reads this form.

    Args:
        exact: For limits: print every unit down to the second, as in ``1d2h30m10s``. Otherwise the
            text has at most two units.
    """
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)  # the difference between two clocks may be negative
    if seconds < (60 if exact else 10):
        return f"{seconds if exact else round(seconds, 1 if seconds >= 1 else 2):g}s"
    step = 1 if exact or seconds < 3_600 else 60 if seconds < 86_400 else 3_600
    left = round(seconds / step) * step
    parts = []
    for unit, unit_s in _UNITS_S:
        if left >= unit_s:
            parts.append(f"{left // unit_s}{unit}")
            left %= unit_s
    return "".join(parts)


def size_text(size: float) -> str:
    """Return bytes as text in powers of 1024: ``812 B``, ``9.77 KiB``, ``1.5 GiB``, ``64 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1023.95 or unit == "TiB":
            break
        size /= 1024
    return f"{round(size, 2 if size < 10 else 1):g} {unit}"


def bytes_of(text: str, *, kilo: int = 1000) -> Optional[float]:
    """Return the bytes of a size with its unit: ``8GiB``, ``512 MiB``, ``8GB``, ``100b``.

    Args:
        kilo: The bytes of a ``KB``, whose powers are ``MB``, ``GB`` and ``TB``. ``K``, ``Ki`` and
            ``KiB`` are always 1024 bytes.

    Returns:
        None if it is not such a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    unit, ending = (found[2] or "").lower(), (found[3] or "").lower()
    power = "kmgt".index(unit) + 1 if unit else 0
    size = float(found[1]) * (kilo if ending == "b" else 1024) ** power
    return size if math.isfinite(size) else None
