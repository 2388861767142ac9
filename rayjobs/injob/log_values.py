"""Checks loggable values (names, numbers, lists, rows, tables) and makes them plain JSON data.

NaN and the infinities do not exist in JSON: they are written as the texts "NaN", "Infinity" and
"-Infinity", and read back as numbers (`number_of`).
"""

from __future__ import annotations

import math
import operator
from typing import Any, Dict, List, Mapping, Optional

from rayjobs.injob.azureml.exceptions import WrongTypeError, WrongValueError

MAX_NAME = 256  # characters
MAX_TEXT = 65536  # characters of one value
MAX_RECORD = 1 << 20  # bytes of one record, as JSON

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def name_of(name: Any) -> str:
    """Return `name` if it may be the name of a metric, tag or property.

    Raises:
        TypeError: it is not text.
        ValueError: it is empty, longer than 256 characters, or holds control characters.
    """
    if not isinstance(name, str):
        raise WrongTypeError("a name must be text, not %s (%.60r)" % (type(name).__name__, name))
    if not name or name.isspace():
        raise WrongValueError("a name must not be empty; give one such as 'loss'")
    if len(name) > MAX_NAME:
        raise WrongValueError(
            "the name %.40r… has %d characters; %d are allowed. Put long text into the value, "
            "or into a file below outputs/" % (name, len(name), MAX_NAME)
        )
    if not name.isprintable():
        raise WrongValueError("the name %.80r holds control characters; leave them out" % name)
    return name


def step_of(step: Any) -> Optional[int]:
    """Return `step` as an int; None stays None.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it does not fit into 64 bits.
    """
    if step is None or type(step) is int:
        number = step
    else:
        try:
            number = operator.index(step)
        except TypeError:
            try:
                as_float = float(step)
                number = int(as_float)
                exact = number == as_float
            except (TypeError, ValueError, OverflowError):
                exact = False
                number = 0
            if not exact:
                raise WrongTypeError("a step must be a whole number, not %.60r" % (step,)) from None
    if number is not None and not -(1 << 63) <= number < 1 << 63:
        raise WrongValueError("the step %d does not fit into 64 bits" % number)
    return number


def scalar_of(value: Any, what: str) -> Any:
    """Return `value` as a JSON scalar: number, bool or text (NaN and infinities as text).

    Scalars of numpy and torch count as the numbers they hold. None is allowed only in rows and
    tables (see `cell_of`).

    Raises:
        TypeError: it is not a scalar; the message names the right call.
        ValueError: the text is too long.
    """
    kind = type(value)
    if kind is float:
        return value if value - value == 0.0 else _not_finite(value)
    if kind is bool:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else scalar_of(_as_float(value), what)
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise WrongValueError(
                "%s is a text of %d characters; %d are allowed. Write it to a file below "
                "outputs/ instead" % (what, len(value), MAX_TEXT)
            )
        # A lone surrogate cannot be written as UTF-8, and NUL breaks some stores.
        return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    if isinstance(value, float):
        return scalar_of(float(value), what)
    if isinstance(value, int):
        return scalar_of(int(value), what)
    if isinstance(value, (list, tuple, range, set, frozenset)) or hasattr(value, "__next__"):
        raise WrongTypeError(
            "%s is a %s, but log() takes one number; use log_list(name, values), or log() "
            "once per value" % (what, kind.__name__)
        )
    if isinstance(value, Mapping):
        raise WrongTypeError(
            "%s is a mapping, but log() takes one number; use log_row(name, a=…, b=…) or "
            "log_table(name, {…})" % what
        )
    if value is None or isinstance(value, (bytes, bytearray, memoryview)):
        raise WrongTypeError("%s is %s; a number or a text can be logged" % (what, _shown(value)))
    return _foreign(value, what)


def _foreign(value: Any, what: str) -> Any:
    """Return a scalar of numpy, torch, decimal or fractions: by ``item()``, else by ``float()``."""
    plain = value
    item = getattr(value, "item", None)
    try:
        plain = item() if callable(item) else float(value)
    except Exception as exc:  # any error of a foreign type means that it is not one number
        raise WrongTypeError(
            "%s is a %s that does not hold one number (%s); log a number, or use log_list"
            % (what, type(value).__name__, exc)
        ) from None
    if isinstance(plain, (bool, int, float, str)):
        return scalar_of(plain, what)
    raise WrongTypeError("%s is %s; a number or a text can be logged" % (what, _shown(value)))


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _not_finite(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _shown(value: Any) -> str:
    return "None" if value is None else "a %s" % type(value).__name__


def number_of(value: Any) -> Any:
    """Return the number that a written value stands for, or the value itself."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, list):
        return [number_of(item) for item in value]
    if isinstance(value, dict):
        return {key: number_of(item) for key, item in value.items()}
    return value


def cell_of(value: Any, what: str) -> Any:
    """Return a scalar of a row or table; None means an empty cell."""
    return None if value is None else scalar_of(value, what)


def list_of(values: Any, what: str) -> List[Any]:
    """Return `values` as a list of scalars. Raises TypeError when they are nested."""
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not hasattr(values, "__iter__"):
        raise WrongTypeError("%s must be a list of numbers, not %s" % (what, _shown(values)))
    to_list = getattr(values, "tolist", None)
    items = to_list() if callable(to_list) else values
    if not hasattr(items, "__iter__"):
        items = [items]
    return [cell_of(item, "%s[%d]" % (what, index)) for index, item in enumerate(items)]


def row_of(columns: Mapping[str, Any], what: str) -> Dict[str, Any]:
    """Return one row: column name → scalar."""
    if not columns:
        raise WrongValueError("%s has no columns; give at least one, e.g. x=1" % what)
    return {
        name_of(column): cell_of(value, "%s[%r]" % (what, column))
        for column, value in columns.items()
    }


def table_of(columns: Any, what: str) -> Dict[str, Any]:
    """Return a table: column name → list of scalars of one length, or a scalar."""
    if not isinstance(columns, Mapping):
        raise WrongTypeError(
            "%s must be a mapping of column to values, not %s" % (what, _shown(columns))
        )
    if not columns:
        raise WrongValueError("%s has no columns" % what)
    table: Dict[str, Any] = {}
    lengths = {}
    for column, values in columns.items():
        at = "%s[%r]" % (what, column)
        is_scalar = isinstance(values, (str, bytes)) or not hasattr(values, "__iter__")
        if is_scalar or getattr(values, "ndim", 1) == 0:
            table[name_of(column)] = cell_of(values, at)
        else:
            items = list_of(values, at)
            table[name_of(column)] = items
            lengths[column] = len(items)
    if len(set(lengths.values())) > 1:
        raise WrongValueError(
            "the columns of %s differ in length: %s"
            % (what, ", ".join("%s has %d" % pair for pair in lengths.items()))
        )
    return table


def json_of(value: Any, what: str, depth: int = 0) -> Any:
    """Return nested data (such as a confusion matrix) as plain JSON data."""
    if depth > 20:
        raise WrongValueError("%s is nested more than 20 deep" % what)
    if isinstance(value, Mapping):
        return {str(key): json_of(item, what, depth + 1) for key, item in value.items()}
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        value = to_list()
    if isinstance(value, (list, tuple)):
        return [json_of(item, what, depth + 1) for item in value]
    return cell_of(value, what)
