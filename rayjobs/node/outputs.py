"""The outputs of attempts on one node: folders before the launch, stored and registered after."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import counted
from rayjobs.datastore.errors import DataExists, DatastoreError
from rayjobs.injob.datafile import AttemptOutput, DataFile
from rayjobs.node import data_record
from rayjobs.node.data_record import DataRecord
from rayjobs.node.folder_datastores import LOCAL, Reaches, check_folders
from rayjobs.protocol.attempts import AttemptOnNode, OutputRequest, Registration

if TYPE_CHECKING:
    from rayjobs.datastore.datasets import FileDataset
    from rayjobs.datastore.outputs import DataOutput
    from rayjobs.workspace.folder import OpenWorkspace

Note = Callable[[str, str, Mapping[str, Any]], None]
"""Writes a line into the job's history: its kind, the text, and data."""
_OWN = "{run-id}"


class Outputs:
    """What the attempts of one node write. Its methods block; they are safe from threads."""

    def __init__(self) -> None:
        # One attempt must not take away the link that the next has just put in its place.
        self._links = threading.Lock()

    def make(
        self,
        on: AttemptOnNode,
        workspace: OpenWorkspace,
        name: str,
        asked: OutputRequest,
        record: DataRecord,
        reaches: Reaches,
    ) -> str:
        """Make the folder of one output, note it in `record`, and return where the script finds it.

        Raises:
            DatastoreError: the node does not have the folder, or its place is taken.
        """
        from rayjobs.datastore.outputs import DataOutput, prepare, show

        paths = AttemptPaths(Path(on.root))
        store, _, template = asked.destination.partition("/")
        # An earlier attempt may have died between two files, and its files are this job's own. Of
        # several nodes each writes there, and none may replace another's.
        is_alone = on.node_count == 1
        is_own = _OWN in template and is_alone and on.attempt > 1
        path = template.replace(_OWN, on.job).replace("{output-name}", name)
        output = DataOutput(
            name,
            workspace.catalogue.datastore(store),
            path,
            overwrite=asked.overwrite or is_own,
            source_globs=asked.source_globs,
            path_on_compute=asked.path_on_compute,
        )
        try:
            check_folders((output.record,), reaches)
        except DatastoreError as error:
            raise type(error)(f"output {name!r}: {error}") from error
        folder = prepare(output, paths.written)
        entry = AttemptOutput(
            path=str(folder),
            output=output.to_json(),
            folder=str(folder),
            register_as=None if asked.register_as is None else asked.register_as.to_json(),
        )
        # Before the link: any agent that finds the link must be able to tell whose it is.
        record.set_output(name, entry)
        with self._links:
            shown = show(
                output,
                folder,
                working_directory=paths.work,
                may_replace=partial(_is_over, record.file),
            )
        record.set_output(name, replace(entry, path=str(shown)))
        return str(shown)

    def store(self, root: Path, workspace: OpenWorkspace, *, note: Note) -> list[str]:
        """Store what the script wrote; return the problems that may pass. Repeatable.

        What is refused for good, since other files are there, stands in the record as "refused".
        """
        from rayjobs.datastore.outputs import DataOutput, store

        path = AttemptPaths(root).data
        record = DataRecord(path, data_record.read(path))
        problems = []
        for name, entry in record.file.outputs.items():
            if name in record.file.stored or name in record.file.refused:
                continue
            output = _where_now(DataOutput.from_json(entry.output), workspace)
            try:
                moved = store(output, _folder(entry))
                dataset = _register(workspace, entry, output) if moved.files else None
            except DataExists as error:
                record.add_refused(name, f"output {name}: {error}")
                continue
            except (DatastoreError, OSError) as error:
                problems.append(f"output {name}: {data_record.sentence_of(error)}")
                continue
            record.add_stored(name)
            said = "" if dataset is None else f"; registered as {dataset.name}:{dataset.version}"
            kept = f", {len(moved.kept)} were there already, the same" if moved.kept else ""
            note(
                "output",
                f"output {name}: {counted(len(moved.files), 'file')} in "
                f"{output.record.name}/{output.path}{kept}{said}",
                {
                    "name": name,
                    "datastore": output.record.name,
                    "path": output.path,
                    "files": len(moved.files),
                    "bytes": sum(file.size for file in moved.files),
                    **(
                        {}
                        if dataset is None
                        else {
                            "dataset": dataset.name,
                            "version": dataset.version,
                            "dataset_id": dataset.id,
                        }
                    ),
                },
            )
        return problems

    def release(self, root: Path) -> None:
        """Take away the links to an attempt's folders. Doing it twice is harmless."""
        from rayjobs.datastore.outputs import hide

        for entry in data_record.read_what_is_left(AttemptPaths(root).data).outputs.values():
            with self._links:
                hide(Path(entry.path), _folder(entry))


def _is_over(ours: DataFile, folder: Path) -> bool:
    """Whether a folder that a link leads to is an output of an attempt that has ended.

    Its own job's earlier attempts have: this one would not have been started.
    """
    paths = AttemptPaths(folder.parent.parent)
    try:
        theirs = data_record.read(paths.data)
    except (OSError, ValueError):
        return False
    outputs = theirs.outputs.values()
    if str(folder) not in (os.path.realpath(_folder(entry)) for entry in outputs):
        return False
    if theirs.job == ours.job and theirs.attempt < ours.attempt:
        return True
    return paths.exit.exists()


def _folder(entry: AttemptOutput) -> Path:
    # A release that made no links wrote no folder: the script's path was the folder itself.
    return Path(entry.folder or entry.path)


def _where_now(output: DataOutput, workspace: OpenWorkspace) -> DataOutput:
    """Return an output whose datastore is a folder that was moved with its workspace, as it is now.

    To store it at the old path would create that again, where nothing looks for it.
    """
    from rayjobs.datastore.errors import DatastoreNotFound

    root = output.record.settings.get("root")
    if output.record.kind != LOCAL or root is None or Path(root).is_dir():
        return output
    try:
        now = workspace.catalogue.datastore(output.record.name)
    except DatastoreNotFound:
        return output
    return replace(output, record=now) if now.kind == LOCAL else output


def _register(
    workspace: OpenWorkspace, entry: AttemptOutput, output: DataOutput
) -> FileDataset | None:
    if entry.register_as is None:
        return None
    from rayjobs.datastore.dataset_factory import Dataset
    from rayjobs.datastore.stores import Datastore

    wanted = Registration.from_json(entry.register_as)
    place = (Datastore.from_record(output.record), output.path)
    return Dataset.File.from_files(place).register(
        workspace.catalogue,
        wanted.name,
        wanted.description,
        wanted.tags,
        create_new_version=True,
    )
