"""`Dataset`: where datasets are made, and found again by name, version or id.

Source: Azure ML SDK v1, `azureml.core.Dataset` and `azureml.data.dataset_factory`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayjobs.datastore.catalogue import Catalogue, DatasetRecord, DatastoreRecord, parse_version
from rayjobs.datastore.datasets import (
    FileDataset,
    collect_sources,
    refuse_partition_format,
    target_of,
)
from rayjobs.datastore.errors import DataNotFound, InvalidReference
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.progress import ProgressCallback
from rayjobs.datastore.sources import Source, glob_pattern
from rayjobs.datastore.stores import HasCatalogue, catalogue_of
from rayjobs.datastore.tabular import TabularDataset, TabularDatasetFactory, TabularOptions
from rayjobs.datastore.transfer import files_below


class FileDatasetFactory:
    """Makes file datasets; reached as `Dataset.File`."""

    @staticmethod
    def from_files(
        path: Any,
        validate: bool = True,
        partition_format: str | None = None,
        is_file: bool = False,
    ) -> FileDataset:
        """Return the dataset of the files at `path`.

        `path` is a URL, a local path or glob, a DataPath, a DataReference, a tuple (datastore,
        path), or a list of these. With `validate` the files are listed now, else when they are
        first needed.

        Raises:
            DataNotFound: there is nothing at one of the paths (with `validate`).
            InvalidReference: a path cannot be understood, or `is_file` and it is a folder.
        """
        refuse_partition_format(partition_format)
        sources, records = collect_sources(path)
        dataset = FileDataset(sources, records, None)
        if validate and not dataset.manifest.files:
            raise DataNotFound("there are no files at this path.")
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


class Dataset:
    """Where datasets are made (`Dataset.File`, `Dataset.Tabular`) and found."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(
        workspace: Catalogue | HasCatalogue, name: str, version: int | str = "latest"
    ) -> FileDataset | TabularDataset:
        """Return a registered dataset, with the very files it had when it was registered.

        Raises:
            DatasetNotFound: no such dataset or version.
        """
        catalogue = catalogue_of(workspace)
        return dataset_of(catalogue.dataset(name, parse_version(version)), catalogue)

    @staticmethod
    def get_by_id(workspace: Catalogue | HasCatalogue, id: str) -> FileDataset | TabularDataset:
        """Return the registered version with this id.

        Raises:
            DatasetNotFound: there is none.
        """
        catalogue = catalogue_of(workspace)
        return dataset_of(catalogue.dataset_by_id(id), catalogue)

    @staticmethod
    def get_all(
        workspace: Catalogue | HasCatalogue,
    ) -> dict[str, FileDataset | TabularDataset]:
        """Return the latest version of every registered dataset, by name."""
        catalogue = catalogue_of(workspace)
        return {record.name: dataset_of(record, catalogue) for record in catalogue.datasets()}


def dataset_of(record: DatasetRecord, catalogue: Catalogue) -> FileDataset | TabularDataset:
    """Return the dataset that `record` describes."""
    manifest = Manifest.from_bytes(catalogue.manifest(record.manifest))
    return rebuild(record.definition, manifest, record)


def rebuild(
    definition: str, manifest: Manifest | None, registered: DatasetRecord | None = None
) -> FileDataset | TabularDataset:
    """Return the dataset whose `definition()` and manifest these are.

    Raises:
        InvalidReference: the definition is of a kind this release does not know.
    """
    values = json.loads(definition)
    sources = [Source(*pair) for pair in values["sources"]]
    records = {
        record.name: record
        for record in (DatastoreRecord.from_json(item) for item in values["records"])
    }
    if values["kind"] == "file":
        return FileDataset(sources, records, manifest, registered)
    if values["kind"] == "tabular":
        options = TabularOptions.from_json(values["options"])
        return TabularDataset(sources, records, manifest, registered, options=options)
    raise InvalidReference(
        f"a dataset is of kind {values['kind']!r}; this release knows file and tabular."
    )
