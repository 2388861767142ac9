"""The workspaces that a target serves, and which of their jobs wait or live."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
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
from rayjobs.jobs.queue_records import Mark
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.store.base import Store
from rayjobs.workspace import registrations
from rayjobs.workspace.folder import WorkspaceFiles, created_s, id_of, original_of
from rayjobs.workspace.registrations import registered

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# Specs are parsed in pieces of so many, each a call of a thread.
PIECE = 500
# A job's time of submission is believed if it is within this of what the target's clock allows.
CLOCK_SLACK_S = 5.0
# A folder that cannot be seen for less than this may come back: an automount, a network file
# system that hangs for a moment, a backup tool's rename. Seconds.
GONE_S = 60.0


@dataclass(frozen=True)
class Served:
    """One workspace: its folder, name and store.

    Attributes:
        made_s: When its folder got its record, by the clock of the machine that keeps it: no job
            was submitted before. Seconds since 1970.
    """

    path: str
    name: str
    store: Store
    made_s: float = -math.inf

    def key(self, job_id: str) -> str:
        """Return a name for a job that is unique over all workspaces of the target."""
        return f"{self.path}::{job_id}"

    async def ask(self, function: Callable[..., Result], *arguments: Any, **more: Any) -> Result:
        """Run one store call on a thread: a locked database must not stop the loop."""
        return await asyncio.to_thread(function, *arguments, **more)


class QueueView:
    """What a target needs to know of one workspace's jobs to decide.

    A job that is started by what is seen here is guarded by the store itself: its `start` is
    conditional on the attempt and the state.

    Attributes:
        queued: The jobs that wait and can be read, by key; another mapping once one changed.
        entries: How many of them there are of each (experiment, entry).
        parents: The states of the jobs that these depend on, by id, without those that are gone;
            another mapping once one changed.
        live: The jobs that hold an allocation, with their newest attempt.
        saved: When the newest checkpoint of each preemptible live job was stored, by key.
        trouble: Why the store cannot be read until a person does something; empty: it can.
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
        self._change: tuple[int, int] | None = None
        self._marks: frozenset[Mark] = frozenset()
        self._keys: dict[int, str] = {}  # serial → key, of those in `queued`
        self._depended_on: list[str] = []
        self._newest_serial = 0
        self._looked_at: datetime | None = None
        self._lock = asyncio.Lock()

    @property
    def change(self) -> tuple[int, int] | None:
        """What the store said of its changes when it was read; None: nothing is known."""
        return self._change

    async def look(self, now: datetime | None = None) -> None:
        """Read what has changed since the last look; after an error nothing is known.

        Args:
            now: The target's time. With it, a job that came since the last look counts as
                submitted between the two, whatever its client's clock said.

        What cannot be read cannot be acted upon: a store that is locked, full or damaged has an
        empty queue until it can be read again.
        """
        async with self._lock:  # a turn and a retiring may both look
            store = self.served.store
            try:
                change = await self.served.ask(store.change)
                if change == self._change:
                    self._looked_at = now
                    return
                self._change = None  # until all of it was read
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
        self._depended_on = []

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
        # From here on nothing is waited for: all of it changes, or nothing.
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
        """Correct times of submission that the target's clock shows to be wrong.

        A job that was not there at the last look came after it, and none comes later than now.
        """
        slack = timedelta(seconds=CLOCK_SLACK_S)
        since = None if self._looked_at is None else self._looked_at - slack
        wrong: dict[str, datetime] = {}
        for job in found:
            if job.submitted_at > now + slack:
                wrong[job.id] = now
            elif (
                since is not None
                and not job.attempt  # one that was tried has been here before
                and job.serial > self._newest_serial
                and job.submitted_at < since
            ):
                wrong[job.id] = since
        if not wrong:
            return found
        log.warning("%d jobs in %s came with a wrong clock", len(wrong), self.served.path)
        await self.served.ask(store.correct_submitted, wrong)
        return [
            replace(job, submitted_at=wrong[job.id]) if job.id in wrong else job for job in found
        ]

    async def _jobs(self, store: Store, marks: list[Mark]) -> list[Job]:
        try:
            found = await self.served.ask(store.jobs_of, [mark[0] for mark in marks])
        except UnreadableSpecError as error:
            log.warning("%s: it is held, the others are read one by one", error)
            found = await self.served.ask(_readable, store, marks)
        # One may have gone on since its mark was read: its next mark says so.
        return [job for job in found if job.state is JobState.QUEUED]

    async def _read_live(self, store: Store) -> None:
        rows = await self.served.ask(store.live, self._target)
        victims = [job.id for job, _attempt in rows if job.spec.preemptible]
        saved = await self.served.ask(store.checkpoint_times, victims) if victims else {}
        self.live = [(self.served, job, attempt) for job, attempt in rows]
        self.saved = {self.served.key(job_id): at.timestamp() for job_id, at in saved.items()}


class Board:
    """Opens workspaces as clients name them and remembers them over restarts.

    A workspace is followed by its folder, and where that is gone by its id: moved to another path,
    it is the same workspace.
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
        # Not broken: the original is served, so nothing that a copy's records name is unknown here.
        self._copies: dict[str, str] = {}
        self._aliases: dict[str, str] = {}  # other paths of workspaces that are served
        self._ids: dict[str, str | None] = {}
        self._handles: dict[str, FolderHandle] = {}
        # By id: workspaces in whose place another one is, and since when. They may have been moved.
        self._displaced: dict[str, tuple[Served, float]] = {}
        self._moves: list[tuple[Served, Served]] = []
        self._lock = asyncio.Lock()

    @property
    def served(self) -> list[Served]:
        """The workspaces that could be opened."""
        return list(self._served.values())

    @property
    def known(self) -> list[Served]:
        """Those that are served, and those that may still be found at another path."""
        moved = [old for old, _new in self._moves]
        return [*self.served, *(one for one, _since_s in self._displaced.values()), *moved]

    @property
    def refused(self) -> dict[str, str]:
        """Why workspaces are not served, by their path."""
        unread = {path: view.trouble for path, view in self._views.items() if view.trouble}
        return {**self._broken, **self._copies, **unread}

    @property
    def is_complete(self) -> bool:
        """Whether no registered workspace that is there is missing here."""
        return not any(Path(path).is_dir() for path in self._broken)

    def take_moves(self) -> list[tuple[Served, Served]]:
        """Return what was moved since the last call: a workspace as it was and as it is served."""
        moves, self._moves = self._moves, []
        return moves

    async def add(self, path: str) -> Served | None:
        """Serve a workspace; one that cannot be opened is tried again every round.

        A folder that is served already under another path, by a link or a bind mount, is that
        workspace: two views of one store would start its jobs twice.
        """
        path = os.path.realpath(path)
        async with self._lock:  # a wake and a round may both ask
            await self._look_at_all()
            path = self._aliases.get(path, path)
            served = self._served.get(path) or await self._add(path)
            if served is None:  # what looks like a copy may be one that was moved
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
        served = Served(path, name, store, await asyncio.to_thread(created_s, path))
        self._broken.pop(path, None)
        self._copies.pop(path, None)
        self._served[path] = served
        self._views[path] = QueueView(served, self.target)
        self._ids[path] = id_of(path)
        self._take_hold(path)
        return served

    def _with_id(self, number: str | None) -> Served | None:
        """Return the workspace of this id that is served: one copied with its unfinished jobs.

        The copy's records name hosts and allocations of the original's attempts. To serve both
        would end and repeat what the original runs.
        """
        for path, known in self._served.items():
            if number is not None and self._ids[path] == number:
                return known
        return None

    def _same_store(self, path: str) -> Served | None:
        """Return the workspace whose store is the very file of the one in `path`."""
        number = _file_number(path)
        for known in self._served.values():
            if number is not None and _file_number(known.path) == number:
                return known
        return None

    async def refresh(self) -> None:
        """Open what clients have registered, follow what was moved, forget what was removed."""
        async with self._lock:
            await self._look_at_all()
        for path in registered(self._folder):
            if path not in self._served and path not in self._aliases:
                await self.add(path)
        now_s = self._clock.monotonic_s()
        for number, (served, since_s) in [*self._displaced.items()]:
            if now_s - since_s >= GONE_S:
                log.warning("workspace %s was removed", served.path)
                del self._displaced[number]

    async def _look_at_all(self) -> None:
        for path in [*self._served]:
            await self._look_at(path)

    async def _look_at(self, path: str) -> None:
        """Follow a workspace that was moved; close one that was removed.

        One that cannot be seen, or in whose place another one is, is not removed until it has been
        absent for `GONE_S`: until then it may be found at another path.
        """
        handle, known, number = self._handles.get(path), self._ids[path], id_of(path)
        here = None if handle is None else handle.path()
        if here == path and number not in (None, known):  # the very folder, with a new id
            await self._follow(path, path)
            return
        is_there = here == path or (here is None and (known is not None and number == known))
        if is_there or (handle is None and number is None and Path(path).is_dir()):
            self._absent_since_s.pop(path, None)
            if here is None and number is not None:  # mounted again, or put back from a copy
                self._take_hold(path)
            return
        moved = here if here is not None and id_of(here) is not None else self._copy_of(known)
        if moved is not None and await self._follow(path, moved):
            return
        now_s = self._clock.monotonic_s()
        if number not in (None, known):
            log.warning("another workspace is in the place of %s", path)
            since_s = self._absent_since_s.get(path, now_s)
            self._displaced[known or path] = self._close(path), since_s
            return
        if here is not None:  # it is somewhere, and cannot be opened now
            return
        if path not in self._absent_since_s:
            log.warning("workspace %s cannot be read; its jobs keep running for now", path)
        if now_s - self._absent_since_s.setdefault(path, now_s) >= GONE_S:
            log.warning("workspace %s was removed", path)
            self._close(path)

    def _take_hold(self, path: str) -> None:
        if (handle := self._handles.pop(path, None)) is not None:
            handle.close()
        with contextlib.suppress(OSError):  # then it is followed by its id alone
            self._handles[path] = FolderHandle(path)

    def _copy_of(self, number: str | None) -> str | None:
        """Return where a workspace of this id is that is not served: it may have been copied."""
        for path in [*self._copies]:
            if number is not None and id_of(path) == number:
                return path
        return None

    async def _follow(self, old: str, new: str) -> bool:
        """Serve a workspace where it is now; False while that cannot be opened."""
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
        log.warning("workspace %s was moved to %s: its jobs go on there", old.path, new.path)
        # One that is moved twice between two rounds: its supervisors know the first path.
        self._moves.append((old, new))

    def _close(self, path: str) -> Served:
        self._absent_since_s.pop(path, None)
        self._aliases = {name: real for name, real in self._aliases.items() if real != path}
        self._ids.pop(path, None)
        if (handle := self._handles.pop(path, None)) is not None:
            handle.close()
        del self._views[path]
        served = self._served.pop(path)
        served.store.close()
        return served

    async def look(self, now: datetime | None = None) -> list[QueueView]:
        """Return each workspace's queue, read again where it has changed; see `QueueView.look`."""
        views = [self._views[path] for path in self._served]
        for view in views:
            await view.look(now)
        return views

    async def waiting(self) -> list[str]:
        """Return the keys of the queued jobs of all workspaces."""
        return [key for view in await self.look() for key in view.queued]


def _copied(original: str) -> str:
    return (
        f"it is a copy of the workspace {original}, where its unfinished jobs run. The next job "
        f"that you submit here makes it a workspace of its own, and ends their records here"
    )


def _file_number(path: str) -> tuple[int, int] | None:
    """Return device and inode of a workspace's store; None where it cannot be seen.

    Where the store is in PostgreSQL, those of the workspace's record.
    """
    files = WorkspaceFiles(Path(path))
    for file in (files.store, files.record):
        try:
            found = file.stat()
        except OSError:
            continue
        return found.st_dev, found.st_ino
    return None


def _marks_of(store: Store, target: str) -> frozenset[Mark]:
    return frozenset(store.queue_marks(target))


def _entry(job: Job) -> tuple[str, str]:
    return job.experiment, job.spec.entry


def _readable(store: Store, marks: list[Mark]) -> list[Job]:
    """Return the jobs whose specs can be read; hold the others, so that it is seen why."""
    found = []
    for serial, _attempt, _priority, held, *_times in marks:
        try:
            found += store.jobs_of([serial])
        except UnreadableSpecError as error:
            if held is None:
                with contextlib.suppress(UnreadableSpecError):  # it is held, and then read again
                    store.hold(error.values["job"], reason=error.message)
    return found
