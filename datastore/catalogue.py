"""The records of datastores and datasets, and the protocol of the catalogue that keeps them.

This package has no database: `rayjobs` implements `Catalogue` in its store, and `MemoryCatalogue`
is for tests and scripts. One contract suite runs on every implementation.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import (
    DatasetExists,
    DatasetNotFound,
    DatastoreExists,
    DatastoreInUse,
    DatastoreNotFound,
    InvalidReference,
)
from rayjobs.injob.lazy_dataclass import dataclass

DEFAULT_DATASTORE = "workspaceblobstore"
BUILT_IN_DATASTORES = (DEFAULT_DATASTORE, "workspacefilestore")
"""The datastores of every workspace. Source: the two that every Azure ML workspace has."""
NAMES_SHOWN = 5


@dataclass(frozen=True)
class DatastoreRecord:
    """A named storage. `settings` hold no secret, only the variable or profile that has it.

    kind `local`: `root` (absolute folder).
    kind `s3`: `bucket`, and optionally `prefix, endpoint, region, profile, access_key_env,
    secret_key_env, session_token_env, connect_timeout_s, read_timeout_s, attempts`.
    """

    name: str
    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def __hash__(self) -> int:
        return hash((self.name, self.kind, tuple(sorted(self.settings.items()))))

    def __reduce__(self) -> tuple[type[DatastoreRecord], tuple[str, str, dict[str, str]]]:
        # A mapping proxy cannot be pickled, and Ray sends records between processes.
        return (DatastoreRecord, (self.name, self.kind, dict(self.settings)))

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return {"name": self.name, "kind": self.kind, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DatastoreRecord:
        """Return the record that `to_json` wrote."""
        return cls(values["name"], values["kind"], values["settings"])


@dataclass(frozen=True)
class DatasetRecord:
    """One registered version of a dataset; only `tags` ever change.

    `definition` is the JSON text that rebuilds the dataset; `manifest` the digest of its file list.
    """

    id: str
    name: str
    kind: str
    definition: str
    manifest: str
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@runtime_checkable
class Catalogue(Protocol):
    """Keeps the records of one workspace. Each call is atomic; safe to use from several threads."""

    def add_datastore(self, record: DatastoreRecord, *, overwrite: bool = False) -> None:
        """Store `record`. Raises DatastoreExists unless `overwrite` or the same record exists."""

    def datastore(self, name: str) -> DatastoreRecord:
        """Return the record. Raises DatastoreNotFound."""

    def datastores(self) -> list[DatastoreRecord]:
        """Return all records, by name."""

    def located(self, record: DatastoreRecord) -> DatastoreRecord:
        """Return an earlier record with the current path of its folder.

        A folder inside a workspace moves along with it, while the record names the old path.
        """

    def remove_datastore(self, name: str, *, force: bool = False) -> None:
        """Remove the record; the data stays. Raises DatastoreNotFound.

        Raises DatastoreInUse if it belongs to every workspace, if a registered dataset has files
        there (unless `force`), or if an unfinished job uses it, where jobs are known.
        """

    def default_datastore(self) -> str:
        """Return the default datastore's name (`workspaceblobstore` unless set)."""

    def set_default_datastore(self, name: str) -> None:
        """Make `name` the default. Raises DatastoreNotFound."""

    def put_manifest(self, content: bytes) -> str:
        """Store a manifest's text and return its digest; storing it twice changes nothing."""

    def manifest(self, digest: str) -> bytes:
        """Return a manifest's text. Raises DatasetNotFound."""

    def add_dataset(
        self, record: DatasetRecord, *, create_new_version: bool = False
    ) -> DatasetRecord:
        """Store `record` as the next version of its name (1, 2, …) and return it with its version.

        Raises DatasetExists if the name has a version and `create_new_version` is False.
        """

    def dataset(self, name: str, version: int | None = None) -> DatasetRecord:
        """Return a version; None means the latest. Raises DatasetNotFound."""

    def dataset_by_id(self, id: str) -> DatasetRecord:
        """Return the version with this id. Raises DatasetNotFound."""

    def datasets(self) -> list[DatasetRecord]:
        """Return the latest version of every name, by name."""

    def dataset_versions(self, name: str) -> list[DatasetRecord]:
        """Return all versions, oldest first; empty for an unknown name."""

    def set_dataset_tags(self, id: str, tags: Mapping[str, str]) -> DatasetRecord:
        """Replace the tags of one version. Raises DatasetNotFound."""

    def remove_dataset(
        self, name: str, version: int | None = None, *, force: bool = False
    ) -> tuple[str, ...]:
        """Remove one version, or all for None; the data stays. Numbers are not reused.

        Where jobs and models are known, raises DatasetInUse if an unfinished job reads it, or
        (unless `force`) if models were made from it; returns these models (`name:version`).
        """


class MemoryCatalogue:
    """A catalogue that lives as long as its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._datastores: dict[str, DatastoreRecord] = {}
        self._default = DEFAULT_DATASTORE
        self._manifests: dict[str, bytes] = {}
        self._datasets: dict[str, list[DatasetRecord]] = {}
        self._last_version: dict[str, int] = {}

    def add_datastore(self, record: DatastoreRecord, *, overwrite: bool = False) -> None:
        """See `Catalogue`."""
        with self._lock:
            before = self._datastores.get(record.name)
            if before is not None and before != record and not overwrite:
                raise datastore_exists(record.name)
            self._datastores[record.name] = record

    def datastore(self, name: str) -> DatastoreRecord:
        """See `Catalogue`."""
        with self._lock:
            if name not in self._datastores:
                raise datastore_not_found(name, sorted(self._datastores))
            return self._datastores[name]

    def datastores(self) -> list[DatastoreRecord]:
        """See `Catalogue`."""
        with self._lock:
            return [self._datastores[name] for name in sorted(self._datastores)]

    def located(self, record: DatastoreRecord) -> DatastoreRecord:
        """See `Catalogue`: records in memory never move."""
        return record

    def remove_datastore(self, name: str, *, force: bool = False) -> None:
        """See `Catalogue`."""
        self.datastore(name)
        with self._lock:
            kept = [record for versions in self._datasets.values() for record in versions]
            check_unused(name, kept, force=force)
            self._datastores.pop(name, None)
            if self._default == name:
                self._default = DEFAULT_DATASTORE

    def default_datastore(self) -> str:
        """See `Catalogue`."""
        with self._lock:
            return self._default

    def set_default_datastore(self, name: str) -> None:
        """See `Catalogue`."""
        self.datastore(name)
        with self._lock:
            self._default = name

    def put_manifest(self, content: bytes) -> str:
        """See `Catalogue`."""
        digest = digest_of(content)
        with self._lock:
            self._manifests[digest] = content
        return digest

    def manifest(self, digest: str) -> bytes:
        """See `Catalogue`."""
        with self._lock:
            if digest not in self._manifests:
                raise DatasetNotFound(f"this workspace has no manifest {digest}.")
            return self._manifests[digest]

    def add_dataset(
        self, record: DatasetRecord, *, create_new_version: bool = False
    ) -> DatasetRecord:
        """See `Catalogue`."""
        with self._lock:
            versions = self._datasets.setdefault(record.name, [])
            if versions and not create_new_version:
                raise dataset_exists(record.name, versions[-1].version)
            version = self._last_version.get(record.name, 0) + 1
            self._last_version[record.name] = version
            kept = replace(record, version=version)
            versions.append(kept)
            return kept

    def dataset(self, name: str, version: int | None = None) -> DatasetRecord:
        """See `Catalogue`."""
        with self._lock:
            versions = self._datasets.get(name, [])
            for record in reversed(versions):
                if version is None or record.version == version:
                    return record
            names = sorted(known for known, kept in self._datasets.items() if kept)
            raise dataset_not_found(name, version, [v.version for v in versions], names)

    def dataset_by_id(self, id: str) -> DatasetRecord:
        """See `Catalogue`."""
        with self._lock:
            for versions in self._datasets.values():
                for record in versions:
                    if record.id == id:
                        return record
        raise DatasetNotFound(f"no dataset in this workspace has the id {id!r}.")

    def datasets(self) -> list[DatasetRecord]:
        """See `Catalogue`."""
        with self._lock:
            return [
                self._datasets[name][-1] for name in sorted(self._datasets) if self._datasets[name]
            ]

    def dataset_versions(self, name: str) -> list[DatasetRecord]:
        """See `Catalogue`."""
        with self._lock:
            return list(self._datasets.get(name, []))

    def set_dataset_tags(self, id: str, tags: Mapping[str, str]) -> DatasetRecord:
        """See `Catalogue`."""
        before = self.dataset_by_id(id)
        after = replace(before, tags=dict(tags))
        with self._lock:
            versions = self._datasets[before.name]
            versions[versions.index(before)] = after
        return after

    def remove_dataset(
        self, name: str, version: int | None = None, *, force: bool = False
    ) -> tuple[str, ...]:
        """See `Catalogue`; jobs and models are unknown here."""
        with self._lock:
            if version is None:
                self._datasets.pop(name, None)
                return ()
            versions = self._datasets.get(name, [])
            versions[:] = [record for record in versions if record.version != version]
            return ()


def datastore_exists(name: str) -> DatastoreExists:
    """Return the error for a datastore name that is taken."""
    return DatastoreExists(
        f"datastore {name!r} is registered already with other settings. "
        "Choose another name, or replace it: `--overwrite`, in Python `overwrite=True`."
    )


def relocated(definition: str, catalogue: Catalogue) -> str:
    """Return a dataset's `definition()` with the current folders of its datastores."""
    values = json.loads(definition)
    old = [DatastoreRecord.from_json(one) for one in values["records"]]
    new = [catalogue.located(record) for record in old]
    if new == old:
        return definition
    return json.dumps({**values, "records": [one.to_json() for one in new]}, sort_keys=True)


def datastore_not_found(name: str, known: list[str]) -> DatastoreNotFound:
    """Return the error for the name of a datastore that is not registered."""
    return DatastoreNotFound(
        f"this workspace has no datastore {name!r}; it has: "
        f"{', '.join(known) or 'none'}. Register it first (rayjobs datastore add)."
    )


def dataset_exists(name: str, version: int) -> DatasetExists:
    """Return the error for a dataset name that is taken."""
    return DatasetExists(
        f"dataset {name!r} is registered already (version {version}). "
        "Give create_new_version=True for the next version, or choose another name."
    )


def dataset_not_found(
    name: str, version: int | None, versions: list[int], known: list[str]
) -> DatasetNotFound:
    """Return the error for a dataset or version that is not registered."""
    if versions:
        listed = ", ".join(str(number) for number in versions)
        return DatasetNotFound(f"dataset {name!r} has no version {version}; it has: {listed}.")
    if not known:
        return DatasetNotFound(f"there is no dataset {name!r}: this workspace has no datasets yet.")
    return DatasetNotFound(
        f"there is no dataset {name!r} in this workspace; its datasets are: {', '.join(known)}."
    )


def check_unused(datastore: str, datasets: Iterable[DatasetRecord], *, force: bool = False) -> None:
    """Refuse to remove a datastore in use; `force` allows removing one with datasets.

    Args:
        datasets: All registered versions.

    Raises:
        DatastoreInUse: it belongs to every workspace, or datasets have files there.
    """
    if datastore in BUILT_IN_DATASTORES:
        raise DatastoreInUse(
            f"{datastore} belongs to every workspace and cannot be removed. To work with another "
            "one by default, add that with --default (in Python: set_as_default())."
        )
    users = [
        f"{record.name}:{record.version}"
        for record in (() if force else datasets)
        if datastore in {source[0] for source in json.loads(record.definition).get("sources", ())}
    ]
    if users:
        more = f" and {len(users) - NAMES_SHOWN} more" if len(users) > NAMES_SHOWN else ""
        raise DatastoreInUse(
            f"datastore {datastore!r} has the files of {', '.join(users[:NAMES_SHOWN])}{more}, "
            "which could no longer be read. To remove it anyway, give --force "
            "(in Python: force=True)."
        )


def parse_version(version: int | str | None) -> int | None:
    """Return a version as a number, None for "latest".

    Raises:
        InvalidReference: it is neither a positive integer nor "latest".
    """
    if version is None or version == "latest":
        return None
    try:
        number = int(version)
    except ValueError:
        number = 0
    if number < 1:
        raise InvalidReference(f'version {version!r} is neither a number from 1 nor "latest".')
    return number
