"""The workspaces that a target serves, with their waiting and running jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import (
    RayjobsError,
    StoreError,
    StoreLostError,
    StoreVersionError,
    UnreadableSpecError,
)
from rayjobs.core.folder_handle import FolderHandle
from rayjobs.engine.folder_probe import FolderProbe
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs import retry
from rayjobs.jobs.queue_records import Mark
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.store.base import Store
from rayjobs.workspace import registrations
from rayjobs.workspace.folder import WorkspaceFiles, created_s, id_of, original_of, record_of
from rayjobs.workspace.registrations import as_registered

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# How many specs a thread parses per call.
PIECE = 500
# How many calls of one workspace may be in progress; the others wait.
CALLS_AT_ONCE = 8
# A job's submission time is trusted if it deviates at most this much from the target's clock.
CLOCK_SLACK_S = 5.0
# A folder that is missing for less than this may come back: an automount, a network file system
# that hangs briefly, a backup tool's rename. Seconds.
GONE_S = 60.0


@dataclass(frozen=True)
class Served:
    """One workspace: its folder, name and store.

    Attributes:
        made_s: When its folder got its record, by the clock of the machine that stores it: all its
            jobs were submitted later. Seconds since 1970.
        threads: Make its calls, so that those of a workspace that hangs keep no thread of the
            others; None: the threads of the loop.
    """

    path: str
    name: str
    store: Store
    made_s: float = -math.inf
    threads: ThreadPoolExecutor | None = field(default=None, compare=False)

    def key(self, job_id: str) -> str:
        """Return the key of a job, which is unique over all workspaces of the target."""
        return f"{self.path}::{job_id}"

    async def ask(self, function: Callable[..., Result], *arguments: Any, **kwargs: Any) -> Result:
        """Run one store call on a thread: a locked database must not stop the loop."""
        call = partial(function, *arguments, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)


Change = tuple[int, int]


async def changes_of(served: Sequence[Served]) -> dict[str, Change | StoreError]:
    """Return each store's change token, or why it cannot be read, by path; uses one thread."""

    def read() -> dict[str, Change | StoreError]:
        found: dict[str, Change | StoreError] = {}
        for one in served:
            try:
                found[one.path] = one.store.change()
            except StoreError as error:
                found[one.path] = error
        return found

    return await asyncio.to_thread(read)


class QueueView:
    """The facts about one workspace's jobs that a target needs for its decisions.

    The store itself guards a start that is based on this view: its `start` is conditional on the
    attempt and the state.

    Attributes:
        queued: The readable waiting jobs, by key; a new mapping after each change.
        entries: Their number per (experiment, entry).
        parents: The states of the existing jobs that these depend on, by id; a new mapping after
            each change.
        live: The jobs that hold an allocation, with their newest attempt.
        saved: When each preemptible live job last stored a checkpoint, by key.
        trouble: Why the store is unreadable until a user acts; empty: it is readable.
    """

    def __init__(self, served: Served, target: str) -> None:
        self.served = served
        self.queued: dict[str, Job] = {}
        self.entries: Counter[tuple[str, str]] = Counter()
        self.parents: Mapping[str, JobState] = {}
        self.live: list[tuple[Served, Job, Attempt]] = []
        self.saved: dict[str, float] = {}
        self.trouble = ""
        self._target = target
        self._change: Change | None = None
        self._marks: frozenset[Mark] = frozenset()
        self._keys: dict[int, str] = {}  # serial → key, for the jobs in `queued`
        self._depended_on: list[str] = []
        self._newest_serial = 0
        self._looked_at: datetime | None = None
        # The earlier attempts of live jobs whose preemptions have to be counted, by id and attempt.
        self._earlier: dict[tuple[str, int], list[Attempt]] = {}
        self._lock = asyncio.Lock()

    @property
    def change(self) -> Change | None:
        """The store's change token at the last read; None: unknown."""
        return self._change

    def allows_preemption(self, job: Job, attempt: Attempt) -> bool:
        """Return whether a live job would return to the queue if it were preempted now."""
        if not counts_preemptions(job):
            return True
        earlier = self._earlier.get((job.id, attempt.number))
        if earlier is None:
            return False
        now = self._looked_at or attempt.created_at
        return retry.allows_preemption(job.spec.retries, [*earlier, attempt], now=now)

    async def look(
        self, now: datetime | None = None, *, change: Change | StoreError | None = None
    ) -> None:
        """Read the changes since the last look; after an error, forget everything.

        Args:
            change: The store's change token, or why it cannot be read; None: it is read here.
            now: The target's time. With it, a job that arrived since the last look counts as
                submitted between the two looks, whatever its client's clock showed.

        A store that is locked, full or damaged has an empty queue until it is readable again.
        """
        async with self._lock:  # a turn and a retirement may both read
            store = self.served.store
            try:
                if change is None:
                    change = await self.served.ask(store.change)
                if isinstance(change, StoreError):
                    raise change
                if change == self._change:
                    self._looked_at = now
                    return
                self._change = None  # until everything has been read
                await self._read_queue(store, now)
                await self._read_live(store)
            except StoreError as error:
                log.warning("workspace %s cannot be read: %s", self.served.path, error)
                self._forget()
                lasts = isinstance(error, (StoreVersionError, StoreLostError))
                self.trouble = error.message if lasts else ""
            else:
                self.trouble = ""
                self._change, self._looked_at = change, now

    def _forget(self) -> None:
        self.queued, self.parents, self.live, self.saved = {}, {}, [], {}
        self.entries = Counter()
        self._marks, self._keys, self._change = frozenset(), {}, None
        self._depended_on, self._earlier = [], {}

    async def _read_queue(self, store: Store, now: datetime | None) -> None:
        marks = await self.served.ask(_marks_of, store, self._target)
        if marks != self._marks:
            await self._read_changed(store, marks, now)
        parents: Mapping[str, JobState] = {}
        if self._depended_on:
            parents = await self.served.ask(store.job_states, self._depended_on)
        if parents != self.parents:
            self.parents = parents

    async def _read_changed(
        self, store: Store, marks: frozenset[Mark], now: datetime | None
    ) -> None:
        new = sorted(marks - self._marks, key=lambda mark: mark[0])
        found: list[Job] = []
        for start in range(0, len(new), PIECE):
            found += await self._jobs(store, new[start : start + PIECE])
        if now is not None:
            found = await self._corrected(store, found, now)
        # No await from here on: everything changes, or nothing.
        queued, entries = dict(self.queued), self.entries.copy()
        for mark in self._marks - marks:
            key = self._keys.pop(mark[0], None)
            if key is not None:
                entries[_entry(queued.pop(key))] -= 1
        for job in found:
            key = self._keys[job.serial] = self.served.key(job.id)
            queued[key] = job
            entries[_entry(job)] += 1
        self.queued, self.entries, self._marks = queued, +entries, marks
        self._newest_serial = max(self._newest_serial, max((mark[0] for mark in marks), default=0))
        self._depended_on = sorted(
            {one.job for job in queued.values() for one in job.spec.depends_on}
        )

    async def _corrected(self, store: Store, found: list[Job], now: datetime) -> list[Job]:
        """Correct submission times that the target's clock shows to be wrong.

        A job that is new since the last look was submitted after it and before now.
        """
        slack = timedelta(seconds=CLOCK_SLACK_S)
        since = None if self._looked_at is None else self._looked_at - slack
        wrong: dict[str, datetime] = {}
        for job in found:
            if job.submitted_at > now + slack:
                wrong[job.id] = now
            elif (
                since is not None
                and not job.attempt  # a job with an attempt has been here before
                and job.serial > self._newest_serial
                and job.submitted_at < since
            ):
                wrong[job.id] = since
        if not wrong:
            return found
        log.warning("%d jobs in %s have wrong submission times", len(wrong), self.served.path)
        await self.served.ask(store.correct_submitted, wrong)
        return [
            replace(job, submitted_at=wrong[job.id]) if job.id in wrong else job for job in found
        ]

    async def _jobs(self, store: Store, marks: list[Mark]) -> list[Job]:
        try:
            found = await self.served.ask(store.jobs_of, [mark[0] for mark in marks])
        except UnreadableSpecError as error:
            log.warning("%s: the job is held, and the others are read one by one", error)
            found = await self.served.ask(_readable, store, marks)
        # A job may have changed since its mark was read: its next mark will differ.
        return [job for job in found if job.state is JobState.QUEUED]

    async def _read_live(self, store: Store) -> None:
        rows = await self.served.ask(store.live, self._target)
        victims = [job.id for job, _attempt in rows if job.spec.preemptible]
        saved = await self.served.ask(store.checkpoint_times, victims) if victims else {}
        counted = {
            (job.id, attempt.number)
            for job, attempt in rows
            if job.spec.preemptible and counts_preemptions(job)
        }
        # Earlier attempts have ended and do not change: each is read once.
        new = counted - self._earlier.keys()
        found = await self.served.ask(_earlier_attempts, store, new) if new else {}
        known = {**self._earlier, **found}
        self._earlier = {one: known[one] for one in counted}
        self.live = [(self.served, job, attempt) for job, attempt in rows]
        self.saved = {self.served.key(job_id): at.timestamp() for job_id, at in saved.items()}


class Board:
    """Opens the workspaces that clients name and remembers them across restarts.

    It follows a workspace by its folder, or by its id if the folder is gone: a moved workspace
    remains the same one.
    """

    def __init__(
        self,
        target: str,
        folder: Path,
        open_store: Callable[[str], tuple[str, Store]],
        *,
        clock: Clock | None = None,
    ) -> None:
        self.target = target
        self._clock = clock or SystemClock()
        self._absent_since_s: dict[str, float] = {}
        self._folder = folder
        self._open = open_store
        self._served: dict[str, Served] = {}
        self._views: dict[str, QueueView] = {}
        self._broken: dict[str, str] = {}
        # Why copies are not served, by path. They do not count as broken: everything that their
        # records name belongs to the original.
        self._copies: dict[str, str] = {}
        self._aliases: dict[str, str] = {}  # other paths of workspaces that are served
        self._ids: dict[str, str | None] = {}
        self._stores: dict[str, tuple[tuple[int, int] | None, str | None]] = {}  # see `_same_store`
        self._handles: dict[str, FolderHandle] = {}
        # By id: workspaces that were replaced by another one, and since when. They may have moved.
        self._displaced: dict[str, tuple[Served, float]] = {}
        self._moves: list[tuple[Served, Served]] = []
        self._lock = asyncio.Lock()
        self._probe = FolderProbe(_read_folder)

    @property
    def served(self) -> list[Served]:
        """The open workspaces whose folders answer."""
        unanswered = self._probe.unanswered
        return [one for path, one in self._served.items() if path not in unanswered]

    @property
    def known(self) -> list[Served]:
        """The open workspaces, and those that may still be found at another path."""
        moved = [old for old, _new in self._moves]
        displaced = (one for one, _since_s in self._displaced.values())
        return [*self._served.values(), *displaced, *moved]

    @property
    def refused(self) -> dict[str, str]:
        """Why workspaces are not served, by path."""
        unread = {path: view.trouble for path, view in self._views.items() if view.trouble}
        silent = dict.fromkeys(self._probe.unanswered, "its folder does not answer")
        return {**self._broken, **self._copies, **unread, **silent}

    @property
    def is_complete(self) -> bool:
        """Whether all existing registered workspaces are open."""
        return not self._probe.unanswered and not any(Path(path).is_dir() for path in self._broken)

    def take_moves(self) -> list[tuple[Served, Served]]:
        """Return the moves since the last call: each workspace before and after its move."""
        moves, self._moves = self._moves, []
        return moves

    async def add(self, path: str) -> Served | None:
        """Serve a workspace. If it cannot be opened, every round tries again.

        A folder that is already served under another path, through a link or bind mount, is the
        same workspace: two views of one store would start its jobs twice.
        """
        async with self._lock:  # a wake and a round may both call this
            await self._probe_also(path)
            if path in self._probe.unanswered:
                return None
            path = os.path.realpath(path)
            await self._look_at_all()
            path = self._aliases.get(path, path)
            served = self._served.get(path) or await self._add(path)
            if served is None:  # an apparent copy may be a moved workspace
                await self._look_at_all()
            return served or self._served.get(path)

    async def _add(self, path: str) -> Served | None:
        if (known := self._same_store(path)) is not None:
            log.warning("workspace %s is workspace %s under another path", path, known.path)
            self._aliases[path] = known.path
            return known
        number = id_of(path)
        known = self._with_id(number)
        original = None if known is None else known.path
        if original is None and (copied := await asyncio.to_thread(original_of, path)) is not None:
            original = str(copied)
        if original is not None:
            self._copies[path] = _copied(original)
            return None
        self._copies.pop(path, None)
        served = await self._serve(path)
        if served is not None and number is not None and number in self._displaced:
            old, _since_s = self._displaced.pop(number)
            self._note_move(old, served)
        return served

    async def _serve(self, path: str) -> Served | None:
        try:
            name, store = await asyncio.to_thread(self._open, path)
        except (RayjobsError, OSError) as error:
            if self._broken.get(path) != str(error):
                log.warning("workspace %s cannot be opened: %s", path, error)
            self._broken[path] = str(error)
            return None
        threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="workspace")
        served = Served(path, name, store, await asyncio.to_thread(created_s, path), threads)
        self._broken.pop(path, None)
        self._copies.pop(path, None)
        self._served[path] = served
        self._views[path] = QueueView(served, self.target)
        self._ids[path] = id_of(path)
        self._stores[path] = _file_number(path), _shared_store(path)
        self._take_hold(path)
        return served

    def _with_id(self, number: str | None) -> Served | None:
        """Return the served workspace with this id: another folder with the id is a copy of it.

        The copy has the same unfinished jobs, and its records name hosts and allocations of the
        original's attempts. Serving both would end and repeat these attempts.
        """
        for path, known in self._served.items():
            if number is not None and self._ids[path] == number:
                return known
        return None

    def _same_store(self, path: str) -> Served | None:
        """Return the workspace whose store is the same as the one in `path`.

        The stores are the same file, or both folders name one store in PostgreSQL and one place for
        files in S3: they belong to one workspace. (If the files are in the folders, one folder is a
        copy.)
        """
        number, shared = _file_number(path), _shared_store(path)
        for at, known in self._served.items():
            if at not in self._probe.unanswered:  # else as it was when its folder last answered
                self._stores[at] = _file_number(at), _shared_store(at)
            its_number, its_shared = self._stores[at]
            if number is not None and its_number == number:
                return known
            if shared is not None and its_shared == shared:
                return known
        return None

    async def refresh(self) -> None:
        """Open registered workspaces, follow moved ones, forget removed ones."""
        named = as_registered(self._folder)
        async with self._lock:
            await self._probe_also(*named)
            await self._look_at_all()
        answering = [path for path in named if path not in self._probe.unanswered]
        for path in dict.fromkeys(map(os.path.realpath, answering)):
            if path not in self._served and path not in self._aliases:
                await self.add(path)
        now_s = self._clock.monotonic_s()
        for number, (served, since_s) in [*self._displaced.items()]:
            if now_s - since_s >= GONE_S:
                log.warning("workspace %s was removed", served.path)
                del self._displaced[number]

    async def _probe_also(self, *paths: str) -> None:
        """Find out which of these folders and those of all known workspaces answer."""
        known = (*self._served, *self._copies, *self._broken)
        await self._probe.probe([*dict.fromkeys((*known, *paths))])

    async def _look_at_all(self) -> None:
        for path in [*self._served]:
            if path not in self._probe.unanswered:
                await self._look_at(path)

    async def _look_at(self, path: str) -> None:
        """Follow a moved workspace; close a removed one.

        A workspace that is missing or replaced by another one counts as removed only after it has
        been absent for `GONE_S`: until then it may be found at another path.
        """
        handle, known, number = self._handles.get(path), self._ids[path], id_of(path)
        here = None if handle is None else handle.path()
        if here == path and number not in (None, known):  # the same folder with a new id
            await self._follow(path, path)
            return
        is_there = here == path or (here is None and (known is not None and number == known))
        if is_there or (handle is None and number is None and Path(path).is_dir()):
            self._absent_since_s.pop(path, None)
            if here is None and number is not None:  # mounted again, or restored from a copy
                self._take_hold(path)
            return
        moved = here if here is not None and id_of(here) is not None else self._copy_of(known)
        if moved is not None and await self._follow(path, moved):
            return
        now_s = self._clock.monotonic_s()
        if number not in (None, known):
            log.warning("another workspace has replaced %s", path)
            since_s = self._absent_since_s.get(path, now_s)
            self._displaced[known or path] = self._close(path), since_s
            return
        if here is not None:  # it exists but cannot be opened now
            return
        if path not in self._absent_since_s:
            log.warning("workspace %s cannot be read; its jobs keep running for now", path)
        if now_s - self._absent_since_s.setdefault(path, now_s) >= GONE_S:
            log.warning("workspace %s was removed", path)
            self._close(path)

    def _take_hold(self, path: str) -> None:
        if (handle := self._handles.pop(path, None)) is not None:
            handle.close()
        with contextlib.suppress(OSError):  # without a handle, only its id identifies it
            self._handles[path] = FolderHandle(path)

    def _copy_of(self, number: str | None) -> str | None:
        """Return the path of an unserved workspace with this id: it may be a copy."""
        for path in [*self._copies]:
            answers = path not in self._probe.unanswered
            if number is not None and answers and id_of(path) == number:
                return path
        return None

    async def _follow(self, old: str, new: str) -> bool:
        """Serve a workspace at its new path; False if it cannot be opened yet."""
        before = self._served[old]
        if new in self._served and new != old:
            return False
        if new == old:
            self._close(old)
            after = await self._serve(new)
        else:
            after = await self._serve(new)
            if after is not None:
                self._close(old)
                registrations.follow(self._folder, old, new)
        if after is None:
            return False
        self._note_move(before, after)
        return True

    def _note_move(self, old: Served, new: Served) -> None:
        log.warning("workspace %s was moved to %s: its jobs continue there", old.path, new.path)
        # If it moves twice between two rounds, its supervisors still know the first path.
        self._moves.append((old, new))

    def _close(self, path: str) -> Served:
        self._absent_since_s.pop(path, None)
        self._aliases = {name: real for name, real in self._aliases.items() if real != path}
        self._ids.pop(path, None)
        self._stores.pop(path, None)
        if (handle := self._handles.pop(path, None)) is not None:
            handle.close()
        del self._views[path]
        served = self._served.pop(path)
        served.store.close()
        return served

    async def look(self, now: datetime | None = None) -> list[QueueView]:
        """Return each workspace's queue, reread if it has changed; see `QueueView.look`."""
        views = [self._views[served.path] for served in self.served]
        changes = await changes_of([view.served for view in views])
        for view in views:
            await view.look(now, change=changes[view.served.path])
        return views

    def change(self, served: Served) -> Change | None:
        """Return the change token at which a workspace's queue was read; None: it was not read."""
        view = self._views.get(served.path)
        return None if view is None or view.served is not served else view.change

    async def waiting(self) -> list[str]:
        """Return the keys of the queued jobs of all workspaces."""
        return [key for view in await self.look() for key in view.queued]


def _copied(original: str) -> str:
    return (
        f"it is a copy of the workspace {original}, and its unfinished jobs run there. The next "
        "job that you submit here makes the copy a separate workspace; these jobs are then "
        "recorded as canceled here"
    )


def _read_folder(path: str) -> None:
    """Wait for the file system of a workspace's folder as `id_of` would. Raises OSError."""
    os.stat(path)  # noqa: PTH116 - in each turn, for each workspace
    descriptor = os.open(WorkspaceFiles(Path(path)).record, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def _file_number(path: str) -> tuple[int, int] | None:
    """Return device and inode of a workspace's store; None if it is missing.

    If the store is in PostgreSQL, return those of the workspace's record.
    """
    files = WorkspaceFiles(Path(path))
    for file in (files.store, files.record):
        try:
            found = file.stat()
        except OSError:
            continue
        return found.st_dev, found.st_ino
    return None


def _shared_store(path: str) -> str | None:
    """Return the address of a store that several folders may share; None: it is another store."""
    try:
        record = record_of(path)
    except StoreError:
        return None
    return record.store if record is not None and record.blobs is not None else None


def _marks_of(store: Store, target: str) -> frozenset[Mark]:
    return frozenset(store.queue_marks(target))


def _entry(job: Job) -> tuple[str, str]:
    return job.experiment, job.spec.entry


def counts_preemptions(job: Job) -> bool:
    """Whether a job has so many attempts that preemptions may have spent their budget."""
    return job.attempt > job.spec.retries.preempted


def _earlier_attempts(
    store: Store, newest: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[Attempt]]:
    """Return the attempts before the newest one of each job, by the job's id and that number."""
    return {
        (job, number): [one for one in store.attempts(job) if one.number < number]
        for job, number in newest
    }


def _readable(store: Store, marks: list[Mark]) -> list[Job]:
    """Return the jobs with readable specs; hold the others, which shows the reason."""
    found = []
    for serial, _attempt, _priority, held, *_times in marks:
        try:
            found += store.jobs_of([serial])
        except UnreadableSpecError as error:
            if held is None:
                with contextlib.suppress(UnreadableSpecError):  # hold it, and read it again later
                    store.hold(error.values["job"], reason=error.message)
    return found
