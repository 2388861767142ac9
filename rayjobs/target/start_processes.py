"""Starts a target's processes for a client: its keeper and the starter; shows their progress."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rayjobs.core import ids
from rayjobs.core.errors import TargetError
from rayjobs.core.text import duration_text
from rayjobs.target import local_head, progress, reach
from rayjobs.target.record import load_target
from rayjobs.target.stopping import TargetLocation

START_TIMEOUT_S = 600.0  # the keeper tries several times on a busy machine
POLL_S = 0.05


def spawn(location: TargetLocation, start: str, *, is_patient: bool = False) -> None:
    """Start a keeper that outlives this process; return when it holds the keeper's lock.

    Args:
        is_patient: If its start fails, it stays and retries with growing pauses.

    Raises:
        TargetError: the interpreter could not run it.
    """
    command = [sys.executable, "-P", "-m", "rayjobs.target.keeper"]
    errors = log_file(location, "keeper.err")
    with errors.open("wb") as output:
        done = subprocess.run(
            [
                *command,
                str(location.home),
                location.name,
                start,
                *(["--patient"] if is_patient else []),
            ],
            env=local_head.head_environment(
                location.home,
                location.paths.token,
                base=local_head.with_settings(location.paths, os.environ),
            ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            check=False,
        )
    if done.returncode != 0:
        raise TargetError(
            f"the keeper of target {location.name!r} could not be started (exit code "
            f"{done.returncode}). See {errors}."
        )


def run_starter(
    location: TargetLocation,
    what: str,
    *,
    on_stage: Callable[[str], None] = lambda _text: None,
    timeout_s: float = START_TIMEOUT_S,
) -> None:
    """Run the starter from this process, for work that needs no keeper.

    Args:
        what: "actor", "replace" or "end" (see `engine.starter`).

    Raises:
        TargetError: the cluster cannot be reached, or the starter failed; the message has the
            reason.
    """
    record = load_target(location.name, home=location.home)
    head = local_head.load_record(location.paths) if record.is_local else None
    address = record.address or (head.gcs_address if head is not None else None)
    if address is not None:  # Ray itself waits for minutes, or forever
        if what != "end":
            on_stage(f"connecting to Ray at {address}")
        reach.check_reachable(location.name, address)
    token = None if record.without_token else record.token_file or str(location.paths.token)
    start = ids.token(4)
    command = [sys.executable, "-P", "-m", "rayjobs.engine.starter"]
    command += [str(location.home), location.name, start, what, "--parent", str(os.getpid())]
    if record.address is not None:
        command += ["--address", record.address]
    location.paths.progress.unlink(missing_ok=True)
    log = log_file(location, "start.log")
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env=local_head.head_environment(location.home, token),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    follower = Follower(location, on_stage, start)
    deadline = time.monotonic() + timeout_s
    try:
        while child.poll() is None:
            follower.look()
            if time.monotonic() >= deadline:
                raise TargetError(
                    f"target {location.name!r} did not answer within "
                    f"{duration_text(timeout_s)}. See {log}."
                )
            time.sleep(POLL_S)
    finally:  # Ctrl-C, too; if this process is killed, the child ends itself
        if child.poll() is None:
            child.kill()
            child.wait()
    follower.look()
    if child.returncode != 0:
        raise TargetError(
            follower.failure
            or f"target {location.name!r}: the starter ended with exit code {child.returncode}. "
            f"See {log}."
        )


class Follower:
    """Shows the stage lines of one start, or of any, as they appear.

    Attributes:
        failure: Why the last start failed, from its report; empty while it continues.
    """

    def __init__(
        self, location: TargetLocation, on_stage: Callable[[str], None], start: str = ""
    ) -> None:
        """Follow the start named `start`; without a name, the current one."""
        self.failure = ""
        self._location = location
        self._on_stage = on_stage
        self._start = start
        self._shown = 0

    def look(self) -> None:
        """Show the new lines."""
        lines = progress.read(self._location.paths.progress)
        if self._start:
            lines = [line for line in lines if line.start == self._start]
        if len(lines) < self._shown:
            self._shown = 0  # another start began
        for line in lines[self._shown :]:
            if line.kind == "stage":
                self.failure = ""
                self._on_stage(line.text)
            elif line.kind == "failed":
                self.failure = line.message
        self._shown = len(lines)


def log_file(location: TargetLocation, name: str) -> Path:
    """Return the path of one of the target's own logs; make its folder."""
    location.paths.log.mkdir(mode=0o700, parents=True, exist_ok=True)
    return location.paths.log / name
