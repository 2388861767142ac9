"""The queue of one workspace in memory: read again only where the store says that it changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rayjobs.core.errors import StoreError, UnreadableSpecError
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.engine.board import Served
    from rayjobs.jobs.queue_records import Mark
    from rayjobs.store.base import Store

log = logging.getLogger(__name__)

# Specs are parsed in pieces of so many, each a call of a thread.
PIECE = 500
# A job's time of submission is believed if it is within this of what the target's clock allows.
CLOCK_SLACK_S = 5.0


class QueueView:
    """What a target needs to know of one workspace's jobs to decide.

    A job that is started by what is seen here is guarded by the store itself: its `start` is
    conditional on the attempt and the state.

    Attributes:
        queued: The jobs that wait and can be read, by key; another mapping once one changed.
        entries: How many of them there are of each (experiment, entry).
        parents: The states of the jobs that these depend on, by id, without those that are gone;
            another mapping once one changed.
        live: The jobs that hold a place, with their newest attempt.
        saved: When the newest checkpoint of each preemptible live job was stored, by key.
    """

    def __init__(self, served: Served, target: str) -> None:
        self.served = served
        self.queued: dict[str, Job] = {}
        self.entries: Counter[tuple[str, str]] = Counter()
        self.parents: Mapping[str, JobState] = {}
        self.live: list[tuple[Served, Job, Attempt]] = []
        self.saved: dict[str, float] = {}
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
            else:
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
