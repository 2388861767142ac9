"""Conditions for `filter` on columns, such as `table["age"] > 30`, stored as JSON.

Source: Azure ML SDK v1, `azureml.data.TabularDataset.filter` and `FileDataset.filter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from rayjobs.datastore.errors import InvalidReference

if TYPE_CHECKING:
    import pyarrow as pa

_COMPARISONS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_ARITHMETIC = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_LOGIC = {"&": "and_kleene", "|": "or_kleene", "~": "invert"}
_TEXT = {
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "contains": "match_substring",
}
_OTHER = {
    "is_null": "is_null",
    "length": "utf8_length",
    "to_lower": "utf8_lower",
    "to_upper": "utf8_upper",
}


class Expression:
    """A column, a value, or a computation on them; never true or false itself.

    `filter` keeps a row if the condition is true for it. A comparison with an empty value is
    neither true nor false: `is_null` finds those rows.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tree: Sequence[Any]) -> None:
        self._tree = list(tree)

    @property
    def tree(self) -> list[Any]:
        """The expression as JSON: the operation, then its operands."""
        return self._tree

    def __bool__(self) -> bool:
        raise InvalidReference(
            "a condition on columns is neither true nor false; combine conditions with &, | and "
            "~, each in parentheses: (table['a'] > 1) & (table['b'] == 'x')."
        )

    def _with(self, operation: str, other: Any) -> Expression:
        return Expression([operation, self._tree, as_tree(other)])

    def _from(self, operation: str, other: Any) -> Expression:
        return Expression([operation, as_tree(other), self._tree])

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("==", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("!=", other)

    def __lt__(self, other: Any) -> Expression:
        return self._with("<", other)

    def __le__(self, other: Any) -> Expression:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> Expression:
        return self._with(">", other)

    def __ge__(self, other: Any) -> Expression:
        return self._with(">=", other)

    def __add__(self, other: Any) -> Expression:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Expression:
        return self._from("+", other)

    def __sub__(self, other: Any) -> Expression:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Expression:
        return self._from("-", other)

    def __mul__(self, other: Any) -> Expression:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Expression:
        return self._from("*", other)

    def __truediv__(self, other: Any) -> Expression:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self._from("/", other)

    def __and__(self, other: Any) -> Expression:
        return self._with("&", other)

    def __or__(self, other: Any) -> Expression:
        return self._with("|", other)

    def __invert__(self) -> Expression:
        return Expression(["~", self._tree])

    def is_null(self) -> Expression:
        """Return the condition that the value is empty."""
        return Expression(["is_null", self._tree])

    def starts_with(self, text: str) -> Expression:
        """Return the condition that a string begins with this prefix."""
        return self._with("starts_with", text)

    def ends_with(self, text: str) -> Expression:
        """Return the condition that a string ends with this suffix."""
        return self._with("ends_with", text)

    def contains(self, text: str) -> Expression:
        """Return the condition that a string contains this one."""
        return self._with("contains", text)

    def length(self) -> Expression:
        """Return the number of characters in a string."""
        return Expression(["length", self._tree])

    def to_lower(self) -> Expression:
        """Return a string in lower case."""
        return Expression(["to_lower", self._tree])

    def to_upper(self) -> Expression:
        """Return a string in upper case."""
        return Expression(["to_upper", self._tree])


def column(name: Any) -> Expression:
    """Return the values of a column.

    Raises:
        InvalidReference: `name` is not a string.
    """
    if not isinstance(name, str):
        raise InvalidReference(f"a column is named by a string, not by {name!r}.")
    return Expression(["column", name])


def as_tree(value: Any) -> list[Any]:
    """Return an expression or one of its values as JSON.

    Raises:
        InvalidReference: a value is not a number, string, Boolean, date, time or None.
    """
    if isinstance(value, Expression):
        return value.tree
    if hasattr(value, "to_pydatetime"):  # pandas
        value = value.to_pydatetime()
    if isinstance(value, datetime | date):
        return ["time" if isinstance(value, datetime) else "date", value.isoformat()]
    if hasattr(value, "item"):  # numpy
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    raise InvalidReference(
        f"{value!r:.80} cannot be compared with a column; use a number, a string, a date or a time."
    )


def checked_condition(expression: Any) -> list[Any]:
    """Return the JSON of the argument of `filter`.

    Raises:
        InvalidReference: it is not a condition on columns.
    """
    if not isinstance(expression, Expression):
        raise InvalidReference(
            f"filter takes a condition on columns, such as table['age'] > 30, not "
            f"{expression!r:.80}."
        )
    return expression.tree


def columns_of(tree: Sequence[Any]) -> list[str]:
    """Return each column name in an expression once."""
    if tree[0] == "column":
        return [str(tree[1])]
    inner = [name for part in tree[1:] if isinstance(part, list) for name in columns_of(part)]
    return list(dict.fromkeys(inner))


def rows_where(table: pa.Table, tree: Sequence[Any]) -> pa.Table:
    """Return the rows of a table for which a condition is true.

    Raises:
        InvalidReference: a column is missing, the types do not match, or it is not a condition.
    """
    import pyarrow as pa

    for name in columns_of(tree):
        if name not in table.column_names:
            known = ", ".join(table.column_names) or "none"
            raise InvalidReference(f"the table has no column {name!r}; it has {known}.")
    try:
        picked = _value(tree, table)
        if isinstance(picked, pa.Scalar):
            picked = pa.array([picked.as_py()] * table.num_rows, picked.type)
        if not pa.types.is_boolean(picked.type):
            raise InvalidReference(
                f"filter takes a condition; this expression gives {picked.type} values. Compare it "
                "with one."
            )
        return table.filter(picked)
    except pa.ArrowException as error:
        raise InvalidReference(
            f"the condition does not fit the columns' types: {error}. Set the types with "
            "set_column_types."
        ) from error


def _value(tree: Sequence[Any], table: pa.Table) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    operation = tree[0]
    if operation == "column":
        return table.column(tree[1])
    if operation == "value":
        return pa.scalar(tree[1])
    if operation == "time":
        return pa.scalar(datetime.fromisoformat(tree[1]))
    if operation == "date":
        return pa.scalar(datetime.combine(date.fromisoformat(tree[1]), datetime.min.time()))
    parts = [_value(part, table) for part in tree[1:]]
    if operation in _TEXT:
        pattern = parts[1].as_py() if isinstance(parts[1], pa.Scalar) else None
        if not isinstance(pattern, str):
            raise InvalidReference(f"{operation} takes a string, not {tree[2]!r:.80}.")
        return getattr(compute, _TEXT[operation])(parts[0], pattern)
    if operation in _COMPARISONS:
        parts = _in_one_zone(parts)
    for names in (_COMPARISONS, _ARITHMETIC, _LOGIC, _OTHER):
        if operation in names:
            called: Callable[..., Any] = getattr(compute, names[operation])
            if operation == "/":
                parts[0] = compute.cast(parts[0], pa.float64())
            return called(*parts)
    raise InvalidReference(f"the operation {operation!r} is unknown to this release.")


def _in_one_zone(parts: list[Any]) -> list[Any]:
    """Return both sides of a comparison with comparable times: those without a zone are in UTC."""
    import pyarrow as pa

    if not all(pa.types.is_temporal(one.type) for one in parts):
        return parts
    zoned = [getattr(one.type, "tz", None) is not None for one in parts]
    if zoned[0] == zoned[1]:
        return parts
    return [
        _without_zone(one) if has_zone else one for one, has_zone in zip(parts, zoned, strict=True)
    ]


def _without_zone(values: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    if isinstance(values, pa.Scalar):
        at = values.as_py()
        return pa.scalar(at.astimezone(UTC).replace(tzinfo=None), pa.timestamp("us"))
    unit = values.type.unit
    return compute.cast(compute.cast(values, pa.int64()), pa.timestamp(unit))
