"""`rayjobs ls` and `why` as commands with ten thousand jobs queued, and a target that answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, median
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.workspace.folder import open_workspace


def measure(*, rounds: int, jobs: int = 10_000) -> list[Figure]:
    """Time the commands; every line has the reason that the target gives."""
    folder = Path(tempfile.mkdtemp(prefix="rj-", dir="/tmp"))  # Unix sockets need a short path
    before = {**os.environ}
    os.environ |= {"RAYJOBS_HOME": str(folder / "h"), "RAYJOBS_WORKSPACE": str(folder / "w")}
    try:
        (folder / "h").mkdir()
        with open_workspace(folder / "w", create=True) as workspace:
            for number in range(jobs):  # each with its own spec
                spec = JobSpec(script="train.py", name="mnist", arguments=("--seed", str(number)))
                workspace.store.submit(
                    NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada")
                )
            lines = workspace.store.job_lines(JobFilter(newest_first=False))
        learned_ms = median([_first_lookup_ms(folder / "w") for _ in range(max(rounds, 20))])
        reasons = {
            f"{workspace.path}::{line.id}": {
                "reason": f"waits for {place} jobs ahead of it",
                "position": place + 1,
                "rule": "line",
            }
            for place, line in enumerate(lines)
        }
        answer = {
            "ok": True,
            "waiting": reasons,
            "nodes": [],
            "allocations": [],
            "workspaces": [str(workspace.path)],
        }
        with _answering(answer):
            listed = [_run("ls") for _ in range(rounds)]
            as_json = [_run("ls", "--json") for _ in range(rounds)]
            asked = [_run("why", lines[-1].id) for _ in range(rounds)]
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder)
    return [
        Figure(f"ls as a command, {jobs} queued", "s", median(listed), most=0.5),
        Figure(f"ls --json as a command, {jobs} queued", "s", median(as_json)),
        Figure(f"why as a command, {jobs} queued", "s", median(asked)),
        Figure(f"looking up learned durations, {jobs} jobs", "ms", learned_ms),
    ]


def _first_lookup_ms(folder: Path) -> float:
    """Time the first look-up of learned durations by a process that has just listed the jobs."""
    with open_workspace(folder) as workspace:
        workspace.store.job_lines(JobFilter(newest_first=False, limit=10))
        began = time.perf_counter()
        workspace.store.durations([("mnist", "train.py")])
        return (time.perf_counter() - began) * 1e3


@contextmanager
def _answering(answer: dict[str, Any]) -> Iterator[None]:
    """Listen where the target's actor would, and answer about the jobs that a client names."""
    from rayjobs.core.paths import TargetPaths, home
    from rayjobs.target.keeper_state import keeper_lock
    from rayjobs.target.wake_client import socket_of

    waiting = answer["waiting"]
    with (
        keeper_lock(TargetPaths.of("local", under=home())),  # else commands start the keeper again
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening,
    ):
        address = socket_of("local", home())
        address.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        listening.bind(str(address))
        listening.listen(16)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    request = json.loads(connection.makefile("rb").readline())
                    keys = request.get("keys")
                    if keys is None:  # the state of the whole queue, or a question about one job
                        keys = waiting if request["op"] == "status" else ()
                    named = {key: waiting[key] for key in keys}
                    connection.sendall(json.dumps(answer | {"waiting": named}).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _run(*arguments: str) -> float:
    environment = {**os.environ}
    # Let Python store compiled modules, as it does by default.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rayjobs", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - began
    if done.returncode or "ahead of it" not in done.stdout:
        raise SystemExit(f"rayjobs {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return seconds
