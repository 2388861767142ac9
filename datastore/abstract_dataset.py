"""The common part of all kinds of datasets, and how jobs use them; a version is a manifest.

Source: Azure ML SDK v1, `azureml.data.abstract_dataset`.
"""

from __future__ import annotations

import json
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.catalogue import (
    Catalogue,
    DatasetRecord,
    DatastoreRecord,
    parse_version,
)
from rayjobs.datastore.errors import DatasetNotFound, DatastoreNotFound, InvalidReference
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.partitions import PartitionFormat, key_values
from rayjobs.datastore.progress import ProgressCallback
from rayjobs.datastore.reading import with_digests
from rayjobs.datastore.refs import check_dataset_name, check_mode, check_name
from rayjobs.datastore.sources import Source, record_for, resolve
from rayjobs.datastore.stores import HasCatalogue, addresses_of, catalogue_of
from rayjobs.injob.lazy_dataclass import dataclass

log = logging.getLogger("rayjobs.datastore")
_MODES = ("direct", "mount", "download")
FIRST_INPUT = "input_1"
"""The name of a job's first input without a name."""


class FromFactory:
    """A member of `Dataset`, accessed through its kinds: `FileDataset.get_by_name(…)`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return getattr(AbstractDataset.factory, self._name)


def _warn_of_unset(newest: DatasetRecord, draft: DatasetRecord) -> None:
    """Say which facts of a new registration the registered version does not have."""
    unset = []
    if draft.description not in ("", newest.description):
        unset.append("description")
    if not draft.tags.items() <= newest.tags.items():
        unset.append("tags")
    if unset:
        log.warning(
            "dataset %s:%d has exactly these files, so its %s stay as they are; "
            "`add_tags` adds tags to it",
            newest.name,
            newest.version,
            " and ".join(unset),
        )


@with_absent("Dataset")
class AbstractDataset(ABC):
    """Files of one version, their locations and, once registered, a name and a number.

    A dataset never changes: methods that narrow it return a new one.
    """

    kind: str
    # By `kind`; `rayjobs.datastore.dataset_factory` imports all of them.
    kinds: ClassVar[dict[str, type[AbstractDataset]]] = {}
    factory: ClassVar[Any] = None  # `Dataset`, which that module sets

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        AbstractDataset.kinds[cls.kind] = cls

    def __init__(
        self,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._records = dict(records)
        self._manifest = manifest
        self._registered = registered
        self._kept_in: Catalogue | None = None  # where the registered version was found

    # --- what it is ---

    @property
    def id(self) -> str:
        """The id of the registered version; "" before registration."""
        return self._registered.id if self._registered else ""

    @property
    def name(self) -> str:
        """The registered name; "" before registration."""
        return self._registered.name if self._registered else ""

    @property
    def version(self) -> int | None:
        """The registered version; None before registration."""
        return self._registered.version if self._registered else None

    @property
    def description(self) -> str:
        """The description given at registration."""
        return self._registered.description if self._registered else ""

    @property
    def registered_at(self) -> str:
        """When the version was registered, for people; "" before registration."""
        if self._registered is None:
            return ""
        return self._registered.created_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the registered version."""
        return dict(self._registered.tags) if self._registered else {}

    @property
    def partition_format(self) -> PartitionFormat | None:
        """How columns are extracted from paths; None if they are not."""
        return None

    @property
    def partition_keys(self) -> list[str]:
        """The columns that `partition_format` extracts from paths."""
        parsed = self.partition_format
        return [] if parsed is None else [*parsed.keys]

    def get_partition_key_values(
        self, partition_keys: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return each combination of values of the partition columns once.

        Args:
            partition_keys: Only these columns; None for all.

        Raises:
            InvalidReference: the dataset has no such partition column.
        """
        return key_values(self.partition_format, self.manifest, partition_keys)

    @property
    def data_changed_time(self) -> datetime | None:
        """When a file was last changed (UTC); None if a storage does not report it."""
        changed: datetime | None = None
        for name in self.manifest.datastores:
            backend = open_backend(record_for(name, self._record))
            for entry in self.manifest:
                if entry.datastore == name:
                    path = backend.local_path(entry.key)
                    if path is None:
                        return None
                    at = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
                    changed = at if changed is None else max(changed, at)
        return changed

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the dataset."""
        return self._sources

    @property
    def records(self) -> Mapping[str, DatastoreRecord]:
        """The records of the datastores its files are in."""
        return dict(self._records)

    @property
    def manifest(self) -> Manifest:
        """The exact files; for a dataset made without validation, listed on first use and kept."""
        if self._manifest is None:
            self._manifest = resolve(self._sources, self._record)
        return self._manifest

    def _record(self, name: str) -> DatastoreRecord:
        if name not in self._records:
            raise DatastoreNotFound(
                f"this dataset was made without the datastore {name!r}; pass the Datastore itself, "
                "not its name, when making the dataset."
            )
        return self._records[name]

    # --- rebuilding ---

    @classmethod
    def rebuilt(
        cls,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None,
        options: Mapping[str, Any],
    ) -> AbstractDataset:
        """Return the dataset of a `definition()` whose parts these are."""
        return cls(sources, records, manifest, registered)

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return, as JSON, what defines this dataset besides its files."""

    def definition(self) -> str:
        """Return the JSON text that rebuilds the dataset, together with the manifest."""
        return json.dumps(
            {
                "kind": self.kind,
                "sources": [source.to_json() for source in self._sources],
                "records": [record.to_json() for _, record in sorted(self._records.items())],
                "options": self.options(),
            },
            sort_keys=True,
        )

    # --- registration ---

    def register(
        self,
        workspace: Catalogue | HasCatalogue,
        name: str,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        create_new_version: bool = False,
        *,
        progress: ProgressCallback | None = None,
    ) -> Self:
        """Register the listed files under `name`; return the registered dataset.

        Local files are read once for their digests, which `progress` follows; files that the newest
        version lists with the same size and mark are not read again. If the newest version of the
        name has exactly these files, it is returned, and `create_new_version` only adds `tags` to
        it.

        Raises:
            DatasetExists: the name belongs to other files, and `create_new_version` is False.
            DataNotFound: there are no files.
            InvalidReference: a dataset cannot have this name.
        """
        check_dataset_name(name)
        catalogue = catalogue_of(workspace)
        with addresses_of(workspace):
            listed = self.manifest
        newest = next(iter(catalogue.dataset_versions(name)[-1:]), None)
        # A file of other sources may have the same name, size and time by chance.
        if newest is not None and newest.definition == self.definition():
            listed = listed.with_digests_of(
                Manifest.from_bytes(catalogue.manifest(newest.manifest))
            )
        manifest = with_digests(listed, self._record, progress)
        draft = DatasetRecord(
            id=str(uuid.uuid4()),
            name=name,
            kind=self.kind,
            definition=self.definition(),
            manifest=catalogue.put_manifest(manifest.to_bytes()),
            description=description or "",
            tags=dict(tags or {}),
        )
        is_same = newest is not None and (newest.manifest, newest.definition) == (
            draft.manifest,
            draft.definition,
        )
        if newest is not None and is_same:
            # It is registered, as requested.
            if create_new_version and not dict(tags or {}).items() <= newest.tags.items():
                newest = catalogue.set_dataset_tags(newest.id, {**newest.tags, **(tags or {})})
            _warn_of_unset(newest, draft)
            return self._again(manifest, registered=newest).kept_in(catalogue)
        kept = catalogue.add_dataset(draft, create_new_version=create_new_version)
        return self._again(manifest, registered=kept).kept_in(catalogue)

    def unregister_all_versions(self) -> None:
        """Remove every version of this dataset's name; the data stays.

        Raises:
            DatasetInUse: an unfinished job reads one of them.
            DatasetNotFound: it is not registered.
        """
        self._catalogue().remove_dataset(self.name, force=True)

    def add_tags(self, tags: Mapping[str, str] | None = None) -> Self:
        """Return the dataset with `tags` added to those of the registered version.

        Raises:
            DatasetNotFound: it is not registered.
        """
        return self._tagged({**self.tags, **(tags or {})})

    def remove_tags(self, tags: Sequence[str] | None = None) -> Self:
        """Return the dataset with these tags of the registered version removed.

        Raises:
            DatasetNotFound: it is not registered.
        """
        return self._tagged({key: one for key, one in self.tags.items() if key not in (tags or ())})

    def _tagged(self, tags: Mapping[str, str]) -> Self:
        catalogue = self._catalogue()
        kept = catalogue.set_dataset_tags(self.id, dict(tags))
        return self._again(self.manifest, registered=kept).kept_in(catalogue)

    def kept_in(self, catalogue: Catalogue) -> Self:
        """Record where the registered version was found; return the dataset."""
        self._kept_in = catalogue
        return self

    def _catalogue(self) -> Catalogue:
        if self._kept_in is None or self._registered is None:
            raise DatasetNotFound(
                "this dataset was not found in a workspace: register it first, or get it with "
                "Dataset.get_by_name(workspace, name)."
            )
        return self._kept_in

    # --- Azure ML's access from any dataset to those of a workspace ---

    File = FromFactory("File")
    Tabular = FromFactory("Tabular")
    get_by_name = FromFactory("get_by_name")
    get_by_id = FromFactory("get_by_id")
    get_all = FromFactory("get_all")

    # --- for jobs ---

    def as_named_input(self, name: str | None) -> DatasetConsumptionConfig:
        """Return the dataset as input `name` of a job: `run.input_datasets[name]` in the script.

        Without a name (None), the job chooses one.

        Raises:
            InvalidReference: the name has characters other than letters, digits and underscores.
        """
        return DatasetConsumptionConfig(name, self)

    @abstractmethod
    def _again(self, manifest: Manifest | None, *, registered: DatasetRecord | None = None) -> Self:
        """Return the same dataset with another manifest."""

    def __repr__(self) -> str:
        title = f"{self.name}:{self.version}" if self._registered else "not registered"
        where = ", ".join(f"({source.datastore}, {source.path or '/'})" for source in self._sources)
        return f"{type(self).__name__}({title}; {where})"


@with_absent("DatasetConsumptionConfig")
@dataclass(frozen=True, eq=False)
class DatasetConsumptionConfig:
    """A dataset as a job's input. `dataset` may also be `(workspace, name[, version])`.

    In a step, it may be a pipeline parameter whose values are datasets.

    Without a name, the job calls it `input_1`, the next one `input_2`, and so on. `str(config)` is
    `$AZUREML_DATAREFERENCE_<name>`, which a job's arguments expand to the path (in direct mode, to
    the dataset's id).
    """

    name: str | None
    dataset: Any
    mode: str = "direct"
    path_on_compute: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name, "input name")
        check_mode(self.mode, allowed=_MODES)
        if isinstance(self.dataset, tuple):
            object.__setattr__(self, "dataset", registered_dataset(*self.dataset))
        default = self.definition
        if not hasattr(default, "manifest"):
            raise InvalidReference(
                f"{self.dataset!r} is not a dataset; give one, or (workspace, name)."
            )
        if self.mode != "direct" and default.kind != "file":
            raise InvalidReference(
                f"a {default.kind} dataset cannot be used in {self.mode} mode: it is a table, "
                "not files. Use it as a named input and read run.input_datasets[name], or make a "
                "file dataset of the same path."
            )

    @property
    def definition(self) -> AbstractDataset:
        """The dataset itself; for a pipeline parameter, its default."""
        dataset: AbstractDataset = getattr(self.dataset, "default_value", self.dataset)
        return dataset

    @property
    def environment_variable(self) -> str:
        """The variable that holds the local path in the job."""
        return f"AZUREML_DATAREFERENCE_{self.name or FIRST_INPUT}"

    def __str__(self) -> str:
        return f"${self.environment_variable}"

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return this input mounted.

        Raises:
            InvalidReference: the dataset is a table.
        """
        return replace(self, mode="mount", path_on_compute=path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return this input downloaded.

        Raises:
            InvalidReference: the dataset is a table.
        """
        return replace(self, mode="download", path_on_compute=path_on_compute)

    def as_direct(self) -> DatasetConsumptionConfig:
        """Return this input as the dataset object itself."""
        return replace(self, mode="direct", path_on_compute=None)


def registered_dataset(
    workspace: Catalogue | HasCatalogue, name: str, version: int | str = "latest"
) -> AbstractDataset:
    """Return a registered dataset, with exactly the files that were registered.

    Raises:
        DatasetNotFound: no such dataset or version.
    """
    catalogue = catalogue_of(workspace)
    return dataset_of(catalogue.dataset(name, parse_version(version)), catalogue)


def dataset_of(record: DatasetRecord, catalogue: Catalogue) -> AbstractDataset:
    """Return the dataset that `record` describes."""
    manifest = Manifest.from_bytes(catalogue.manifest(record.manifest))
    return rebuild(record.definition, manifest, record).kept_in(catalogue)


def rebuild(
    definition: str, manifest: Manifest | None, registered: DatasetRecord | None = None
) -> AbstractDataset:
    """Return the dataset whose `definition()` and manifest these are.

    Raises:
        InvalidReference: this release does not know the kind of the definition.
    """
    values = json.loads(definition)
    kind = AbstractDataset.kinds.get(values["kind"])
    if kind is None:
        raise InvalidReference(
            f"a dataset is of kind {values['kind']!r}; this release knows "
            f"{' and '.join(sorted(AbstractDataset.kinds))}."
        )
    sources = [Source(*pair) for pair in values["sources"]]
    records = {
        record.name: record
        for record in (DatastoreRecord.from_json(item) for item in values["records"])
    }
    return kind.rebuilt(sources, records, manifest, registered, values["options"])
