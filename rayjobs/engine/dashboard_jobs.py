"""Copies a target's queue to Ray's list of jobs, so that Ray's dashboard shows it.

No job waits for it: one task at a time writes the changes since the last one, at most once every
`EVERY_S`. The list is bounded whatever the queue: every job with an allocation, the newest
`MOST_WAITING` waiting jobs, and the newest `MOST_ENDED` ended ones.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rayjobs.core.clock import Clock
from rayjobs.engine.board import QueueView, Served
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Attempt, Job, JobLine
from rayjobs.jobs.run_filter import STEP_OF
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.policy import Decisions, Rule, summary
from rayjobs.protocol.ray_jobs import JobRecords, Shown, UnsupportedRayError
from rayjobs.store.requests import JobFilter

log = logging.getLogger(__name__)

EVERY_S = 1.0
# How often to write the reasons of waiting jobs, which change with every start before them.
REASONS_EVERY_S = 5.0
# Ray's own job manager may mark a job that it does not know as failed.
CHECK_EVERY_S = 5.0
# A job manager that has just started does so within about a second.
CHECK_AFTER_PRIME_S = 1.5
# How long a new target waits for Ray's dashboard agents; then it writes without them.
AGENTS_WAIT_S = 30.0
MOST_WAITING = 100
MOST_ENDED = 100
MOST_TEXT = 4000
AT_ONCE = 16
PAUSE_AFTER_ERROR_S = 10.0

_STATUS = {
    JobState.QUEUED: "PENDING",
    JobState.PROVISIONING: "PENDING",
    JobState.PREPARING: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.FINALIZING: "RUNNING",
    JobState.COMPLETED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.CANCELED: "STOPPED",
}
OpenRecords = Callable[[], JobRecords]


@dataclass(frozen=True)
class _Seen:
    """The state of the queue at the start of a task."""

    views: Sequence[tuple[Served, Mapping[str, Job], Sequence[tuple[Served, Job, Attempt]]]]
    decisions: Decisions | None
    nodes: tuple[str, ...]


class DashboardJobs:
    """Writes a target's jobs to Ray's job records."""

    def __init__(self, target: str, open_records: OpenRecords, clock: Clock) -> None:
        """Write to the result of `open_records`, which is called once, when there is work."""
        self._target = target
        self._open = open_records
        self._clock = clock
        self._records: JobRecords | None = None
        self._is_off = False
        self._is_adopted = False
        self._written: dict[str, Shown] = {}
        self._began_s = clock.monotonic_s()
        self._due_s = self._check_due_s = self._reasons_due_s = float("-inf")
        self._seen_changes: object = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""

    def look(
        self, views: Sequence[QueueView], decisions: Decisions | None, nodes: Sequence[str]
    ) -> None:
        """Begin to write the changes if it is time. Returns immediately."""
        if self._is_off or (self._task is not None and not self._task.done()):
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return
        changes = [(view.served.path, view.change) for view in views]
        unfinished = any(not shown.is_final for shown in self._written.values())
        if changes == self._seen_changes and not (
            unfinished and (now_s >= self._check_due_s or now_s >= self._reasons_due_s)
        ):
            return
        self._due_s = now_s + EVERY_S
        seen = _Seen(
            [(view.served, view.queued, view.live) for view in views], decisions, tuple(nodes)
        )
        self._task = asyncio.ensure_future(self._bring_up_to_date(seen, changes))

    async def settled(self) -> None:
        """Wait until the current task is done."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self) -> None:
        """End the writing task, if any."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _bring_up_to_date(self, seen: _Seen, changes: object) -> None:
        try:
            if await self._write(seen):
                self._seen_changes = changes
                self._last_error = ""
        except UnsupportedRayError as error:
            self._is_off = True
            log.warning("jobs are not shown on the Ray dashboard: %s", error)
        except Exception as error:
            self._due_s = self._clock.monotonic_s() + PAUSE_AFTER_ERROR_S
            if repr(error) != self._last_error:  # the same error is logged once
                log.warning("the Ray dashboard's list of jobs was not written: %r", error)
                self._last_error = repr(error)

    async def _write(self, seen: _Seen) -> bool:
        """Write, remove and repair records; return whether everything was done."""
        if self._records is None:
            self._records = self._open()
        records = self._records
        now_s = self._clock.monotonic_s()
        is_primed = await records.prime(seen.nodes)
        if not self._is_adopted:
            if not is_primed and now_s - self._began_s < AGENTS_WAIT_S:
                return False
            # Written by an earlier actor of this target since the cluster was started.
            self._written = await records.entries()
            self._is_adopted = True
        elif is_primed:
            self._check_due_s = now_s + CHECK_AFTER_PRIME_S
        wanted = await self._wanted(seen)
        if now_s >= self._check_due_s:
            self._check_due_s = now_s + CHECK_EVERY_S
            await self._forget_what_was_changed(records)
        say_reasons = now_s >= self._reasons_due_s
        if say_reasons:
            self._reasons_due_s = now_s + REASONS_EVERY_S
        await _each(
            records.delete, [(job,) for job in self._written.keys() - wanted.keys()], self._drop
        )
        fresh = [
            (job, shown)
            for job, shown in wanted.items()
            if _differs(self._written.get(job), shown, reasons=say_reasons)
        ]
        await _each(records.put, fresh, self._note)
        return True

    def _drop(self, job: str) -> None:
        self._written.pop(job, None)

    def _note(self, job: str, shown: Shown) -> None:
        self._written[job] = shown

    async def _forget_what_was_changed(self, records: JobRecords) -> None:
        """Find unfinished records that another process changed, to write them again."""
        unfinished = [job for job, shown in self._written.items() if not shown.is_final]
        for job, status in (await records.statuses(unfinished)).items():
            if status != self._written[job].status:
                log.info("Ray calls %s %s: its record is written again", job, status)
                self._written.pop(job)

    async def _wanted(self, seen: _Seen) -> dict[str, Shown]:
        wanted: dict[str, Shown] = {}
        newest = heapq.nlargest(
            MOST_WAITING,
            (
                (job.submitted_at, served.path, key, job)
                for served, queued, _live in seen.views
                for key, job in queued.items()
            ),
            key=lambda one: one[:3],
        )
        for _at, path, key, job in newest:
            wanted[job.id] = _waiting(job, path, key, seen.decisions, self._written.get(job.id))
        for _served, _queued, live in seen.views:
            for served, job, attempt in live:
                wanted[job.id] = _live_entry(job, attempt, served.path)
        ended: list[tuple[int, str, Shown]] = []
        for served, _queued, _live in seen.views:
            for line in await self._lines(served, wanted):
                shown = await self._ended(served, line)
                ended.append((shown.end_ms or 0, line.id, shown))
        # A job of a copied workspace has the same id in the copy, where it was canceled.
        for _end_ms, job_id, shown in heapq.nlargest(MOST_ENDED, ended, key=lambda one: one[:2]):
            other = wanted.get(job_id)
            if other is None or other.metadata["workspace"] == shown.metadata["workspace"]:
                wanted[job_id] = shown
        return wanted

    async def _lines(self, served: Served, wanted: Mapping[str, Shown]) -> list[JobLine]:
        """Return the newest ended jobs of a workspace, and older ones that are still shown."""
        store = served.store
        ended = JobFilter(states=sorted(FINAL), target=self._target, limit=MOST_ENDED)
        newest = await served.ask(store.job_lines, ended)
        found = {line.id: line for line in newest if line.kind == "job"}
        shown = [
            job
            for job, known in self._written.items()
            if known.metadata.get("workspace") == served.path
            and job not in wanted
            and job not in found
        ]
        states = await served.ask(store.job_states, shown) if shown else {}
        for job, state in states.items():  # without those whose records were removed
            if state.is_final:
                found[job] = _line(await served.ask(store.job, job))
        return list(found.values())

    async def _ended(self, served: Served, line: JobLine) -> Shown:
        known = self._written.get(line.id)
        if known is not None and known.is_final:
            return known  # a final state never changes
        if known is None or known.metadata.get("attempt") != str(line.attempt):
            known = await served.ask(_from_store, served, line.id)
        code = None if line.failure is None else line.failure.exit_code
        start = line.started_at or line.submitted_at
        return replace(
            known,
            status=_STATUS[line.state],
            message=_text(line.reason) or str(line.state),
            start_ms=_ms(start),
            end_ms=_ms(line.ended_at or line.changed_at),
            exit_code=0 if line.state is JobState.COMPLETED else code,
            metadata={**known.metadata, "state": str(line.state)},
        )


def _waiting(
    job: Job, path: str, key: str, decisions: Decisions | None, known: Shown | None
) -> Shown:
    reason = job.reason
    if job.held is not None:
        reason = f"held: {job.held}"
    elif decisions is not None and key in decisions.by_key:
        rule, why, _position = summary(decisions, key)
        reason = why if rule is not Rule.START else reason
    shown = _entry(job, path, reason or "waits for its allocation")
    # The log of an ended attempt is still served where it ran.
    return shown if known is None else replace(shown, node_id=known.node_id)


def _live_entry(job: Job, attempt: Attempt, path: str) -> Shown:
    text = f"{job.state}, attempt {attempt.number}" + (f": {job.reason}" if job.reason else "")
    return replace(_entry(job, path, text), node_id=_node_of(attempt))


def _from_store(served: Served, job_id: str) -> Shown:
    job = served.store.job(job_id)
    attempts = served.store.attempts(job_id)
    shown = _entry(job, served.path, job.reason)
    return replace(shown, node_id=_node_of(attempts[-1]) if attempts else "")


def _entry(job: Job, path: str, message: str) -> Shown:
    entrypoint = job.spec.command or shlex.join([job.spec.script or "", *job.spec.arguments])
    facts: dict[str, Any] = {
        "job_name": job.display_name or job.name,
        "experiment": job.experiment,
        "attempt": job.attempt,
        "state": str(job.state),
        "user": job.user,
        "workspace": path,
    }
    if job.parent is not None:
        facts[_kind_of_parent(job)] = job.parent
    return Shown(
        entrypoint=_text(entrypoint),
        status=_STATUS[job.state],
        message=_text(message),
        start_ms=_ms(job.started_at or job.submitted_at),
        metadata={name: _text(str(value)) for name, value in facts.items()},
    )


def _kind_of_parent(job: Job) -> str:
    if job.array_index is not None:
        return "array"
    return "pipeline" if STEP_OF in job.properties else "sweep"


def _line(job: Job) -> JobLine:
    return JobLine(**{name: getattr(job, name) for name in JobLine._fields})


def _node_of(attempt: Attempt) -> str:
    return next((host.node_id for host in attempt.hosts if not host.node), "")


def _differs(known: Shown | None, shown: Shown, *, reasons: bool) -> bool:
    if known is not None and not reasons and shown.status == known.status == "PENDING":
        return replace(known, message="") != replace(shown, message="")
    return known != shown


def _text(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 2] + " …"


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


async def _each(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], done: Callable[..., None]
) -> None:
    """Make calls, a few at a time, and note each completed one."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(call: tuple[Any, ...]) -> None:
        async with gate:
            await function(*call)
            done(*call)

    ended = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error
