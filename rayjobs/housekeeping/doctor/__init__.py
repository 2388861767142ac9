"""Checks this machine, the target and leftovers; makes no lasting changes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from subprocess import SubprocessError

from rayjobs.core.errors import RayjobsError
from rayjobs.housekeeping.doctor.findings import DoctorContext as DoctorContext
from rayjobs.housekeeping.doctor.findings import Finding as Finding
from rayjobs.housekeeping.doctor.findings import Level as Level

# Module → its functions; each takes the `DoctorContext` and yields findings.
CHECKS = {
    "versions": ("programs", "store", "target"),
    "capabilities": ("ending", "memory", "namespaces", "inputs", "fuse", "packages", "containers"),
    "network": ("ports", "tokens"),
    "resources": ("disks", "clock"),
    "leftovers": (
        "attempts",
        "built_environments",
        "processes",
        "mounts",
        "sockets",
        "ray_folder",
        "control_groups",
    ),
}


def examine(home: Path, workspace: Path | None) -> Iterator[Finding]:
    """Yield findings as they are made; a check that fails yields a finding, too.

    Args:
        workspace: The workspace's folder; None if there is none yet.
    """
    context = DoctorContext(home, workspace)
    began = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    for module, names in CHECKS.items():
        loaded = importlib.import_module(f"rayjobs.housekeeping.doctor.{module}")
        for name in names:
            check: Callable[[DoctorContext], Iterable[Finding]] = getattr(loaded, name)
            try:
                yield from check(context)
            except (RayjobsError, OSError, ValueError, SubprocessError) as error:
                yield Finding(
                    name.replace("_", " "),
                    Level.WARN,
                    f"this could not be checked: {error}",
                    "Correct the cause of the error, then run `rayjobs doctor` again.",
                )
    from rayjobs.housekeeping.doctor.resources import steadiness

    yield steadiness(*began)
