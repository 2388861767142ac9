"""The memory of an idle target: the proportional set size (PSS) of each of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, median
from benchmarks.head import Head
from rayjobs.injob.memory import proportional_bytes

# Text in a process's command line → the name of the process here.
KINDS = {
    b"rayjobs.target.keeper": "keeper",
    b"ray::TargetActor": "target actor",
    b"ray::NodeAgent": "node agent",
    b"warm.py": "warm interpreter",
}


def measure(head: Head, *, rounds: int) -> list[Figure]:
    """Read the sizes of the processes that name this head's home."""
    sizes: dict[str, list[float]] = {name: [] for name in KINDS.values()}
    for _ in range(rounds):
        for kind, pid in _processes(head.folder):
            sizes[kind].append(proportional_bytes(pid) / 2**20)
    return [
        Figure(f"idle memory: {kind}", "MiB (PSS)", median(found))
        for kind, found in sizes.items()
        if found
    ]


def _processes(folder: Path) -> Iterator[tuple[str, int]]:
    wanted = os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # it ended, or it is another user's
        for text, kind in KINDS.items():
            if text in command and (wanted in command or wanted in environment):
                yield kind, int(entry.name)
