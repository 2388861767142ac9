"""The data of attempts on one node: fetched before the launch, stored and released at the end.

A file in the attempt's folder lists what the attempt holds, so that any later agent can release it.
Two processes hold a mount: the agent and, from the launch on, the attempt host. The mount survives
the death of either.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import counted, duration_text, size_text
from rayjobs.data import pins
from rayjobs.data.events import InputChanged, InputProtected, InputProvided
from rayjobs.datastore import credentials
from rayjobs.datastore.errors import DatastoreError, DatastoreUnavailable, InvalidReference
from rayjobs.datastore.progress import Progress, ProgressCallback, line_of
from rayjobs.datastore.protection import NONE as NO_PROTECTION
from rayjobs.datastore.protection import Protection
from rayjobs.injob import open_files, record_files
from rayjobs.injob.data_file import AttemptInput, HeldInput
from rayjobs.injob.identity import Identity, own_identity
from rayjobs.injob.plan import Bind
from rayjobs.injob.views import Views
from rayjobs.jobs.data_facts import DataFacts, Trouble
from rayjobs.launch.plan import input_variables, output_variables
from rayjobs.node import data_record
from rayjobs.node.data_record import DataRecord
from rayjobs.node.folder_datastores import Reaches, check_folders
from rayjobs.node.input_changes import InputChanges, KeptInput
from rayjobs.node.outputs import Note, OutputProblem, Outputs
from rayjobs.protocol.attempts import AttemptOnNode, InputRequest, LaunchRequest

if TYPE_CHECKING:
    from rayjobs.datastore.data_input import DataInput
    from rayjobs.datastore.looks import Looking
    from rayjobs.datastore.materialise import Materialised
    from rayjobs.jobs.records import Event
    from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

# Transfers wait for networks, and the general pool has few threads on a small machine.
THREADS = 32
PROGRESS_EVERY_S = 10.0
# How an input was provided whose files the script may change.
OWN_FILES = ("copied", "downloaded")
CACHE_BYTES = "RAYJOBS_DATA_CACHE_BYTES"


class StoppedError(DatastoreError):
    """The job's end was requested while its data was prepared."""


@dataclass(frozen=True)
class _Recipient:
    """An attempt on this node that gets its data; see `NodeData.bring`."""

    on: AttemptOnNode
    workspace: OpenWorkspace
    paths: AttemptPaths
    record: DataRecord
    note: Note
    reaches: Reaches


class NodeData:
    """The data of all attempts of one node. Its methods block; they are thread-safe."""

    def __init__(
        self, folder: Path, protection: Callable[[], Protection] = lambda: NO_PROTECTION
    ) -> None:
        """Keep caches and mounts in `folder`; `protection` tells how hosts can protect inputs."""
        self.folder = folder
        self._protection = protection
        self._changes = InputChanges(folder / "seen")
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="data")
        self._stopped: set[str] = set()
        self._lock = threading.Lock()
        self._is_started = False
        self._outputs = Outputs()

    # -- before the launch -----------------------------------------------------------------------
    def bring(
        self,
        request: LaunchRequest,
        workspace: OpenWorkspace,
        *,
        note: Note,
        reaches: Reaches = lambda _folder: True,
    ) -> dict[str, str]:
        """Fetch an attempt's inputs and make the folders of its outputs; return its variables.

        Args:
            reaches: Whether this node has a folder of the target's machine.

        Raises:
            PrepareError: class ``data``: an input cannot be fetched, or the folder of an output
                cannot be made. No part of any input is left.
        """
        self._start()
        on, inputs, outputs = request.on, request.inputs, request.outputs
        paths = AttemptPaths(Path(on.root))
        if not inputs and not outputs:
            return {}
        record = DataRecord.new(paths.data, on)
        to = _Recipient(on, workspace, paths, record, note, reaches)
        variables: dict[str, str] = {}
        looks: dict[str, KeptInput] = {}
        try:
            for name, output in outputs.items():
                shown = self._outputs.make(on, workspace, name, output, record, reaches, note)
                variables |= output_variables(name, shown)
            for name, requested in inputs.items():
                self._check_stopped(on)
                shown = self._bring_one(to, name, requested, looks)
                variables |= input_variables(name, shown)
            self._check_stopped(on)
            if looks:
                self._changes.keep(paths.root, looks)
        except (DatastoreError, OSError) as error:
            self.release(paths.root)
            raise PrepareError(
                data_record.sentence_of(error),
                failure_class=FailureClass.DATA,
                is_outage=isinstance(error, DatastoreUnavailable),
                is_permanent=isinstance(error, DatastoreError) and error.is_permanent,
            ) from error
        except BaseException:
            self.release(paths.root)
            raise
        return variables

    def _bring_one(
        self,
        to: _Recipient,
        name: str,
        requested: InputRequest,
        looks: dict[str, KeptInput],
    ) -> str:
        from rayjobs.datastore.materialise import materialise

        began_s = time.monotonic()
        protection = self._protection()
        try:
            check_folders(pins.datastore_of_path(to.workspace, requested.source), to.reaches)
            source = pins.resolve(to.workspace, name, **requested.to_json())
            check_folders(source.records, to.reaches)
            held = materialise(
                source,
                self.folder,
                into=to.paths.inputs,
                working_directory=to.paths.work,
                cache_bytes=_cache_bytes(),
                progress=self._progress(to.on, name, to.note),
                protection=protection,
            )
        except StoppedError:
            raise
        except DatastoreError as error:
            # Keep the class, which says whose fault it is; add the name, since a job may have many
            # inputs.
            raise type(error)(f"input {name!r}: {error}") from error
        definition = _write_definition(source, to.paths.inputs) if held.how == "direct" else None
        given = AttemptInput(held.path, source.mode, held.how, definition)
        to.record.add_input(name, given, HeldInput.from_json(held.to_json()))
        took_s = time.monotonic() - began_s
        self._refuse_own_output(name, held, to.paths.root)
        why_open = _why_open(held, protection)
        node = to.on.node
        if node and held.seen:
            # The first node compares the files for all nodes: it must know which nodes left them
            # writable.
            how = f"not read-only by their own path: {why_open}" if why_open else "read-only"
            protected = InputProtected(name, node, why_open)
            to.note(
                InputProtected.KIND,
                f"input {name}: on node {node} its files are {how}",
                protected.to_json(),
            )
        if node == 0:
            if held.seen:
                looks[name] = KeptInput(held.seen, held.version, why_open)
            provided = InputProvided(
                name=name,
                source=requested.source,
                mode=requested.mode,
                how=held.how,
                version=held.version,
                dataset=source.dataset,
                dataset_id=source.dataset_id,
                files=held.files,
                bytes=held.bytes,
                took_s=round(took_s, 3),
            )
            to.note(InputProvided.KIND, _input_text(held, requested, took_s), provided.to_json())
        for sentence in held.said:
            to.note("data", sentence, {"name": name})
        return held.path

    def _refuse_own_output(self, name: str, held: Materialised, root: Path) -> None:
        """Refuse an input that would make the folder of an output read-only."""
        closed = {os.path.realpath(path) for path in held.read_only}
        for folder in self._outputs.shared_folders(root):
            if os.path.realpath(folder) in closed:
                raise InvalidReference(
                    f"input {name!r} reads {folder} in mount mode, and an output of the job is "
                    "written to the same folder. Use download for the input, or leave it out: an "
                    "output in mount mode shows what its destination holds."
                )

    def _start(self) -> None:
        """Remove the leftovers of dead processes, once in this agent's lifetime."""
        from rayjobs.datastore.materialise import start_node

        with self._lock:
            if not self._is_started and self.folder.exists():
                for point in start_node(self.folder):
                    log.info("the mount %s was left behind by a dead process: unmounted", point)
                self._changes.clean(self.folder.parent / "attempts")
            self._is_started = True

    def views(self, on: AttemptOnNode) -> Views | None:
        """Return what the host of a prepared attempt must mount, or None."""
        held = self._held(Path(on.root))
        read_only = sorted({path for one in held for path in one.read_only})
        overlays = tuple(overlay for one in held for overlay in one.overlays)
        shown = tuple(one for each in held for one in each.shown)
        if not read_only and not overlays and not shown:
            return None
        # The attempt's own files, its socket's folder, what a script may write to the workspace,
        # and outputs that are written in place.
        shared = self._outputs.shared_folders(Path(on.root))
        writable = [on.root, str(Path(on.socket).parent), on.workspace, *shared]
        return Views(
            read_only=tuple(read_only),
            writable=tuple(path for path in writable if path and Path(path).is_dir()),
            overlays=overlays,
            shown=shown,
        )

    # -- a cancel meanwhile ----------------------------------------------------------------------
    def stop(self, on: AttemptOnNode) -> None:
        """Make `bring` of this attempt end soon; has no effect afterwards."""
        self._stopped.add(on.marker)

    def _check_stopped(self, on: AttemptOnNode) -> None:
        if on.marker in self._stopped:
            raise StoppedError("the job had to end while its data was being prepared.")

    def _progress(self, on: AttemptOnNode, name: str, note: Note) -> Callable[[Progress], None]:
        """Return the observer of a download: it stops a canceled one, and reports a long one."""
        reported_s = time.monotonic()

        def watch(progress: Progress) -> None:
            nonlocal reported_s
            if progress.finished:
                return
            self._check_stopped(on)
            if time.monotonic() - reported_s >= PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                note("transfer", line_of(progress), {"name": name})

        return watch

    # -- while it runs ---------------------------------------------------------------------------
    def share_with_host(self, root: Path, host: Identity) -> None:
        """Make the attempt host keep the mounts alive too, since the agent may be replaced."""
        from rayjobs.datastore.materialise import retain

        for held in self._held(root):
            retain(held, host, "host")

    def take_over(self, root: Path) -> None:
        """Keep alive the mounts of an attempt that an earlier agent prepared."""
        from rayjobs.datastore.materialise import retain

        for held in self._held(root):
            retain(held, own_identity(), "agent")

    def credentials(self, root: Path) -> dict[str, str]:
        """Return the variables with which a script reads its direct inputs; they are not stored."""
        found: dict[str, str] = {}
        environment = credentials.environment()
        for given in data_record.read(AttemptPaths(root).data).inputs.values():
            if given.definition is None:
                continue
            definition = Path(given.definition)
            read = record_files.read_json(str(definition.parent), definition.name)
            for record in read["records"]:
                settings = record["settings"]
                if record["kind"] == "fsspec":
                    named = list(json.loads(settings.get("option_env") or "{}").values())
                else:
                    named = [value for key, value in settings.items() if key.endswith("_env")]
                if record["kind"] == "s3" and not named and not settings.get("profile"):
                    named = [name for name in environment if name.startswith("AWS_")]
                found |= {name: environment[name] for name in named if name in environment}
        return found

    # -- at the end ------------------------------------------------------------------------------
    def facts(self, root: Path) -> DataFacts:
        """Return the facts that show whether an attempt failed because of its data."""
        from rayjobs.datastore.materialise import trouble

        refused = self._refused(root)
        paths, mounted, troubles = [], [], []
        read_only: dict[str, tuple[str, ...]] = {}
        for held in self._held(root):
            paths.append(held.path)
            if held.read_only or held.shown:
                shown = [] if held.how in OWN_FILES else [held.path]
                read_only[held.name] = (*shown, *held.read_only)
            if not held.mount_folder:
                continue
            mounted.append(held.name)
            if not Path(held.mount_folder).is_dir():
                continue  # unmounted after the last holder ended: its state is no longer known
            error = trouble(held)
            if error is not None:
                troubles.append(
                    Trouble(
                        held.name,
                        data_record.sentence_of(error),
                        is_outage=isinstance(error, DatastoreUnavailable),
                        is_permanent=isinstance(error, DatastoreError) and error.is_permanent,
                    )
                )
        return DataFacts(
            mounted=tuple(mounted),
            paths=tuple(paths),
            read_only=read_only,
            troubles=tuple(troubles),
            refused=tuple(refused.values()),
        )

    def learn_protection(self, on: AttemptOnNode, history: Callable[[], list[Event]]) -> None:
        """Add the reports of the job's other nodes to the result of `report_changes`.

        Args:
            history: Returns the job's history; called only if there are other nodes.

        Raises:
            StoreError: the history cannot be read.
        """
        if on.node_count == 1 or on.node:
            return
        nodes: dict[int, dict[str, str]] = {}
        try:
            for event in history():
                one = InputProtected.of(event)
                if one is not None and event.attempt == on.attempt:
                    nodes.setdefault(one.node, {})[one.name] = one.why_open
        finally:
            # Also if the history cannot be read: then nothing is known about the other nodes.
            self._changes.learn(Path(on.root), nodes, node_count=on.node_count)

    def report_changes(
        self,
        root: Path,
        *,
        note: Note,
        looking: Looking = lambda _path, _size_bytes: None,
        where: Callable[[str], str] = str,
    ) -> None:
        """Record once which input files changed since `bring`. Blocks meanwhile.

        Args:
            looking: See `rayjobs.datastore.looks.Looking`.
            where: Returns where a folder of the inputs is now.
        """
        for sentence, facts in self._changes.compare(root, looking, where=where):
            note(InputChanged.KIND if facts.count else "data", sentence, facts.to_json())
        self._changes.forget(root)

    def store_outputs(
        self,
        root: Path,
        workspace: OpenWorkspace,
        *,
        note: Note,
        progress: ProgressCallback | None = None,
    ) -> list[OutputProblem]:
        """Store what the script wrote to its outputs; see `Outputs.store`. Repeatable."""
        return self._outputs.store(root, workspace, note=note, progress=progress)

    def has_mounted_outputs(self, root: Path) -> bool:
        """Whether the attempt has outputs that `sync_outputs` stores."""
        return self._outputs.has_synced(root)

    def sync_outputs(self, root: Path, *, note: Note) -> None:
        """Store what the script has written to outputs in mount mode; see `Outputs.sync`."""
        self._outputs.sync(root, note=note)

    def flush_outputs(self, root: Path, *, note: Note) -> list[OutputProblem]:
        """Store the rest after an unsuccessful end; see `Outputs.flush`."""
        return self._outputs.flush(root, note=note)

    def release(self, root: Path) -> None:
        """Release an attempt's data. Idempotent."""
        from rayjobs.datastore.materialise import release

        self._outputs.release(root)
        self._changes.forget(root)
        for held in self._held(root):
            try:
                release(held)
            except (DatastoreError, OSError) as error:
                log.warning("input %s of %s is not released: %s", held.name, root, error)

    def forget(self, on: AttemptOnNode) -> None:
        """Forget an attempt that has ended."""
        self._stopped.discard(on.marker)

    def shown_in_containers(self, on: AttemptOnNode) -> tuple[Bind, ...]:
        """Return the inputs and outputs of a prepared attempt that are outside its folder.

        Links must also work in a container, so each link's target is mounted at its own path.
        Folders come before their contents, which they would hide otherwise.
        """
        file = data_record.read_what_is_left(AttemptPaths(Path(on.root)).data)
        found: dict[str, bool] = {}
        for one in file.inputs.values():
            for path in (one.path, os.path.realpath(one.path)):
                if Path(path).exists():
                    found[path] = one.how not in OWN_FILES
        for path in self._outputs.writable_paths(file):
            found[path] = False
        return tuple(
            Bind(path, path, read_only=read_only)
            for path, read_only in sorted(found.items())
            if not Path(path).is_relative_to(on.root)
        )

    @staticmethod
    def _refused(root: Path) -> Mapping[str, str]:
        """Return why outputs are never stored, by name; empty if the job damaged the record."""
        try:
            return data_record.read(AttemptPaths(root).data).refused
        except (OSError, ValueError) as error:
            if open_files.is_exhausted(error):
                raise  # it can be read later
            log.warning("the refused outputs of %s are unknown: %s", root, error)
            return {}

    @staticmethod
    def _held(root: Path) -> list[Materialised]:
        from rayjobs.datastore.materialise import Materialised

        return [
            Materialised.from_json(one.to_json())
            for one in data_record.read_what_is_left(AttemptPaths(root).data).held
        ]


def _write_definition(source: DataInput, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / f"{source.name}.json"
    path.write_text(json.dumps(source.to_json()))
    return str(path)


def _cache_bytes() -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.environ.get(CACHE_BYTES) or "")
    return None


def _input_text(held: Materialised, requested: InputRequest, took_s: float) -> str:
    size = ""
    if held.files is not None and held.bytes is not None:
        size = f" ({counted(held.files, 'file')}, {size_text(held.bytes)})"
    return f"input {held.name}: {held.how} {requested.source}{size} in {duration_text(took_s)}"


def _why_open(held: Materialised, protection: Protection) -> str:
    """Return why an attempt could change the source of its input; "" if it could not."""
    if held.why_open:
        return held.why_open
    return "" if held.read_only else protection.why
