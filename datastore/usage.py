"""Who needs a datastore: what must be known before it is forgotten."""

from __future__ import annotations

import json

from rayjobs.datastore.catalogue import DEFAULT_DATASTORE, Catalogue
from rayjobs.datastore.errors import DatastoreInUse

NAMES_SHOWN = 5


def datasets_of(catalogue: Catalogue, datastore: str) -> list[str]:
    """Return the registered versions (`name:version`) whose files are in the datastore."""
    return [
        f"{record.name}:{record.version}"
        for latest in catalogue.datasets()
        for record in catalogue.dataset_versions(latest.name)
        if datastore in {place[0] for place in json.loads(record.definition)["sources"]}
    ]


def check_unused(catalogue: Catalogue, datastore: str, *, force: bool = False) -> None:
    """Refuse to forget a datastore that is needed; `force` allows it for one with datasets.

    Raises:
        DatastoreInUse: it is `workspaceblobstore`, or datasets have their files there.
    """
    if datastore == DEFAULT_DATASTORE:
        raise DatastoreInUse(
            f"{DEFAULT_DATASTORE} belongs to every workspace and cannot be forgotten. To work with "
            "another one by default, make that the default datastore."
        )
    users = [] if force else datasets_of(catalogue, datastore)
    if users:
        more = f" and {len(users) - NAMES_SHOWN} more" if len(users) > NAMES_SHOWN else ""
        raise DatastoreInUse(
            f"datastore {datastore!r} has the files of {', '.join(users[:NAMES_SHOWN])}{more}, "
            "which could not be read any more. To forget it all the same, force it."
        )
