"""Warns if a store is on a file system that other machines share."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

# SQLite's WAL mode needs memory that all its processes share, so they must be on one machine.
# Source: sqlite.org/wal.html ("All processes … must be on the same host computer").
SHARED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}
)


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str:
    """Return the kind of file system of `path`; empty if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    wanted, found, depth = path.resolve(), "", -1
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        # Of two mounts at one path, the later one is visible.
        if wanted.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = after.split(" ")[0], len(point.parts)
    return found.removeprefix("fuse.")


def warn_if_shared(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Log a warning if the store may be opened from several machines, which would damage it."""
    kind = file_system_of(path.parent, mounts=mounts)
    if kind in SHARED:
        import logging  # rarely needed, and slow

        logging.getLogger("rayjobs.store").warning(
            "the store %s is on a network file system (%s): use it only from this machine, "
            "since SQLite's locks do not hold between machines; or set RAYJOBS_WORKSPACE to a "
            "folder on a local disk",
            path,
            kind,
        )
