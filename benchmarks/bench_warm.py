"""From the submit to a script's first line and to the end of trivial jobs; the peer: Ray Jobs."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, median
from benchmarks.head import IMPORTS_TORCH, TRIVIAL, Head, until, written_time

TRIVIAL_JOBS = 20


def measure(head: Head, *, rounds: int) -> list[Figure]:
    """Measure both; ours and the peer's rounds alternate."""
    client = head.peer()
    source = head.source(IMPORTS_TORCH)
    ours, peers = [], []
    for number in range(rounds):
        # Three of ours for each of the peer's, since ours takes a twentieth of the time.
        ours += [_first_line(head, source, f"{number}-{again}") for again in range(3)]
        peers.append(_peers_first_line(head, client, source, number))
    trivial = head.source(TRIVIAL)
    together, peers_together = [], []
    for _ in range(max(1, rounds // 3)):
        together.append(_all_completed(head, trivial))
        peers_together.append(_peers_all_completed(client, trivial))
    return [
        Figure(
            "submit → first line, imports torch",
            "s",
            median(ours),
            median(peers),
            "Ray Jobs",
            most=0.1,
            faster=20,
        ),
        Figure(
            f"{TRIVIAL_JOBS} trivial jobs Completed",
            "s",
            median(together),
            median(peers_together),
            "Ray Jobs",
            faster=10,
        ),
    ]


def _first_line(head: Head, source: Path, name: str) -> float:
    output = head.folder / f"ours-{name}"
    began = time.time()
    job = head.submit(source, str(output))
    seconds = written_time(output) - began
    head.wait([job])
    return seconds


def _peers_first_line(head: Head, client: Any, source: Path, number: int) -> float:
    output = head.folder / f"peer-{number}"
    began = time.time()
    name = client.submit_job(entrypoint=_command(source, str(output)))
    seconds = written_time(output) - began
    _wait(client, [name])
    return seconds


def _all_completed(head: Head, source: Path) -> float:
    began = time.monotonic()
    head.wait([head.submit(source) for _ in range(TRIVIAL_JOBS)])
    return time.monotonic() - began


def _peers_all_completed(client: Any, source: Path) -> float:
    began = time.monotonic()
    _wait(client, [client.submit_job(entrypoint=_command(source)) for _ in range(TRIVIAL_JOBS)])
    return time.monotonic() - began


def _wait(client: Any, names: list[str]) -> None:
    for name in names:
        until(lambda one=name: client.get_job_status(one).is_terminal(), name)  # type: ignore[misc]
        status = str(client.get_job_status(name).value)
        if status != "SUCCEEDED":
            raise SystemExit(f"Ray Jobs' {name} ended as {status}")


def _command(source: Path, *arguments: str) -> str:
    # No working_dir: Ray Jobs then needs no upload, which ours includes.
    return shlex.join([sys.executable, str(source / "train.py"), *arguments])
