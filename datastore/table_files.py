"""Reads a table's files with pyarrow and applies the table's steps; the only user of pyarrow."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, csv, json, parquet

from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.expressions import rows_where
from rayjobs.datastore.table_options import TableUnreadable, TabularOptions

PATH_COLUMN = "Path"
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def read_table(
    files: Sequence[tuple[str, Path]],
    options: TabularOptions,
    partitions: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Return the table in `files` after all steps.

    Args:
        partitions: By each file's shown path, the columns from the path.

    Raises:
        TableUnreadable: a file is not such a table, or the files' columns do not match.
        InvalidReference: a step names a missing column.
    """
    wanted = _rows_needed(options.steps)
    tables: list[Any] = []
    rows = 0
    for shown, path in files:
        table = _read(shown, path, options)
        given = (partitions or {}).get(shown, {})
        for at, (name, value) in enumerate(given.items()):
            if name in table.column_names:
                raise InvalidReference(
                    f"{shown!r} has a column {name!r}, and so does partition_format; rename one of "
                    "them."
                )
            kind = pa.timestamp("ns") if isinstance(value, datetime) else pa.string()
            table = table.add_column(at, name, pa.array([value] * table.num_rows, kind))
        if options.include_path:
            column = pa.array([f"/{shown}"] * table.num_rows, pa.string())
            table = table.add_column(0, PATH_COLUMN, column)
        tables.append(table)
        rows += table.num_rows
        if wanted is not None and rows >= wanted:
            break
    if not tables:
        return pa.table({})
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableUnreadable(
            f"the files' columns do not match: {error}. Give set_column_types."
        ) from error
    for step, value in options.steps:
        whole = _do(whole, step, value)
    return whole


def with_nanoseconds(table: Any, *, fail: bool) -> Any:
    """Return the table with its date and time columns in nanoseconds, as in pandas.

    Args:
        fail: Refuse values that nanoseconds cannot hold, instead of making them null.

    Raises:
        TableUnreadable: a column has such a value.
    """
    for at, column in enumerate(table.schema):
        kind = column.type
        if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            continue
        values, zone = table.column(at), getattr(kind, "tz", None)
        if pa.types.is_date(kind):
            values = values.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
        unit = values.type.unit
        # The largest integer of each unit, before or after 1970, that 64 bits of ns hold.
        most = (2**63 - 1) // _NS[unit]
        numbers = values.cast(pa.int64())
        fits = compute.and_(
            compute.greater_equal(numbers, -most), compute.less_equal(numbers, most)
        )
        if fail and compute.all(fits).as_py() is False:
            raise TableUnreadable(
                f"column {column.name!r} has a date that 64 bits of nanoseconds cannot hold (1677 "
                f"to 2262); give out_of_range_datetime='null', or use to_arrow_table()."
            )
        held = compute.if_else(fits, values, pa.scalar(None, values.type))
        table = table.set_column(at, column.name, held.cast(pa.timestamp("ns", zone)))
    return table


def _read(shown: str, path: Path, options: TabularOptions) -> Any:
    try:
        if options.reader == "csv":
            table = _read_csv(path, options)
        elif options.reader == "parquet":
            table = parquet.read_table(path)
        elif path.stat().st_size == 0:
            table = pa.table({})
        else:
            table = json.read_json(path)
        for column, kind in options.types:
            if options.reader != "csv":
                at = _index(table, column)
                table = table.set_column(at, column, table.column(at).cast(_type(kind)))
        return table
    except (pa.ArrowException, UnicodeDecodeError, LookupError) as error:
        if isinstance(error, InvalidReference):
            raise
        raise TableUnreadable(f"{shown!r} cannot be read as {options.reader}: {error}") from error


def _read_csv(path: Path, options: TabularOptions) -> Any:
    if path.stat().st_size == 0:
        return pa.table({})
    reading = csv.ReadOptions(encoding=options.encoding)
    parsing = csv.ParseOptions(delimiter=options.separator, newlines_in_values=options.multi_line)
    names: list[str] | None = None
    if not options.header:
        probe = csv.ReadOptions(encoding=options.encoding, autogenerate_column_names=True)
        with csv.open_csv(path, read_options=probe, parse_options=parsing) as reader:
            names = [f"Column{number}" for number in range(1, len(reader.schema) + 1)]
        reading = csv.ReadOptions(encoding=options.encoding, column_names=names)
    kinds = {column: _type(kind) for column, kind in options.types}
    if not options.infer_types:
        if names is None:
            with csv.open_csv(path, read_options=reading, parse_options=parsing) as reader:
                names = list(reader.schema.names)
        kinds = {name: kinds.get(name, pa.string()) for name in names}
    converting = csv.ConvertOptions(
        column_types=kinds, strings_can_be_null=not options.empty_as_string
    )
    table = csv.read_csv(
        path, read_options=reading, parse_options=parsing, convert_options=converting
    )
    for column, _ in options.types:
        _index(table, column)
    return table


def _rows_needed(steps: Sequence[tuple[str, Any]]) -> int | None:
    """Return how many rows must be read, None for all: only take and skip limit them."""
    skipped = 0
    for step, value in steps:
        if step == "take":
            return skipped + int(value)
        if step == "skip":
            skipped += int(value)
        elif step in ("sample", "filter"):
            return None
    return None


def _do(table: Any, step: str, value: Any) -> Any:
    if step == "take":
        return table.slice(0, value)
    if step == "skip":
        return table.slice(value)
    if step == "keep":
        return table.select([_index(table, name) for name in value])
    if step == "drop":
        dropped = {_index(table, name) for name in value}
        return table.select([at for at in range(table.num_columns) if at not in dropped])
    if step == "sample":
        share, seed, rest = value
        chance = random.Random(seed)  # noqa: S311 - sampling, not secrecy
        picks = [(chance.random() < share) != rest for _ in range(table.num_rows)]
        return table.filter(pa.array(picks, pa.bool_()))
    if step == "filter":
        return rows_where(table, value)
    raise InvalidReference(f"step {step!r} of a table is unknown to this release.")


def _index(table: Any, name: str) -> int:
    at = int(table.schema.get_field_index(name))
    if at < 0:
        raise InvalidReference(
            f"the table has no column {name!r}; it has {', '.join(table.schema.names) or 'none'}."
        )
    return at


def _type(kind: str) -> Any:
    return pa.timestamp("ns") if kind.startswith("timestamp") else pa.type_for_alias(kind)
