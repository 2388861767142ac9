"""Invariants I1 to I11 of a workspace, which must hold whatever was killed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from rayjobs.injob.exit_record import RankExit
from rayjobs.jobs.states import JobState, may_move
from rayjobs.results.driver_log import marker as gap_marker
from tests.checker import ends, progress
from tests.checker.evidence import Evidence

# For differences between the clocks of two processes, and a host that checks its clock late.
SLACK_S = 5.0
EPSILON = 1e-6
_GAP = re.compile(rb"\n\[rayjobs: (\d+) bytes were left out here[^\n]*\]\n")


@dataclass(frozen=True)
class Violation:
    """One violation of an invariant."""

    invariant: str
    words: str

    def __str__(self) -> str:
        """Return the name of the invariant and the message."""
        return f"{self.invariant}: {self.words}"


def check(evidence: Evidence, *, scratch: bool = False) -> list[Violation]:
    """Return all violations; a correct history has none.

    Args:
        scratch: Whether to require that folders and mounts of ended jobs are gone.
    """
    found = []
    for name, rule in RULES.items():
        found += [Violation(name, words) for words in rule(evidence)]
    if scratch:
        found += [Violation("I5", words) for words in _scratch(evidence)]
    return found


def _submits(evidence: Evidence) -> Iterator[str]:
    """I1: each acknowledged submit exists, once per key."""
    known = {job.id for job in evidence.jobs}
    for key, job in evidence.acknowledged:
        if job not in known:
            yield f"the submit of {job} was acknowledged, and the store has no such job"
        stored = evidence.keys.get(key, [])
        if key and stored != [job]:
            yield f"the key {key!r} was acknowledged as {job}; the store has {stored}"
    for key, jobs in evidence.keys.items():
        if len(jobs) > 1:
            yield f"the key {key!r} belongs to {len(jobs)} jobs: {', '.join(jobs)}"


def _overlaps(evidence: Evidence) -> Iterator[str]:
    """I2: no two attempts of a job are alive at once, by the records of their ranks."""
    by_job: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for one in evidence.ran:
        by_job.setdefault(one.job, {}).setdefault(one.attempt, []).append((one.start, one.end))
    for name, attempts in by_job.items():
        spans = {
            number: (min(start for start, _ in all_), max(end for _, end in all_))
            for number, all_ in attempts.items()
        }
        for earlier, later in pairwise(sorted(spans)):
            late_s = spans[earlier][1] - spans[later][0]
            if late_s > 0:
                yield (
                    f"attempt {earlier} of {name} was alive {late_s:.3f} s after attempt {later} "
                    f"had begun"
                )
    for job in evidence.jobs:
        tried = evidence.attempts.get(job.id, [])
        numbers = [attempt.number for attempt in tried]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"the attempts of {job.id} are numbered {numbers}"
        for attempt in tried[:-1]:
            if attempt.ended_at is None:
                yield f"attempt {attempt.number} of {job.id} has a successor and no end"


def _ends(evidence: Evidence) -> Iterator[str]:
    """I3: one final state, which matches the exit records; every transition is allowed."""
    for job in evidence.jobs:
        if job.state.is_final != (job.ended_at is not None):
            yield f"{job.id} is {job.state}, and its end is {job.ended_at}"
        states = [
            JobState(event.data["new"])
            for event in evidence.events.get(job.id, [])
            if event.kind == "state"
        ]
        for old, new in pairwise(states):
            if job.kind == "job" and not may_move(old, new):
                yield f"{job.id} went from {old} to {new}"
        if states and states[-1] is not job.state:
            yield f"the history of {job.id} ends with {states[-1]}, and its row says {job.state}"
        may_cancel = job.cancel_requested_at is not None or job.spec.depends_on
        if job.state is JobState.CANCELED and job.kind == "job" and not may_cancel:
            yield f"{job.id} is Canceled, and no cancel was requested"
        attempts = evidence.attempts.get(job.id, [])
        if not attempts or not job.state.is_final:
            continue
        last = attempts[-1]
        if last.ended_at is None:
            yield f"{job.id} is {job.state}, and its attempt {last.number} has no end"
        codes = [_code(rank) for record in last.exits for rank in record.ranks]
        if job.state is JobState.COMPLETED and (not codes or set(codes) != {0}):
            yield f"{job.id} is Completed, and its exit codes are {codes}"
        was_well = set(codes) == {0} and len(last.exits) == len(last.hosts)
        if job.state is JobState.FAILED and was_well and last.outcome == "failed":
            yield f"{job.id} is Failed, and all its ranks ended with 0"
    yield from ends.promised(evidence)


def _code(rank: RankExit) -> int | None:
    """Return a rank's exit code, or its signal below zero; None: neither is known."""
    return rank.exit_code if rank.signal is None else -rank.signal


def _limits(evidence: Evidence) -> Iterator[str]:
    """I4: a failure class gets as many retries as its budget, neither more nor fewer."""
    yield from ends.too_often(evidence)
    yield from ends.too_soon(evidence)
    for job in evidence.jobs:
        for one in evidence.attempts.get(job.id, [])[:-1]:
            if job.state is JobState.COMPLETED and one.outcome == "completed":
                yield f"{job.id} was run again after its attempt {one.number} had completed"


def _leftovers(evidence: Evidence) -> Iterator[str]:
    """I5: an ended job has no process and no allocation."""
    final = {job.id: job for job in evidence.jobs if job.state.is_final}
    for job_id, attempts in evidence.attempts.items():
        for one in attempts:
            if job_id not in final and one.ended_at is None:
                continue
            for host in one.hosts:
                pids = evidence.alive.get(host.marker, [])
                if pids:
                    yield f"processes {pids} of attempt {one.number} of {job_id} are alive"
    for row in evidence.allocations:
        if row.state == "held" and row.job in final:
            yield f"the allocation {row.name} is held for {row.job}, which has ended"


def _scratch(evidence: Evidence) -> Iterator[str]:
    for job in evidence.jobs:
        for one in evidence.attempts.get(job.id, []):
            for host in one.hosts if job.state.is_final else ():
                for what in evidence.left.get(host.marker, []):
                    yield f"{what} is left of attempt {one.number} of {job.id}"


def _capacity(evidence: Evidence) -> Iterator[str]:
    """I6: concurrent attempts never use more than the target has; no GPU has two jobs."""
    moments = sorted({one.start for one in evidence.ran})
    for at in moments:
        now = [one for one in evidence.ran if one.start <= at < one.end]
        cpus = sum(one.cpus for one in now)
        if evidence.total_cpus is not None and cpus > evidence.total_cpus + EPSILON:
            yield f"{cpus:g} CPUs were in use at {at:.3f}, of {evidence.total_cpus:g}"
            break
        holders: dict[str, set[str]] = {}
        for one in now:
            for gpu in one.gpus:
                holders.setdefault(gpu, set()).add(one.job)
        shared = {gpu: jobs for gpu, jobs in holders.items() if len(jobs) > 1}
        if shared:
            yield f"GPUs were seen by several jobs at once: {shared}"
            break
    live = [one for one in evidence.allocations if one.state in ("held", "draining")]
    for what, total in (("cpus", evidence.total_cpus), ("gpus", evidence.total_gpus)):
        held = sum(one.shape.get(what, 0.0) * one.shape.get("nodes", 1) for one in live)
        if total is not None and held > total + EPSILON:
            yield f"allocations hold {held:g} {what} of {total:g}"


def _durations(evidence: Evidence) -> Iterator[str]:
    """I7: no attempt runs longer than its time limit and its grace period."""
    for job in evidence.jobs:
        limit = job.spec.max_duration_s
        if limit is None:
            continue
        most = limit + job.spec.grace_s + SLACK_S
        for one in evidence.attempts.get(job.id, []):
            for record in one.exits:
                ran_s = record.duration_s or 0.0
                if ran_s > most:
                    yield (
                        f"attempt {one.number} of {job.id} ran {ran_s:.1f} s; its "
                        f"limit is {limit:g} s and its grace period {job.spec.grace_s:g} s"
                    )
    by_job = {job.id: job for job in evidence.jobs}
    for ran in evidence.ran:
        job_of = by_job.get(ran.job)
        if job_of is not None and job_of.spec.max_duration_s is not None:
            most = job_of.spec.max_duration_s + job_of.spec.grace_s + SLACK_S
            alive_s = ran.end - ran.start - ran.frozen_s
            if alive_s > most:
                yield f"rank {ran.rank} of {ran.job} was alive {alive_s:.1f} s"


def _logs(evidence: Evidence) -> Iterator[str]:
    """I8: a stored log is what the rank wrote, or its start and end with a counted gap."""
    for (job, rank), written in evidence.written.items():
        stored = evidence.logs.get((job, rank))
        if stored is None:
            yield f"rank {rank} of {job} wrote {len(written)} bytes, and no log is stored"
        elif not is_log_of(stored, written):
            yield f"the log of rank {rank} of {job} is not what it wrote"
    for job_id, attempts in evidence.attempts.items():
        if not attempts:
            continue
        for record in attempts[-1].exits:
            for one in record.ranks:
                stored = evidence.logs.get((job_id, one.rank))
                whole = not one.log_dropped
                if stored is not None and whole and len(stored) != one.log_bytes:
                    yield (
                        f"the log of rank {one.rank} of {job_id} has {len(stored)} bytes; its "
                        f"host counted {one.log_bytes}"
                    )


def is_log_of(stored: bytes, written: bytes) -> bool:
    """Return whether a stored log is the bytes, or their start and end with the right gap."""
    if stored == written:
        return True
    match = _GAP.search(stored)
    if match is None:
        return False
    missing = int(match[1])
    if gap_marker(missing) != match[0]:
        return False
    start, end = stored[: match.start()], stored[match.end() :]
    return (
        written.startswith(start)
        and written.endswith(end)
        and len(start) + missing + len(end) == len(written)
    )


def _resumes(evidence: Evidence) -> Iterator[str]:
    """I9: an attempt resumes from the newest whole checkpoint before it; the curve is complete."""
    yield from progress.resumes(evidence)
    yield from progress.curves(evidence)


def _models(evidence: Evidence) -> Iterator[str]:
    """I10: a model is from a completed run, with a finite value and undamaged bytes."""
    by_id = {job.id: job for job in evidence.jobs}
    for model in evidence.models:
        name = f"model {model.name}:{model.version}"
        run = by_id.get(model.run)
        if run is None or run.state is not JobState.COMPLETED:
            yield f"{name} is of {model.run}, which is {run.state if run else 'unknown'}"
        primary = model.lineage.get("primary_metric") or {}
        value = primary.get("value")
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            yield f"{name} has the value {value!r}"
        for file in model.files:
            real = evidence.digests.get(file.blob)
            if real is not None and real != file.digest:
                yield f"{name}: {file.name} is {real}, recorded as {file.digest}"


def _canaries(evidence: Evidence) -> Iterator[str]:
    """I11: no stored file contains a secret."""
    for name, content in evidence.artefacts.items():
        for canary in evidence.canaries:
            if canary in content:
                yield f"a secret is in {name}"


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "I1": _submits,
    "I2": _overlaps,
    "I3": _ends,
    "I4": _limits,
    "I5": _leftovers,
    "I6": _capacity,
    "I7": _durations,
    "I8": _logs,
    "I9": _resumes,
    "I10": _models,
    "I11": _canaries,
}
