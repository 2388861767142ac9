"""The faults of the soak: one process of a running target is killed or stopped at a time."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rayjobs.core.paths import TargetPaths
from rayjobs.injob.identity import Identity, identity_of, is_alive, send_signal
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter
from rayjobs.submit.submitting import Entry, submit
from rayjobs.target import keeper_state, local_head, starting
from rayjobs.workspace.folder import OpenWorkspace
from tests.faults.test_processes_killed import actor_pid, agents, rank_pid, warm_interpreters
from tests.support.local_target import LocalTarget

STOPPED_S = 4.0
LOOK_S = 0.02
RECOVERY_S = 240.0


@dataclass(frozen=True)
class Harm:
    """One fault, and how long its effect lasted.

    Attributes:
        seconds: The time until the effect in `FELT`; None: it took longer than `RECOVERY_S`.
    """

    event: str
    seconds: float | None


# Event → the effect that ends the measured time, as the user sees it.
FELT = {
    "target actor killed": "running jobs continue; a new job completes",
    "target actor stopped for 4 s": "running jobs continue; a new job completes",
    "node agent killed": "running jobs continue; a new job completes",
    "node agent stopped for 4 s": "running jobs continue; a new job completes",
    "warm interpreter killed": "running jobs continue; a new job completes",
    "keeper killed": "nothing; a new job completes",
    "attempt host killed": "the job reports it and is retried, or has ended",
    "rank killed": "the job reports it and is retried, or has ended",
    "whole Ray head killed": "jobs are retried; a new job completes",
}


class Nemesis:
    """Injects faults into one target; each call returns once the effect is over."""

    def __init__(self, workspace: OpenWorkspace, home: Path, source: Path, rng: Random) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._home = home
        self._paths = TargetPaths.of("local", under=home)
        self._target = LocalTarget(home, ())
        self._source = source
        self._rng = rng
        self.probes: list[tuple[str, str]] = []
        self.killed: Counter[str] = Counter()  # job → how many of its ranks were killed
        self._harms: dict[str, tuple[int, Callable[[], float | None]]] = {
            "target actor killed": (4, self._kill_actor),
            "target actor stopped for 4 s": (2, lambda: self._stop(self._actor())),
            "node agent killed": (3, self._kill_agent),
            "node agent stopped for 4 s": (1, self._stop_agent),
            "warm interpreter killed": (2, self._kill_warm),
            "keeper killed": (1, self._kill_keeper),
            "attempt host killed": (3, self._kill_host),
            "rank killed": (3, self._kill_rank),
            "whole Ray head killed": (1, self._kill_head),
        }

    def harm(self, event: str | None = None) -> Harm | None:
        """Inject one fault, chosen at random unless named; None if it was not possible."""
        names = list(self._harms)
        weights = [weight for weight, _ in self._harms.values()]
        chosen = event or self._rng.choices(names, weights)[0]
        try:
            seconds = self._harms[chosen][1]()
        except LookupError:
            return None  # no such process exists at the moment
        return Harm(chosen, seconds)

    # -- faults --------------------------------------------------------------------------------
    def _actor(self) -> Identity:
        return _known(actor_pid(self._target))

    def _kill_actor(self) -> float | None:
        send_signal(self._actor(), signal.SIGKILL)
        return self._probe()

    def _agents(self) -> list[Identity]:
        return [_known(pid) for pid in agents(self._target)]

    def _kill_agent(self) -> float | None:
        send_signal(self._rng.choice(self._agents()), signal.SIGKILL)
        return self._probe()

    def _stop_agent(self) -> float | None:
        return self._stop(self._rng.choice(self._agents()))

    def _kill_warm(self) -> float | None:
        send_signal(self._rng.choice(warm_interpreters(self._target)), signal.SIGKILL)
        return self._probe()

    def _kill_keeper(self) -> float | None:
        found = keeper_state.keeper_of(self._paths)
        if found is None:
            raise LookupError("no keeper")
        send_signal(found, signal.SIGKILL)
        return self._probe()

    def _kill_head(self) -> float | None:
        record = local_head.load_record(self._paths)
        if record is None:
            raise LookupError("no head")
        killed = list(local_head.processes_of(Path(record.temp_dir)))
        for identity in killed:
            send_signal(identity, signal.SIGKILL)
        while any(is_alive(one) for one in killed):
            time.sleep(LOOK_S)
        began_s = time.monotonic()
        starting.ensure_target("local", home=self._home, workspace=self._workspace.path)
        more_s = self._probe()
        return None if more_s is None else time.monotonic() - began_s

    def _running(self) -> Job:
        return self._rng.choice(self._store.jobs(JobFilter(states=[JobState.RUNNING])))

    def _kill_host(self) -> float | None:
        job = self._running()
        host = self._store.attempts(job.id)[-1].hosts[0]
        if host.identity is None:
            raise LookupError("no host yet")
        send_signal(host.identity, signal.SIGKILL)
        return self._until(lambda: self._has_moved(job))

    def _kill_rank(self) -> float | None:
        job = self._running()
        try:
            pid = rank_pid(Path(self._store.attempts(job.id)[-1].hosts[0].root))
        except Exception as error:  # its host has just ended: nothing to kill
            raise LookupError(str(error)) from error
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError as error:  # it has ended since
            raise LookupError(str(error)) from error
        self.killed[job.id] += 1
        return self._until(lambda: self._has_moved(job))

    def _stop(self, identity: Identity) -> float | None:
        send_signal(identity, signal.SIGSTOP)
        try:
            time.sleep(STOPPED_S)
        finally:
            send_signal(identity, signal.SIGCONT)
        return self._probe()

    # -- effects -------------------------------------------------------------------------------
    def _has_moved(self, job: Job) -> bool:
        now = self._store.job(job.id)
        return now.attempt > job.attempt or now.state not in (JobState.RUNNING, JobState.FINALIZING)

    def _probe(self) -> float | None:
        """Submit a job that does nothing; return how long it took to complete."""
        began_s = time.monotonic()
        key = f"probe-{len(self.probes)}"
        spec = JobSpec(name="probe", script="probe.py", grace_s=1.0, priority=10)
        done = submit(
            self._workspace,
            spec,
            source=self._source,
            experiment="soak",
            entry=Entry(idempotency_key=key),
        )
        self.probes.append((key, done.job.id))
        self._until(lambda: self._store.job(done.job.id).state.is_final)
        is_over = self._store.job(done.job.id).state.is_final
        return time.monotonic() - began_s if is_over else None

    def _until(self, fact: Callable[[], bool]) -> float | None:
        began_s = time.monotonic()
        while not fact():
            if time.monotonic() - began_s > RECOVERY_S:
                return None
            time.sleep(LOOK_S)
        return time.monotonic() - began_s


def _known(pid: int) -> Identity:
    found = identity_of(pid)
    if found is None:
        raise LookupError(f"process {pid} is gone")
    return found
