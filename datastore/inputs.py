"""Resolves users' references to data into inputs of jobs, and opens inputs as datasets."""

from __future__ import annotations

import json

from rayjobs.datastore.abstract_dataset import (
    FIRST_INPUT,
    AbstractDataset,
    DatasetConsumptionConfig,
)
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.catalogue import Catalogue, DatasetRecord, parse_version
from rayjobs.datastore.data_input import DataInput
from rayjobs.datastore.dataset_factory import dataset_of, rebuild
from rayjobs.datastore.errors import DataNotFound, InvalidReference
from rayjobs.datastore.refs import DataPath, DataReference, check_mode, check_name, parse_reference
from rayjobs.datastore.sources import Source, has_glob, resolve
from rayjobs.datastore.stores import Datastore, HasCatalogue, catalogue_of

MODES = ("mount", "download", "direct")
DATASET_PREFIX = "dataset:"


def resolve_input(
    source: str | DataReference | DataPath | DatasetConsumptionConfig | AbstractDataset,
    workspace: Catalogue | HasCatalogue,
    *,
    name: str | None = None,
    mode: str | None = None,
    path_on_compute: str | None = None,
) -> DataInput:
    """Return `source` with its files as listed now (for a registered dataset, as registered).

    `source` may be written `datastore/path`, `name=datastore/path:mode` or
    `dataset:NAME[:VERSION]`. `name` and `mode` take precedence over those of the source.

    Raises:
        InvalidReference: the source cannot be an input.
        DatastoreError: it does not exist, or its storage cannot be read.
    """
    catalogue = catalogue_of(workspace)
    if isinstance(source, str):
        if source.startswith(DATASET_PREFIX):
            source = _registered(source.removeprefix(DATASET_PREFIX), catalogue)
        else:
            source = parse_reference(source)
    if isinstance(source, DataPath):
        source = source.create_data_reference()
    if isinstance(source, AbstractDataset):
        default_mode = "mount" if source.kind == "file" else "direct"
        source = DatasetConsumptionConfig(name, source, mode or default_mode)
    if isinstance(source, DatasetConsumptionConfig):
        return _of_dataset(source, name, mode, path_on_compute)
    if isinstance(source, DataReference):
        return _of_reference(source, catalogue, name, mode, path_on_compute)
    raise InvalidReference(f"{source!r} cannot be a job's input.")


def _registered(text: str, catalogue: Catalogue) -> AbstractDataset:
    name, _, version = text.partition(":")
    return dataset_of(catalogue.dataset(name, parse_version(version or None)), catalogue)


def _of_dataset(
    config: DatasetConsumptionConfig, name: str | None, mode: str | None, at: str | None
) -> DataInput:
    dataset = config.definition
    chosen = check_mode(mode or config.mode, allowed=MODES)
    if chosen != "direct" and dataset.kind != "file":
        raise InvalidReference(
            f"input {name or config.name!r} is a table and cannot be used in {chosen} mode; use "
            "direct, or register the files as a file dataset."
        )
    return DataInput(
        name=check_name(name or config.name or FIRST_INPUT, "input name"),
        mode=chosen,
        records=tuple(record for _, record in sorted(dataset.records.items())),
        manifest=dataset.manifest,
        path_on_compute=at or config.path_on_compute,
        dataset=f"{dataset.name}:{dataset.version}" if dataset.name else "",
        dataset_id=dataset.id,
        definition=dataset.definition(),
        registered_at=dataset.registered_at,
    )


def _of_reference(
    reference: DataReference,
    catalogue: Catalogue,
    name: str | None,
    mode: str | None,
    at: str | None,
) -> DataInput:
    chosen = mode or reference.mode
    if chosen not in ("mount", "download"):
        raise InvalidReference(
            f"{reference.data_reference_name!r} is in {chosen} mode; an input is mounted or "
            "downloaded. What a job writes is an output."
        )
    store = reference.datastore
    record = (
        store.record
        if isinstance(store, Datastore)
        else catalogue.datastore(reference.datastore_name)
    )
    source = Source(record.name, reference.path_on_datastore or "")
    backend = open_backend(record)
    local = backend.local_path(source.path)
    if local is None or (has_glob(source.path) and not local.exists()):
        manifest, local = resolve([source], lambda _: record), None
    elif not local.exists():
        raise DataNotFound(
            f"{source.path or '/'!r} does not exist in datastore {record.name!r} "
            f"({backend.where}). `rayjobs data ls` lists existing data; upload data there first."
        )
    else:
        manifest = None
    return DataInput(
        name=check_name(name or reference.data_reference_name, "input name"),
        mode=chosen,
        records=(record,),
        manifest=manifest,
        live=source if local is not None else None,
        path_on_compute=at or reference.path_on_compute,
        overwrite=reference.overwrite,
    )


def open_input(source: DataInput) -> AbstractDataset:
    """Return the dataset of an input, for direct mode.

    Raises:
        InvalidReference: the input is a path, not a dataset.
    """
    if not source.definition or source.manifest is None:
        raise InvalidReference(f"input {source.name!r} is a path in a datastore, not a dataset.")
    if not source.dataset:
        return rebuild(source.definition, source.manifest)
    name, _, version = source.dataset.rpartition(":")
    kind = json.loads(source.definition)["kind"]
    registered = DatasetRecord(
        source.dataset_id,
        name,
        kind,
        source.definition,
        source.manifest.digest,
        version=int(version),
    )
    return rebuild(source.definition, source.manifest, registered)
