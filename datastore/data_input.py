"""A job's input with everything that a node needs to fetch it, without catalogue or secrets.

It travels as JSON to the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.sources import Source
from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class DataInput:
    """A resolved input.

    `manifest` holds its exact files. It is None for a path in a local folder, which a job sees in
    its current state; `live` is that path. For the files of a registered version, `dataset` is
    `name:version`, `dataset_id` its id, and `registered_at` the time of its registration;
    `definition` rebuilds the dataset object in the job. With `may_be_empty`, a manifest without
    files is an empty folder instead of an error.
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
    may_be_empty: bool = False

    @property
    def version(self) -> str:
        """The identity of these bytes: `name:version`, else the manifest's digest; "" if live."""
        if self.dataset:
            return self.dataset
        return self.manifest.digest if self.manifest is not None else ""

    @property
    def environment_variables(self) -> tuple[str, ...]:
        """The variables that hold the local path in a job.

        As in Azure ML, a dataset's plain name is also a variable. The caller that sets it must not
        overwrite a variable that the system needs.
        """
        reference = f"AZUREML_DATAREFERENCE_{self.name}"
        return (reference, self.name) if self.definition else (reference,)

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
            "may_be_empty": self.may_be_empty,
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
