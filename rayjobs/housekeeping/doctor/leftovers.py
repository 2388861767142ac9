"""Finds leftovers and caches: folders, environments, processes, mounts, sockets, cgroups."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rayjobs.core.paths import TargetPaths, runtime_folder
from rayjobs.core.safe_delete import OwnFolder
from rayjobs.core.text import counted, size_text, verb
from rayjobs.environments.cache import KEY, Cache
from rayjobs.housekeeping import scratch
from rayjobs.housekeeping.doctor.findings import DoctorContext, Finding, Level
from rayjobs.injob import cgroups
from rayjobs.injob.identity import is_alive
from rayjobs.injob.processes import environment_of
from rayjobs.target import local_head, wake_client
from rayjobs.target.node_settings import node_root

AGE_S = 30 * 86_400.0
MOST_NAMED = 5
ENDED_S = 120.0  # an agent cleans up within seconds
_CGROUPS = "rayjobs-"  # see injob.tree.cgroup_name


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def attempts(context: DoctorContext) -> Iterator[Finding]:
    """Folders of attempts without a live job, and cached files that were unused for a long time."""
    made = scratch.plan(
        context.home, workspace=context.workspace, older_than_s=AGE_S, ended_s=ENDED_S
    )
    dead = [item.name for item in made.items if item.kind == "attempt"]
    data = {"attempts": dead, "bytes": made.bytes, "unused": len(made.items) - len(dead)}
    prune = (
        "The target's next start removes those whose files are stored. An hour after their jobs "
        "have ended, `rayjobs prune --scratch` shows all of them and removes them if you confirm."
    )
    if made.unstored:
        jobs = list(dict.fromkeys(one.job for one in made.unstored))
        folders = [one.name for one in made.unstored]
        number = len(folders)
        yield Finding(
            "unstored outputs",
            Level.WARN,
            f"{counted(number, 'folder')} {verb(number, 'has', 'have')} the only copy of outputs "
            f"that could not be stored: {_named(folders)}",
            f"`rayjobs store JOB` stores them (of {_named(jobs)}). A folder is removed seven days "
            f"after its attempt.",
            {"folders": folders, "jobs": jobs},
        )
    if dead:
        yield Finding(
            "attempt folders",
            Level.WARN,
            f"{counted(len(dead), 'folder')} of attempts that have ended "
            f"{verb(len(dead), 'was', 'were')} left: {_named(dead)}",
            prune,
            data,
        )
    elif made.items:
        text = f"none left; {len(made.items)} {_kinds(made)} were not used for 30 days"
        yield Finding("attempt folders", Level.OK, text, prune, data)
    else:
        yield Finding("attempt folders", Level.OK, "none left", "", data)


def _kinds(made: scratch.ScratchPlan) -> str:
    """Return which kinds of items a plan has, in words."""
    words = {
        "snapshot": "snapshots", "data": "inputs", "environment": "environments",
        "cache": "build packages", "image": "images", "web": "cached web files",
    }  # fmt: skip
    kinds = {item.kind for item in made.items}
    return " and ".join(word for kind, word in words.items() if kind in kinds)


def _bytes(folder: Path) -> int:
    """Return the size of all files below a folder; links are not followed."""
    total = 0
    for at, _folders, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # removed meanwhile
                total += (Path(at) / name).lstat().st_size
    return total


def built_environments(context: DoctorContext) -> Iterator[Finding]:
    """Environments that were built on this machine, and the space that they use."""
    cache = Cache(node_root(context.home) / "environments")
    try:
        with OwnFolder(cache.root) as folder:
            names = [name for name, _info in folder.entries() if KEY.fullmatch(name)]
            alone = sum(folder.measure(name).bytes for name in names)
            size = sum(_bytes(cache.folder(name)) for name in names)
    except FileNotFoundError:
        names, size, alone = [], 0, 0
    data = {
        "environments": len(names),
        "bytes": size,
        "not_shared_bytes": alone,
        "used": sorted(cache.used_by()),
    }
    shared = f", {size_text(size - alone)} of them shared with uv's cache" if names else ""
    text = f"{len(names)} built, {size_text(size)}{shared}"
    remedy = "`rayjobs prune --scratch` removes those that were not used for 30 days."
    yield Finding("built environments", Level.OK, text, remedy if names else "", data)


def processes(context: DoctorContext) -> Iterator[Finding]:
    """Processes of this home's attempts whose host is gone, so that no host will end them."""
    root = node_root(context.home)
    hosted, ours = set(), set()
    for _job, folder in scratch.attempt_folders(root):
        host, plan = scratch.launched(folder)
        ours |= {one.marker for one in (host, plan) if one is not None}
        if host is not None and is_alive(host.identity):
            hosted.add(host.marker)
    inside = os.fsencode(f"RAYJOBS_ATTEMPT_DIR={root}/")
    orphans: dict[str, list[int]] = {}
    for marker, pids in scratch.living_markers().items():
        if marker not in hosted and (marker in ours or any(_has(pid, inside) for pid in pids)):
            orphans[marker] = pids
    if not orphans:
        yield Finding("processes", Level.OK, "none without their host")
        return
    pids = sorted(pid for found in orphans.values() for pid in found)
    named = _named([str(pid) for pid in pids])
    yield Finding(
        "processes",
        Level.WARN,
        f"{len(pids)} {verb(len(pids), 'process', 'processes')} of attempts "
        f"{verb(len(pids), 'runs', 'run')} without a host: {named}",
        "A running target ends them within a minute: `rayjobs target start`. Otherwise, check them "
        f"(ps -fp {pids[0]}) and end them: kill {' '.join(map(str, pids[:MOST_NAMED]))}",
        {"markers": {marker: sorted(found) for marker, found in orphans.items()}},
    )


def _has(pid: int, start: bytes) -> bool:
    return any(entry.startswith(start) for entry in environment_of(pid))


def mounts(context: DoctorContext) -> Iterator[Finding]:
    """Mounts of inputs whose process is gone: every access to them hangs or fails."""
    root = node_root(context.home) / "data" / "mounts"
    if not root.is_dir():
        yield Finding("dead mounts", Level.OK, "none")
        return
    from rayjobs.datastore.mountfiles import generations, is_mounted
    from rayjobs.datastore.mounts import is_good

    dead = [
        str(folder.point)
        for mount in sorted(root.iterdir())
        for folder in generations(mount)
        if is_mounted(folder.point) and not is_good(folder)
    ]
    if not dead:
        yield Finding("dead mounts", Level.OK, "none")
        return
    yield Finding(
        "dead mounts",
        Level.WARN,
        f"{counted(len(dead), 'mount')} of inputs {verb(len(dead), 'has', 'have')} lost "
        f"{verb(len(dead), 'its', 'their')} process: {_named(dead)}",
        f"fusermount3 -uz {dead[0]} (or umount -l); a target's next start also does it.",
        {"points": dead},
    )


def sockets(context: DoctorContext) -> Iterator[Finding]:
    """Sockets on which no process listens."""
    folder = runtime_folder(context.home)
    stale = [
        str(path)
        for path in (sorted(folder.glob("*.sock")) if folder.is_dir() else ())
        if not path.is_symlink() and path.is_socket() and not wake_client.is_listening(path)
    ]
    if not stale:
        yield Finding("stale sockets", Level.OK, "none")
        return
    yield Finding(
        "stale sockets",
        Level.WARN,
        f"no process listens on {_named(stale)}",
        "They do no harm: a start replaces them, and rayjobs target stop removes them.",
        {"sockets": stale},
    )


def ray_folder(context: DoctorContext) -> Iterator[Finding]:
    """Ray's folder of a head that does not run."""
    folder = runtime_folder(context.home) / "r"
    head = local_head.load_record(TargetPaths.of(local_head.LOCAL, under=context.home))
    if not folder.is_dir() or (head is not None and head.is_running):
        yield Finding("Ray's folder", Level.OK, "none without a running head")
        return
    running = [identity.pid for identity in local_head.processes_of(folder)]
    text = f"{folder} exists, but no head of the local target is known to run"
    if running:
        pids = _named([str(pid) for pid in running])
        processes = verb(len(running), "Ray process runs", "Ray processes run")
        text += f"; {len(running)} {processes} ({pids})"
    yield Finding(
        "Ray's folder",
        Level.WARN,
        text,
        "If no start is in progress, `rayjobs target stop --force` cleans it up.",
        {"folder": str(folder), "pids": running},
    )


def control_groups(_context: DoctorContext) -> Iterator[Finding]:
    """Empty cgroups of this user's attempts: other users remove their own."""
    empty = sorted(
        {
            str(path)
            for mount in cgroups.mounts()
            for path in Path(mount.own).glob(f"{_CGROUPS}*")
            if _is_own_folder(path) and not cgroups.pids(str(path))
        }
    )
    if not empty:
        yield Finding("cgroups", Level.OK, "none of this user was left empty")
        return
    yield Finding(
        "cgroups",
        Level.WARN,
        f"{counted(len(empty), 'cgroup')} of attempts {verb(len(empty), 'was', 'were')} left "
        f"empty: {_named(empty)}",
        f"They are harmless. Remove them: rmdir {empty[0]}",
        {"cgroups": empty},
    )


def _is_own_folder(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:  # removed meanwhile
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
