"""Prunes the stored files of finished jobs: `plan` selects them, `apply` removes them.

Rows are removed first, then bytes: if the process is killed in between, no row refers to the bytes
that remain, and the next prune finds them. Bytes that were stored or looked up within the last hour
always stay, since a new row may be about to refer to them (`BlobStore.exists`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from datetime import UTC, datetime, timedelta

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import NotFoundError, StoreError, UsageError
from rayjobs.core.files import locked_if_free
from rayjobs.core.safe_delete import Removed, original_name
from rayjobs.core.text import verb
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results import live_logs
from rayjobs.results.resuming import PACKED
from rayjobs.snapshots.pack import blob_key as snapshot_key
from rayjobs.store.pruning import PrunableJob, PruneView
from rayjobs.workspace.blobs import UPLOADS, BlobStore, PrunableBlobs, blob_key
from rayjobs.workspace.folder import OpenWorkspace

DEFAULT_AGE_S = 30 * 86_400.0
GRACE_S = 3600.0
# Only rayjobs makes keys with these prefixes. A file with another key that no row has ever named is
# left alone.
_OURS = ("files/", "snapshots/", UPLOADS, live_logs.PREFIX)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which finished jobs are pruned.

    Attributes:
        older_than_s: Prune jobs that ended more than this long ago; None: no rule for the age.
        max_bytes: Prune the oldest jobs until all stored files use at most this; None: no rule for
            the size.
        keep: How many of the newest finished jobs stay, whatever the other rules say.
        records: Also remove the rows of pruned jobs.
    """

    older_than_s: float | None = DEFAULT_AGE_S
    max_bytes: int | None = None
    keep: int = 0
    records: bool = False


@dataclass(frozen=True)
class Unit:
    """A job with all its descendants (a sweep with its trials), pruned together or not at all.

    Attributes:
        files: The keys in the blob store of everything that its jobs refer to.
        rows: How many files its jobs list.
        stays: Why it must not be pruned; empty if it may be.
    """

    id: str
    name: str
    jobs: tuple[str, ...]
    rows: int
    ended_at: datetime | None
    files: frozenset[str]
    stays: str = ""


@dataclass
class PrunePlan:
    """What a prune would do.

    Attributes:
        units: Finished jobs whose files are removed, oldest first.
        sizes: The size of every stored file, by key.
        going: Keys of the files to remove.
        unreferenced: Those of them that no job referred to before the prune.
        fresh: How many files stay only because they were used within the last hour.
        shared: Keys of files of the units that stay because other jobs or models refer to them.
        pruned: After `apply`: the ids of the jobs that no longer refer to a stored file.
        stays: Why jobs stay although a rule selects them, by id.
    """

    rules: Rules
    units: list[Unit] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)
    unreferenced: set[str] = field(default_factory=set)
    fresh: int = 0
    shared: set[str] = field(default_factory=set)
    pruned: frozenset[str] = frozenset()
    stays: dict[str, str] = field(default_factory=dict)

    @property
    def jobs(self) -> list[str]:
        """The ids of all jobs whose files are removed."""
        return [job for unit in self.units for job in unit.jobs]

    def files_unreferenced(self, *, done: bool) -> int:
        """Return how many files, logs included, the jobs will lose; `done`: have lost so far."""
        return sum(unit.rows for unit in self.units if not done or set(unit.jobs) <= self.pruned)

    @property
    def bytes(self) -> int:
        """How many bytes the prune frees."""
        return sum(self.sizes[key] for key in self.going)

    @property
    def bytes_left(self) -> int:
        """How many bytes stay stored."""
        return sum(self.sizes.values()) - self.bytes

    def size_of(self, unit: Unit) -> int:
        """Return the size of a unit's files, including those that other units share."""
        return sum(self.sizes.get(key, 0) for key in unit.files)


@contextmanager
def pruning(workspace: OpenWorkspace) -> Iterator[None]:
    """Prevent a second prune of the workspace during the block.

    Raises:
        UsageError: another prune is running.
    """
    with locked_if_free(workspace.path / "prune.lock") as is_mine:
        if not is_mine:
            raise UsageError(f"another prune of {workspace.path} is running; wait until it ends")
        yield


def plan(
    workspace: OpenWorkspace,
    rules: Rules,
    *,
    clock: Clock | None = None,
    grace_s: float = GRACE_S,
) -> PrunePlan:
    """Return what would be removed; changes nothing.

    Raises:
        UsageError: the files cannot be reached from here.
        StoreError: the store or the files cannot be read.
        UnsafeDeletionError: the folder of the files is a link, or belongs to another user.
    """
    now = (clock or SystemClock()).now()
    view = workspace.store.prune_view()
    plan = PrunePlan(rules)
    fresh = _scan(workspace, plan, grace_s)
    units = _units(view, workspace.blobs)
    chosen = _choose(plan, units, view, now)
    kept = _model_keys(view).union(*(unit.files for unit in units if unit.id not in chosen))
    known = set().union(kept, *(unit.files for unit in units))
    unfinished = {job.id for job in view.jobs if not job.state.is_final}
    for key in plan.sizes:
        base = _base(key)
        if live_logs.job_of(key) in unfinished:
            continue  # a client that begins to follow the job's log needs all of it
        if base in kept or not (base in known or base.startswith(_OURS)):
            continue
        if key in fresh:
            plan.fresh += 1
            continue
        plan.going.add(key)
        if base not in known:
            plan.unreferenced.add(key)
    # A unit that lists no files and frees nothing was pruned before.
    plan.units = [
        unit
        for unit in units
        if unit.id in chosen and (rules.records or unit.rows or unit.files & plan.going)
    ]
    plan.shared = kept & plan.sizes.keys() & set().union(*(unit.files for unit in plan.units))
    return plan


def apply(
    workspace: OpenWorkspace,
    plan: PrunePlan,
    *,
    clock: Clock | None = None,
    grace_s: float = GRACE_S,
    how: str = "",
) -> Removed:
    """Carry out a plan; return what was removed.

    Files that came into use since the plan was made stay.

    Args:
        how: Who prunes and with which command, for the histories of the jobs.

    Raises:
        StoreError: the store cannot be written.
    """
    pruned = plan.pruned = workspace.store.prune_files(plan.jobs, how=how)
    # Read again, since the rows are gone now: this view has all remaining references. A later
    # reference to stored bytes has renewed their time of use, so `discard` leaves them.
    view = workspace.store.prune_view()
    units = [unit for unit in _units(view, workspace.blobs) if not set(unit.jobs) <= pruned]
    kept = _model_keys(view).union(*(unit.files for unit in units))
    blobs, going = _blobs(workspace), []
    for key in sorted(plan.sizes):
        base = _base(key)
        if base in kept:
            if base != key:  # set aside by a prune that was killed, but still needed
                blobs.put_back(key)
        elif key in plan.going:
            going.append(key)
    removed = blobs.discard(going, unused_s=grace_s)
    if plan.rules.records:
        models = {run for run, _ in view.models}
        gone = [unit for unit in plan.units if set(unit.jobs) <= pruned - models]
        workspace.store.prune_records([job for unit in gone for job in unit.jobs], how=how)
    return removed


# -- stored files and their jobs ------------------------------------------------------------------


def _blobs(workspace: OpenWorkspace) -> PrunableBlobs:
    if not isinstance(workspace.blobs, PrunableBlobs):
        raise UsageError(
            f"the files of {workspace.path} cannot be reached from here, so none is pruned"
        )
    return workspace.blobs


def _scan(workspace: OpenWorkspace, plan: PrunePlan, grace_s: float) -> set[str]:
    """Note every stored file and its size; return those that were used within `grace_s`."""
    fresh = set()
    for one in _blobs(workspace).stored():
        plan.sizes[one.key] = one.size
        if one.unused_s <= grace_s:
            fresh.add(one.key)
    return fresh


def _base(key: str) -> str:
    """Return the key that a file had before a prune set it aside; for other files, their key."""
    folder, _, name = key.rpartition("/")
    original = original_name(name)
    return key if original is None else f"{folder}/{original}"


def _model_keys(view: PruneView) -> set[str]:
    """Return the keys that models and published pipelines need: files, and snapshots of code."""
    snapshots = {job.id: job.snapshot for job in view.jobs}
    kept = {key for _, keys in view.models for key in keys}
    for run, _ in view.models:
        digest = snapshots.get(run)
        if digest:
            kept.add(snapshot_key(digest))
    return kept | {snapshot_key(digest) for digest in view.published}


def _units(view: PruneView, blobs: BlobStore) -> list[Unit]:
    """Return all jobs as units in the order of their ends; unfinished ones come last."""
    by_id = {job.id: job for job in view.jobs}
    members: dict[str, list[PrunableJob]] = {}
    for job in view.jobs:
        members.setdefault(_root(job, by_id), []).append(job)
    listings: dict[str, frozenset[str]] = {}
    units = []
    for root, jobs in members.items():
        files: set[str] = set()
        for job in jobs:
            files.update(job.files)
            if job.snapshot:
                files.add(snapshot_key(job.snapshot))
            files.update(snapshot_key(digest) for digest in job.sources)
            if job.resume_from and job.resume_from.startswith(PACKED):
                if job.resume_from not in listings:
                    listings[job.resume_from] = _packed_keys(job.resume_from, blobs)
                files |= listings[job.resume_from]
        ends = [job.ended_at for job in jobs if job.ended_at is not None]
        units.append(
            Unit(
                id=root,
                name=by_id[root].name,
                jobs=tuple(job.id for job in jobs),
                rows=sum(len(job.files) for job in jobs),
                ended_at=max(ends) if ends else None,
                files=frozenset(files),
                stays=_stays(root, jobs, view),
            )
        )
    late = datetime.max.replace(tzinfo=UTC)
    return sorted(units, key=lambda unit: unit.ended_at or late)


def _root(job: PrunableJob, by_id: Mapping[str, PrunableJob]) -> str:
    seen = set()
    while job.parent is not None and job.parent in by_id and job.id not in seen:
        seen.add(job.id)
        job = by_id[job.parent]
    return job.id


def _stays(root: str, jobs: list[PrunableJob], view: PruneView) -> str:
    unfinished = sum(not job.state.is_final for job in jobs)
    if unfinished:
        return (
            "it is not finished"
            if len(jobs) == 1
            else f"{unfinished} of its jobs {verb(unfinished, 'is', 'are')} unfinished"
        )
    needed = [job.id for job in jobs if job.id in view.needed]
    if needed:
        what = "it" if needed == [root] else needed[0]
        return f"an unfinished job resumes from {what} or waits for {what}"
    return ""


def _packed_keys(reference: str, blobs: BlobStore) -> frozenset[str]:
    """Return the keys of the files that a submit gave to resume from, and of their listing."""
    listing = blob_key(reference.removeprefix(PACKED))
    try:
        with blobs.open(listing) as stream:
            members = [blob_key(one["digest"]) for one in json.load(stream)["files"]]
    except NotFoundError:
        return frozenset()  # pruned before, with its files
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the listing {listing} is damaged, so it is unknown which files it uses, and nothing "
            f"is pruned. Restore it from a backup, or remove its job's files by hand"
        ) from error
    return frozenset({listing, *members})


# -- the selection -------------------------------------------------------------------------------


def _choose(plan: PrunePlan, units: list[Unit], view: PruneView, now: datetime) -> set[str]:
    """Return the ids of the units that the rules select; note selected ones that must stay."""
    rules = plan.rules
    finished = [unit for unit in units if unit.ended_at is not None and not unit.stays]
    candidates = finished[: max(0, len(finished) - rules.keep)]
    owners: dict[str, int] = {}
    for key in _model_keys(view):
        owners[key] = owners.get(key, 0) + 1
    for unit in units:
        for key in unit.files:
            owners[key] = owners.get(key, 0) + 1
    left = sum(plan.sizes.get(key, 0) for key in owners)
    limit = None if rules.older_than_s is None else now - timedelta(seconds=rules.older_than_s)

    def is_selected(unit: Unit) -> bool:
        too_old = limit is not None and unit.ended_at is not None and unit.ended_at < limit
        return too_old or (rules.max_bytes is not None and left > rules.max_bytes)

    chosen = set()
    for unit in candidates:
        if is_selected(unit):
            chosen.add(unit.id)
            for key in unit.files:
                owners[key] -= 1
                if owners[key] == 0:
                    left -= plan.sizes.get(key, 0)
    for unit in units:
        if unit.stays and unit.ended_at is not None and is_selected(unit):
            plan.stays[unit.id] = unit.stays
    return chosen
