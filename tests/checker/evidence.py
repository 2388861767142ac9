"""The evidence for the invariants: the store, the records of ranks, and the machine."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rayjobs.injob.identity import stat_of
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import Allocation, Attempt, Event, Job, ModelVersion
from rayjobs.results import checkpoints
from rayjobs.workspace.folder import OpenWorkspace

LOG_NAME = "azureml-logs/70_driver_log"
_HOST_EXITS_S = 10.0


@dataclass(frozen=True)
class Ran:
    """One execution, as its rank recorded it: the truth about what ran when.

    Attributes:
        start, end: Epoch seconds of its first and last sign of life.
        cpus: The CPUs of its allocation.
        gpus: Names of the GPUs that it saw.
        frozen_s: How long its machine was frozen meanwhile.
        found: The step of the checkpoint from which its script resumed.
        first, step: The first step of its script, and the next one at its last sign of life;
            None: it recorded no step.
    """

    job: str
    attempt: int
    rank: int
    start: float
    end: float
    cpus: float = 1.0
    gpus: tuple[str, ...] = ()
    frozen_s: float = 0.0
    found: int | None = None
    first: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Whole:
    """A whole checkpoint that a job has stored."""

    step: int
    attempt: int


@dataclass
class Evidence:
    """All that is known about one workspace.

    Attributes:
        acknowledged: (idempotency key, job id) that a client received; the key may be empty.
        keys: Idempotency key → ids of the store's jobs that have it.
        ran: The records of the ranks.
        alive: Marker → processes that carry it now.
        left: Marker → the mounts and folders that are left of its attempt.
        written: (job, rank) → the bytes that the rank of the last attempt wrote.
        logs: (job, rank) → the stored log.
        checkpoints: Job → its whole checkpoints; only jobs that were retried.
        waited_with: (job, attempt) → the newest whole step while the job waited after that
            attempt. Later attempts may have replaced it by the end.
        curves: Job → the steps of its metric, which should have one point per step from 0.
        codes: Job → exit code of its script when undisturbed.
        kills: Job → how often one of its ranks was killed from outside.
        digests: Blob key → the actual digest of its bytes; only files of models.
        canaries: Secrets that must not appear in any artefact.
        artefacts: Name → bytes that are searched for the canaries.
        total_cpus, total_gpus: Resources of the target; None: unknown, not checked.
    """

    jobs: list[Job] = field(default_factory=list)
    attempts: Mapping[str, list[Attempt]] = field(default_factory=dict)
    events: Mapping[str, list[Event]] = field(default_factory=dict)
    allocations: list[Allocation] = field(default_factory=list)
    models: list[ModelVersion] = field(default_factory=list)
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    keys: Mapping[str, list[str]] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    alive: Mapping[str, list[int]] = field(default_factory=dict)
    left: Mapping[str, list[str]] = field(default_factory=dict)
    written: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    logs: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    checkpoints: Mapping[str, list[Whole]] = field(default_factory=dict)
    waited_with: Mapping[tuple[str, int], int] = field(default_factory=dict)
    curves: Mapping[str, list[int]] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    kills: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    canaries: list[bytes] = field(default_factory=list)
    artefacts: Mapping[str, bytes] = field(default_factory=dict)
    total_cpus: float | None = None
    total_gpus: float | None = None


def collect(workspace: OpenWorkspace, *, target: str = "local", logs: bool = True) -> Evidence:
    """Return the evidence in a workspace and on this machine; the caller adds the rest."""
    store, blobs = workspace.store, workspace.blobs
    jobs = store.jobs()
    found = Evidence(
        jobs=jobs,
        attempts={job.id: store.attempts(job.id) for job in jobs},
        events={job.id: store.events(job.id) for job in jobs},
        allocations=store.allocations(target),
        models=store.models(),
        keys=_keys(workspace.path / "store.db"),
    )
    hosts = [host for all_ in found.attempts.values() for one in all_ for host in one.hosts]
    found.alive = _living_without_leaving_hosts(hosts)
    found.left = {host.marker: _left(Path(host.root)) for host in hosts}
    digests: dict[str, str] = {}
    found.digests = digests
    retried = [job for job, attempts in found.attempts.items() if len(attempts) > 1]
    found.checkpoints = {
        job: [Whole(one.step, one.attempt) for one in checkpoints.whole(store, blobs, job)]
        for job in retried
    }
    for one in {file.blob for model in found.models for file in model.files}:
        with blobs.open(one) as stream:
            digests[one] = f"sha256:{hashlib.sha256(stream.read()).hexdigest()}"
    if logs:
        stored = {}
        for job in jobs:
            for file in store.files(job.id):
                if file.name.startswith(LOG_NAME):
                    with blobs.open(file.blob) as stream:
                        stored[job.id, _rank_of(file.name)] = stream.read()
        found.logs = stored
    return found


def _rank_of(name: str) -> int:
    digits = name.removeprefix(LOG_NAME).removesuffix(".txt").removeprefix("_")
    return int(digits) if digits else 0


def _keys(database: Path) -> dict[str, list[str]]:
    """Read idempotency keys without the store's code, which could hide a duplicate."""
    found: dict[str, list[str]] = {}
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT idempotency_key, id FROM jobs WHERE idempotency_key IS NOT NULL"
        )
        for key, job in rows:
            found.setdefault(str(key), []).append(str(job))
    finally:
        connection.close()
    return found


def _living_without_leaving_hosts(hosts: list[HostRecord]) -> dict[str, list[int]]:
    """Return the living processes by marker, after exiting hosts have had time to end.

    A host reports the end before it exits, so it carries the marker for a moment longer.
    """
    deadline_s = time.monotonic() + _HOST_EXITS_S
    while True:
        alive = living({host.marker for host in hosts})
        leaving = [one for one in hosts if alive.get(one.marker) == [one.pid]]
        if not leaving or len(leaving) < len(alive) or time.monotonic() > deadline_s:
            return alive
        time.sleep(0.05)


def living(markers: set[str]) -> dict[str, list[int]]:
    """Return the processes that carry one of the markers in their environment."""
    found: dict[str, list[int]] = {}
    encoded = [(marker, marker.encode()) for marker in markers]
    for entry in os.scandir("/proc") if encoded else ():
        if not entry.name.isdigit():
            continue
        block = _environment(entry.path)
        for marker, text in encoded:
            stat = stat_of(int(entry.name)) if text in block else None
            if stat is not None and not stat.is_dead:
                found.setdefault(marker, []).append(stat.pid)
    return found


def _environment(folder: str) -> bytes:
    for _ in range(10):
        try:
            block = Path(folder, "environ").read_bytes()
            if block or Path(folder, "cmdline").read_bytes():
                return block
        except OSError:
            return b""  # it has just ended, or is not ours
        if not os.path.exists(f"{folder}/exe"):
            return b""  # a zombie or a part of the kernel
        time.sleep(0.001)  # both are empty in the middle of an exec
    return b""


def _left(root: Path) -> list[str]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [f"the mount {line.split()[4]}" for line in mounts if f" {root}/" in line]
    return [*found, f"the folder {root}"] if root.exists() else found


def read_history(path: Path) -> list[Ran]:
    """Read executions from a file to which ranks appended JSON objects, each by one write.

    A line has ``job attempt rank at``, and optionally ``cpus gpus found step``. The first and last
    line of each rank of each attempt are its start and end; a line that a kill cut off is ignored.
    """
    spans: dict[tuple[str, int, int], Ran] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            one = json.loads(line)
            key = (str(one["job"]), int(one["attempt"]), int(one["rank"]))
            at = float(one["at"])
        except (ValueError, KeyError, TypeError):
            continue
        known, step = spans.get(key), one.get("step")
        spans[key] = Ran(
            *key,
            start=min(at, known.start) if known else at,
            end=max(at, known.end) if known else at,
            cpus=float(one.get("cpus", 1.0)),
            gpus=tuple(one.get("gpus", ())),
            found=one.get("found"),
            first=step if known is None else known.first,
            step=step,
        )
    return list(spans.values())
