"""The first submit on a machine where nothing runs, compared with `ray start --head`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure, median
from benchmarks.head import IMPORTS_TORCH, make_source, own_folder, until, written_time
from rayjobs.core.paths import runtime_dir
from rayjobs.injob.identity import is_alive, send_signal
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import submit
from rayjobs.target import local_head, starting, targets
from rayjobs.target.machine import LocalSettings
from rayjobs.workspace.folder import open_workspace


def measure(*, rounds: int) -> list[Figure]:
    """Start both from nothing, in turn."""
    ours, peers = [], []
    for _ in range(max(1, rounds // 3)):
        ours.append(_first_line())
        peers.append(_ray_start())
    return [
        Figure(
            "first submit, nothing runs → first line, imports torch",
            "s",
            median(ours),
            median(peers),
            "ray start --head",
            slower=1.3,
            plus=4.0,
        )
    ]


def _first_line() -> float:
    with own_folder() as folder:
        output = folder / "time"
        source = make_source(folder, IMPORTS_TORCH)
        try:
            began = time.time()
            with open_workspace(folder / "w") as workspace:
                spec = JobSpec(name="bench", script="train.py", arguments=(str(output),))
                submit(workspace, spec, source=source)
                starting.ensure_target("local", home=folder / "h", workspace=workspace.path)
                return written_time(output) - began
        finally:
            targets.stop_target(force=True, home=folder / "h")


def _ray_start() -> float:
    """Start a bare head with the same options as ours; end it through its processes."""
    with own_folder() as folder:
        runtime = runtime_dir(folder / "h")
        ray_folder = local_head.ray_folder(folder / "h")
        token = folder / "token"
        token.write_text("0" * 64)
        token.chmod(0o600)
        arguments = local_head.head_arguments(
            LocalSettings.read(), ip=local_head.node_ip(folder / "h"), folder=ray_folder
        )
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
        try:
            began = time.monotonic()
            done = subprocess.run(
                command,
                env=local_head.head_environment(folder / "h", token, base=os.environ),
                capture_output=True,
                text=True,
            )
            seconds = time.monotonic() - began
            if done.returncode:
                raise SystemExit(f"ray start failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return seconds
        finally:
            _end(ray_folder)
            _remove(runtime)


def _end(ray_folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        found = list(local_head.processes_of(ray_folder))
        for identity in found:
            send_signal(identity, number)
        deadline = time.monotonic() + 10.0
        while any(map(is_alive, found)) and time.monotonic() < deadline:
            time.sleep(0.05)
    until(lambda: not list(local_head.processes_of(ray_folder)), "the bare head ends")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
