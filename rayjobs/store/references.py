"""Finds references to data, in the transaction that deletes it or submits a reader."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import UsageError
from rayjobs.jobs.states import FINAL

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec

DATASET = "dataset:"
MOST_SHOWN = 5

_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))

DATA_OF_UNFINISHED = f"""
SELECT id, json_extract(spec, '$.inputs') AS inputs, json_extract(spec, '$.outputs') AS outputs
FROM jobs WHERE state NOT IN ({_FINAL}) AND json_valid(spec) ORDER BY serial
"""  # noqa: S608 - made of our own names

LINEAGES = (
    "SELECT name, version, lineage FROM models WHERE deleted_at IS NULL ORDER BY name, version"
)

REMOVED_DATASET = """
SELECT 1 FROM datasets WHERE name = :name AND version = :version AND removed_at IS NOT NULL
"""


def jobs_reading(connection: sqlite3.Connection, name: str, version: int | None) -> list[str]:
    """Return the unfinished jobs that read a version of a dataset, or any version."""
    of_any = f"{DATASET}{name}:"
    wanted = of_any if version is None else f"{of_any}{version}"
    return [
        job
        for job, sources, _destinations in _data_of_unfinished(connection)
        if any(one.startswith(wanted) if version is None else one == wanted for one in sources)
    ]


def jobs_using(connection: sqlite3.Connection, datastore: str) -> list[str]:
    """Return the unfinished jobs that name a path in a datastore as an input or output."""
    return [
        job
        for job, sources, destinations in _data_of_unfinished(connection)
        if any(one.partition("/")[0] == datastore for one in (*sources, *destinations))
    ]


def models_made_of(connection: sqlite3.Connection, name: str, version: int | None) -> list[str]:
    """Return the models (``NAME:VERSION``) whose lineage names this dataset version (None: any)."""
    wanted = f"{name}:" if version is None else f"{name}:{version}"
    return [
        f"{row['name']}:{row['version']}"
        for row in connection.execute(LINEAGES)
        if any(
            str(one.get("version", "")).startswith(wanted)
            if version is None
            else one.get("version") == wanted
            for one in json.loads(row["lineage"]).get("data", ())
        )
    ]


def refuse_removed(connection: sqlite3.Connection, spec: JobSpec) -> None:
    """Check that no dataset version that a job reads was deleted.

    The version existed when the spec was checked; this checks again in the transaction that writes
    the job.

    Raises:
        UsageError: one was.
    """
    for name, one in spec.inputs.items():
        if not one.source.startswith(DATASET):
            continue
        title, _, version = one.source.removeprefix(DATASET).rpartition(":")
        values = {"name": title, "version": int(version) if version.isdecimal() else None}
        if connection.execute(REMOVED_DATASET, values).fetchone() is not None:
            raise UsageError(
                f"dataset {title}:{version}, the input {name!r} of the job, was deleted; nothing "
                f"was submitted. `rayjobs data ls` lists the datasets"
            )


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(names[:MOST_SHOWN])
    left = len(names) - MOST_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


def _data_of_unfinished(
    connection: sqlite3.Connection,
) -> Iterator[tuple[str, list[str], list[str]]]:
    for row in connection.execute(DATA_OF_UNFINISHED):
        yield row["id"], _named(row["inputs"], "source"), _named(row["outputs"], "destination")


def _named(text: str | None, field: str) -> list[str]:
    found: dict[str, dict[str, Any]] = json.loads(text or "{}")
    return [str(one[field]) for one in found.values() if field in one]
