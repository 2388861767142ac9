"""One soak: its jobs, its faults, and the result of the checker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from rayjobs.core.errors import RayjobsError
from rayjobs.spec.model import Distribution, JobSpec, Retries, SecretRef
from rayjobs.submit.submitting import Entry, submit
from rayjobs.target import starting
from rayjobs.workspace.folder import locate, open_workspace
from tests.checker.evidence import collect, read_history
from tests.checker.invariants import check
from tests.soak.known import Watch, known
from tests.soak.nemesis import Harm, Nemesis

# Submits with a key, prints the job's id, and may be killed at any moment.
CLIENT = """
import sys
from pathlib import Path
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import Entry, submit
from rayjobs.workspace.folder import locate, open_workspace
spec = JobSpec.model_validate_json(sys.argv[1])
print("begun", flush=True)
done = submit(open_workspace(locate()), spec, source=Path(sys.argv[2]), experiment="soak",
              entry=Entry(idempotency_key=sys.argv[3]))
print(done.job.id, flush=True)
"""
SETTLE_S = 60.0


class Soak:
    """Jobs under faults, and the evidence of how they ended.

    Attributes:
        submitted: (key, job id) as clients received them.
        harms: The injected faults.
    """

    def __init__(
        self, root: Path, rng: Random, *, jobs: int, canary: str, rank: str, cpus: int
    ) -> None:
        self._root = root
        self._rng = rng
        self._count = jobs
        self._canary = canary
        self._cpus = cpus
        self._history = root / "history"
        self._history.touch()
        self._source = root / "source"
        self._source.mkdir()
        (self._source / "train.py").write_text(rank)
        (self._source / "probe.py").write_text("print('here')")
        self._workspace = open_workspace(locate())
        self._nemesis = Nemesis(self._workspace, root / "h", self._source, rng)
        self._over = threading.Event()
        self._watch = Watch(self._workspace)
        self._refused: list[str] = []
        self.submitted: list[tuple[str, str]] = []
        self.harms: list[Harm] = []
        self.clients_killed = 0
        self.attempts = 0
        self.lines = 0
        self.resumed = 0
        self.states = ""

    @property
    def probe_count(self) -> int:
        """The number of probes."""
        return len(self._nemesis.probes)

    # -- run -----------------------------------------------------------------------------------
    def run(self, *, minutes: float, say: Callable[[str], None]) -> None:
        """Submit jobs and inject faults until the time is over."""
        end_s = time.monotonic() + minutes * 60
        clients = threading.Thread(target=self._clients, args=(minutes * 60 * 0.9,))
        clients.start()
        self._watch.start()
        try:
            while time.monotonic() < end_s:
                self._over.wait(
                    min(self._rng.uniform(5.0, 20.0), max(0.0, end_s - time.monotonic()))
                )
                if time.monotonic() >= end_s:
                    break
                harm = self._nemesis.harm()
                if harm is not None:
                    self.harms.append(harm)
                    felt = "no recovery" if harm.seconds is None else f"{harm.seconds:.1f} s"
                    say(f"{harm.event}: {felt}")
        finally:
            self._over.set()
            clients.join()

    def _clients(self, within_s: float) -> None:
        rng = Random(self._count)
        for number in range(self._count):
            if self._over.wait(rng.random() * 2 * within_s / self._count):
                return
            spec = self._spec(rng)
            key = f"soak-{number}"
            try:
                job = self._submit_killed(spec, key, rng) if rng.random() < 0.1 else None
                if job is None:
                    job = submit(
                        self._workspace,
                        spec,
                        source=self._source,
                        experiment="soak",
                        entry=Entry(idempotency_key=key),
                    ).job.id
            except RayjobsError as error:
                self._refused.append(f"submit {key} was refused: {error}")
                continue
            self.submitted.append((key, job))
            if rng.random() < 0.1:
                threading.Timer(rng.random() * 5, self._cancel, [job]).start()

    def _cancel(self, job: str) -> None:
        self._workspace.store.request_cancel(job)
        starting.wake("local", home=self._root / "h", workspace=self._workspace.path)

    def _submit_killed(self, spec: JobSpec, key: str, rng: Random) -> str | None:
        """Submit with a client that is killed at a random moment; return the job id it received."""
        command = [sys.executable, "-c", CLIENT, spec.model_dump_json(), str(self._source), key]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            client.stdout.readline()
            time.sleep(rng.random() * 0.1)
            client.kill()
            job_id = client.stdout.readline().strip()
        if client.returncode == -signal.SIGKILL:
            self.clients_killed += 1
        return job_id or None

    def _spec(self, rng: Random) -> JobSpec:
        lasts, code = rng.choice(((0.1, 0), (0.5, 0), (2.0, 0), (8.0, 0), (1.0, 3)))
        two = rng.random() < 0.2
        return JobSpec(
            name="soak",
            script="train.py",
            arguments=(str(lasts), str(code)),
            distribution=Distribution(
                processes_per_node=2 if two else 1, backend="gloo" if two else "none"
            ),
            retries=Retries(user=rng.choice((0, 1, 3)), system=20, node_lost=20),
            max_duration_s=120.0,
            grace_s=1.0,
            environment_variables={"HISTORY": str(self._history)},
            secrets={"SOAK": SecretRef(env="RAYJOBS_SECRET_SOAK")},
        )

    # -- judge ---------------------------------------------------------------------------------
    def violations(self, *, drain_s: float) -> list[str]:
        """Wait until every job has ended, then return all violations."""
        store = self._workspace.store
        starting.ensure_target("local", home=self._root / "h", workspace=self._workspace.path)
        end_s = time.monotonic() + drain_s
        while time.monotonic() < end_s:
            open_jobs = [job for job in store.jobs() if not job.state.is_final]
            for job in open_jobs:
                if job.held is not None:  # too many of its hosts were killed: a user checks it
                    store.release(job.id)
            if not open_jobs:
                break
            time.sleep(0.5)
        waited_with = self._watch.end()
        found = [f"end: {job.id} is {job.state}: {job.reason}" for job in open_jobs]
        end_s = time.monotonic() + SETTLE_S
        while True:  # scratch is removed a moment after the end is written
            evidence = collect(self._workspace)
            evidence.acknowledged = [*self.submitted, *self._nemesis.probes]
            evidence.ran = read_history(self._history)
            evidence.waited_with = waited_with
            evidence.kills = self._nemesis.killed
            known(evidence, self._workspace.store)
            evidence.total_cpus = float(self._cpus)
            evidence.canaries = [self._canary.encode()]
            evidence.artefacts = {
                str(path): path.read_bytes()
                for path in self._workspace.path.rglob("*")
                if path.is_file()
            }
            seen = [str(one) for one in check(evidence, scratch=True)]
            if not seen or time.monotonic() > end_s:
                break
            time.sleep(1.0)
        self.attempts = sum(len(one) for one in evidence.attempts.values())
        self.lines = self._history.read_bytes().count(b"\n")
        self.resumed = sum(one.found is not None for one in evidence.ran)
        states = Counter(str(job.state) for job in evidence.jobs)
        self.states = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        late = [f"{one.event}: no recovery" for one in self.harms if one.seconds is None]
        self._workspace.close()
        return [*found, *seen, *late, *self._refused]
