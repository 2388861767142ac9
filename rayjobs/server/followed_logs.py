"""Logs that clients follow: all clients at the end of a log share one reader of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial

from rayjobs.core.errors import StoreUnreachableError
from rayjobs.jobs.records import Job
from rayjobs.results.driver_log import CHUNK_BYTES
from rayjobs.results.logs import Logs, Part
from rayjobs.server.workers import with_files
from rayjobs.store.base import Store
from rayjobs.workspace.folder import OpenWorkspace

POLL_S = 0.1
BEAT_S = 1.0  # within this time, a client learns that the stream is alive
MOST_RATE = 500  # parts per second, over all clients of a log that grows steadily
MOST_POLLS = 500  # polls per second of all logs: with more than 50 logs each is polled less often
FRESH_S = 0.3  # age of a job's record
KEPT_S = 10.0  # reads of the store include a job until this long after its last use
MOST_WAITING = 1 << 20  # bytes that wait for a slow client

_Position = tuple[int, int | None]
_Key = tuple[str, int]


class FollowedLogs:
    """The logs of a workspace that clients follow.

    A client reads alone until it has reached the end of the log. There it joins the reader that
    others share, or its own becomes that reader. A client that falls behind reads alone again.
    """

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace
        self._records = FollowedJobs(workspace.store)
        self._shared: dict[_Key, _Shared] = {}

    async def follow(self, job: Job, rank: int, *, begin: int = 0) -> AsyncGenerator[Part, None]:
        """Yield a rank's output, see `Logs.follow`.

        Parts without data come at least each `BEAT_S`. No thread waits between two polls, so that
        hundreds of clients may follow.

        Args:
            begin: The attempt to begin with; 0: the newest.
        """
        logs = Logs(self._workspace, job.id, record=partial(self._records.get, job))
        given: _Position = (begin, 0)
        while True:
            parts = logs.follow(rank, poll_s=0.0, begin=given[0])
            shared: _Shared | None = None
            alone = _after(parts, given)
            while (part := await with_files(next, alone, None)) is not None:
                given = part.attempt, part.end
                yield part
                if part.data:
                    continue
                shared = self._join((job.id, rank), given, parts)
                if shared is not None:
                    break
                await asyncio.sleep(POLL_S)
            if shared is None:
                return
            client = shared.add()
            try:
                async for part in client.parts():
                    given = part.attempt, part.end
                    yield part
            finally:
                shared.remove(client)
            if not client.is_behind:
                return

    def _join(self, key: _Key, position: _Position, parts: Iterator[Part]) -> _Shared | None:
        """Return the shared reader to join; None: it is at another position, so try again.

        If there is none, `parts` becomes the shared reader.
        """
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(parts, position, self._pause_s)
            shared.start(lambda: self._shared.pop(key))
        return shared if shared.at == position else None

    def _pause_s(self) -> float:
        return max(POLL_S, len(self._shared) / MOST_POLLS)


class _Shared:
    """A reader of a log and the clients that get what it reads. Used in the event loop only.

    Attributes:
        at: The attempt, and the position in its log up to which all clients have received it.
    """

    def __init__(self, parts: Iterator[Part], at: _Position, pause_s: Callable[[], float]) -> None:
        self._parts = parts
        self._pause_s = pause_s  # between two polls
        self._clients: set[_Client] = set()
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self.at = at

    def add(self) -> _Client:
        """Add a client; it gets the log from `at` on."""
        self._clients.add(client := _Client())
        return client

    def remove(self, client: _Client) -> None:
        """Remove a client. The last one ends the reader with its next poll."""
        self._clients.discard(client)

    def start(self, ended: Callable[[], object]) -> None:
        """Begin to read; `ended` is called before the clients are notified of the end."""
        self._task = asyncio.create_task(self._read(ended))
        self._task.add_done_callback(lambda _: self._end_unless_begun(ended))

    def _end_unless_begun(self, ended: Callable[[], object]) -> None:
        """Notify the clients of a task that was canceled before its first step, which ran nothing.

        Everything else `_read` does itself: no client may join between its end and this call.
        """
        if not self._has_begun:
            ended()
            for client in self._clients:
                client.end(StoreUnreachableError("the server stops"))

    async def _read(self, ended: Callable[[], object]) -> None:
        self._has_begun = True
        error: BaseException | None = None
        given_s = time.monotonic()
        try:
            await asyncio.sleep(self._pause_s())
            while self._clients:
                part = await with_files(next, self._parts, None)
                if part is None:
                    break
                at = part.attempt, part.end
                if at != self.at or part.data or time.monotonic() - given_s >= BEAT_S / 2:
                    self.at, given_s = at, time.monotonic()
                    for client in self._clients:
                        client.give(part)
                if len(part.data) < CHUNK_BYTES:  # there is no more at the moment
                    busy_s = len(self._clients) / MOST_RATE if part.data else 0.0
                    await asyncio.sleep(max(self._pause_s(), busy_s))
        except Exception as raised:
            error = raised
        except asyncio.CancelledError:  # the server stops, but the log has not ended
            error = StoreUnreachableError("the server stops")
            raise
        finally:
            ended()
            for client in self._clients:
                client.end(error)


class _Client:
    """The parts that a client of a shared reader has not taken yet.

    Attributes:
        is_behind: Whether it took too little, and therefore gets no more.
    """

    def __init__(self) -> None:
        self._waiting: deque[Part] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._has_ended = False
        self._error: BaseException | None = None
        self.is_behind = False

    def give(self, part: Part) -> None:
        """Add a part of the log."""
        if self.is_behind:
            return
        if self._bytes > MOST_WAITING:
            self.is_behind = True
        elif part.data or not self._waiting:
            self._waiting.append(part)
            self._bytes += len(part.data)
        self._news.set()

    def end(self, error: BaseException | None) -> None:
        """Note the end of the log, or the error that ended its reader."""
        self._has_ended, self._error = True, error
        self._news.set()

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the given parts until the log ends or the client has fallen behind."""
        while True:
            while self._waiting:
                part = self._waiting.popleft()
                self._bytes -= len(part.data)
                yield part
            if self.is_behind:
                return
            if self._error is not None:
                raise self._error
            if self._has_ended:
                return
            self._news.clear()
            await self._news.wait()


class FollowedJobs:
    """The records of jobs whose logs are followed: one read of the store for all of them.

    Thread-safe.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[int, Job] = {}  # by serial
        self._used_s: dict[int, float] = {}
        self._read_s = float("-inf")
        self._failed: tuple[float, Exception] | None = None

    def get(self, job: Job) -> Job:
        """Return a job's record, at most `FRESH_S` old.

        Raises:
            NotFoundError: the job was removed.
            StoreError: the store cannot be read.
        """
        began_s = time.monotonic()
        with self._lock:
            self._used_s[job.serial] = began_s
            is_fresh = time.monotonic() - self._read_s < FRESH_S
            if is_fresh and job.serial in self._known:
                return self._known[job.serial]
            if self._failed is not None and self._failed[0] > began_s:
                # Another thread failed while this one waited: do not wait for the store again.
                raise self._failed[1]
            try:
                self._read()
            except Exception as error:
                self._failed = time.monotonic(), error
                raise
            if job.serial in self._known:
                return self._known[job.serial]
        return self._store.job(job.id)  # raises the reason

    def _read(self) -> None:
        now_s = time.monotonic()
        self._used_s = {
            serial: at_s for serial, at_s in self._used_s.items() if now_s - at_s < KEPT_S
        }
        self._known = {one.serial: one for one in self._store.jobs_of(self._used_s)}
        self._read_s = now_s


def _after(parts: Iterator[Part], given: _Position) -> Iterator[Part]:
    """Yield the parts of a log without the output up to a position."""
    attempt, end = given
    start = 0
    for part in parts:
        if part.attempt != attempt or not part.data or part.end is None:
            yield part
            continue
        is_whole = len(part.data) == part.end - start  # else the part stands for omitted output
        skip = 0 if end is None else max(0, end - start)
        start = part.end
        if end is None or part.end <= end:
            continue
        yield replace(part, data=part.data[skip:]) if is_whole else part
