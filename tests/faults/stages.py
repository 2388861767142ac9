"""One job in each state at the same time, held there until a process is killed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rayjobs.injob.identity import Identity, is_alive, send_signal
from rayjobs.jobs.outcomes import LONGEST_PAUSE_S
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Dependency, JobSpec, Resources, Retries
from rayjobs.store.rows import time_text
from tests.checker.evidence import collect, read_history
from tests.checker.invariants import check
from tests.support.jobs import Jobs, until

PAUSE = "retry pause"
LONGEST_PAUSE = timedelta(
    seconds=LONGEST_PAUSE_S - 5.0
)  # a longer one means that the clock was set back
# Each rank records its start and its successful end in a file.
TELLS = """
import json, os, sys, time

def tell(what):
    line = {"job": os.environ["AZUREML_RUN_ID"], "attempt": int(os.environ["RAYJOBS_ATTEMPT"]),
            "rank": 0, "at": time.time(), "what": what}
    with open(os.environ["HISTORY"], "a") as file:
        file.write(json.dumps(line) + "\\n")

tell("began")
"""
DONE = 'tell("done")\n'
WAITS = """
print("up", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.02)
"""
FAILS = """
if not os.path.exists(os.environ["MENDED"]):
    sys.exit(3)
"""
# Enough files are stored one by one after its end for this state to be observed.
WRITES = """
for number in range(300):
    with open("outputs/%d" % number, "w") as file:
        file.write(str(number))
"""
FINALIZING_TRIES = 8

# Submits the job that each line of its input describes, prints the job's id, and waits for more.
CLIENT = """
import json, sys
from pathlib import Path
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import Entry, submit
from rayjobs.workspace.folder import locate, open_workspace

workspace = open_workspace(locate())
for line in sys.stdin:
    request = json.loads(line)
    spec = JobSpec.model_validate(request["spec"])
    made = submit(workspace, spec, source=Path(request["source"]), experiment="test",
                  entry=Entry(idempotency_key=request["key"]))
    print(made.job.id, flush=True)
"""


class Client:
    """A process that submits like a user's shell, and keeps running."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def submit(self, spec: JobSpec, source: Path, key: str) -> str:
        """Submit a job; return the id that the process received."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"spec": spec.model_dump(mode="json"), "source": str(source), "key": key}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the process."""
        with self.process:
            self.process.kill()


@dataclass
class Stage:
    """Jobs by the state in which they are held.

    Attributes:
        running: The running jobs: name → file that lets the job end.
        acknowledged: (idempotency key, job id) as the client received them.
        failed_before: Attempts of the job that waits for its retry.
    """

    jobs: Jobs
    client: Client
    history: Path
    failed_before: int = 0
    by_state: dict[str, Job] = field(default_factory=dict)
    running: dict[str, Path] = field(default_factory=dict)
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    _stopped: list[Identity] = field(default_factory=list)

    def submit(self, body: str, **spec: Any) -> Job:
        """Submit a script through the client."""
        number = len(self.acknowledged)
        source = self.jobs.folder / f"stage{number}"
        source.mkdir()
        (source / "train.py").write_text(TELLS + body + DONE)
        variables = {"HISTORY": str(self.history), **spec.pop("environment_variables", {})}
        made = JobSpec(
            name="test",
            script="train.py",
            grace_s=2.0,
            environment_variables=variables,
            **spec,
        )
        key = f"key{number}"
        job_id = self.client.submit(made, source, key)
        self.acknowledged.append((key, job_id))
        return self.jobs.store.job(job_id)

    def submit_running(self, name: str, **spec: Any) -> None:
        """Submit a job, and wait until it runs; it runs until `let_go`."""
        go = self.jobs.folder / f"go-{name.replace(' ', '-')}"
        job = self.submit(WAITS, environment_variables={"GO": str(go)}, **spec)
        self.jobs.wait_for_output(job, b"up")
        self.by_state[name], self.running[name] = self.jobs.wait(job, JobState.RUNNING), go

    def hold_in_pause(self) -> None:
        """Let a job fail until the pause before its retry has the maximum length."""
        mended = self.jobs.folder / "mended"
        job = self.submit(
            FAILS, retries=Retries(user=20), environment_variables={"MENDED": str(mended)}
        )
        # Each pause is twice as long as the one before, so that one is eventually caught in time.
        until(
            lambda: self._pause(job, LONGEST_PAUSE, at_least=timedelta(seconds=0.5)),
            "its retry waits",
        )
        mended.write_text("")
        self.by_state[PAUSE] = held = self.jobs.job(job)
        self.failed_before = held.attempt

    def hold_pause_longer(self) -> bool:
        """Restart the pause; False when it is over."""
        return self._pause(self.by_state[PAUSE], LONGEST_PAUSE)

    def _pause(self, job: Job, more: timedelta, *, at_least: timedelta = timedelta()) -> bool:
        """Let the pause end in `more`; False if less than `at_least` of it is left."""
        now = datetime.now(UTC)
        connection = sqlite3.connect(self.jobs.workspace.path / "store.db", timeout=30.0)
        try:
            with connection:
                done = connection.execute(
                    "UPDATE jobs SET not_before = ?"
                    " WHERE id = ? AND state = 'Queued' AND not_before > ?",
                    (time_text(now + more), job.id, time_text(now + at_least)),
                )
        finally:
            connection.close()
        return bool(done.rowcount)

    def stop(self, identity: Identity) -> None:
        """Stop a process until another one is killed."""
        assert send_signal(identity, signal.SIGSTOP)
        self._stopped.append(identity)

    def hold_in_finalizing(self, agent: Identity) -> None:
        """Stop the agent while it stores what a job has written."""
        for _ in range(FINALIZING_TRIES):
            job = self.submit(WRITES)
            until(
                lambda one=job: (
                    self.jobs.job(one).state.is_final  # type: ignore[misc]
                    or self.jobs.job(one).state is JobState.FINALIZING
                ),
                "it is finalizing or has ended",
            )
            self.stop(agent)
            # What the agent reported before it was stopped takes effect first.
            self.by_state[str(JobState.PREPARING)] = probe = self.submit("")
            self.jobs.wait(probe, JobState.PREPARING)
            self.hold_pause_longer()
            if self.jobs.job(job).state is JobState.FINALIZING:
                self.by_state[str(JobState.FINALIZING)] = job
                return
            self.resume()
            self.jobs.wait(probe, JobState.COMPLETED)
        raise AssertionError(f"none of {FINALIZING_TRIES} jobs was observed in Finalizing")

    def resume(self) -> None:
        """Resume all stopped processes that are alive."""
        for identity in self._stopped:
            if is_alive(identity):
                send_signal(identity, signal.SIGCONT)
        self._stopped.clear()

    def let_go(self) -> None:
        """Let every job run to its end."""
        self.resume()
        self._pause(self.by_state[PAUSE], timedelta())
        for go in self.running.values():
            go.write_text("")

    def ends(self) -> dict[str, str]:
        """Return the end of each job and its number of attempts, by the state it was in.

        Excludes attempts that had failed before its retry was held.
        """
        found = {}
        for state, job in self.by_state.items():
            done = self.jobs.wait(job)
            took = done.attempt - (self.failed_before if state == PAUSE else 0)
            found[state] = f"{done.state} {took}"
        return found

    def _allocations_are_free(self) -> bool:
        """Whether no ended job has an allocation: a separate write frees it after the end."""
        evidence = collect(self.jobs.workspace)
        ended = {job.id for job in evidence.jobs if job.state.is_final}
        return not any(one.state == "held" and one.job in ended for one in evidence.allocations)

    def violations(self) -> list[str]:
        """Return the violations of invariants, once all jobs have ended."""
        until(self._allocations_are_free, "the allocations of ended jobs are free")
        evidence = collect(self.jobs.workspace)
        evidence.acknowledged = self.acknowledged
        evidence.ran = read_history(self.history)
        found = [str(one) for one in check(evidence)]
        lines = [json.loads(line) for line in self.history.read_text().splitlines()]
        for job in evidence.jobs:
            good = [
                one["attempt"] for one in lines if (one["job"], one["what"]) == (job.id, "done")
            ]
            expected = 1 if job.state is JobState.COMPLETED else 0
            if len(good) != expected:
                found.append(f"{job.id} is {job.state}, and its attempts {good} succeeded")
        return found


@contextmanager
def all_states(
    jobs: Jobs,
    *,
    agent: Callable[[], Identity],
    raylet: Identity,
    running: tuple[str, ...] = (str(JobState.RUNNING),),
) -> Iterator[Stage]:
    """Hold one job in each state.

    Args:
        running: Names of the jobs that run; the queued job waits for the first one.
    """
    history = jobs.folder / "history"
    history.touch()
    stage = Stage(jobs, Client(), history)
    try:
        for name in running:
            stage.submit_running(name, retries=Retries(system=1))
        parent = stage.by_state[running[0]]
        stage.by_state[str(JobState.QUEUED)] = stage.submit(
            "", depends_on=(Dependency(job=parent.id, when="any"),)
        )
        stage.hold_in_pause()
        stage.hold_in_finalizing(agent())
        stage.stop(raylet)
        # No idle allocation has this shape, so that the raylet must create a group.
        job = stage.submit("", resources=Resources(cpus=3))
        stage.by_state[str(JobState.PROVISIONING)] = job
        jobs.wait(job, JobState.PROVISIONING)
        assert stage.hold_pause_longer(), "the pause was over before all jobs were held"
        states = {name: str(jobs.job(one).state) for name, one in stage.by_state.items()}
        queued = {PAUSE: str(JobState.QUEUED)} | dict.fromkeys(running, str(JobState.RUNNING))
        assert states == {name: queued.get(name, name) for name in states}
        yield stage
    finally:
        stage.resume()
        for go in stage.running.values():
            go.write_text("")
        stage.client.kill()
