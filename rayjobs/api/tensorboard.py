"""TensorBoard for runs: on their event files, or on metrics converted to event files.

Source: ``azureml.tensorboard.Tensorboard`` and ``azureml.tensorboard.export``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import UsageError
from rayjobs.core.paths import AttemptPaths
from rayjobs.datastore.digests import digest_of_stream
from rayjobs.results.driver_log import open_log
from rayjobs.results.logs import roots_here
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.jobs.records import StoredFile
    from rayjobs.workspace.folder import OpenWorkspace

MARK = "tfevents"
REFRESH_S = 5.0
_URL = re.compile(r"http://\S+")


def runs_below(workspace: OpenWorkspace, run: str) -> list[str]:
    """Return the ids of a run and of all its descendants, such as a sweep's trials."""
    found, pending = [], [run]
    while pending:
        one = pending.pop(0)
        found.append(one)
        pending += [job.id for job in workspace.store.jobs(JobFilter(parent=one))]
    return found


class EventFiles:
    """A folder with the event files of runs, in one subfolder per run.

    A node stores a file once it has not changed for some seconds. The event file of a steady
    training run never stops changing, so the files of attempts on this machine are read where the
    scripts write them. A copy is extended instead of replaced, because TensorBoard keeps it open.
    """

    def __init__(self, workspace: OpenWorkspace, runs: Iterable[str], folder: Path) -> None:
        self._workspace = workspace
        self._runs = list(runs)
        self.folder = folder
        self._known: dict[Path, str] = {}

    def refresh(self) -> int:
        """Fetch new and changed files; return the number of all files.

        Raises:
            StoreError: a file cannot be read.
        """
        for run in self._runs:
            live = {} if self._workspace.store.job(run).state.is_final else self._live(run)
            for name, source in live.items():
                path = self._local_path(run, name)
                if _grow(path, source):
                    self._known[path] = ""
            for one in self._workspace.store.files(run):
                if MARK not in PurePosixPath(one.name).name or one.name in live:
                    continue
                path = self._local_path(run, one.name)
                if self._known.get(path) != one.digest:
                    self._complete(path, one)
                    self._known[path] = one.digest
        return len(self._known)

    def _local_path(self, run: str, name: str) -> Path:
        path = self.folder / run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _live(self, run: str) -> dict[str, Path]:
        """Return the event files of the newest attempt's nodes on this machine, by stored name."""
        found: dict[str, Path] = {}
        for root, first, count in roots_here(self._workspace.store, run):
            prefix = f"node-{first // count}/" if first else ""
            work = AttemptPaths(root).work
            for top in (work / "outputs", work / "logs"):
                for folder, _, files in os.walk(top):
                    for file in files:
                        path = Path(folder) / file
                        if MARK in file:
                            found[prefix + path.relative_to(work).as_posix()] = path
        return found

    def _complete(self, path: Path, stored: StoredFile) -> None:
        """Append what a file lacks of its stored content; replace a file that does not match it."""
        blobs = self._workspace.blobs
        if path.exists():
            with path.open("ab") as file, blobs.open(stored.blob) as source:
                source.seek(file.tell())
                shutil.copyfileobj(source, file)
            with path.open("rb") as file:
                if digest_of_stream(file) == stored.digest:
                    return
        blobs.get_to(stored.blob, path, digest=stored.digest)


def _grow(path: Path, source: Path) -> bool:
    """Append what `source` has gained to its copy `path`; return whether it can be read."""
    try:
        with open_log(source) as growing:
            has = path.stat().st_size if path.exists() else 0
            if os.fstat(growing.fileno()).st_size < has:  # another attempt has restarted the file
                path.unlink()
                has = 0
            growing.seek(has)
            with path.open("ab") as file:
                shutil.copyfileobj(growing, file)
    except OSError:
        return False  # not a regular file, or removed
    return True


class Server:
    """TensorBoard on this machine for a folder.

    Attributes:
        url: Its address.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Start it, and wait until it prints its address.

        Args:
            port: 0 means any free port.

        Raises:
            UsageError: TensorBoard is not installed, or does not start.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError(
                "TensorBoard is not installed here; install rayjobs[tensorboard], or fetch only "
                "the files with `rayjobs tensorboard JOB --fetch FOLDER`"
            )
        options = ["--logdir", str(folder), "--port", str(port), "--host", "127.0.0.1"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *options, "--reload_interval", "5"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines: list[str] = []
        assert self._process.stderr is not None
        for line in self._process.stderr:
            lines.append(line)
            match = _URL.search(line)
            if match is not None and "localhost" not in line.partition("http")[0]:
                self.url = match[0]
                break
        else:
            self.stop()
            raise UsageError(f"TensorBoard did not start: {''.join(lines[-3:]).strip()}")
        # Read its later output, so that the pipe does not fill up.
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for _ in self._process.stderr:
            pass

    @property
    def is_running(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Tensorboard:
    """TensorBoard on the event files of runs, updated while they run.

    Args:
        runs: Runs; for a sweep, its trials are shown.
        local_root: Folder for the files; None creates a temporary one.
        port: 0 means any free port, as in `rayjobs tensorboard`.
    """

    def __init__(self, runs: Any, local_root: str | None = None, port: int = 6006) -> None:
        self._runs = list(runs) if isinstance(runs, Sequence) else [runs]
        self._root = (
            Path(local_root) if local_root else Path(tempfile.mkdtemp(prefix="rayjobs-tb-"))
        )
        self._port = port
        self._server: Server | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, start_browser: bool = False) -> str:
        """Fetch the files and start the server; return its address.

        Raises:
            UsageError: TensorBoard is not installed, or does not start.
        """
        fetched = [self._files_of(run) for run in self._runs]
        for files in fetched:
            files.refresh()
        self._server = Server(self._root, self._port)
        self._thread = threading.Thread(
            target=self._follow, args=([files.refresh for files in fetched],), daemon=True
        )
        self._thread.start()
        if start_browser:
            import webbrowser

            webbrowser.open(self._server.url)
        return self._server.url

    def _files_of(self, run: Any) -> EventFiles:
        opened = run.experiment.workspace.opened
        return EventFiles(opened, runs_below(opened, run.id), self._root)

    def _follow(self, refreshes: Sequence[Callable[[], int]]) -> None:
        while not self._stop.wait(REFRESH_S):
            for refresh in refreshes:
                refresh()

    def stop(self) -> None:
        """Stop the server and the updates; the files stay."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._server is not None:
            self._server.stop()


def export_to_tensorboard(run_data: Any, logdir: str | Path) -> None:
    """Write the metrics of a run, or of several, as event files below `logdir`.

    Raises:
        UsageError: tensorboardX, a dependency of Ray Tune, is not installed.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise UsageError("event files need the package tensorboardX; install ray[tune]") from error
    from rayjobs.results import metrics

    runs = list(run_data) if isinstance(run_data, Sequence) else [run_data]
    for run in runs:
        opened = run.experiment.workspace.opened
        folder = Path(logdir) / run.id if len(runs) > 1 else Path(logdir)
        with SummaryWriter(str(folder)) as writer:
            for name, one in metrics.series(opened.store.metrics(run.id)).items():
                for step, value in zip(one.steps, one.values, strict=True):
                    writer.add_scalar(name, value, int(step))
