"""TensorBoard on the event files of runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

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
