"""`FileDataset`: files of any format, and the factory of such datasets.

Source: Azure ML SDK v1, `azureml.data.FileDataset`, `MountContext`, `dataset_factory` and
`dataset_consumption_config`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.abstract_dataset import AbstractDataset, DatasetConsumptionConfig
from rayjobs.datastore.backends import StoredFile, open_backend
from rayjobs.datastore.catalogue import (
    DatasetRecord,
    DatastoreRecord,
)
from rayjobs.datastore.errors import (
    DataNotFound,
    InvalidReference,
)
from rayjobs.datastore.expressions import (
    Expression,
    checked_condition,
    column,
    columns_of,
    rows_where,
)
from rayjobs.datastore.kept import Tally
from rayjobs.datastore.local_mount import LocalMount
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.partitions import PartitionFormat
from rayjobs.datastore.progress import ProgressCallback, callback_for
from rayjobs.datastore.reading import Version, check_local
from rayjobs.datastore.refs import (
    DataPath,
    DataReference,
)
from rayjobs.datastore.sources import (
    Source,
    glob_pattern,
    is_url_root,
    parse_sources,
    record_for,
)
from rayjobs.datastore.stores import Datastore
from rayjobs.datastore.transfer import Download, download, files_below

_FACT = "file metadata: "  # prefix of a file's facts, as opposed to its columns
FILE_FACTS = ("Size", "Path", "CanonicalPath")


@with_absent("FileDataset")
class FileDataset(AbstractDataset):
    """A set of files, of any format."""

    kind = "file"

    def __init__(
        self,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None = None,
        *,
        partition_format: str | None = None,
    ) -> None:
        super().__init__(sources, records, manifest, registered)
        self._partitions = PartitionFormat.parse(partition_format) if partition_format else None

    @classmethod
    def rebuilt(
        cls,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None,
        options: Mapping[str, Any],
    ) -> FileDataset:
        """See `AbstractDataset`."""
        given = options.get("partition_format")
        return cls(sources, records, manifest, registered, partition_format=given)

    @property
    def partition_format(self) -> PartitionFormat | None:
        """How columns are extracted from the files' paths; None if they are not."""
        return self._partitions

    def options(self) -> dict[str, Any]:
        """See `AbstractDataset`."""
        return {} if self._partitions is None else {"partition_format": self._partitions.text}

    def _again(self, manifest: Manifest | None, *, registered: DatasetRecord | None = None) -> Self:
        given = None if self._partitions is None else self._partitions.text
        return type(self)(
            self._sources, self._records, manifest, registered, partition_format=given
        )

    def to_path(self) -> list[str]:
        """Return every file's path below the input's folder, with a leading `/`."""
        return [f"/{entry.path}" for entry in self.manifest]

    def download(
        self,
        target_path: str | Path | None = None,
        overwrite: bool = False,
        ignore_not_found: bool = False,
        *,
        show_progress: bool = True,
        progress: ProgressCallback | None = None,
    ) -> list[str]:
        """Fetch every file below `target_path` and return the local paths.

        `target_path` defaults to a new temporary folder. Existing files are kept unless
        `overwrite`, with a warning if one differs. With `ignore_not_found`, files that no longer
        exist are left out.

        Raises:
            DatastoreError: a file could not be fetched.
        """
        if target_path is None:
            target_path = tempfile.mkdtemp(prefix="dataset-")
        target = Path(target_path).expanduser()
        callback = callback_for(progress, show_progress=show_progress)
        wanted = self._part(self._existing()) if ignore_not_found else self
        wanted.fetch(target, overwrite=overwrite, progress=callback).warn("fetched")
        return [str(target / entry.path) for entry in wanted.manifest]

    def _existing(self) -> list[FileEntry]:
        found: list[FileEntry] = []
        for name in self.manifest.datastores:
            backend = open_backend(record_for(name, self._record))
            found += [
                entry
                for entry in self.manifest
                if entry.datastore == name and backend.stat(entry.key) is not None
            ]
        return found

    def fetch(self, target: Path, *, overwrite: bool, progress: ProgressCallback | None) -> Tally:
        """Like `download`, but return the counts.

        They count the files that were fetched or kept, and the kept ones that differ.

        Raises:
            DataChanged: a local file is not the one of this version.
            DatastoreError: a file could not be fetched.
        """
        total = Tally()
        for name in self.manifest.datastores:
            wanted = [
                Download(stored_file(entry), target / entry.path)
                for entry in self.manifest
                if entry.datastore == name
            ]
            backend = open_backend(record_for(name, self._record))
            if backend.local_path("") is not None:
                # Check first, so that no file of a damaged version is fetched, and the error is the
                # same as in a job.
                for entry in self.manifest:
                    if entry.datastore == name:
                        check_local(entry, backend, Version.of(self))
            total += download(backend, wanted, overwrite=overwrite, progress=progress)
        return total

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as a mounted input named by the job (`input_1`, `input_2`, …)."""
        return DatasetConsumptionConfig(None, self, "mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as a downloaded input named by the job (`input_1`, `input_2`, …)."""
        return DatasetConsumptionConfig(None, self, "download", path_on_compute)

    def mount(self, mount_point: str | Path | None = None) -> LocalMount:
        """Return a context manager in which the files are below `mount_point` on this machine.

        `mount_point` defaults to a new temporary folder: `with dataset.mount() as where: …`.
        """
        return LocalMount(self, mount_point)

    # --- parts ---

    def take(self, count: int) -> Self:
        """Return the dataset of the first `count` files."""
        _check_count(count)
        return self._part(self.manifest.files[:count])

    def skip(self, count: int) -> Self:
        """Return the dataset without the first `count` files."""
        _check_count(count)
        return self._part(self.manifest.files[count:])

    def take_sample(self, probability: float, seed: int | None = None) -> Self:
        """Return a sample that has each file with `probability`, the same for the same `seed`."""
        _check_share(probability, "probability")
        chance = random.Random(seed)  # noqa: S311 - sampling, not secrecy
        return self._part([entry for entry in self.manifest if chance.random() < probability])

    def random_split(self, percentage: float, seed: int | None = None) -> tuple[Self, Self]:
        """Return two datasets: about `percentage` (0 to 1) of the files, and the rest."""
        _check_share(percentage, "percentage")
        chance = random.Random(seed)  # noqa: S311 - sampling, not secrecy
        first: list[FileEntry] = []
        second: list[FileEntry] = []
        for entry in self.manifest:
            (first if chance.random() < percentage else second).append(entry)
        return self._part(first), self._part(second)

    def __getitem__(self, key: str) -> Expression:
        """Return a column of `partition_format`, for `filter`: `files["country"] == "de"`."""
        return column(key)

    @staticmethod
    def file_metadata(col: str) -> Expression:
        """Return a fact of each file, for `filter`: `files.file_metadata("Size") > 1000`.

        Args:
            col: `Size` in bytes, `Path` below the input's folder, or `CanonicalPath` in its
                datastore.

        Raises:
            InvalidReference: the fact is unknown.
        """
        if col not in FILE_FACTS:
            raise InvalidReference(
                f"file_metadata({col!r}) is unknown; a dataset knows {', '.join(FILE_FACTS)}."
            )
        return column(f"{_FACT}{col}")

    def filter(self, expression: Any) -> Self:
        """Return the dataset of the files that satisfy a condition.

        Raises:
            InvalidReference: it is not a condition on `file_metadata` and partition columns.
        """
        import pyarrow as pa

        files = self.manifest.files
        columns: dict[str, list[Any]] = {
            "": [*range(len(files))],
            f"{_FACT}Size": [entry.size for entry in files],
            f"{_FACT}Path": [f"/{entry.path}" for entry in files],
            f"{_FACT}CanonicalPath": [entry.key for entry in files],
        }
        if self._partitions is not None:
            given = [self._partitions.values(entry) for entry in files]
            columns.update({key: [row[key] for row in given] for key in self._partitions.keys})
        tree = checked_condition(expression)
        for name in columns_of(tree):
            if name not in columns:
                raise InvalidReference(
                    f"the files have no column {name!r}; their partition columns are "
                    f"{', '.join(self.partition_keys) or 'none'}."
                )
        kept = rows_where(pa.table(columns), tree)
        return self._part([files[at] for at in kept.column("").to_pylist()])

    def _part(self, files: Sequence[FileEntry]) -> Self:
        return self._again(Manifest(tuple(files), self.manifest.single_file and len(files) == 1))


def stored_file(entry: FileEntry) -> StoredFile:
    """Return the stored file behind a manifest's entry."""
    return StoredFile(entry.key, entry.size, entry.etag, entry.digest)


def collect_sources(path: Any) -> tuple[tuple[Source, ...], dict[str, DatastoreRecord]]:
    """Return the sources of `path`, with the records of the datastores given as objects.

    Raises:
        InvalidReference: `path` is not understood, or gives a datastore only by name.
    """
    records: dict[str, DatastoreRecord] = {}
    for item in path if isinstance(path, list) else [path]:
        store: Any = item[0] if isinstance(item, tuple) and item else item
        if isinstance(item, DataPath | DataReference):
            store = item.datastore
        if isinstance(store, Datastore):
            records[store.name] = store.record
    sources = parse_sources(path)
    for source in sources:
        if not is_url_root(source.datastore) and source.datastore not in records:
            raise InvalidReference(
                f"datastore {source.datastore!r} is given by name; a dataset needs the Datastore "
                f"object: Datastore.get(workspace, {source.datastore!r})."
            )
    return sources, records


def target_of(target: Any) -> tuple[Datastore, str]:
    """Return the datastore and path of a destination.

    Raises:
        InvalidReference: `target` is not a path in a datastore, or gives only its datastore's name.
    """
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], Datastore):
        return target[0], str(target[1])
    if isinstance(target, Datastore):
        return target, ""
    if isinstance(target, DataPath) and isinstance(target.datastore, Datastore):
        return target.datastore, target.path_on_datastore or ""
    raise InvalidReference(
        f"{target!r} is not a destination; give (datastore, path) or a DataPath."
    )


def _check_count(count: int) -> None:
    if count < 0:
        raise InvalidReference(f"count must be 0 or more, not {count}.")


def _check_share(share: float, what: str) -> None:
    if not 0 <= share <= 1:
        raise InvalidReference(f"{what} must be between 0 and 1, not {share}.")


class FileDatasetFactory:
    """Makes file datasets; accessed as `Dataset.File`."""

    @staticmethod
    def from_files(
        path: Any,
        validate: bool = True,
        partition_format: str | None = None,
        is_file: bool = False,
    ) -> FileDataset:
        """Return the dataset of the files at `path`.

        `path` is a URL, a local path or glob, a DataPath, a DataReference, a tuple (datastore,
        path), or a list of these. With `validate` the files are listed now, otherwise on first use.
        `partition_format`, such as `{country}/{day:yyyy/MM/dd}/*.png`, describes the end of every
        file's path, and gives columns to `filter` by.

        Raises:
            DataNotFound: there is nothing at one of the paths (with `validate`).
            InvalidReference: a path is not understood, or is a folder despite `is_file`.
        """
        sources, records = collect_sources(path)
        dataset = FileDataset(sources, records, None, partition_format=partition_format)
        if validate and not dataset.manifest.files:
            raise DataNotFound("there are no files at this path.")
        if validate and partition_format is not None:
            dataset.get_partition_key_values()  # every path fits
        if is_file and not dataset.manifest.single_file:
            raise InvalidReference("is_file=True was given, but the path is not one file.")
        return dataset

    @staticmethod
    def upload_directory(
        src_dir: str | Path,
        target: Any,
        pattern: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
        *,
        progress: ProgressCallback | None = None,
    ) -> FileDataset:
        """Store a local folder at `target` and return the dataset of its files.

        `target` is a DataPath or a tuple with the Datastore itself; `pattern` is a glob for the
        files' paths below `src_dir`.
        """
        store, path = target_of(target)
        folder = Path(src_dir).expanduser()
        files: list[str | Path] = list(files_below(folder))
        if pattern is not None:
            match = glob_pattern(pattern).match
            files = [file for file in files if match(Path(file).relative_to(folder).as_posix())]
        store.upload_files(
            files, folder, path, overwrite, show_progress=show_progress, progress=progress
        )
        return FileDatasetFactory.from_files((store, path))
