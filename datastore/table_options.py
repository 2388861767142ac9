"""How the files of a table are read, and the steps that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rayjobs.datastore.errors import DatastoreError
from rayjobs.injob.lazy_dataclass import dataclass


class TableUnreadable(DatastoreError):
    """The files cannot be read as one table, or a value does not fit its column."""


@dataclass(frozen=True)
class TabularOptions:
    """How the files are read, and the steps applied to the table, in order."""

    reader: str
    separator: str = ","
    header: bool = True
    encoding: str = "utf8"
    include_path: bool = False
    infer_types: bool = True
    empty_as_string: bool = False
    multi_line: bool = False
    types: tuple[tuple[str, str], ...] = ()
    steps: tuple[tuple[str, Any], ...] = ()
    partition_format: str | None = None
    timestamp: str | None = None
    partition_timestamp: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the options as a JSON object.

        Options of later releases are present only if set, so that two definitions of one table are
        equal, whichever release wrote them.
        """
        later = ("partition_format", "timestamp", "partition_timestamp")
        return {key: one for key, one in asdict(self).items() if key not in later or one}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TabularOptions:
        """Return the options that `to_json` wrote."""
        given = dict(values)
        given["types"] = tuple((name, kind) for name, kind in given["types"])
        given["steps"] = tuple((name, value) for name, value in given["steps"])
        return cls(**given)
