"""The outputs of attempts on one node: creates their folders, then stores and registers them.

An output in mount mode is stored while its script runs: it is the datastore's own folder, or a
folder whose changes are stored every few seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import StoreError
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import counted
from rayjobs.data import made
from rayjobs.data.events import OutputStored
from rayjobs.datastore.errors import DataExists, DatastoreError, DatastoreUnavailable
from rayjobs.datastore.progress import Progress, ProgressCallback
from rayjobs.injob import open_files
from rayjobs.injob.data_file import AttemptOutput, DataFile, OutputDestination
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.record_files import UnusableFileError
from rayjobs.node import data_record
from rayjobs.node.data_record import DataRecord
from rayjobs.node.folder_datastores import LOCAL, Reaches, check_folders
from rayjobs.protocol.attempts import AttemptOnNode, OutputRequest

if TYPE_CHECKING:
    from rayjobs.datastore.datasets import FileDataset
    from rayjobs.datastore.outputs import DataOutput
    from rayjobs.workspace.folder import OpenWorkspace

Note = Callable[[str, str, Mapping[str, Any]], None]
"""Writes a line into the job's history: its kind, the text, and data."""
_OWN = "{run-id}"
# How long the end of an attempt waits for a sync that hangs. A late sync removes nothing.
RELEASE_WAIT_S = 30.0
# A late sync of a released attempt comes within minutes.
REMEMBERED = 10_000


@dataclass(frozen=True)
class OutputProblem:
    """Why an output could not be stored; a later try may succeed.

    Attributes:
        sentence: For people.
        is_outage: Its storage does not answer, so that only waiting helps.
        is_out_of_files: This process could not open more files.
    """

    sentence: str
    is_outage: bool = False
    is_out_of_files: bool = False

    @classmethod
    def of(cls, name: str, error: Exception) -> OutputProblem:
        """Return the problem of the output `name`."""
        return cls(
            f"output {name}: {data_record.sentence_of(error)}",
            isinstance(error, DatastoreUnavailable),
            open_files.is_exhausted(error),
        )

    @classmethod
    def of_record(cls, path: Path, error: Exception) -> OutputProblem:
        """Return the problem of a record that does not say what the outputs are."""
        is_unusable = isinstance(error, UnusableFileError)
        why = str(error) if is_unusable else data_record.sentence_of(error)
        return cls(
            f"the list of the job's outputs, {path}, cannot be read: {why}.",
            is_out_of_files=open_files.is_exhausted(error),
        )


class Outputs:
    """The outputs of one node's attempts. Its methods block; they are thread-safe."""

    def __init__(self) -> None:
        # An attempt must not remove the link that the next one has just created in its place.
        self._links = threading.Lock()
        self._syncing: dict[str, threading.Lock] = {}
        self._late: dict[str, str] = {}  # an output with a delayed sync → why
        # Released attempts: the removal of their folders removes nothing from a datastore.
        self._closed: dict[str, None] = {}

    def make(
        self,
        on: AttemptOnNode,
        workspace: OpenWorkspace,
        name: str,
        asked: OutputRequest,
        record: DataRecord,
        reaches: Reaches,
        note: Note,
    ) -> str:
        """Make the folder of one output, add it to `record`, and return its path for the script.

        Raises:
            DatastoreError: the node does not have the folder, or its path is in use.
        """
        from rayjobs.datastore.outputs import DataOutput, show

        paths = AttemptPaths(Path(on.root))
        self._closed.pop(str(paths.root), None)  # it is prepared again
        store, _, template = asked.destination.partition("/")
        # An earlier attempt may have died between two files, and its files are this job's own.
        # Several nodes may write there, and none may replace another's files.
        is_alone = on.node_count == 1
        is_own = _OWN in template and is_alone and on.attempt > 1
        path = template.replace(_OWN, on.job).replace("{output-name}", name)
        # The script makes a file or a folder of this name in the stored folder.
        base = ""
        if not (asked.is_folder or asked.path_on_compute):
            path, _, base = path.rpartition("/")
        output = DataOutput(
            name,
            workspace.catalogue.datastore(store),
            path,
            overwrite=asked.overwrite or is_own,
            source_globs=asked.source_globs,
            path_on_compute=asked.path_on_compute,
            mode=asked.mode,
        )
        try:
            check_folders((output.record,), reaches)
            folder = self._folder_of(output, paths, note)
        except DatastoreError as error:
            raise type(error)(f"output {name!r}: {error}") from error
        entry = AttemptOutput(
            path=str(folder),
            output=OutputDestination.from_json(output.to_json()),
            folder=str(folder),
            register_as=asked.register_as,
        )
        # Before the link: any agent that finds the link must be able to find its owner.
        record.set_output(name, entry)
        if base:
            record.set_output(name, replace(entry, path=str(folder / base)))
            return str(folder / base)
        with self._links:
            shown = show(
                output,
                folder,
                working_directory=paths.work,
                may_replace=partial(_is_over, record.file),
            )
        record.set_output(name, replace(entry, path=str(shown)))
        return str(shown)

    def _folder_of(self, output: DataOutput, paths: AttemptPaths, note: Note) -> Path:
        """Return the folder that the script writes to."""
        from rayjobs.datastore.outputs import prepare
        from rayjobs.datastore.write_through import WriteThrough, folder_of

        if output.mode != "mount":
            return prepare(output, paths.written)
        there = folder_of(output)
        if there is not None:
            return there
        folder = prepare(output, paths.written)
        count = WriteThrough(output, folder, _synced(paths, output.name)).fill()
        if count:
            destination = f"{output.record.name}/{output.path}"
            note(
                "data",
                f"output {output.name}: {counted(count, 'file')} copied from {destination}",
                {},
            )
        return folder

    def shared_folders(self, root: Path) -> list[str]:
        """Return the folders of datastores that the attempt writes to in place."""
        found = data_record.read_what_is_left(AttemptPaths(root).data).outputs.values()
        return [str(_folder(entry)) for entry in found if _is_in_place(entry)]

    @staticmethod
    def writable_paths(file: DataFile) -> list[str]:
        """Return the paths that a script needs to write to the outputs of an attempt."""
        found = []
        for entry in file.outputs.values():
            folder = _folder(entry)
            found += [str(folder), os.path.realpath(folder)]
            # The script itself creates or replaces a file in the folder.
            if not Path(entry.path).is_relative_to(folder):
                found.append(entry.path)
        return found

    def has_synced(self, root: Path) -> bool:
        """Whether the attempt has outputs that `sync` stores."""
        return bool(_synced_of(root))

    def sync(self, root: Path, *, note: Note) -> None:
        """Store what the script wrote to outputs in mount mode since the last call.

        This reports a failing datastore in the history once, and once more when it works again: the
        next call retries. After `release` it does nothing.
        """
        if str(root) in self._closed:
            return
        for name, entry in _synced_of(root).items():
            key = f"{root}/{name}"
            try:
                self._sync_one(root, name, entry)
            except (DatastoreError, OSError) as error:
                if key not in self._late:
                    problem = data_record.sentence_of(error).rstrip(".")
                    text = (
                        f"output {name} is not stored for the moment: {problem}. The job continues"
                    )
                    note("output_late", text, {"name": name})
                self._late[key] = str(error)
            else:
                if self._late.pop(key, None) is not None:
                    note("output_late", f"output {name} is stored again", {"name": name})

    def _sync_one(
        self, root: Path, name: str, entry: AttemptOutput, *, final: bool = False
    ) -> list[str]:
        """Update one output's destination; return the files that it stored."""
        from rayjobs.datastore.outputs import DataOutput
        from rayjobs.datastore.write_through import WriteThrough

        output = DataOutput.from_json(entry.output.to_json())
        through = WriteThrough(output, _folder(entry), _synced(AttemptPaths(root), name))
        # A sync that started while the script ran may still wait for its datastore.
        with self._syncing.setdefault(f"{root}/{name}", threading.Lock()):
            done = through.sync(final=final, may_remove=lambda: str(root) not in self._closed)
            return list(done.stored)

    def flush(self, root: Path, *, note: Note) -> list[OutputProblem]:
        """Store what an unsuccessful attempt wrote to outputs in mount mode.

        Returns the problems that may be temporary. Repeatable.
        """
        problems = []
        for name, entry in _synced_of(root).items():
            try:
                self._sync_one(root, name, entry, final=True)
            except (DatastoreError, OSError) as error:
                problem = data_record.sentence_of(error)
                problems.append(OutputProblem.of(name, error))
                text = f"the last files of output {name} are only in {_folder(entry)}: {problem}"
                note("output_late", text, {"name": name})
        return problems

    def store(
        self,
        root: Path,
        workspace: OpenWorkspace,
        *,
        note: Note,
        progress: ProgressCallback | None = None,
    ) -> list[OutputProblem]:
        """Store what the script wrote; return the problems that may be temporary. Repeatable.

        An output that can never be stored, because its path has other files, is "refused" in the
        record. If the job has damaged the record, that is the only problem.
        """
        from rayjobs.datastore.outputs import DataOutput

        path = AttemptPaths(root).data
        try:
            record = DataRecord(path, data_record.read(path))
        except (OSError, ValueError) as error:
            return [OutputProblem.of_record(path, error)]
        problems = []
        for name, entry in record.file.outputs.items():
            if name in record.file.stored or name in record.file.refused:
                continue
            output = _where_now(DataOutput.from_json(entry.output.to_json()), workspace)
            try:
                if entry.output.mode == "mount":
                    text, stored = self._finish_mounted(root, name, entry, output, workspace)
                else:
                    text, stored = self._store_one(name, entry, output, workspace, progress)
                stored = replace(stored, node=record.file.node)
                note(OutputStored.KIND, f"output {name}: {text}", stored.to_json())
            except DataExists as error:
                record.add_refused(name, f"output {name}: {error}")
                continue
            except (DatastoreError, StoreError, OSError) as error:
                problems.append(OutputProblem.of(name, error))
                continue
            # After the note: a consumer reads the pin in it, so the note must never be missing.
            record.add_stored(name)
        return problems

    def _finish_mounted(
        self,
        root: Path,
        name: str,
        entry: AttemptOutput,
        output: DataOutput,
        workspace: OpenWorkspace,
    ) -> tuple[str, OutputStored]:
        from rayjobs.datastore.backends import open_backend

        path = _stored_at(entry, output)
        destination = f"{output.record.name}/{path}"
        if _is_in_place(entry):
            text = f"written in {destination}"
        else:
            count = len(self._sync_one(root, name, entry, final=True))
            text = f"{counted(count, 'file')} stored at the end, all in {destination}"
        backend = open_backend(output.record)
        alone = backend.stat(path)
        files = [*backend.walk(path)] if alone is None else [alone]
        found = made.manifest_of(output.record, path, files)
        stored = made.pin(workspace.catalogue, name, output.record, path, found)
        return _with_dataset(text, stored, _register(workspace, entry, output) if files else None)

    @staticmethod
    def _store_one(
        name: str,
        entry: AttemptOutput,
        output: DataOutput,
        workspace: OpenWorkspace,
        progress: ProgressCallback | None,
    ) -> tuple[str, OutputStored]:
        from rayjobs.datastore.outputs import store

        def report(done: Progress) -> None:
            if progress is not None:
                progress(replace(done, doing=f"output {name}"))

        moved = store(output, _folder(entry), progress=report)
        path = _stored_at(entry, output)
        found = made.manifest_of(output.record, path, moved.files)
        stored = made.pin(workspace.catalogue, name, output.record, path, found)
        dataset = _register(workspace, entry, output) if moved.files else None
        kept = f", of which {len(moved.kept)} existed already" if moved.kept else ""
        text = f"{counted(len(moved.files), 'file')} in {output.record.name}/{path}{kept}"
        return _with_dataset(text, stored, dataset)

    def release(self, root: Path) -> None:
        """Remove the links to an attempt's folders. Idempotent.

        Then the folders may be removed: a sync that still runs removes nothing from a datastore.
        """
        from rayjobs.datastore.outputs import hide

        self._closed[str(root)] = None
        while len(self._closed) > REMEMBERED:
            del self._closed[next(iter(self._closed))]
        for name in _synced_of(root):
            syncing = self._syncing.get(f"{root}/{name}")
            if syncing is not None and syncing.acquire(timeout=RELEASE_WAIT_S):
                syncing.release()
        for entry in data_record.read_what_is_left(AttemptPaths(root).data).outputs.values():
            with self._links:
                hide(Path(entry.path), _folder(entry))
        for known in (self._syncing, self._late):
            for key in [one for one in known if one.startswith(f"{root}/")]:
                known.pop(key, None)


def _is_over(ours: DataFile, folder: Path) -> bool:
    """Whether the target of a link is an output of an attempt that has ended.

    The earlier attempts of its own job have ended, or this one would not have started.
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
    # An earlier version, without links, recorded no folder: the script's path was the folder.
    return Path(entry.folder or entry.path)


def _where_now(output: DataOutput, workspace: OpenWorkspace) -> DataOutput:
    """Return an output with its current path if its datastore moved with its workspace.

    Storing it at the old path would create that path again, where no one expects it.
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


def _with_dataset(
    text: str, stored: OutputStored, dataset: FileDataset | None
) -> tuple[str, OutputStored]:
    """Return the sentence and data, extended by the dataset version of the files, if any."""
    if dataset is None:
        return text, stored
    return f"{text}; registered as {dataset.name}:{dataset.version}", replace(
        stored, dataset=dataset.name, version=dataset.version, dataset_id=dataset.id
    )


def _synced_of(root: Path) -> dict[str, AttemptOutput]:
    """Return the outputs in mount mode whose folder belongs to the attempt."""
    found = data_record.read_what_is_left(AttemptPaths(root).data).outputs
    return {
        name: entry
        for name, entry in found.items()
        if entry.output.mode == "mount" and not _is_in_place(entry)
    }


def _is_in_place(entry: AttemptOutput) -> bool:
    """Whether the script writes to the datastore's own folder."""
    return entry.output.mode == "mount" and entry.output.record.kind == LOCAL


def _synced(paths: AttemptPaths, name: str) -> Path:
    """Return the file that lists the stored files of an output, outside the script's folder."""
    return paths.root / f"written-{name}.json"


def _stored_at(entry: AttemptOutput, output: DataOutput) -> str:
    """Return the path of the output in its datastore: a folder, or a file made by the script."""
    try:
        below = Path(entry.path).relative_to(_folder(entry)).as_posix()
    except ValueError:  # a link elsewhere, at path_on_compute
        below = "."
    return output.path if below == "." else f"{output.path}/{below}".lstrip("/")


def _register(
    workspace: OpenWorkspace, entry: AttemptOutput, output: DataOutput
) -> FileDataset | None:
    wanted = entry.register_as
    if wanted is None:
        return None
    from rayjobs.datastore.dataset_factory import Dataset
    from rayjobs.datastore.stores import Datastore

    destination = (Datastore.from_record(output.record), output.path)
    return Dataset.File.from_files(destination).register(
        workspace.catalogue,
        wanted.name,
        wanted.description,
        wanted.tags,
        create_new_version=True,
    )
