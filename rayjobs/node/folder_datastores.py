"""Refuses datastores that are folders of the target's machine on nodes that do not have them.

Otherwise an output to such a folder would be stored where its user does not expect it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.datastore.errors import InvalidReference

if TYPE_CHECKING:
    from rayjobs.datastore.catalogue import DatastoreRecord

LOCAL = "local"
Reaches = Callable[[Path], bool]
"""Whether this node has a folder of the target's machine."""


def check_folders(records: Iterable[DatastoreRecord], reaches: Reaches) -> None:
    """Check that this node has the folder of each folder datastore.

    Raises:
        InvalidReference: it does not; the message has the remedy.
    """
    for record in records:
        if record.kind != LOCAL:
            continue
        folder = Path(record.settings["root"])
        if not reaches(folder):
            raise InvalidReference(
                f"datastore {record.name!r} is the folder {folder} of the target's machine, and "
                f"this node does not share it. Keep the data in object storage (`rayjobs "
                f"datastore add NAME s3://BUCKET`), which every node can reach, or mount "
                f"the folder at the same path on every node."
            )
