"""Kills ranks of a running job with SIGKILL at chosen points of its progress."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rayjobs.core.errors import RayjobsError, UsageError
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import counted
from rayjobs.injob import checkpoint
from rayjobs.injob.identity import boot_id, identity_of, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.metrics_file import LoggedRecord, read_batch
from rayjobs.jobs.records import Attempt, MetricPoint
from rayjobs.launch import hostclient
from rayjobs.store.base import Store

LOOK_S = 0.01
STORE_LOOK_S = 0.1
# The first part of a run, in which nothing is killed: there may be no checkpoint yet.
SPARED = 0.1


@dataclass(frozen=True)
class Pace:
    """The metric that shows a job's progress.

    Attributes:
        name: The metric with the most steps.
        rank: The rank that logged it.
        steps: Its steps in the undisturbed run, ascending.
        step_s: Average seconds per step in the undisturbed run.
    """

    name: str
    rank: int
    steps: tuple[int, ...]
    step_s: float


@dataclass(frozen=True)
class Kill:
    """A rank that was killed.

    Attributes:
        attempt: The attempt that the kill ended.
        rank: The rank that was killed.
        planned_step: The step after which it was to be killed.
        step: The newest step that had been logged when the rank was killed.
    """

    attempt: int
    rank: int
    planned_step: int
    step: int


def pace_of(points: Sequence[MetricPoint]) -> Pace | None:
    """Return the metric with the most steps; None if nothing was logged with a step."""
    logged: dict[tuple[int, str], dict[int, float]] = {}
    for point in points:
        if point.step is not None:
            logged.setdefault((point.rank, point.name), {})[point.step] = point.at.timestamp()
    if not logged:
        return None
    (rank, name), times = max(logged.items(), key=lambda item: (len(item[1]), -item[0][0]))
    steps = tuple(sorted(times))
    span_s = max(0.0, times[steps[-1]] - times[steps[0]])
    return Pace(name, rank, steps, span_s / max(1, len(steps) - 1))


def choose(pace: Pace, count: int, generator: random.Random) -> list[int]:
    """Return `count` random steps, ascending and spread over the run, without its ends.

    Raises:
        UsageError: the run has too few steps for so many kills.
    """
    first = max(1, int(len(pace.steps) * SPARED))
    inner = pace.steps[first:-1]
    if len(inner) < count:
        raise UsageError(
            f"the script logged {pace.name!r} at {len(pace.steps)} steps, which are too few for "
            f"{counted(count, 'kill')}; let it run longer, log every step, or give "
            f"a lower --kills"
        )
    parts = [len(inner) * index // count for index in range(count + 1)]
    return [inner[generator.randrange(parts[i], parts[i + 1])] for i in range(count)]


def restarts(
    points: Sequence[MetricPoint], pace: Pace, *, attempts: int, brought: Collection[int]
) -> list[str]:
    """Return a sentence for each attempt that started over, even if its curve is right.

    Args:
        points: The metric points of all attempts, including hidden ones.
        attempts: The number of attempts.
        brought: The attempts that were given a checkpoint.
    """
    firsts: dict[int, int] = {}
    for point in points:
        if point.step is not None and (point.name, point.rank) == (pace.name, pace.rank):
            firsts[point.attempt] = min(point.step, firsts.get(point.attempt, point.step))
    found = []
    for number in range(2, attempts + 1):
        if number not in brought:
            found.append(
                f"attempt {number} started over: attempt {number - 1} stored no complete checkpoint"
            )
        elif firsts.get(number) == pace.steps[0]:
            found.append(
                f"attempt {number} started over at step {pace.steps[0]}, though it was given a "
                f"checkpoint: does the script call rayjobs.checkpoint.latest()?"
            )
    return found


class Hunter:
    """Watches one job and kills a random rank of each attempt at a given step."""

    def __init__(self, store: Store, job: str, pace: Pace, generator: random.Random) -> None:
        self._store = store
        self._job = job
        self._pace = pace
        self._generator = generator

    def kill(self, number: int, step: int) -> Kill | None:
        """Kill a rank of attempt `number` after it has logged `step` and saved a checkpoint.

        An attempt that resumed from a checkpoint need not have saved another one. Returns None
        if the attempt ended first.

        Raises:
            UsageError: the attempt runs on another machine.
            RayjobsError: its host does not report the processes of its ranks.
        """
        attempt = self._started(number)
        if attempt is None:
            return None
        root = AttemptPaths(Path(attempt.hosts[0].root))
        offset, seen, looked_s = 0, self._pace.steps[0] - 1, time.monotonic()
        is_saved = root.resume.exists()
        while True:
            records, offset = read_batch(str(self._metrics(attempt)), offset)
            seen = max([seen, *(_step(one, self._pace.name) for one in records)])
            if not is_saved and seen >= step:
                is_saved = checkpoint.latest(str(root.work / "outputs/checkpoints")) is not None
            if is_saved and seen >= step:
                break
            if time.monotonic() - looked_s > STORE_LOOK_S:
                looked_s = time.monotonic()
                if self._is_over(number):
                    return None
            time.sleep(LOOK_S)
        # Kill at any moment, also in the middle of a step or a save.
        time.sleep(self._generator.random() * min(1.0, self._pace.step_s))
        rank = self._shoot(attempt)
        return None if rank is None else Kill(number, rank, step, seen)

    def _metrics(self, attempt: Attempt) -> Path:
        per_node = self._store.job(self._job).spec.distribution.processes_per_node
        host = attempt.hosts[self._pace.rank // per_node]
        return AttemptPaths(Path(host.root)).metrics(self._pace.rank)

    def _started(self, number: int) -> Attempt | None:
        """Wait for an attempt's hosts; None if the job ended, or moved on to another attempt."""
        while not self._is_over(number):
            for attempt in self._store.attempts(self._job):
                if attempt.number != number or not attempt.hosts:
                    continue
                if all(host.pid is not None for host in attempt.hosts):
                    if any(host.boot_id != boot_id() for host in attempt.hosts):
                        raise UsageError(
                            f"{self._job} runs on another machine; verify-resume kills processes "
                            f"of this machine only: start it where the ranks run, or choose the "
                            f"target local"
                        )
                    return attempt
            time.sleep(LOOK_S)
        return None

    def _is_over(self, number: int) -> bool:
        job = self._store.job(self._job)
        return job.state.is_final or job.attempt > number

    def _shoot(self, attempt: Attempt) -> int | None:
        """Kill a random rank on any node and return its number; None if it had already ended."""
        ranks: list[tuple[int, int]] = []
        for host in attempt.hosts:
            connection = hostclient.HostConnection.of(host.root)
            if connection is None:
                return None
            try:
                status = asyncio.run(connection.status())
            except hostclient.HostGone:
                return None
            except hostclient.HostUnreachable as error:
                raise RayjobsError(f"no rank of {self._job} can be killed: {error}") from error
            ranks += [(one.rank, one.pid) for one in status.ranks]
        rank, pid = self._generator.choice(sorted(ranks))
        identity = identity_of(pid)
        if identity is None or self._is_over(attempt.number):
            return None
        return rank if send_signal(identity, signal.SIGKILL) else None


def _step(record: LoggedRecord, name: str) -> int:
    return record.step if record.name == name and record.step is not None else -1
