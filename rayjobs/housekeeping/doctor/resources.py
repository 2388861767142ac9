"""Checks the free space of disks, and the clocks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rayjobs.core.clock import to_text
from rayjobs.core.text import GIB, size_text
from rayjobs.housekeeping.doctor.findings import DoctorContext, Finding, Level
from rayjobs.workspace.folder import WorkspaceFiles

FAIL_BYTES = 100 * 2**20
WARN_BYTES = 2 * GIB
WARN_SHARE = 0.05
SHM_BYTES = 80 * 2**20  # Ray does not start with less
FEW_INODES = 10_000
OLDEST_NOW = datetime(2026, 1, 1, tzinfo=UTC)  # before this code was written
STEP_S = 0.5
_ERROR = 5  # Source: adjtimex(2), TIME_ERROR
_UNSYNCHRONISED = 0x0040  # Source: adjtimex(2), STA_UNSYNC


def disks(context: DoctorContext) -> Iterator[Finding]:
    """The free space of the disks that rayjobs writes to."""
    folders = {"home": context.home, "/tmp": Path("/tmp"), "/dev/shm": Path("/dev/shm")}
    if context.workspace is not None:
        folders = {"workspace": context.workspace, **folders}
    for name, folder in folders.items():
        yield _disk(name, folder)


def _disk(name: str, folder: Path) -> Finding:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    disk = os.statvfs(there)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    data = {"path": str(folder), "free_bytes": free, "bytes": size, "free_inodes": disk.f_favail}
    text = f"{folder}: {size_text(free)} of {size_text(size)} free"
    level, remedy = Level.OK, ""
    prune = "`rayjobs prune --dry-run --scratch` shows what old jobs left."
    shared_memory = name == "/dev/shm"
    if shared_memory and free < SHM_BYTES:
        level = Level.FAIL
        remedy = "Ray needs 80 MiB there: docker run --shm-size=1g, or remove what fills it."
    elif not shared_memory and free < FAIL_BYTES:
        level, remedy = Level.FAIL, f"Free some space. {prune}"
    elif disk.f_files and disk.f_favail < FEW_INODES:
        level = Level.WARN
        text += f", and only {disk.f_favail} more files can be created"
        remedy = f"Remove files that are not needed. {prune}"
    elif not shared_memory and (free < WARN_BYTES or (size and free / size < WARN_SHARE)):
        level, remedy = Level.WARN, prune
    elif not os.access(there, os.W_OK):
        level, text = Level.FAIL, f"{folder} cannot be written by this user"
        remedy = "Use another folder: set RAYJOBS_HOME or RAYJOBS_WORKSPACE."
        if str(folder) == name:  # /tmp or /dev/shm, which those do not change
            remedy = f"Make {folder} writable (mode 1777)."
    return Finding(f"disk of {name}", level, text, remedy, data)


def clock(context: DoctorContext) -> Iterator[Finding]:
    """Whether the wall clock is right and synchronized."""
    now = datetime.now(UTC)
    if now < OLDEST_NOW:
        yield Finding(
            "clock",
            Level.FAIL,
            f"the clock says {now:%Y-%m-%d}, which is before this program was written",
            "Set it: timedatectl set-ntp true.",
        )
        return
    latest = _latest_record(context)
    if latest is not None and latest > to_text(now + timedelta(seconds=5)):
        yield Finding(
            "clock",
            Level.WARN,
            f"the workspace has records of {latest}, which this clock has not reached yet",
            "A machine's clock was wrong, so ages of jobs may be wrong. Synchronize it with NTP.",
        )
        return
    synchronised = is_synchronised()
    if synchronised is None:
        yield Finding("clock", Level.OK, "whether it is synchronized by NTP is unknown here")
    elif synchronised:
        yield Finding("clock", Level.OK, "synchronized (NTP)", "", {"synchronised": True})
    else:
        yield Finding(
            "clock",
            Level.WARN,
            "the kernel's clock is not synchronized by NTP",
            "Run `timedatectl set-ntp true` or chrony; for a container, do so on its host machine.",
            {"synchronised": False},
        )


def _latest_record(context: DoctorContext) -> str | None:
    if context.workspace is None:
        return None
    path = WorkspaceFiles(context.workspace).store
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection:
            row = connection.execute("SELECT MAX(changed_at) FROM jobs").fetchone()
    except sqlite3.Error:
        return None  # reported by the check of the store
    return None if row is None or row[0] is None else str(row[0])


class _Timex(ctypes.Structure):
    """Source: adjtimex(2), struct timex; `rest` covers the fields that are not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def is_synchronised() -> bool | None:
    """Return whether the kernel considers its clock synchronized; None if it does not say."""
    values = _Timex()  # modes 0: only read
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(values))
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return state != _ERROR and not values.status & _UNSYNCHRONISED


def steadiness(wall_began_s: float, monotonic_began_s: float) -> Finding:
    """Compare how far the wall clock and the monotonic clock advanced during the checks."""
    wall = time.time() - wall_began_s
    monotonic = time.clock_gettime(time.CLOCK_BOOTTIME) - monotonic_began_s
    data = {"difference_s": round(wall - monotonic, 6)}
    if abs(wall - monotonic) < STEP_S:
        text = "the wall clock keeps step with the monotonic one"
        return Finding("clock steps", Level.OK, text, "", data)
    return Finding(
        "clock steps",
        Level.WARN,
        f"the wall clock was changed by {wall - monotonic:+.1f} s during the checks",
        "Let only one program set it (NTP). The times of records are affected; durations are not.",
        data,
    )
