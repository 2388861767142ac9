"""Notifies receivers of the ends of jobs, at least once each.

It reads the history of each workspace from where it last stopped, records the due notifications,
and sends them from its own threads: neither the queue nor a job waits for a receiver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from rayjobs.core.clock import Clock, to_text
from rayjobs.core.errors import NotFoundError, RayjobsError
from rayjobs.engine.board import Served
from rayjobs.engine.notice_senders import NotSentError, send
from rayjobs.jobs.events import StateChanged
from rayjobs.jobs.records import INTERACTIVE, Event, Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.notify import Receiver
from rayjobs.store.base import Store
from rayjobs.workspace import notifications
from rayjobs.workspace.notifications import Due

log = logging.getLogger(__name__)
Result = TypeVar("Result")

LOOK_S = 1.0
PAGE = 1000
THREADS = 8
GIVE_UP = timedelta(days=3)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 1800.0
SENT, NOT_SENT = "notified", "not notified"


class Notifications:
    """The notifications that one target sends."""

    def __init__(
        self,
        target: str,
        served: Callable[[], Sequence[Served]],
        clock: Clock,
        secrets: Callable[[], Mapping[str, str]],
    ) -> None:
        self._target = target
        self._served = served
        self._clock = clock
        self._secrets = secrets
        self._workspaces: dict[str, _OfWorkspace] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="notify")

    async def run(self) -> None:
        """Look for ends and send notifications until canceled."""
        try:
            while True:
                await self.turn()
                await asyncio.sleep(LOOK_S)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def turn(self) -> None:
        """Look at each workspace once, and begin to send due notifications."""
        served = {one.path: one for one in self._served()}
        for path in self._workspaces.keys() - served.keys():
            del self._workspaces[path]
        for path, one in served.items():
            found = self._workspaces.get(path)
            if found is None or found.served is not one:
                found = _OfWorkspace(self._target, one, self._clock, self._call, self._secrets)
                self._workspaces[path] = found
            try:
                await found.turn()
            except (RayjobsError, OSError) as error:
                log.info("notifications of %s: %s", path, error)
            except Exception:
                log.exception("notifications of %s", path)  # others are still notified

    async def _call(self, function: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function)


class _OfWorkspace:
    """The notifications that one target sends for the jobs of one workspace."""

    def __init__(
        self,
        target: str,
        served: Served,
        clock: Clock,
        call: Callable[[Callable[[], Any]], Any],
        secrets: Callable[[], Mapping[str, str]],
    ) -> None:
        self.served = served
        self._target = target
        self._clock = clock
        self._call = call
        self._secrets = secrets
        self._change: tuple[int, int] | None = None
        self._due: dict[str, Due] | None = None  # None: not read yet
        self._sending: dict[str, asyncio.Task[None]] = {}  # by receiver
        self._pauses: dict[str, tuple[float, float]] = {}  # receiver → (its end, its length)

    async def turn(self) -> None:
        """Read what is new in the history, and begin to send due notifications."""
        store = self.served.store
        if self._due is None:
            found = await self._call(lambda: notifications.all_due(store, self._target))
            self._due = {one.key: one for one in found}
        change = await self._call(store.change)
        if change != self._change:
            for one in await self._call(lambda: _look(store, self._target)):
                self._due.setdefault(one.key, one)
            self._change = change
        now_s = self._clock.monotonic_s()
        # A receiver's failed notifications come after its others, so that they block none.
        for one in sorted(self._due.values(), key=lambda due: due.tries):
            until_s, _ = self._pauses.get(one.receiver, (0.0, 0.0))
            if one.receiver not in self._sending and now_s >= until_s:
                task = asyncio.ensure_future(self._send(one))
                self._sending[one.receiver] = task
                task.add_done_callback(partial(self._sent, one.receiver))

    def _sent(self, receiver: str, _task: asyncio.Task[None]) -> None:
        self._sending.pop(receiver, None)

    async def _send(self, due: Due) -> None:
        store, known = self.served.store, self._due
        assert known is not None
        receiver = Receiver.of(due.receiver)
        try:
            if not await self._call(lambda: notifications.is_due(store, self._target, due)):
                del known[due.key]  # its receiver was removed
                return
            job = await self._call(lambda: _job(store, due.job))
            problem = ""
            if job is not None:
                problem = await self._call(lambda: self._try(receiver, due, job))
            if not problem:
                if job is not None:
                    await self._call(lambda: self._done(due, receiver))
                else:
                    await self._call(lambda: notifications.drop_due(store, self._target, due))
                del known[due.key]
                self._pauses.pop(due.receiver, None)
                return
            await self._not_sent(due, receiver, problem)
        except Exception as error:
            log.info("a notification of %s: %r", due.job, error)
            self._pause(due.receiver)

    def _try(self, receiver: Receiver, due: Due, job: Job) -> str:
        """Send a notification; return why it was not accepted, or ""."""
        try:
            send(
                receiver,
                _facts(job, self.served),
                key=due.key,
                secrets=self._secrets(),
                mailer=notifications.mailer(self.served.store) if receiver.is_mail else None,
            )
        except NotSentError as error:
            return str(error)
        except RayjobsError:
            raise  # an error of the store says nothing about the receiver
        except Exception as error:
            # The error's message may contain a secret of the address.
            log.warning("a notification of %s: %s", due.job, type(error).__name__)
            return f"it failed with an unexpected error ({type(error).__name__})"
        return ""

    def _done(self, due: Due, receiver: Receiver) -> None:
        # In this order: after a crash in between, it is sent again, and each time is recorded.
        self.served.store.add_event(due.job, SENT, f"notified {receiver.shown}")
        notifications.drop_due(self.served.store, self._target, due)

    async def _not_sent(self, due: Due, receiver: Receiver, problem: str) -> None:
        store, known = self.served.store, self._due
        assert known is not None
        self._pause(due.receiver)
        if self._clock.now() - due.first_at > GIVE_UP:
            sentence = f"{receiver.shown} was not notified within {GIVE_UP.days} days: {problem}"
            # The event comes first, here and below: a crash in between repeats it but loses none.
            await self._call(lambda: store.add_event(due.job, NOT_SENT, sentence))
            await self._call(lambda: notifications.drop_due(store, self._target, due))
            del known[due.key]
            return
        if not await self._call(lambda: notifications.is_due(store, self._target, due)):
            del known[due.key]  # its receiver was removed meanwhile
            return
        again = notifications.failed(due)
        if again.tries == 1:
            sentence = (
                f"{receiver.shown} has not been notified yet: {problem}. The target tries again"
            )
            await self._call(lambda: store.add_event(due.job, NOT_SENT, sentence))
        await self._call(lambda: notifications.put_due(store, self._target, again))
        known[due.key] = again

    def _pause(self, receiver: str) -> None:
        _, before_s = self._pauses.get(receiver, (0.0, 0.0))
        pause_s = min(LONGEST_PAUSE_S, 2 * before_s if before_s else FIRST_PAUSE_S)
        self._pauses[receiver] = (self._clock.monotonic_s() + pause_s, pause_s)


def _look(store: Store, target: str) -> list[Due]:
    """Read what is new in the history; record and return the due notifications."""
    found: list[Due] = []
    after = notifications.seen(store, target)
    while page := store.history(after=after, limit=PAGE):
        ends = [(event, state) for event in page if (state := _end_of(event)) is not None]
        known = notifications.subscriptions(store) if ends else []
        for event, state in ends:
            job = _job(store, event.job)
            if job is None or job.target != target or job.kind == INTERACTIVE:
                continue
            if job.parent is not None:
                continue  # the array, sweep or pipeline is what the user waits for
            for receiver in notifications.receivers_of(
                job.spec.notify, known, user=job.user, at=event.at
            ):
                if not receiver.wants(str(state)):
                    continue
                due = Due(
                    job=job.id, serial=event.serial, receiver=str(receiver), first_at=event.at
                )
                notifications.put_due(store, target, due)
                found.append(due)
        after = page[-1].serial
        # After the due notifications: a crash in between repeats them but loses none.
        notifications.set_seen(store, target, after)
    return found


def _end_of(event: Event) -> JobState | None:
    """Return the final state that a job got; None if the event is not its end."""
    changed = StateChanged.of(event)
    return changed.new if changed is not None and changed.new.is_final else None


def _job(store: Store, job_id: str) -> Job | None:
    try:
        return store.job(job_id)
    except NotFoundError:
        return None  # it was pruned


def _facts(job: Job, served: Served) -> dict[str, Any]:
    """Return the facts about a job that a receiver gets."""
    return {
        "event": "job.ended",
        "id": job.id,
        "name": job.display_name or job.spec.name,
        "experiment": job.experiment,
        "state": str(job.state),
        "reason": job.reason,
        "failure": "" if job.failure is None else str(job.failure.failure_class),
        "user": job.user,
        "target": job.target,
        "workspace": served.name,
        "workspace_id": served.store.meta("workspace") or "",
        "attempts": job.attempt,
        "submitted_at": to_text(job.submitted_at),
        "started_at": None if job.started_at is None else to_text(job.started_at),
        "ended_at": None if job.ended_at is None else to_text(job.ended_at),
    }
