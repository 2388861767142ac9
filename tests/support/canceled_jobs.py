"""Canceled jobs as schema version 14 stored them, with who canceled them only in a sentence."""

from __future__ import annotations

import json

from rayjobs.jobs.cancellation import Cancellation
from rayjobs.spec.model import JobSpec

EXPERIMENT = "canceled"
# (reason, who requested the end of a running job), and what the upgrade finds.
JOBS: tuple[tuple[str, str | None, Cancellation | None], ...] = (
    ("canceled by ada", None, Cancellation("ada")),  # it was queued, or an interactive run
    (
        "canceled by its pipeline: step 'a; b' is Failed",
        None,
        Cancellation("its pipeline: step 'a; b' is Failed"),
    ),
    ("canceled", None, Cancellation()),
    ("canceled", "", Cancellation()),
    ("canceled by ada", "ada", Cancellation("ada")),
    ("canceled; 4 Canceled", "", Cancellation("", "4 Canceled")),
    ("canceled by a; b; 4 Canceled; more", "a; b", Cancellation("a; b", "4 Canceled; more")),
    ("canceled by ada instead of queued again (its node died)", "ada", None),
    ("canceled", "ada", None),  # by an earlier development version
    ("old_a_1, which it waited for, ended as Failed", None, None),
)
JOB = """
INSERT INTO jobs (id, experiment, name, kind, target, submitted_by, spec, state, attempt, reason,
    priority, submitted_at, changed_at, ended_at, tags, properties)
VALUES ({0}, 'canceled', 'old', 'job', 'local', 'ada', {0}, 'Canceled', 0, {0},
    0, {0}, {0}, {0}, '{{}}', '{{}}')
"""
EVENT = """
INSERT INTO events (job, at, kind, message, attempt, data)
VALUES ({0}, {0}, 'cancel', 'cancel requested', 1, {0})
"""
_AT = "2026-11-01T09:00:00.000000Z"


def id_of(number: int) -> str:
    """Return the id of a job of `JOBS`."""
    return f"canceled_{number}"


def job_rows() -> list[tuple[str, ...]]:
    """Return the values for `JOB`, a row for each job."""
    spec = JobSpec(script="a.py").to_json()
    return [
        (id_of(number), spec, reason, _AT, _AT, _AT) for number, (reason, _, _) in enumerate(JOBS)
    ]


def event_rows() -> list[tuple[str, ...]]:
    """Return the values for `EVENT`, a row for each job that was running."""
    return [
        (id_of(number), _AT, json.dumps({"by": by}))
        for number, (_, by, _) in enumerate(JOBS)
        if by is not None
    ]
