"""Logs of a job by name: from the attempt's folder while it lives, from the store afterwards."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError, StoreUnreachableError
from rayjobs.core.paths import (
    BUILD_LOG,
    EARLIER_LOGS,
    LOG_TIMES,
    MPI_LOG,
    AttemptPaths,
    driver_log_name,
)
from rayjobs.injob.identity import boot_id
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.results import driver_log, live_logs, log_times, merged_logs
from rayjobs.results.gone import why_gone
from rayjobs.results.left_out import FileLeftOut
from rayjobs.results.log_times import RankTimes

if TYPE_CHECKING:
    from rayjobs.results.remote_logs import RemoteLogs
    from rayjobs.store.base import Store
    from rayjobs.workspace.folder import OpenWorkspace

LOG_FOLDERS = ("azureml-logs/", "logs/", "user_logs/")
POLL_S = 0.05
PATIENCE_S = 120.0  # how long to wait for storage of pieces that does not answer

_ALIAS = re.compile(r"^user_logs/std_log(_\d+)?\.txt$")
_DRIVER = re.compile(r"^azureml-logs/70_driver_log(?:_(\d+))?\.txt$")
_NODE = re.compile(r"^node-\d+/")


def real_name(name: str) -> str:
    """Return a log's stored name; ``user_logs/std_log[_<rank>].txt`` is an alias.

    Source: Azure ML's newer layout, which third-party code looks for.
    """
    match = _ALIAS.match(name)
    return f"azureml-logs/70_driver_log{match[1] or ''}.txt" if match else name


def is_log(name: str) -> bool:
    """Return whether a run's file is a log."""
    return _NODE.sub("", name).startswith(LOG_FOLDERS)


@dataclass(frozen=True)
class Part:
    """New bytes of a log; empty if there is no news.

    Attributes:
        name: The log.
        rank: The rank that prints to the log.
        attempt: Number of the attempt that printed it.
        end: The position in the log after these bytes. Readers with the same attempt and position
            get the same bytes from there on. None: no more of this attempt follows, or the
            position is unknown.
    """

    name: str
    rank: int
    attempt: int
    data: bytes
    end: int | None = None


class Logs:
    """The logs of one job of an open workspace."""

    def __init__(
        self, workspace: OpenWorkspace, job_id: str, *, record: Callable[[], Job] | None = None
    ) -> None:
        """Read the logs of `job_id`.

        Args:
            record: Returns the job's record while its logs are followed, for readers who share one;
                by default the store is read each time.
        """
        self._store = workspace.store
        self._blobs = workspace.blobs
        self._remote: RemoteLogs | None = None
        if workspace.server is not None:
            # Readers of a folder need neither http nor ssl.
            from rayjobs.results.remote_logs import RemoteLogs

            self._remote = RemoteLogs(workspace.server, job_id)
        self._away_since_s: float | None = None
        self._has_pieces = workspace.blobs_address is not None
        self.job_id = job_id
        self._now = record or partial(workspace.store.job, job_id)

    # -- names and whole logs ------------------------------------------------------------------
    def names(self) -> list[str]:
        """Return the names of all logs, driver logs first."""
        if self._remote is not None:
            return self._remote.names()
        found = {one.name for one in self._store.files(self.job_id) if is_log(one.name)}
        found |= {name for name, _ in self._live_files()}
        found |= {self.driver_name(rank) for rank in self._sent_ranks()}
        return sorted(found, key=lambda name: (not name.startswith("azureml-logs/"), name))

    def read(self, name: str | None = None) -> bytes:
        """Return a log's bytes; without a name, those of the driver log of rank 0.

        Raises:
            NotFoundError: there is no such log; lists the existing ones.
        """
        return b"".join(self.chunks(name))

    def chunks(self, name: str | None = None) -> Iterator[bytes]:
        """Yield a log in parts, see `read`."""
        if self._remote is not None:
            yield from self._remote.chunks(name)
            return
        wanted = real_name(name) if name is not None else self.driver_name(0)
        job = self._store.job(self.job_id)
        live = dict(self._live_files()).get(wanted)
        stored = {one.name: one for one in self._store.files(self.job_id)}.get(wanted)
        # For a live attempt, its folder is newer than the stored log.
        newest_stored = stored is not None and (job.state.is_final or live is None)
        if stored is not None and newest_stored:
            with self._blobs.open(stored.blob) as file:
                while part := file.read(driver_log.CHUNK_BYTES):
                    yield part
            return
        if live is None:
            for rank in self._sent_ranks():
                if wanted == self.driver_name(rank):
                    yield self._sent(rank, job.attempt).read()
                    return
            raise NotFoundError(self._no_log(name, job))
        try:
            yield from driver_log.chunks(live)
        except OSError:
            raise NotFoundError(self._no_log(name, job)) from None

    def tail(self, name: str | None = None, *, lines: int) -> bytes:
        """Return the last lines of a log, see `read`."""
        return driver_log.last_lines(self.chunks(name), lines)

    def merged(self, *, fold: bool = True) -> Iterator[bytes]:
        """Yield the lines of all ranks' logs, each prefixed with its ranks: ``[rank 0]``.

        Args:
            fold: Show output that several ranks share only once (see `results.merged_logs`);
                otherwise rank after rank.
        """
        ranks = {}
        for name in self.names():
            match = _DRIVER.match(name)
            if match:
                ranks[int(match[1] or 0)] = name
        if fold and len(ranks) > 1:
            yield from merged_logs.merged({rank: self.chunks(ranks[rank]) for rank in ranks})
            return
        for rank in sorted(ranks):
            yield from prefixed(self.chunks(ranks[rank]), f"[rank {rank}] ".encode())

    def driver_name(self, rank: int) -> str:
        """Return the name of a rank's driver log."""
        spec = self._store.job(self.job_id).spec
        return driver_log_name(rank, spec.distribution.world_size)

    @property
    def attempt(self) -> int:
        """The number of the job's newest attempt; 0 before the first."""
        return self._store.job(self.job_id).attempt

    def ranks(self) -> list[int]:
        """Return the numbers of the job's processes."""
        return list(range(self._store.job(self.job_id).spec.distribution.world_size))

    def times(self, rank: int, number: int | None = None) -> RankTimes:
        """Return the line times of a rank's log.

        Args:
            number: Number of the attempt; None: the newest.
        """
        if self._remote is not None:
            return self._remote.times(rank, number)
        attempts = self._store.attempts(self.job_id)
        found = next((one for one in reversed(attempts) if number in (None, one.number)), None)
        if found is None:
            return RankTimes()
        job = self._store.job(self.job_id)
        began, ended = _ran(found, rank)
        is_over = job.state.is_final or job.attempt > found.number or ended is not None
        after: Callable[[], float] | None = None
        if not is_over:
            after = time.time
        for root, first, count in self._roots(found.number):
            if first <= rank < first + count:
                notes = log_times.of_attempt(AttemptPaths(root)).get(rank)
                if notes:
                    return RankTimes(notes, after or _always(notes[-1][0]))
        for one in self._store.files(self.job_id):
            if one.attempt == found.number and _NODE.sub("", one.name) == LOG_TIMES:
                with self._blobs.open(one.blob) as file:
                    stored = log_times.parse(file.read()).get(rank)
                if stored:
                    return RankTimes(stored, _always(stored[-1][0]))
        if ended is not None and began is not None and ended - began <= log_times.SHORT_S + 1:
            return RankTimes((), _always(ended))
        return RankTimes((), after)

    def ended_at(self, rank: int) -> float | None:
        """Return when a rank of the newest attempt ended, in seconds of the wall clock."""
        attempts = self._store.attempts(self.job_id)
        return _ran(attempts[-1], rank)[1] if attempts else None

    # -- following -----------------------------------------------------------------------------
    def follow(
        self,
        rank: int = 0,
        *,
        stop: Callable[[], bool] = lambda: False,
        poll_s: float = POLL_S,
        begin: int = 0,
    ) -> Iterator[Part]:
        """Yield a rank's output from its start until the job's end, attempt after attempt.

        Parts without data come at each poll, so that the caller can show stages and give up.
        Ends early if `stop` returns true.

        Args:
            poll_s: The pause between two polls; 0 leaves pauses to the caller.
            begin: The attempt to begin with; 0: the newest.
        """
        if self._remote is not None:
            name = self.driver_name(rank)
            for one in self._remote.follow(rank, stop):
                yield Part(name, rank, one.attempt, one.data)
            return
        number = begin
        if begin:
            yield from self._follow_attempt(rank, begin, stop, poll_s)
        while True:
            job = self._now()
            if job.attempt > number:
                number = number + 1 if number else job.attempt
                yield from self._follow_attempt(rank, number, stop, poll_s)
                continue
            if stop() or job.state.is_final:
                return
            name = driver_log_name(rank, job.spec.distribution.world_size)
            yield Part(name, rank, number, b"")
            time.sleep(poll_s)

    def _follow_attempt(
        self, rank: int, number: int, stop: Callable[[], bool], poll_s: float
    ) -> Iterator[Part]:
        name = self.driver_name(rank)
        path: Path | None = None
        sent = self._sent(rank, number) if self._has_pieces else None
        pause_s, next_s = live_logs.POLL_S, 0.0
        while path is None:
            is_over = self._has_ended(number)
            path = None if sent is not None and sent.given else self._live_log(rank, number)
            if path is not None and not path.exists():
                path = None
            if path is None:
                if (is_over and self._is_stored(number)) or stop():
                    yield from self._stored_part(name, rank, number, sent.given if sent else 0)
                    return
                data = b""
                if sent is not None and time.monotonic() >= next_s:
                    data = self._news(sent)
                    pause_s = (
                        live_logs.POLL_S if data else min(1.5 * pause_s, live_logs.LONGEST_POLL_S)
                    )
                    next_s = time.monotonic() + pause_s
                yield Part(name, rank, number, data, sent.at if sent else 0)
                time.sleep(poll_s)
        given = False
        for data, end in driver_log.follow(
            path, lambda: self._has_ended(number) or stop(), poll_s=poll_s
        ):
            given = given or bool(data)
            yield Part(name, rank, number, data, end)
        if not given and not stop():
            # The folder may have been removed between the check and the opening.
            yield from self._stored_part(name, rank, number)

    def _stored_part(self, name: str, rank: int, number: int, start: int = 0) -> Iterator[Part]:
        """Yield an attempt's stored log, from byte `start` on."""
        earlier = (
            f"{EARLIER_LOGS}{number}/{name.partition('/')[2]}"  # once there is a later attempt
        )
        for one in self._store.files(self.job_id):
            if one.name in (name, earlier) and one.attempt == number:
                with self._blobs.open(one.blob) as file:
                    file.seek(start)
                    while data := file.read(driver_log.CHUNK_BYTES):
                        start += len(data)
                        yield Part(name, rank, number, data, start)

    def _is_stored(self, number: int) -> bool:
        """Whether the store has all of an attempt's output that it will ever get."""
        job = self._now()
        return job.attempt > number or job.state is not JobState.FINALIZING

    def _has_ended(self, number: int) -> bool:
        """Whether an attempt has stopped printing."""
        job = self._now()
        if job.state.is_final or job.attempt > number or job.state is JobState.FINALIZING:
            return True
        return job.state is JobState.QUEUED

    # -- logs of attempts whose folders are elsewhere --------------------------------------------
    def _sent(self, rank: int, number: int) -> live_logs.Reader:
        return live_logs.Reader(self._blobs, live_logs.folder(self.job_id, number, rank))

    def _news(self, sent: live_logs.Reader) -> bytes:
        """Return new output, waiting for storage that is temporarily unavailable."""
        try:
            data = sent.read()
        except StoreUnreachableError:
            now_s = time.monotonic()
            self._away_since_s = self._away_since_s or now_s
            if now_s - self._away_since_s > PATIENCE_S:
                raise
            return b""
        self._away_since_s = None
        return data

    def _sent_ranks(self) -> list[int]:
        job = self._store.job(self.job_id)
        if not self._has_pieces or job.state.is_final or not job.attempt:
            return []
        prefix = f"{live_logs.PREFIX}{self.job_id}/{job.attempt}/"
        found = {key[len(prefix) :].partition("/")[0] for key in self._blobs.list(prefix)}
        return sorted(int(one) for one in found if one.isdecimal())

    # -- folders ----------------------------------------------------------------------
    def _live_log(self, rank: int, number: int) -> Path | None:
        for root, first, count in self._roots(number):
            if first <= rank < first + count:
                return AttemptPaths(root).driver_log(rank)
        return None

    def _roots(self, number: int | None = None) -> Iterator[tuple[Path, int, int]]:
        return roots_here(self._store, self.job_id, number)

    def _live_files(self) -> Iterator[tuple[str, Path]]:
        for root, first, count in self._roots():
            paths = AttemptPaths(root)
            for rank in range(first, first + count):
                if not driver_log.problem_of(paths.driver_log(rank)):
                    yield self.driver_name(rank), paths.driver_log(rank)
            prefix = f"node-{first // count}/" if first else ""
            if not driver_log.problem_of(paths.build_log):
                yield f"{prefix}{BUILD_LOG}", paths.build_log
            if not driver_log.problem_of(paths.mpi_log):
                yield f"{prefix}{MPI_LOG}", paths.mpi_log
            logs = paths.work / "logs"
            if logs.is_symlink() or paths.work.is_symlink():
                continue
            for folder, _, files in os.walk(logs):
                for file in files:
                    path = Path(folder) / file
                    if path.is_file() and not path.is_symlink():
                        yield f"{prefix}logs/{path.relative_to(logs).as_posix()}", path

    def _why_none(self, wanted: str) -> str:
        """Return why a log is neither stored nor shown, if known."""
        for root, first, count in self._roots():
            for rank in range(first, first + count):
                path = AttemptPaths(root).driver_log(rank)
                if wanted == self.driver_name(rank) and os.path.lexists(path):
                    return driver_log.problem_of(path)
        for event in reversed(self._store.events(self.job_id)):
            left_out = FileLeftOut.of(event)
            if left_out is not None and left_out.explains(wanted):
                return event.message
        return why_gone(self._store, self._store.job(self.job_id))

    def _no_log(self, name: str | None, job: Job) -> str:
        names = self.names()
        if why := self._why_none(real_name(name) if name is not None else self.driver_name(0)):
            return f"job {job.id} ({job.state}) has no log: {why}"
        if name is not None and names:
            return f"job {job.id} has no log {name!r}; it has: {', '.join(names[:20])}"
        if job.attempt == 0 and not job.state.is_final:
            return f"job {job.id} has no logs yet: it is {job.state}" + (
                f" ({job.reason})" if job.reason else ""
            )
        return f"job {job.id} ({job.state}) has no logs"


def roots_here(
    store: Store, job_id: str, number: int | None = None
) -> Iterator[tuple[Path, int, int]]:
    """Yield (folder, first rank, ranks) of an attempt's nodes that are on this machine.

    Args:
        number: The attempt's number; None: the newest.
    """
    attempts = store.attempts(job_id)
    chosen = [one for one in attempts if number is None or one.number == number]
    if not chosen:
        return
    per_node = store.job(job_id).spec.distribution.processes_per_node
    for host in chosen[-1].hosts:
        root = Path(host.root)
        # On another machine the same path is another folder.
        is_here = host.boot_id in (None, boot_id())
        if is_here and host.root and root.is_dir():
            yield root, host.node * per_node, per_node


def recent(read: Callable[[], Job], fresh_s: float) -> Callable[[], Job]:
    """Return a function that calls `read` only if its last answer is older than `fresh_s`."""
    known: tuple[float, Job] | None = None

    def record() -> Job:
        nonlocal known
        now_s = time.monotonic()
        if known is None or now_s - known[0] >= fresh_s:
            known = now_s, read()
        return known[1]

    return record


def prefixed(chunks: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    """Yield a log with a prefix before each line; ends with a newline."""
    at_start = True
    for chunk in chunks:
        if not chunk:
            continue
        lines = chunk.split(b"\n")
        ends = lines[-1] == b""
        body = lines[:-1] if ends else lines
        text = (b"\n" + prefix).join(body) + (b"\n" if ends else b"")
        yield prefix + text if at_start else text
        at_start = ends
    if not at_start:
        yield b"\n"


def _always(value: float) -> Callable[[], float]:
    return lambda: value


def _ran(attempt: Attempt, rank: int) -> tuple[float | None, float | None]:
    """Return a rank's start and end times from its attempt's record."""
    for record in attempt.exits:
        for one in record.ranks:
            if one.rank == rank:
                return one.started_at, one.ended_at
    return None, None
