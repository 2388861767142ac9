"""Prunes what jobs left on this machine: attempts, snapshots, inputs, environments, images."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path

from rayjobs.containers import prune as images
from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, RayjobsError
from rayjobs.core.files import locked, locked_if_free
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.safe_delete import OwnFolder, Removed
from rayjobs.core.text import verb
from rayjobs.datastore.cache_root import default_cache_root
from rayjobs.environments import prune as environments
from rayjobs.injob import cgroups, record_files
from rayjobs.injob.data_file import DataFile
from rayjobs.injob.host_messages import HostFile
from rayjobs.injob.identity import is_alive, stat_of
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import MessageError
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.processes import all_pids, marker_of
from rayjobs.injob.tree import cgroup_name
from rayjobs.store.base import Store
from rayjobs.target.node_settings import node_root
from rayjobs.workspace.folder import WorkspaceFiles, open_workspace

GRACE_S = 3600.0
# How long a node retains outputs that could not be stored.
UNSTORED_S = 7 * 86400.0
_ATTEMPT = re.compile(r"a(\d+)(?:-n(\d+))?")
_SNAPSHOT = re.compile(r"(?:tmp-)?([0-9a-f]{64})(?:-.*)?")
_DATA_CACHE = "data/cache"


@dataclass(frozen=True)
class Leftover:
    """One item that may be removed.

    Attributes:
        kind: "attempt", "snapshot", "data", "environment", "cache" (what builds of environments
            cache), "image" or "web".
        name: Its path below the node's scratch folder; of "web", below the user's cache of web
            files.
        why: Why it may be removed, for people.
    """

    kind: str
    name: str
    why: str
    bytes: int = 0


@dataclass(frozen=True)
class Unstored:
    """The folder of an attempt with the only copy of outputs, which is kept.

    Attributes:
        name: Its path below the node's scratch folder.
        outputs: Names of the outputs.
    """

    name: str
    job: str
    outputs: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What the folder contains, and how to store it."""
        what = ", ".join(self.outputs)
        return (
            f"{self.name}: the only copy of {verb(len(self.outputs), 'output', 'outputs')} {what}; "
            f"`rayjobs store {self.job}` stores it"
        )


@dataclass
class ScratchPlan:
    """What a prune of this machine's scratch would remove, and why the rest stays.

    Attributes:
        kept: A sentence for each item that stays.
        unstored: Folders that stay because of their outputs; `kept` has them, too.
    """

    root: Path
    cutoff: float
    ended_s: float = GRACE_S
    items: list[Leftover] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unstored: list[Unstored] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """How many bytes the prune frees."""
        return sum(item.bytes for item in self.items)


def plan(
    home: Path,
    *,
    workspace: Path | None = None,
    older_than_s: float,
    ended_s: float = GRACE_S,
) -> ScratchPlan:
    """Return what may be removed; changes nothing.

    Args:
        workspace: A workspace in addition to those that the targets of this home serve.
        older_than_s: How long snapshots, inputs, environments and attempts of unknown jobs must be
            unused; less than an hour counts as an hour. It does not apply to attempts of finished
            jobs.
        ended_s: Attempts may be removed this many seconds after their job has ended.
    """
    root = node_root(home)
    made = ScratchPlan(root, time.time() - max(older_than_s, GRACE_S), ended_s)
    try:
        with OwnFolder(root) as folder:
            _plan_attempts(made, folder, home, workspace)
            _plan_snapshots(made, folder)
            _plan_data(made, folder)
            _plan_unused(made, folder, "environment", environments.unused)
            _plan_unused(made, folder, "image", images.unused)
    except FileNotFoundError:
        pass  # no job ever ran here
    _plan_web(made)
    return made


def apply(made: ScratchPlan) -> Removed:
    """Carry out a plan, except for items in use again; return what was removed."""
    removed = Removed()
    if not made.items:
        return removed
    _remove_web(made, removed)
    items = [item for item in made.items if item.kind != "web"]
    if not items:
        return removed
    with OwnFolder(made.root) as folder:
        running = living_markers()
        for item in items:
            if item.kind == "attempt":
                if not is_running(made.root / item.name, running):
                    removed.add(folder.remove(item.name))
            elif item.kind == "snapshot":
                removed.add(_remove_snapshot(folder, item.name, made.cutoff))
            elif item.kind == "environment":
                removed.add(environments.remove(folder, item.name, made.cutoff))
            elif item.kind == "cache":
                removed.add(environments.remove_kept(folder, item.name, made.cutoff))
            elif item.kind == "image":
                removed.add(images.remove(folder, item.name, made.cutoff))
        _remove_data(made, folder, removed)
        for job, _info in folder.entries("attempts"):
            folder.remove_if_empty(f"attempts/{job}")
    return removed


# -- attempts --------------------------------------------------------------------------------------


def attempt_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield job id and folder of every attempt below a node's scratch; links are skipped."""
    for job in _folders(root / "attempts"):
        for attempt in _folders(job):
            yield job.name, attempt


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return sorted(Path(one) for one in found if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def is_running(attempt: Path, markers: Mapping[str, list[int]]) -> bool:
    """Whether a process of an attempt runs on this machine: its host, or one with its marker."""
    host, plan = launched(attempt)
    if host is not None and is_alive(host.identity):
        return True
    named = {one.marker for one in (host, plan) if one is not None and one.marker}
    if named:
        return any(one in markers or _in_cgroup(one) for one in named)
    # The files are missing, damaged or of a later version: markers contain the attempt's name.
    found = _ATTEMPT.fullmatch(attempt.name)
    if found is None:
        return False
    start = ids.marker_start(attempt.parent.name, int(found[1]), int(found[2] or 0))
    return any(one.startswith(start) for one in markers)


def launched(attempt: Path) -> tuple[HostFile | None, LaunchPlan | None]:
    """Return the files of an attempt's host and of its launch.

    None stands for a file that is missing or torn, or that another program or a later version of
    rayjobs wrote.
    """
    host, plan = None, None
    with contextlib.suppress(OSError, ValueError):
        host = HostFile.read(str(attempt))
    with contextlib.suppress(OSError, ValueError):
        plan = LaunchPlan.read(str(attempt))
    return host, plan


def living_markers() -> dict[str, list[int]]:
    """Return the pids of this user's living processes of attempts, by marker."""
    found: dict[str, list[int]] = {}
    for pid in all_pids():
        marker = marker_of(pid)  # in a warm interpreter, the variable is still empty
        if marker and (stat := stat_of(pid)) is not None and not stat.is_dead:
            found.setdefault(marker, []).append(pid)
    return found


def _in_cgroup(marker: str) -> bool:
    name = cgroup_name(marker)
    return any(cgroups.pids(f"{mount.own}/{name}") for mount in cgroups.mounts())


def _read(path: Path) -> dict[str, object]:
    try:
        values = record_files.read_json(str(path.parent), path.name)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _plan_attempts(
    made: ScratchPlan, folder: OwnFolder, home: Path, workspace: Path | None
) -> None:
    running = living_markers()
    with contextlib.ExitStack() as stack:
        stores, unreadable = _stores(stack, home, workspace)
        for job, path in attempt_folders(made.root):
            why = _why_attempt(job, path, stores, unreadable, made)
            if not why:
                continue
            name = path.relative_to(made.root).as_posix()
            left = unstored_outputs(path)
            if left and time.time() - _newest(path) < UNSTORED_S:
                made.unstored.append(Unstored(name, job, left))
                made.kept.append(made.unstored[-1].sentence)
            elif is_running(path, running):
                made.kept.append(f"{name}: its processes still run")
            else:
                made.items.append(Leftover("attempt", name, why, folder.measure(name).bytes))


def _why_attempt(
    job: str, path: Path, stores: list[Store], unreadable: list[str], made: ScratchPlan
) -> str:
    """Return why an attempt's folder may be removed; empty if it must stay."""
    for store in stores:
        try:
            found = store.job(job)
        except NotFoundError:
            continue
        if not found.state.is_final or found.ended_at is None:
            return ""
        ended_s = (datetime.now(UTC) - found.ended_at).total_seconds()
        # Its agent may still be about to clean up.
        return f"its job is {found.state}" if ended_s > made.ended_s else ""
    if unreadable or _newest(path) >= made.cutoff:
        return ""
    return "no workspace of this home knows its job"


def unstored_outputs(path: Path) -> tuple[str, ...]:
    """Return the outputs of which an attempt's folder has the only copy; empty: there are none.

    Outputs of a script that did not succeed are not stored, so they do not count.
    """
    paths = AttemptPaths(path)
    if paths.stored.exists() or _read(paths.exit).get("outcome") != Outcome.COMPLETED:
        return ()
    try:
        file = DataFile.from_json(_read(paths.data))
    except MessageError:
        return ()
    return tuple(sorted(set(file.outputs) - {*file.stored, *file.refused}))


def _newest(path: Path) -> float:
    """Return when an attempt's folder or an entry in it was last changed."""
    newest = path.lstat().st_mtime
    with os.scandir(path) as found:
        for entry in found:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def served_workspaces(home: Path) -> list[Path]:
    """Return the workspaces that the targets of a home serve or have served."""
    found = {
        str(path)
        for record in (home / "targets").glob("*/workspaces/*.json")
        if (path := _read(record).get("path"))
    }
    return [Path(text) for text in sorted(found)]


def _stores(
    stack: contextlib.ExitStack, home: Path, workspace: Path | None
) -> tuple[list[Store], list[str]]:
    """Open all known workspaces; also return those that exist but cannot be read."""
    stores: list[Store] = []
    unreadable = []
    for path in dict.fromkeys([*([workspace] if workspace else []), *served_workspaces(home)]):
        if not WorkspaceFiles(path).record.exists():
            continue  # it was removed with its jobs
        try:
            opened = stack.enter_context(open_workspace(path, create=False))
        except RayjobsError:
            unreadable.append(str(path))
        else:
            stores.append(opened.store)
    return stores, unreadable


# -- snapshots -------------------------------------------------------------------------------------


def _plan_snapshots(made: ScratchPlan, folder: OwnFolder) -> None:
    entries = dict(folder.entries("snapshots"))
    for name, info in entries.items():
        found = _SNAPSHOT.fullmatch(name)
        if found is None:
            continue
        note = entries.get(f"{found[1]}.json")
        last_use = note.st_mtime if note is not None else info.st_mtime
        if last_use < made.cutoff:
            path = f"snapshots/{name}"
            size = folder.measure(path).bytes
            made.items.append(Leftover("snapshot", path, "unused for long", size))


def _remove_snapshot(folder: OwnFolder, name: str, cutoff: float) -> Removed:
    """Remove an unpacked snapshot unless it is being unpacked or copied, or was used meanwhile."""
    removed = Removed()
    found = _SNAPSHOT.fullmatch(name.rpartition("/")[2])
    assert found is not None
    with locked_if_free(folder.root / "snapshots" / f"{found[1]}.lock") as is_mine:
        if not is_mine:
            removed.spared += 1
            return removed
        # The note is removed first: without it, the rest does not count as a complete snapshot.
        removed.add(
            folder.remove(f"snapshots/{found[1]}.json", only_if=lambda info: info.st_mtime < cutoff)
        )
        if not removed.spared:
            removed.add(folder.remove(name))
    return removed


# -- environments and images -----------------------------------------------------------------------


def _plan_unused(
    made: ScratchPlan,
    folder: OwnFolder,
    kind: str,
    unused: Callable[[Path, OwnFolder, float], Iterator[environments.Unused]],
) -> None:
    for one in unused(made.root, folder, made.cutoff):
        if one.stays:
            made.kept.append(f"{one.name}: {one.stays}")
        else:
            size = folder.measure(one.name).bytes
            made.items.append(Leftover(one.kind or kind, one.name, one.why, size))


# -- web files -------------------------------------------------------------------------------------


def web_root() -> Path:
    """Return the folder with this user's cached web files."""
    return default_cache_root() / "web"


def _plan_web(made: ScratchPlan) -> None:
    with contextlib.suppress(FileNotFoundError), OwnFolder(web_root()) as folder:
        for kind in ("objects", "partial", "index"):
            for name, info in folder.entries(kind):
                if info.st_mtime < made.cutoff:
                    where = f"{kind}/{name}"
                    made.items.append(Leftover("web", where, "unused for long", info.st_size))


def _remove_web(made: ScratchPlan, removed: Removed) -> None:
    """Remove cached web files; a job that reads one downloads it again."""
    items = [item for item in made.items if item.kind == "web"]
    if items:
        with OwnFolder(web_root()) as folder:
            for item in items:
                gone = folder.remove(item.name, only_if=lambda info: info.st_mtime < made.cutoff)
                removed.add(gone)


# -- cached inputs ---------------------------------------------------------------------------------


def _plan_data(made: ScratchPlan, folder: OwnFolder) -> None:
    objects = f"{_DATA_CACHE}/objects"
    for part, _info in folder.entries(objects):
        entries = dict(folder.entries(f"{objects}/{part}"))
        for name, info in entries.items():
            seal = entries.get(f"{name}.seal")
            # A second link means that a job uses it as an input (see datastore.cache).
            if name.endswith(".seal") or info.st_nlink > 1:
                continue
            if (seal or info).st_mtime < made.cutoff:
                path = f"{objects}/{part}/{name}"
                made.items.append(Leftover("data", path, "unused for long", info.st_size))


def _remove_data(made: ScratchPlan, folder: OwnFolder, removed: Removed) -> None:
    items = [item for item in made.items if item.kind == "data"]
    if not items:
        return
    cache = made.root / _DATA_CACHE
    with locked(cache / "usage.lock"):
        for item in items:
            gone = folder.remove(item.name, only_if=lambda info: info.st_nlink == 1)
            removed.add(gone)
            if gone.files:
                folder.remove(f"{item.name}.seal")
        folder.remove(f"{_DATA_CACHE}/usage")  # counted again on the next use
