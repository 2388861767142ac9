"""An input of a job with everything a node needs to bring it there: no catalogue, no secrets.

`resolve_input` runs where the catalogue is; what it returns travels as JSON to the nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.catalogue import Catalogue, DatasetRecord, DatastoreRecord, parse_version
from rayjobs.datastore.consumption import DatasetConsumptionConfig
from rayjobs.datastore.dataset_factory import dataset_of, rebuild
from rayjobs.datastore.datasets import AbstractDataset, FileDataset
from rayjobs.datastore.errors import DataNotFound, InvalidReference
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.refs import DataPath, DataReference, check_mode, check_name, parse_reference
from rayjobs.datastore.sources import Source, resolve
from rayjobs.datastore.stores import Datastore, HasCatalogue, catalogue_of
from rayjobs.datastore.tabular import TabularDataset

MODES = ("mount", "download", "direct")
DATASET_PREFIX = "dataset:"


@dataclass(frozen=True)
class DataInput:
    """A resolved input.

    `manifest` holds its exact files. It is None for a path in a local folder, which a job sees as
    it is then; `live` says which. `dataset` is `name:version` and `dataset_id` the id where the
    files are a registered version, and `registered_at` says when it became one; `definition`
    rebuilds the dataset object in the job.
    """

    name: str
    mode: str
    records: tuple[DatastoreRecord, ...]
    manifest: Manifest | None = None
    live: Source | None = None
    path_on_compute: str | None = None
    overwrite: bool = False
    dataset: str = ""
    dataset_id: str = ""
    definition: str = ""
    registered_at: str = ""

    @property
    def version(self) -> str:
        """What names these very bytes: `name:version`, else the manifest's digest; "" if live."""
        if self.dataset:
            return self.dataset
        return self.manifest.digest if self.manifest is not None else ""

    @property
    def environment_variables(self) -> tuple[str, ...]:
        """The variables that hold the local path in a job.

        As in Azure ML, a dataset's plain name is one too. The caller that sets it must not let it
        replace a variable that the system needs.
        """
        reference = f"AZUREML_DATAREFERENCE_{self.name}"
        return (reference, self.name) if self.definition else (reference,)

    def open(self) -> FileDataset | TabularDataset:
        """Return the dataset itself, for direct mode.

        Raises:
            InvalidReference: this input is a path, not a dataset.
        """
        if not self.definition or self.manifest is None:
            raise InvalidReference(f"input {self.name!r} is a path in a datastore, not a dataset.")
        if not self.dataset:
            return rebuild(self.definition, self.manifest)
        name, _, version = self.dataset.rpartition(":")
        kind = json.loads(self.definition)["kind"]
        registered = DatasetRecord(
            self.dataset_id, name, kind, self.definition, self.manifest.digest, version=int(version)
        )
        return rebuild(self.definition, self.manifest, registered)

    def to_json(self) -> dict[str, Any]:
        """Return the input as a JSON object."""
        return {
            "name": self.name,
            "mode": self.mode,
            "records": [record.to_json() for record in self.records],
            "manifest": self.manifest.to_bytes().decode() if self.manifest is not None else None,
            "live": self.live.to_json() if self.live is not None else None,
            "path_on_compute": self.path_on_compute,
            "overwrite": self.overwrite,
            "dataset": self.dataset,
            "dataset_id": self.dataset_id,
            "definition": self.definition,
            "registered_at": self.registered_at,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataInput:
        """Return the input that `to_json` wrote."""
        given = dict(values)
        manifest, live = given.pop("manifest"), given.pop("live")
        given["records"] = tuple(DatastoreRecord.from_json(item) for item in given["records"])
        return cls(
            manifest=Manifest.from_bytes(manifest.encode()) if manifest is not None else None,
            live=Source(*live) if live is not None else None,
            **given,
        )


def resolve_input(
    source: str | DataReference | DataPath | DatasetConsumptionConfig | AbstractDataset,
    workspace: Catalogue | HasCatalogue,
    *,
    name: str | None = None,
    mode: str | None = None,
    path_on_compute: str | None = None,
) -> DataInput:
    """Return `source` with its files listed now (a registered dataset: as they were registered).

    `source` may be written `datastore/path`, `name=datastore/path:mode` or
    `dataset:NAME[:VERSION]`. `name` and `mode` win over what the source says.

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
        default_name = name or f"input_{source.manifest.digest[7:15]}"
        default_mode = "mount" if source.kind == "file" else "direct"
        source = DatasetConsumptionConfig(default_name, source, mode or default_mode)
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
        name=check_name(name or config.name, "input name"),
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
    if local is None:
        manifest = resolve([source], lambda _: record)
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
