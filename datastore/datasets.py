"""Datasets of files, what all kinds share, and how jobs use them; a version is a manifest.

Source: Azure ML SDK v1, `azureml.data.FileDataset`, `MountContext`, `dataset_factory` and
`dataset_consumption_config`.
"""

from __future__ import annotations

import json
import random
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.backends import StoredFile, open_backend
from rayjobs.datastore.cache_root import default_cache_root
from rayjobs.datastore.catalogue import (
    Catalogue,
    DatasetRecord,
    DatastoreRecord,
    parse_version,
)
from rayjobs.datastore.data_input import DataInput
from rayjobs.datastore.errors import (
    DataNotFound,
    DatastoreNotFound,
    InvalidReference,
)
from rayjobs.datastore.kept import Tally
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.progress import ProgressCallback, callback_for
from rayjobs.datastore.reading import Version, check_local, with_digests
from rayjobs.datastore.refs import (
    DataPath,
    DataReference,
    check_dataset_name,
    check_mode,
    check_name,
)
from rayjobs.datastore.sources import (
    Source,
    glob_pattern,
    is_url_root,
    parse_sources,
    record_for,
    resolve,
)
from rayjobs.datastore.stores import Datastore, HasCatalogue, addresses_of, catalogue_of
from rayjobs.datastore.transfer import Download, download, files_below

if TYPE_CHECKING:
    from rayjobs.datastore.materialise import Materialised

_MODES = ("direct", "mount", "download")
FIRST_INPUT = "input_1"
"""What a job calls its first input without a name."""


@with_absent("Dataset")
class AbstractDataset(ABC):
    """Files of one version, where they are, and (once registered) a name and a number.

    A dataset never changes: what narrows it returns a new one.
    """

    kind: str
    # By `kind`; `rayjobs.datastore.dataset_factory` imports all of them.
    kinds: ClassVar[dict[str, type[AbstractDataset]]] = {}

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

    @classmethod
    def rebuilt(
        cls,
        sources: Sequence[Source],
        records: Mapping[str, DatastoreRecord],
        manifest: Manifest | None,
        registered: DatasetRecord | None,
        options: Mapping[str, Any],
    ) -> AbstractDataset:
        """Return the dataset that `definition` described; `options` as `options()` gave them."""
        return cls(sources, records, manifest, registered)

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

        Local files are read once for their digests, which `progress` follows. If the newest
        version of the name is of these very files, it is returned: with `create_new_version` too,
        and then `tags` are added to it.

        Raises:
            DatasetExists: the name is taken by other files, and `create_new_version` is False.
            DataNotFound: there are no files.
            InvalidReference: a dataset cannot have this name.
        """
        check_dataset_name(name)
        catalogue = catalogue_of(workspace)
        with addresses_of(workspace):
            listed = self.manifest
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
        newest = next(iter(catalogue.dataset_versions(name)[-1:]), None)
        is_same = newest is not None and (newest.manifest, newest.definition) == (
            draft.manifest,
            draft.definition,
        )
        if newest is not None and is_same:
            # It is registered, which is what was asked for.
            if create_new_version and not dict(tags or {}).items() <= newest.tags.items():
                newest = catalogue.set_dataset_tags(newest.id, {**newest.tags, **(tags or {})})
            return self._again(manifest, registered=newest)
        kept = catalogue.add_dataset(draft, create_new_version=create_new_version)
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

    def as_named_input(self, name: str | None) -> DatasetConsumptionConfig:
        """Return the dataset as input `name` of a job: `run.input_datasets[name]` in the script.

        Without a name (None) the job names it.

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


@with_absent("FileDataset")
class FileDataset(AbstractDataset):
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
        """Return the dataset as a mounted input; the job names it (`input_1`, `input_2`, …)."""
        return DatasetConsumptionConfig(None, self, "mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as a downloaded input; the job names it (`input_1`, `input_2`, …)."""
        return DatasetConsumptionConfig(None, self, "download", path_on_compute)

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


class LocalMount:
    """Mounted, linked or (without FUSE) downloaded between `start` and `stop`."""

    def __init__(self, dataset: FileDataset, mount_point: str | Path | None) -> None:
        self._dataset = dataset
        self._mount_point = Path(mount_point).expanduser() if mount_point is not None else None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held: Materialised | None = None

    @property
    def mount_point(self) -> str:
        """Where the files are; "" before `start`."""
        if self._held is None:
            return str(self._mount_point or "")
        return self._held.path

    def start(self) -> None:
        """Bring the files.

        Raises:
            DatastoreError: what keeps them from being brought.
        """
        from rayjobs.datastore.materialise import materialise

        if self._held is not None:
            return
        source = DataInput(
            name="files",
            mode="mount",
            records=tuple(self._dataset.records.values()),
            manifest=self._dataset.manifest,
            path_on_compute=str(self._mount_point.absolute()) if self._mount_point else None,
        )
        self._folder = tempfile.TemporaryDirectory(prefix="dataset-")
        try:
            self._held = materialise(
                source, None, default_cache_root(), into=Path(self._folder.name)
            )
        except BaseException:
            self._folder.cleanup()
            raise

    def stop(self) -> None:
        """Take the files away again."""
        from rayjobs.datastore.materialise import release

        if self._held is not None:
            release(self._held)
        if self._folder is not None:
            self._folder.cleanup()
        self._held = self._folder = None

    def __enter__(self) -> str:
        self.start()
        return self.mount_point

    def __exit__(self, *_error: object) -> None:
        self.stop()


@dataclass(frozen=True, eq=False)
class DatasetConsumptionConfig:
    """A dataset as a job's input. `dataset` may also be `(workspace, name[, version])`.

    Without a name, the job that it is given to calls it `input_1`, the next one `input_2`, and so
    on. `str(config)` is `$AZUREML_DATAREFERENCE_<name>`, which a job's arguments expand to the path
    (in direct mode, to the dataset's id).
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
        if not hasattr(self.dataset, "manifest"):
            raise InvalidReference(
                f"{self.dataset!r} is not a dataset; give one, or (workspace, name)."
            )
        if self.mode != "direct" and self.dataset.kind != "file":
            raise InvalidReference(
                f"a {self.dataset.kind} dataset cannot be used in {self.mode} mode: it is a table, "
                "not files. Use it as a named input and read run.input_datasets[name], or make a "
                "file dataset of the same path."
            )

    @property
    def definition(self) -> AbstractDataset:
        """The dataset itself."""
        dataset: AbstractDataset = self.dataset
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


def registered_dataset(
    workspace: Catalogue | HasCatalogue, name: str, version: int | str = "latest"
) -> AbstractDataset:
    """Return a registered dataset, with the very files it had when it was registered.

    Raises:
        DatasetNotFound: no such dataset or version.
    """
    catalogue = catalogue_of(workspace)
    return dataset_of(catalogue.dataset(name, parse_version(version)), catalogue)


def dataset_of(record: DatasetRecord, catalogue: Catalogue) -> AbstractDataset:
    """Return the dataset that `record` describes."""
    manifest = Manifest.from_bytes(catalogue.manifest(record.manifest))
    return rebuild(record.definition, manifest, record)


def rebuild(
    definition: str, manifest: Manifest | None, registered: DatasetRecord | None = None
) -> AbstractDataset:
    """Return the dataset whose `definition()` and manifest these are.

    Raises:
        InvalidReference: the definition is of a kind this release does not know.
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
