"""`TabularDataset`: a table that pyarrow reads lazily from CSV, Parquet or JSON lines.

Source: Azure ML SDK v1, `azureml.data.TabularDataset` and `azureml.data.dataset_factory`.
"""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.abstract_dataset import AbstractDataset
from rayjobs.datastore.catalogue import DatasetRecord, DatastoreRecord
from rayjobs.datastore.datasets import FileDataset, FileDatasetFactory, collect_sources, target_of
from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.expressions import Expression, checked_condition, column
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.partitions import TIMES, PartitionFormat, folder_for
from rayjobs.datastore.reading import local_files
from rayjobs.datastore.sources import Source
from rayjobs.datastore.table_options import TabularOptions
from rayjobs.injob.azureml.exceptions import DatasetTimestampMissingError

if TYPE_CHECKING:
    import pandas
    import pyarrow

TYPES = {
    "string": "string",
    "str": "string",
    "int": "int64",
    "long": "int64",
    "float": "float64",
    "double": "float64",
    "bool": "bool",
    "datetime": "timestamp[ns]",
}


@with_absent("TabularDataset")
class TabularDataset(AbstractDataset):
    """A table; nothing is read before its rows are requested."""

    kind = "tabular"

    def __init__(
        self,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None = None,
        *,
        options: TabularOptions,
    ) -> None:
        super().__init__(sources, records, manifest, registered)
        self._options = options
        given = options.partition_format
        self._partitions = PartitionFormat.parse(given) if given else None

    @property
    def partition_format(self) -> PartitionFormat | None:
        """How columns are extracted from the files' paths; None if they are not."""
        return self._partitions

    def __getitem__(self, key: str) -> Expression:
        """Return a column, for `filter`: `table["age"] > 30`."""
        return column(key)

    @classmethod
    def rebuilt(
        cls,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None,
        options: Mapping[str, Any],
    ) -> TabularDataset:
        """See `AbstractDataset`."""
        steps = TabularOptions.from_json(options)
        return cls(sources, records, manifest, registered, options=steps)

    def options(self) -> dict[str, Any]:
        """See `AbstractDataset`."""
        return self._options.to_json()

    def _again(self, manifest: Manifest | None, *, registered: DatasetRecord | None = None) -> Self:
        return type(self)(self._sources, self._records, manifest, registered, options=self._options)

    def _step(self, name: str, value: Any) -> Self:
        options = replace(self._options, steps=(*self._options.steps, (name, value)))
        return type(self)(self._sources, self._records, self._manifest, options=options)

    # --- steps ---

    def take(self, count: int) -> Self:
        """Return the table of the first `count` rows."""
        return self._step("take", _checked_count(count))

    def skip(self, count: int) -> Self:
        """Return the table without the first `count` rows."""
        return self._step("skip", _checked_count(count))

    def take_sample(self, probability: float, seed: int | None = None) -> Self:
        """Return a table that has each row with `probability`, the same for the same `seed`."""
        return self._step("sample", [_checked_share(probability), _seed(seed), False])

    def random_split(self, percentage: float, seed: int | None = None) -> tuple[Self, Self]:
        """Return two tables: about `percentage` (0 to 1) of the rows, and the rest."""
        share, fixed = _checked_share(percentage), _seed(seed)
        return self._step("sample", [share, fixed, False]), self._step(
            "sample", [share, fixed, True]
        )

    def keep_columns(self, columns: str | Sequence[str], validate: bool = False) -> Self:
        """Return the table of these columns. With `validate`, check now that they exist."""
        return self._columns("keep", columns, validate)

    def drop_columns(self, columns: str | Sequence[str], validate: bool = False) -> Self:
        """Return the table without these columns. With `validate`, check now that they exist."""
        return self._columns("drop", columns, validate)

    def _columns(self, step: str, columns: str | Sequence[str], validate: bool) -> Self:
        names = [columns] if isinstance(columns, str) else list(columns)
        narrowed = self._step(step, names)
        timed = [
            one if one and (one in names) == (step == "keep") else None
            for one in self.timestamp_columns
        ]
        if (*timed,) != self.timestamp_columns:
            narrowed = narrowed.with_timestamp_columns(timed[0], timed[1])
        if validate:
            narrowed.take(1).to_arrow_table()
        return narrowed

    def filter(self, expression: Any) -> Self:
        """Return the table of the rows for which a condition is true.

        `table.filter((table["age"] > 30) & (table["town"] == "Ulm"))`. Rows in which a compared
        value is empty are left out; `table["town"].is_null()` finds them.

        Raises:
            InvalidReference: it is not a condition on columns; or, when rows are requested, a
                column is missing or has another type.
        """
        return self._step("filter", checked_condition(expression))

    # --- times ---

    @property
    def timestamp_columns(self) -> tuple[str | None, str | None]:
        """The columns with the time of a row, and with the time of its partition."""
        return self._options.timestamp, self._options.partition_timestamp

    def with_timestamp_columns(
        self,
        timestamp: str | None = None,
        partition_timestamp: str | None = None,
        validate: bool = False,
        fine_grain_timestamp: str | None = None,
        coarse_grain_timestamp: str | None = None,
    ) -> Self:
        """Return the table with columns for `time_before` and similar methods; None removes one.

        Args:
            timestamp: The column of each row's time.
            partition_timestamp: The coarser column from `partition_format`; `time_before` and
                similar methods use it if there is no `timestamp`.
            validate: Check now that they are time columns.
            fine_grain_timestamp: The earlier name of `timestamp`.
            coarse_grain_timestamp: The earlier name of `partition_timestamp`.

        Raises:
            InvalidReference: one is not a time column (with `validate`), or a column is given by
                both its old and its new name.
        """
        older = (fine_grain_timestamp, coarse_grain_timestamp)
        if any(older):
            if timestamp or partition_timestamp:
                raise InvalidReference(
                    "timestamp and partition_timestamp replace fine_grain_timestamp and "
                    "coarse_grain_timestamp: give the columns only by the new names"
                )
            timestamp, partition_timestamp = older
        options = replace(
            self._options, timestamp=timestamp, partition_timestamp=partition_timestamp
        )
        timed = type(self)(
            self._sources, self._records, self._manifest, self._registered, options=options
        )
        if validate:
            timed._check_times(*(one for one in (timestamp, partition_timestamp) if one))
        return timed

    def time_before(
        self, end_time: datetime, include_boundary: bool = True, validate: bool = True
    ) -> Self:
        """Return the table of the rows up to a time; a time without a zone is in UTC.

        Args:
            include_boundary: Keep rows of exactly that time.
            validate: Check now that the table has a time column.

        Raises:
            DatasetTimestampMissingError: `with_timestamp_columns` named no column.
            InvalidReference: the column does not hold times (with `validate`).
        """
        at = self._time_column(validate)
        return self.filter(at <= end_time if include_boundary else at < end_time)

    def time_after(
        self, start_time: datetime, include_boundary: bool = True, validate: bool = True
    ) -> Self:
        """Return the table of the rows from a time on. Args and raises: as `time_before`."""
        at = self._time_column(validate)
        return self.filter(at >= start_time if include_boundary else at > start_time)

    def time_between(
        self,
        start_time: datetime,
        end_time: datetime,
        include_boundary: bool = True,
        validate: bool = True,
    ) -> Self:
        """Return the table of the rows between two times. Args and raises: as `time_before`."""
        later = self.time_after(start_time, include_boundary, validate)
        return later.time_before(end_time, include_boundary, validate=False)

    def time_recent(
        self, time_delta: timedelta, include_boundary: bool = True, validate: bool = True
    ) -> Self:
        """Return the table of the rows of the last `time_delta`, counted back from this call.

        Args and raises: as `time_before`.
        """
        start = datetime.now(UTC).replace(tzinfo=None) - time_delta
        return self.time_after(start, include_boundary, validate)

    def _time_column(self, validate: bool) -> Expression:
        name = next((one for one in self.timestamp_columns if one), None)
        if name is None:
            raise DatasetTimestampMissingError(
                "this table has no time column; set it first: "
                "table.with_timestamp_columns('COLUMN')."
            )
        if validate:
            self._check_times(name)
        return column(name)

    def _check_times(self, *names: str) -> None:
        import pyarrow as pa

        schema = self.take(1).to_arrow_table().schema
        for name in names:
            at = schema.get_field_index(name)
            if at < 0 or not pa.types.is_temporal(schema.field(at).type):
                kind = "none" if at < 0 else schema.field(at).type
                raise InvalidReference(
                    f"column {name!r} holds no times (its type: {kind}); set it with "
                    f"set_column_types={{{name!r}: 'datetime'}}."
                )

    # --- rows ---

    def to_arrow_table(self, *, cache_root: Path | None = None) -> pyarrow.Table:
        """Read the table.

        Remote files are fetched through the cache at `cache_root` (default: the user's).

        Raises:
            TableUnreadable: a file is not such a table, or the files' columns differ in type.
            DatastoreError: a file is not available.
        """
        from rayjobs.datastore.table_files import read_table

        parsed = self._partitions
        given = {} if parsed is None else {one.path: parsed.values(one) for one in self.manifest}
        return read_table(local_files(self, cache_root), self._options, given)

    def to_pandas_dataframe(
        self, on_error: str = "null", out_of_range_datetime: str = "null"
    ) -> pandas.DataFrame:
        """Read the table as a pandas data frame; dates and times become datetime64[ns].

        Args:
            on_error: "null" or "fail"; has no effect here.
            out_of_range_datetime: How to handle a date that 64 bits of nanoseconds cannot hold
                (before 1677 or after 2262): "null" or "fail".

        Raises:
            TableUnreadable: a date is out of range, with "fail"; and as `to_arrow_table`.
        """
        from rayjobs.datastore.table_files import with_nanoseconds

        for value in (on_error, out_of_range_datetime):
            if value not in ("null", "fail"):
                raise InvalidReference(f"{value!r} must be 'null' or 'fail'.")
        table = with_nanoseconds(self.to_arrow_table(), fail=out_of_range_datetime == "fail")
        return table.to_pandas(date_as_object=False)

    def to_csv_files(
        self, separator: str = ",", *, folder: str | Path | None = None
    ) -> FileDataset:
        """Write the table as one CSV file to a local folder; return its dataset.

        Args:
            separator: One character between columns.
            folder: The default is a new temporary folder.

        Raises:
            InvalidReference: the separator is not one character.
        """
        import pyarrow.csv

        if not isinstance(separator, str) or len(separator) != 1:
            raise InvalidReference(
                f"the separator is one character, not {separator!r}; name a folder by folder=…."
            )
        options = pyarrow.csv.WriteOptions(delimiter=separator)

        def write(table: pyarrow.Table, target: Path) -> None:
            pyarrow.csv.write_csv(table, target, options)

        return self._written(folder, "part-0.csv", write)

    def to_parquet_files(self, folder: str | Path | None = None) -> FileDataset:
        """Write the table as one Parquet file to a local folder; return its dataset.

        Args:
            folder: The default is a new temporary folder.
        """
        import pyarrow.parquet

        return self._written(folder, "part-0.parquet", pyarrow.parquet.write_table)

    def _written(self, folder: str | Path | None, name: str, write: Any) -> FileDataset:
        target = Path(tempfile.mkdtemp(prefix="dataset-") if folder is None else folder)
        target = target.expanduser()
        target.mkdir(parents=True, exist_ok=True)
        write(self.to_arrow_table(), target / name)
        return FileDatasetFactory.from_files(target / name)

    def partition_by(
        self,
        partition_keys: Sequence[str],
        target: Any,
        name: str | None = None,
        show_progress: bool = True,
        partition_as_file_dataset: bool = False,
    ) -> AbstractDataset:
        """Store the table as Parquet, with a folder for each value of the keys; return its dataset.

        Args:
            partition_keys: Columns, for the outermost folder first; strings or times. Other values
                become strings.
            target: (datastore, path), or a DataPath; the files are in a new folder below it.
            name: Register the dataset in the datastore's workspace.
            partition_as_file_dataset: Return a dataset of files.

        Raises:
            InvalidReference: a column is missing, or a value cannot name a folder.
        """
        import pyarrow as pa
        import pyarrow.parquet

        store, path = target_of(target)
        keys, table = [*partition_keys], self.to_arrow_table()
        missing = [key for key in keys if key not in table.column_names]
        if missing or not keys:
            raise InvalidReference(
                f"partition_by needs columns of the table, not {missing or keys}; it has "
                f"{', '.join(table.column_names)}."
            )
        times = {key: pa.types.is_timestamp(table.schema.field(key).type) for key in keys}
        text = "/".join(f"{{{key}:{TIMES}}}" if times[key] else f"{{{key}}}" for key in keys)
        root = f"{path}/{uuid.uuid4().hex}".lstrip("/")
        numbered = table.append_column("\0row", pa.array(range(table.num_rows)))
        groups = numbered.group_by(keys, use_threads=False).aggregate([("\0row", "list")])
        with tempfile.TemporaryDirectory() as local:
            for group in groups.to_pylist():
                folder = folder_for({key: group[key] for key in keys})
                part = table.take(pa.array(group["\0row_list"])).drop_columns(keys)
                (Path(local) / folder).mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(part, Path(local) / folder / "part-0.parquet")
            store.upload(local, root, show_progress=show_progress)
        made: AbstractDataset
        if partition_as_file_dataset:
            made = FileDatasetFactory.from_files((store, root), partition_format=f"{text}/*")
        else:
            made = TabularDatasetFactory.from_parquet_files(
                (store, root), partition_format=f"{text}/*"
            )
        return made if name is None else made.register(store.catalogue, name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.to_arrow_table().to_batches():
            yield from batch.to_pylist()


@with_absent("Dataset.Tabular")
class TabularDatasetFactory:
    """Makes tables; accessed as `Dataset.Tabular`."""

    @staticmethod
    def from_delimited_files(
        path: Any,
        validate: bool = True,
        include_path: bool = False,
        infer_column_types: bool = True,
        set_column_types: Mapping[str, Any] | None = None,
        separator: str = ",",
        header: bool | str = True,
        partition_format: str | None = None,
        support_multi_line: bool = False,
        empty_as_string: bool = False,
        encoding: str = "utf8",
    ) -> TabularDataset:
        """Return the table in the delimited files at `path` (see `Dataset.File.from_files`).

        `set_column_types` sets the type of a column: int, float, bool, string or datetime. With
        `header=False` columns are called Column1, Column2, ….

        Raises:
            InvalidReference: `path` or an option is not understood.
            DataNotFound, TableUnreadable: found now with `validate`.
        """
        options = TabularOptions(
            "csv",
            separator=separator,
            header=bool(header) and header != "NO_HEADERS",
            encoding=encoding,
            include_path=include_path,
            infer_types=infer_column_types,
            empty_as_string=empty_as_string,
            multi_line=support_multi_line,
            types=_types(set_column_types),
            partition_format=partition_format,
        )
        return _made(path, options, validate)

    @staticmethod
    def from_parquet_files(
        path: Any,
        validate: bool = True,
        include_path: bool = False,
        set_column_types: Mapping[str, Any] | None = None,
        partition_format: str | None = None,
    ) -> TabularDataset:
        """Return the table in the Parquet files at `path`. Raises: as `from_delimited_files`."""
        options = TabularOptions(
            "parquet",
            include_path=include_path,
            types=_types(set_column_types),
            partition_format=partition_format,
        )
        return _made(path, options, validate)

    @staticmethod
    def from_json_lines_files(
        path: Any,
        validate: bool = True,
        include_path: bool = False,
        set_column_types: Mapping[str, Any] | None = None,
        partition_format: str | None = None,
        invalid_lines: str = "error",
        encoding: str = "utf8",
    ) -> TabularDataset:
        """Return the table in the JSON lines files at `path`. Raises: as `from_delimited_files`."""
        if invalid_lines != "error":
            raise InvalidReference("invalid_lines other than 'error' is not supported.")
        options = TabularOptions(
            "json",
            include_path=include_path,
            encoding=encoding,
            types=_types(set_column_types),
            partition_format=partition_format,
        )
        return _made(path, options, validate)

    @staticmethod
    def register_pandas_dataframe(
        dataframe: pandas.DataFrame,
        target: Any,
        name: str,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        show_progress: bool = True,
        row_group_size: int | None = None,
        make_target_path_unique: bool = True,
        *,
        create_new_version: bool = True,
    ) -> TabularDataset:
        """Store a data frame as Parquet at `target` and register it in the datastore's workspace.

        Args:
            target: A tuple (datastore, path), or a DataPath.
            row_group_size: Rows per group within the file; None: pyarrow's default.
            make_target_path_unique: Give the file a unique name; otherwise it is `part-0.parquet`,
                and an existing one is an error.

        Raises:
            InvalidReference: `part-0.parquet` is there already.
        """
        store, path = target_of(target)
        stem = uuid.uuid4().hex if make_target_path_unique else "part-0"
        stored = f"{path}/{stem}.parquet".lstrip("/")
        # The upload would keep the stored file, which would become the new version.
        if not make_target_path_unique and store.backend.stat(stored) is not None:
            raise InvalidReference(
                f"{store.name}/{stored} exists already; choose another path, or leave "
                f"make_target_path_unique on."
            )
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{stem}.parquet"
            dataframe.to_parquet(file, row_group_size=row_group_size)
            store.upload_files([file], folder, path, show_progress=show_progress)
        dataset = TabularDatasetFactory.from_parquet_files((store, stored))
        return dataset.register(
            store.catalogue, name, description, tags, create_new_version=create_new_version
        )


def _made(path: Any, options: TabularOptions, validate: bool) -> TabularDataset:
    sources, records = collect_sources(path)
    dataset = TabularDataset(sources, records, None, options=options)
    if validate:
        first = Manifest(dataset.manifest.files[:1])
        TabularDataset(sources, records, first, options=options).take(1).to_arrow_table()
    return dataset


def _types(given: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    known = []
    for name, kind in (given or {}).items():
        text = kind.__name__ if isinstance(kind, type) else str(kind).lower()
        if text not in TYPES:
            raise InvalidReference(
                f"column {name!r} cannot have type {kind!r}; use one of {', '.join(TYPES)}."
            )
        known.append((name, TYPES[text]))
    return tuple(known)


def _seed(seed: int | None) -> int:
    # A table is read again whenever it is requested; its rows must be the same each time.
    return random.SystemRandom().randrange(2**31) if seed is None else seed


def _checked_count(count: int) -> int:
    if count < 0:
        raise InvalidReference(f"count must be 0 or more, not {count}.")
    return count


def _checked_share(share: float) -> float:
    if not 0 <= share <= 1:
        raise InvalidReference(f"a share must be between 0 and 1, not {share}.")
    return share
