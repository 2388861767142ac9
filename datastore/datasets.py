"""`FileDataset` and what both kinds of dataset share; a version is a manifest.

Source: Azure ML SDK v1, `azureml.data.FileDataset`.
"""

from __future__ import annotations

import json
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, Self

from rayjobs.datastore.absent import AbsentOfFileDataset
from rayjobs.datastore.backends import StoredFile, open_backend
from rayjobs.datastore.catalogue import (
    Catalogue,
    DatasetRecord,
    DatastoreRecord,
)
from rayjobs.datastore.consumption import DatasetConsumptionConfig
from rayjobs.datastore.errors import DatasetExists, DatastoreNotFound, InvalidReference
from rayjobs.datastore.kept import Tally
from rayjobs.datastore.local_mount import LocalMount
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.progress import ProgressCallback, callback_for
from rayjobs.datastore.reading import Version, check_local, with_digests
from rayjobs.datastore.refs import DataPath, DataReference, check_dataset_name
from rayjobs.datastore.sources import Source, is_url_root, parse_sources, record_for, resolve
from rayjobs.datastore.stores import Datastore, HasCatalogue, catalogue_of
from rayjobs.datastore.transfer import Download, download


class AbstractDataset(ABC):
    """Files of one version, where they are, and (once registered) a name and a number.

    A dataset never changes: what narrows it returns a new one.
    """

    kind: str

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

    # --- what it is ---

    @property
    def id(self) -> str:
        """The id of the registered version; "" before."""
        return self._registered.id if self._registered else ""

    @property
    def name(self) -> str:
        """The registered name; "" before."""
        return self._registered.name if self._registered else ""

    @property
    def version(self) -> int | None:
        """The registered version; None before."""
        return self._registered.version if self._registered else None

    @property
    def description(self) -> str:
        """What was said at registration."""
        return self._registered.description if self._registered else ""

    @property
    def registered_at(self) -> str:
        """When the version was registered, as people read it; "" before."""
        if self._registered is None:
            return ""
        return self._registered.created_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the registered version."""
        return dict(self._registered.tags) if self._registered else {}

    @property
    def partition_keys(self) -> list[str]:
        """Azure ML's name: the columns that `partition_format` makes of paths; none are made."""
        return []

    @property
    def sources(self) -> tuple[Source, ...]:
        """What the dataset was made from."""
        return self._sources

    @property
    def records(self) -> Mapping[str, DatastoreRecord]:
        """The records of the datastores its files are in."""
        return dict(self._records)

    @property
    def manifest(self) -> Manifest:
        """The exact files; listed now, and kept, for a dataset made without validation."""
        if self._manifest is None:
            self._manifest = resolve(self._sources, self._record)
        return self._manifest

    def _record(self, name: str) -> DatastoreRecord:
        if name not in self._records:
            raise DatastoreNotFound(
                f"this dataset was made without the datastore {name!r}; give the Datastore itself, "
                "not its name, where the dataset is made."
            )
        return self._records[name]

    # --- how it is rebuilt ---

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return, as JSON, what besides the files makes this dataset."""

    def definition(self) -> str:
        """Return the JSON text from which, with the manifest, the dataset can be made again."""
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
        """Register the files as they were listed, under `name`; return the registered dataset.

        Local files are read once for their digests, which `progress` follows.

        Raises:
            DatasetExists: the name is taken by other files, and `create_new_version` is False.
            DataNotFound: there are no files.
            InvalidReference: a dataset cannot have this name.
        """
        check_dataset_name(name)
        catalogue = catalogue_of(workspace)
        manifest = with_digests(self.manifest, self._record, progress)
        draft = DatasetRecord(
            id=str(uuid.uuid4()),
            name=name,
            kind=self.kind,
            definition=self.definition(),
            manifest=catalogue.put_manifest(manifest.to_bytes()),
            description=description or "",
            tags=dict(tags or {}),
        )
        try:
            kept = catalogue.add_dataset(draft, create_new_version=create_new_version)
        except DatasetExists:
            kept = catalogue.dataset(name)
            if (kept.manifest, kept.definition) != (draft.manifest, draft.definition):
                raise
            # The very same files: it is registered, which is what was asked for.
        return self._again(manifest, registered=kept)

    def unregister_all_versions(self, workspace: Catalogue | HasCatalogue) -> None:
        """Forget every version of this dataset's name; the data stays.

        Raises:
            DatasetInUse: an unfinished job reads one of them.
        """
        catalogue_of(workspace).remove_dataset(self.name, force=True)

    def add_tags(self, workspace: Catalogue | HasCatalogue, tags: Mapping[str, str]) -> Self:
        """Return the dataset with `tags` added to those of the registered version."""
        kept = catalogue_of(workspace).set_dataset_tags(self.id, {**self.tags, **tags})
        return self._again(self.manifest, registered=kept)

    def remove_tags(self, workspace: Catalogue | HasCatalogue, names: Sequence[str]) -> Self:
        """Return the dataset with these tags of the registered version removed."""
        left = {name: value for name, value in self.tags.items() if name not in names}
        kept = catalogue_of(workspace).set_dataset_tags(self.id, left)
        return self._again(self.manifest, registered=kept)

    # --- for jobs ---

    def as_named_input(self, name: str) -> DatasetConsumptionConfig:
        """Return the dataset as input `name` of a job: `run.input_datasets[name]` in the script.

        Raises:
            InvalidReference: the name holds anything but letters, digits and underscores.
        """
        return DatasetConsumptionConfig(name, self)

    @abstractmethod
    def _again(self, manifest: Manifest | None, *, registered: DatasetRecord | None = None) -> Self:
        """Return the same dataset with another manifest."""

    def __repr__(self) -> str:
        title = f"{self.name}:{self.version}" if self._registered else "not registered"
        where = ", ".join(f"({source.datastore}, {source.path or '/'})" for source in self._sources)
        return f"{type(self).__name__}({title}; {where})"


class FileDataset(AbsentOfFileDataset, AbstractDataset):
    """A set of files, of any format."""

    kind = "file"

    def options(self) -> dict[str, Any]:
        """See `AbstractDataset`: the files say it all."""
        return {}

    def _again(self, manifest: Manifest | None, *, registered: DatasetRecord | None = None) -> Self:
        return type(self)(self._sources, self._records, manifest, registered)

    def to_path(self) -> list[str]:
        """Return every file's path below the input's folder, with a leading `/`."""
        return [f"/{entry.path}" for entry in self.manifest]

    def download(
        self,
        target_path: str | Path | None = None,
        overwrite: bool = False,
        *,
        show_progress: bool = True,
        progress: ProgressCallback | None = None,
    ) -> list[str]:
        """Fetch every file below `target_path` and return the local paths.

        The default of `target_path` is a new temporary folder. Files that exist are kept unless
        `overwrite`, with a warning if one differs.

        Raises:
            DatastoreError: a file could not be fetched.
        """
        if target_path is None:
            import tempfile

            target_path = tempfile.mkdtemp(prefix="dataset-")
        target = Path(target_path).expanduser()
        callback = callback_for(progress, show_progress=show_progress)
        self.fetch(target, overwrite=overwrite, progress=callback).warn("fetched")
        return [str(target / entry.path) for entry in self.manifest]

    def fetch(self, target: Path, *, overwrite: bool, progress: ProgressCallback | None) -> Tally:
        """Do what `download` does, and return the counts.

        They say how many files were fetched or kept, and how many of the kept ones differ.

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
                # First: none of a damaged version is fetched, and the message is the one of a job.
                for entry in self.manifest:
                    if entry.datastore == name:
                        check_local(entry, backend, Version.of(self))
            total += download(backend, wanted, overwrite=overwrite, progress=progress)
        return total

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as a mounted input, named by itself."""
        return DatasetConsumptionConfig(self._input_name(), self, "mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as a downloaded input, named by itself."""
        return DatasetConsumptionConfig(self._input_name(), self, "download", path_on_compute)

    def _input_name(self) -> str:
        return f"input_{self.manifest.digest[7:15]}"

    def mount(self, mount_point: str | Path | None = None) -> LocalMount:
        """Return a context in which the files are below `mount_point` on this machine.

        The default of `mount_point` is a new temporary folder: `with dataset.mount() as where: …`.
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
        """Return a dataset that has each file with `probability`; the same for the same `seed`."""
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

    def _part(self, files: Sequence[FileEntry]) -> Self:
        return self._again(Manifest(tuple(files), self.manifest.single_file and len(files) == 1))


def stored_file(entry: FileEntry) -> StoredFile:
    """Return the stored file behind a manifest's entry."""
    return StoredFile(entry.key, entry.size, entry.etag, entry.digest)


def collect_sources(path: Any) -> tuple[tuple[Source, ...], dict[str, DatastoreRecord]]:
    """Return what `path` means, with the records of the datastores given as objects.

    Raises:
        InvalidReference: `path` cannot be understood, or names a datastore by name only.
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
                f"itself: Datastore.get(workspace, {source.datastore!r})."
            )
    return sources, records


def refuse_partition_format(partition_format: str | None) -> None:
    """Refuse what is not supported, rather than ignore it."""
    if partition_format is not None:
        raise InvalidReference(
            "partition_format is not supported; the files' paths are in to_path(), and a table's "
            "with include_path=True."
        )


def target_of(target: Any) -> tuple[Datastore, str]:
    """Return the datastore and path of a place to write to.

    Raises:
        InvalidReference: `target` is no place, or names its datastore by name only.
    """
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], Datastore):
        return target[0], str(target[1])
    if isinstance(target, Datastore):
        return target, ""
    if isinstance(target, DataPath) and isinstance(target.datastore, Datastore):
        return target.datastore, target.path_on_datastore or ""
    raise InvalidReference(f"{target!r} is not a place; give (datastore, path) or a DataPath.")


def _check_count(count: int) -> None:
    if count < 0:
        raise InvalidReference(f"count must be 0 or more, not {count}.")


def _check_share(share: float, what: str) -> None:
    if not 0 <= share <= 1:
        raise InvalidReference(f"{what} must be between 0 and 1, not {share}.")
