"""Numbers from JSON, YAML or a caller, and for JSON. A bool is not a number here."""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard


def is_whole(value: object, *, at_least: int | None = None) -> TypeGuard[int]:
    """Return whether `value` is an int, and not below `at_least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return at_least is None or value >= at_least


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is an int or float that is finite as a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def for_json(value: Any) -> Any:
    """Return a value for JSON: NaN and the infinities as text, every other value unchanged."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
