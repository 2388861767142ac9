"""Checks the versions of programs, of the store and of the running target."""

from __future__ import annotations

import contextlib
import platform
import sqlite3
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from rayjobs.core.errors import TargetError
from rayjobs.core.hiding import hiding
from rayjobs.core.paths import TargetPaths
from rayjobs.core.version import __version__
from rayjobs.housekeeping.doctor.findings import DoctorContext, Finding, Level
from rayjobs.store.filesystem import SHARED, file_system_of
from rayjobs.store.postgres_address import parsed
from rayjobs.store.schema import OLDEST, UNRELEASED, VERSION, version_of
from rayjobs.target import local_head, targets
from rayjobs.target.versions import check_client, must_replace
from rayjobs.workspace.folder import WorkspaceFiles, store_address

OLDEST_SQLITE = (3, 35, 0)


def installed(package: str) -> str:
    """Return a package's version without importing it; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def programs(_context: DoctorContext) -> Iterator[Finding]:
    """Python and the packages that jobs need."""
    found = {
        "rayjobs": __version__,
        "python": platform.python_version(),
        "ray": installed("ray"),
        "torch": installed("torch"),
        "sqlite": sqlite3.sqlite_version,
    }
    text = ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
    level, remedy = Level.OK, ""
    if not found["ray"]:
        level = Level.FAIL
        remedy = "Install the packages that run jobs: pip install 'rayjobs[local]'."
    elif sqlite3.sqlite_version_info < OLDEST_SQLITE:
        level, remedy = Level.FAIL, "SQLite 3.35 or later is needed: use another Python."
    elif not found["torch"]:
        level = Level.WARN
        remedy = "Scripts that import torch need an environment that has it, or pip install torch."
    yield Finding("versions", level, text, remedy, dict(found))
    if why := hiding(Path.cwd()):
        yield Finding("own rayjobs", Level.WARN, why, "Programs here cannot use this package.")


def store(context: DoctorContext) -> Iterator[Finding]:
    """The workspace's store: its version and its file system, if it is in the folder."""
    address = None if context.workspace is None else store_address(context.workspace)
    if address is not None:
        where = parsed(address)[2]
        text = f"the records are in PostgreSQL ({where}); this check does not connect to it"
        yield Finding("store", Level.OK, text, "", {"address": where})
        return
    if context.workspace is None or not WorkspaceFiles(context.workspace).store.exists():
        yield Finding("store", Level.OK, "there is no workspace yet: the first submit creates it")
        return
    path = WorkspaceFiles(context.workspace).store
    data = {"path": str(path)}
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection:
            version = version_of(connection)
    except sqlite3.Error as error:
        yield Finding(
            "store", Level.FAIL, f"{path} cannot be read: {error}", "See `rayjobs db check`.", data
        )
        return
    kind = file_system_of(path.parent)
    data |= {"version": str(version), "file_system": kind}
    if version > VERSION:
        yield Finding(
            "store",
            Level.FAIL,
            f"{path} has version {version}, and this rayjobs knows versions up to {VERSION}",
            "Upgrade rayjobs: pip install --upgrade rayjobs.",
            data,
        )
    elif version < OLDEST:
        yield Finding("store", Level.FAIL, f"{path} has version {version}: {UNRELEASED}", "", data)
    elif kind in SHARED:
        yield Finding(
            "store",
            Level.WARN,
            f"{path} is on a network file system ({kind}): SQLite's locks do not hold between "
            f"machines",
            "Use it only from this machine, or move the workspace to a local disk.",
            data,
        )
    elif version < VERSION:
        yield Finding(
            "store",
            Level.WARN,
            f"{path} has version {version}; the next command upgrades it to {VERSION}",
            "`rayjobs db upgrade` upgrades it now, and keeps a copy.",
            data,
        )
    else:
        yield Finding(
            "store", Level.OK, f"{path}, version {version}, on {kind or 'a disk'}", "", data
        )


def target(context: DoctorContext) -> Iterator[Finding]:
    """The local target: whether it runs, and is compatible with this client."""
    view = targets.target_status(local_head.LOCAL, home=context.home)
    data = {"state": view.state, "version": view.version}
    mine = __version__
    if view.state == "lost":
        yield Finding(
            "target",
            Level.WARN,
            "the local target's Ray runs, but its actor does not answer",
            "Wait a minute for its restart; otherwise stop it with --force, then start it.",
            data,
        )
        return
    if view.state != "running":
        text = f"the local target is {view.state}: it starts with the first job"
        yield Finding("target", Level.OK, text, "", data)
        return
    try:
        check_client(view.version, mine)
    except TargetError as error:
        yield Finding("target", Level.FAIL, error.message, "", data)
        return
    head = local_head.load_record(TargetPaths.of(local_head.LOCAL, under=context.home))
    here = installed("ray")
    if view.version and must_replace(view.version, mine):
        yield Finding(
            "target",
            Level.WARN,
            f"the local target runs rayjobs {view.version}, and this is {mine}",
            "The next submit replaces its actor; jobs keep running.",
            data,
        )
    elif head is not None and here and head.ray_version != here:
        yield Finding(
            "target",
            Level.WARN,
            f"the local target runs Ray {head.ray_version}; Ray {here} was installed since",
            "Stop it when it is idle: `rayjobs target stop`. The next job starts the new version.",
            data,
        )
    else:
        yield Finding(
            "target", Level.OK, f"the local target runs, version {view.version}", "", data
        )
