"""Outputs of jobs: what was stored is pinned when the job ends; other jobs read the pinned files.

A pin is the exact list of files, with sizes and marks of their bytes. It is kept in the catalogue,
and an event of the job names it. A consumer gets exactly these files, or an error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rayjobs.data.events import OutputStored
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.catalogue import Catalogue, DatastoreRecord
from rayjobs.datastore.data_input import DataInput
from rayjobs.datastore.errors import DataNotFound, DatastoreError
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.transfer import for_each
from rayjobs.injob.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rayjobs.datastore.backends import StoredFile
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store
    from rayjobs.store.contract.runs import RunStore
    from rayjobs.workspace.folder import OpenWorkspace

MOST_NAMED = 3


@dataclass(frozen=True)
class MadeOutput:
    """A stored output of a job.

    Attributes:
        name: The output's name.
        datastore: The datastore's name.
        path: The path of the files in the datastore.
        files: The exact files.
        records: The datastores of the files.
    """

    name: str
    datastore: str
    path: str
    files: Manifest
    records: tuple[DatastoreRecord, ...]


@dataclass(frozen=True)
class OutputLocation:
    """An output of a job and where its files are, or will be.

    Attributes:
        name: The output's name.
        stored_at: The datastore and the path in it.
        files: How many files were stored; None: not stored yet.
        bytes: Their size; None: not stored yet.
        job: Id of the job that stores them.
    """

    name: str
    stored_at: str
    files: int | None
    bytes: int | None
    job: str


def manifest_of(record: DatastoreRecord, path: str, files: Iterable[StoredFile]) -> Manifest:
    """Return the manifest of the files that were stored at `path`, or below it.

    Files elsewhere are left out.
    """
    entries, single = [], False
    for file in files:
        if file.path == path:
            shown, single = path.rpartition("/")[2], True
        elif not path:
            shown = file.path
        elif file.path.startswith(f"{path}/"):
            shown = file.path[len(path) + 1 :]
        else:
            continue
        entries.append(FileEntry(shown, record.name, file.path, file.size, file.etag, file.digest))
    return Manifest.of(entries, single_file=single)


def pin(
    catalogue: Catalogue, name: str, record: DatastoreRecord, path: str, files: Manifest
) -> OutputStored:
    """Store the manifest of an output, and return the data of its event."""
    whole = DataInput(name=name, mode="mount", records=(record,), manifest=files)
    text = json.dumps(whole.to_json(), sort_keys=True)
    return OutputStored(
        name=name,
        datastore=record.name,
        path=path,
        files=len(files),
        bytes=files.total_bytes,
        pin=catalogue.put_manifest(text.encode()),
    )


def outputs_made(
    store: RunStore, catalogue: Catalogue, job_id: str, *, name: str | None = None
) -> dict[str, MadeOutput]:
    """Return a job's stored outputs by name, each from the newest attempt that stored it.

    Args:
        name: Only this output.
    """
    return {
        title: _joined(catalogue, title, [one for _, one in sorted(nodes.items())])
        for title, nodes in _stored(store, job_id).items()
        if name in (None, title)
    }


def _stored(store: RunStore, job_id: str) -> dict[str, dict[int, OutputStored]]:
    """Return what each node pinned of each output, in the newest attempt that stored the output."""
    newest: dict[str, dict[int, OutputStored]] = {}
    attempt: dict[str, int] = {}
    for event in store.events(job_id):
        one = OutputStored.of(event)
        if one is None or not one.pin:
            continue
        if event.attempt > attempt.get(one.name, -1):
            attempt[one.name], newest[one.name] = event.attempt, {}
        # A later event of a node replaces an earlier one: the agent may have died in between.
        newest[one.name][one.node] = one
    return newest


def outputs_stored(store: Store, job: Job) -> list[OutputLocation]:
    """Return a job's outputs, those of its spec first.

    A step that reuses earlier results has the outputs of the job that made them.
    """
    step = store.step_of(job.id)
    made_by = step.original if step is not None and step.original is not None else job.id
    stored = _stored(store, made_by)
    found = []
    for name in [*job.spec.outputs, *(one for one in stored if one not in job.spec.outputs)]:
        pins = [*stored.get(name, {}).values()]
        if pins:
            stored_at = f"{pins[-1].datastore}/{pins[-1].path}"
            files, size_bytes = sum(one.files for one in pins), sum(one.bytes for one in pins)
            found.append(OutputLocation(name, stored_at, files, size_bytes, made_by))
        else:
            template = job.spec.outputs[name].destination
            stored_at = template.replace("{run-id}", made_by).replace("{output-name}", name)
            found.append(OutputLocation(name, stored_at, None, None, made_by))
    return found


def _joined(catalogue: Catalogue, name: str, pins: Sequence[OutputStored]) -> MadeOutput:
    parts = [DataInput.from_json(json.loads(catalogue.manifest(one.pin))) for one in pins]
    records = {
        record.name: _current(catalogue, record) for part in parts for record in part.records
    }
    entries = {entry.path: entry for part in parts for entry in part.manifest or ()}
    single = any(part.manifest is not None and part.manifest.single_file for part in parts)
    return MadeOutput(
        name=name,
        datastore=pins[-1].datastore,
        path=pins[-1].path,
        files=Manifest.of(entries.values(), single_file=single and len(entries) == 1),
        records=tuple(records.values()),
    )


def _current(catalogue: Catalogue, record: DatastoreRecord) -> DatastoreRecord:
    """Return a datastore with its current settings: a folder may have moved with its workspace."""
    try:
        return catalogue.datastore(record.name)
    except DatastoreError:
        return catalogue.located(record)


def input_of(workspace: OpenWorkspace, job_id: str, output: str) -> DataInput:
    """Return an output of a job as an input with its exact files.

    Raises:
        DataNotFound: the job has stored no such output.
        DatastoreError: its pin cannot be read.
    """
    found = outputs_made(workspace.store, workspace.catalogue, job_id, name=output).get(output)
    if found is None:
        raise DataNotFound(
            f"job {job_id} has stored no output {output!r}. `rayjobs events {job_id}` lists what "
            f"it stored; a job stores its outputs when its script has succeeded."
        )
    return DataInput(
        name=output,
        mode="mount",
        records=found.records,
        manifest=found.files,
        may_be_empty=True,
    )


def changes(made: MadeOutput) -> list[str]:
    """Return how files differ from the pinned ones, one sentence for each of the first few.

    Sizes and the storage's own marks are compared; no bytes are read.

    Raises:
        DatastoreError: the storage cannot be reached.
    """
    backends = {record.name: open_backend(record) for record in made.records}
    found: list[str] = []

    def look(entry: FileEntry, _stop: threading.Event) -> None:
        now = backends[entry.datastore].stat(entry.key)
        if now is None:
            found.append(f"{entry.datastore}/{entry.key} is missing")
        elif now.size != entry.size:
            found.append(
                f"{entry.datastore}/{entry.key} has {now.size} bytes instead of {entry.size}"
            )
        elif now.etag != entry.etag:
            found.append(f"{entry.datastore}/{entry.key} was overwritten")

    for_each(made.files.files, look)
    found.sort()
    more = len(found) - MOST_NAMED
    return [*found[:MOST_NAMED], f"and {more} more"] if more > 0 else found


def with_name(source: DataInput, name: str, mode: str, path_on_compute: str | None) -> DataInput:
    """Return an input under the name, mode and path that one job requests."""
    return replace(source, name=name, mode=mode, path_on_compute=path_on_compute)


Check = Callable[[MadeOutput], list[str]]


def damage(
    workspace: OpenWorkspace, job_id: str, outputs: Iterable[str], *, check: Check = changes
) -> str | None:
    """Return why a completed job's outputs can no longer be used; None if all are as pinned.

    Args:
        outputs: Names of the outputs that must be pinned.
    """
    try:
        made = outputs_made(workspace.store, workspace.catalogue, job_id)
        for name in outputs:
            if name not in made:
                return f"its output {name!r} is not pinned"
            if wrong := check(made[name]):
                return f"its output {name!r} has changed: {'; '.join(wrong)}"
    except DatastoreError as error:
        return f"its outputs cannot be checked: {error}"
    return None
