"""`TabularDataset`: a table read from CSV, Parquet or JSON lines, by pyarrow, when it is asked for.

Source: Azure ML SDK v1, `azureml.data.TabularDataset` and `azureml.data.dataset_factory`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.catalogue import DatasetRecord, DatastoreRecord
from rayjobs.datastore.datasets import (
    AbstractDataset,
    FileDataset,
    FileDatasetFactory,
    collect_sources,
    refuse_partition_format,
    target_of,
)
from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.reading import local_files
from rayjobs.datastore.sources import Source
from rayjobs.datastore.table_options import TabularOptions

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
    """A table; nothing is read before its rows are asked for."""

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
        """Return a table that has each row with `probability`; the same for the same `seed`."""
        return self._step("sample", [_checked_share(probability), _seed(seed), False])

    def random_split(self, percentage: float, seed: int | None = None) -> tuple[Self, Self]:
        """Return two tables: about `percentage` (0 to 1) of the rows, and the rest."""
        share, fixed = _checked_share(percentage), _seed(seed)
        return self._step("sample", [share, fixed, False]), self._step(
            "sample", [share, fixed, True]
        )

    def keep_columns(self, columns: str | Sequence[str], validate: bool = False) -> Self:
        """Return the table of these columns. With `validate` missing ones are found now."""
        return self._columns("keep", columns, validate)

    def drop_columns(self, columns: str | Sequence[str], validate: bool = False) -> Self:
        """Return the table without these columns. With `validate` missing ones are found now."""
        return self._columns("drop", columns, validate)

    def _columns(self, step: str, columns: str | Sequence[str], validate: bool) -> Self:
        names = [columns] if isinstance(columns, str) else list(columns)
        narrowed = self._step(step, names)
        if validate:
            narrowed.take(1).to_arrow_table()
        return narrowed

    # --- rows ---

    def to_arrow_table(self, *, cache_root: Path | None = None) -> pyarrow.Table:
        """Read the table.

        Remote files are fetched through the cache at `cache_root` (default: the user's).

        Raises:
            TableUnreadable: a file is not such a table, or the files' columns differ in type.
            DatastoreError: a file cannot be had.
        """
        from rayjobs.datastore.table_files import read_table

        return read_table(local_files(self, cache_root), self._options)

    def to_pandas_dataframe(
        self, on_error: str = "null", out_of_range_datetime: str = "null"
    ) -> pandas.DataFrame:
        """Read the table as a pandas data frame; dates and times become datetime64[ns].

        Args:
            out_of_range_datetime: What becomes of a date that 64 bits of nanoseconds cannot hold
                (before 1677 or after 2262): null, or fail.

        Raises:
            TableUnreadable: a date is out of range, with "fail"; and as `to_arrow_table`.
        """
        from rayjobs.datastore.table_files import with_nanoseconds

        for value in (on_error, out_of_range_datetime):
            if value not in ("null", "fail"):
                raise InvalidReference(f"{value!r} must be 'null' or 'fail'.")
        table = with_nanoseconds(self.to_arrow_table(), fail=out_of_range_datetime == "fail")
        return table.to_pandas(date_as_object=False)

    def to_csv_files(self, folder: str | Path) -> FileDataset:
        """Write the table as one CSV file to a local folder; return the dataset of it."""
        import pyarrow.csv

        return self._written(folder, "part-0.csv", pyarrow.csv.write_csv)

    def to_parquet_files(self, folder: str | Path) -> FileDataset:
        """Write the table as one Parquet file to a local folder; return the dataset of it."""
        import pyarrow.parquet

        return self._written(folder, "part-0.parquet", pyarrow.parquet.write_table)

    def _written(self, folder: str | Path, name: str, write: Any) -> FileDataset:
        target = Path(folder).expanduser()
        target.mkdir(parents=True, exist_ok=True)
        write(self.to_arrow_table(), target / name)
        return FileDatasetFactory.from_files(target / name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.to_arrow_table().to_batches():
            yield from batch.to_pylist()


@with_absent("Dataset.Tabular")
class TabularDatasetFactory:
    """Makes tables; reached as `Dataset.Tabular`."""

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

        `set_column_types` gives a column a type: int, float, bool, string or datetime. With
        `header=False` columns are called Column1, Column2, ….

        Raises:
            InvalidReference: `path` or an option cannot be understood.
            DataNotFound, TableUnreadable: found now with `validate`.
        """
        refuse_partition_format(partition_format)
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
        refuse_partition_format(partition_format)
        options = TabularOptions(
            "parquet", include_path=include_path, types=_types(set_column_types)
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
        refuse_partition_format(partition_format)
        if invalid_lines != "error":
            raise InvalidReference("invalid_lines other than 'error' is not supported.")
        options = TabularOptions(
            "json",
            include_path=include_path,
            encoding=encoding,
            types=_types(set_column_types),
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
        *,
        create_new_version: bool = True,
    ) -> TabularDataset:
        """Store a data frame as Parquet at `target` and register it in the datastore's workspace.

        `target` is a tuple (datastore, path).
        """
        import tempfile
        import uuid

        store, path = target_of(target)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{uuid.uuid4().hex}.parquet"
            dataframe.to_parquet(file)
            store.upload_files([file], folder, path, show_progress=show_progress)
            stored = f"{path}/{file.name}".lstrip("/")
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
    for column, kind in (given or {}).items():
        text = kind.__name__ if isinstance(kind, type) else str(kind).lower()
        if text not in TYPES:
            raise InvalidReference(
                f"column {column!r} cannot have type {kind!r}; use one of {', '.join(TYPES)}."
            )
        known.append((column, TYPES[text]))
    return tuple(known)


def _seed(seed: int | None) -> int:
    # A table is read again whenever it is asked for; its rows must then be the same ones.
    return random.SystemRandom().randrange(2**31) if seed is None else seed


def _checked_count(count: int) -> int:
    if count < 0:
        raise InvalidReference(f"count must be 0 or more, not {count}.")
    return count


def _checked_share(share: float) -> float:
    if not 0 <= share <= 1:
        raise InvalidReference(f"a share must be between 0 and 1, not {share}.")
    return share
