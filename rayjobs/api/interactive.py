"""Interactive runs, which ``Experiment.start_logging`` and ``Run.child_run`` return.

Source: ``azureml.core.Experiment.start_logging`` and ``azureml.core.Run.child_run``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.api.run import JobRun
from rayjobs.core.errors import RayjobsError, SnapshotError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.users import user_name
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.store.requests import NewRun
from rayjobs.submit.submitting import Checked, Packed, pack_source
from rayjobs.workspace import server_choice
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment

OUTPUTS = "outputs"
UNFINISHED = "its process ended without run.complete() or run.fail()"

# Unfinished runs that this process writes: run → (process, folder of its workspace).
_written: dict[str, tuple[int, Path]] = {}
_lock = threading.Lock()


class InteractiveRun(JobRun):
    """A run to which this or another process logs, outside the queue.

    It is stored when it starts, so ``rayjobs ls``, ``show``, ``metrics`` and ``download`` know it.
    It ends with `complete`, `fail` or `cancel`, or at the end of its ``with`` block. A run whose
    process ends before that is Failed: its work may be incomplete.
    """

    type = "azureml.interactive"
    _folder: Path | None = None  # the folder whose files `complete` stores
    _before: Mapping[str, tuple[int, int]] = {}
    _is_folder_ours = False  # whether the run created it at its start

    @property
    def name(self) -> str:
        """Its name."""
        return self.display_name

    # -- end -----------------------------------------------------------------------------------
    def complete(self, **kwargs: Any) -> None:
        """Store the files of its outputs folder, then end the run as Completed.

        If the run has already ended, nothing changes; if not as Completed, a warning is issued.
        """
        if not self._is_final():
            self._store_outputs()
        self._end(Outcome.COMPLETED)

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """End the run as Failed.

        Args:
            error_details: What went wrong: a message or an exception.
            error_code: A short name of the error.
        """
        self._end(Outcome.FAILED, failure=failure_of(error_details, error_code))

    def cancel(self) -> None:
        """End the run as Canceled; its process continues."""
        self._store.request_cancel(self.id, by=user_name())
        _forget(self.id)

    def _leave(self, error: BaseException | None) -> None:
        """Complete the run, or fail it after an error."""
        if error is None:
            self.complete()
        else:
            self.fail(error_details=error)

    def _is_final(self) -> bool:
        return self._job().state.is_final

    def _end(self, outcome: Outcome, failure: Failure | None = None) -> None:
        reason = failure.message if failure is not None else ""
        is_new = self._store.end_run(self.id, outcome=outcome, reason=reason, failure=failure)
        _forget(self.id)
        state = self._job().state
        if not is_new and str(state).lower() != outcome:
            warnings.warn(
                f"run {self.id} has already ended as {state}, which does not change",
                UserWarning,
                stacklevel=3,
            )

    # -- outputs -------------------------------------------------------------------------------
    def _watch(self, outputs: Any) -> None:
        """Let `complete` store the new and changed files of a folder."""
        if outputs is None or outputs is False:
            return
        self._folder = Path(OUTPUTS if outputs is True else outputs).absolute()
        if outputs is True:  # Azure ML programs write into it without creating it
            with contextlib.suppress(OSError):
                self._folder.mkdir()
                self._is_folder_ours = True
        self._before = dict(_signatures(self._folder))

    def _store_outputs(self) -> None:
        if self._folder is None:
            return
        now = _signatures(self._folder)
        known = {one.name for one in self._store.files(self.id)}
        new = {
            f"{OUTPUTS}/{name}": str(self._folder / name)
            for name, signature in now.items()
            if self._before.get(name) != signature and f"{OUTPUTS}/{name}" not in known
        }
        if new:
            self.upload_files(list(new), list(new.values()))
        if self._is_folder_ours and not now:
            with contextlib.suppress(OSError):
                self._folder.rmdir()


def start_logging(
    experiment: Experiment,
    *,
    name: str | None = None,
    run_id: str | None = None,
    outputs: Any = None,
    snapshot_directory: str | Path | None = ".",
    display_name: str | None = None,
) -> InteractiveRun:
    """Start an interactive run of an experiment, see `Experiment.start_logging`."""
    opened = experiment.workspace.opened
    packed = None if not snapshot_directory else _pack(opened, Path(snapshot_directory))
    run = start_run(
        experiment,
        name=display_name or name,
        run_id=run_id,
        snapshot=None if packed is None else packed.digest,
        properties={} if packed is None else packed.properties,
    )
    # None means the default folder, as in Azure ML; False means no folder.
    run._watch(True if outputs is None else outputs)
    if packed is not None:
        run.warnings = packed.warnings
    return run


def start_run(
    experiment: Experiment,
    *,
    name: str | None = None,
    run_id: str | None = None,
    parent: str | None = None,
    snapshot: str | None = None,
    tags: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> InteractiveRun:
    """Create an interactive run to which this process logs; return its handle.

    Raises:
        UsageError: the id is taken.
    """
    opened = experiment.workspace.opened
    job, _is_new = opened.store.start_run(
        NewRun(
            experiment=experiment.name,
            name=name or "",
            user=user_name(),
            writer=ProcessWriter.own().to_json(),
            id=run_id,
            parent=parent,
            snapshot=snapshot,
            tags=dict(tags or {}),
            properties=dict(properties or {}),
        )
    )
    with _lock:
        if not _written:
            atexit.register(_end_written)
        _written[job.id] = (os.getpid(), opened.path)
    return InteractiveRun(experiment, job.id)


def pack_snapshot(opened: OpenWorkspace, folder: Path) -> Packed:
    """Store a snapshot of a folder.

    Raises:
        SnapshotError: it cannot be packed.
        UsageError: there is no such folder.
    """
    from rayjobs.spec.model import JobSpec

    source = folder.expanduser().absolute()
    if not source.is_dir():
        raise UsageError(f"the folder {source} for the snapshot does not exist")
    packed = pack_source(opened, Checked(JobSpec(command=""), source, (), ()))
    assert packed is not None  # it has a source
    return packed


def take_snapshot(opened: OpenWorkspace, run_id: str, source: Path) -> str:
    """Store a file or folder as the code of an interactive run; return the snapshot's digest.

    Raises:
        UsageError: the run already has a snapshot or is a job, or there is no such path.
        SnapshotError: it cannot be packed.
    """
    path = source.expanduser()
    with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
        if path.is_file():
            shutil.copy2(path, folder)
            path = Path(folder)
        digest = pack_snapshot(opened, path).digest
    if not opened.store.set_run_snapshot(run_id, digest):
        raise UsageError(
            f"run {run_id} already has a snapshot, or is a job; a snapshot is never replaced. "
            f"Start another run, or a child run"
        )
    return digest


def _pack(opened: OpenWorkspace, folder: Path) -> Packed:
    try:
        return pack_snapshot(opened, folder)
    except SnapshotError as error:
        raise SnapshotError(
            f"{error.message} To start the run without a snapshot, pass snapshot_directory=None."
        ) from error


def failure_of(details: Any, code: Any) -> Failure:
    """Return the failure for a user's details (a message or an exception) and error code."""
    if isinstance(details, BaseException):
        text = f"{type(details).__name__}: {details}".rstrip(": ")
    else:
        text = "" if details is None else str(details)
    if code is not None:
        text = f"{code}: {text}" if text else str(code)
    lines = tuple(text.splitlines())
    message = lines[0] if lines else "run.fail() was called"
    return Failure(FailureClass.USER, message, lines=lines[1:])


def _forget(run_id: str) -> None:
    with _lock:
        _written.pop(run_id, None)


def _end_written() -> None:
    """End the open runs of this process when it exits."""
    with _lock:
        left = {run: path for run, (pid, path) in _written.items() if pid == os.getpid()}
        _written.clear()
    for folder in dict.fromkeys(left.values()):
        runs = [run for run, path in left.items() if path == folder]
        try:
            with _opened(folder) as opened:
                opened.store.end_orphans(runs, reasons=dict.fromkeys(runs, UNFINISHED))
        except RayjobsError as error:
            # The next process that opens the workspace ends the runs whose process is gone.
            sys.stderr.write(f"rayjobs: could not record the end of {', '.join(runs)}: {error}\n")


def _opened(folder: Path) -> OpenWorkspace:
    """Reopen the workspace of a run: the server's, if this program uses one."""
    server = server_choice.active()
    if server is None:
        return open_workspace(folder, create=False)
    from rayjobs.remote.workspace import open_server

    return open_server(server)


def _signatures(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and change time of each file below a folder, by relative name."""
    found = {}
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = Path(parent, file)
            if path.is_file():
                info = path.stat()
                found[path.relative_to(folder).as_posix()] = (info.st_size, info.st_mtime_ns)
    return found
