"""Statements that change a job's state; each names the old states, the new one and the attempt.

A test extracts the pairs from the statements and compares them with `states.NEXT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rayjobs.jobs.states import JobState

S = JobState

START = """
UPDATE jobs SET state = 'Provisioning', attempt = attempt + 1, reason = '', changed_at = :now,
    started_at = NULL, not_before = NULL, placed_at = COALESCE(placed_at, :now)
WHERE id = :job AND state = 'Queued' AND attempt = :attempt AND cancel_requested_at IS NULL
    AND hold IS NULL
    AND (:changed_at IS NULL OR changed_at = :changed_at)
    AND (:epoch IS NULL
        OR EXISTS (SELECT 1 FROM targets WHERE name = jobs.target AND epoch = :epoch))
RETURNING attempt, parent, array_index
"""  # the policy names the job; one statement, so two target actors never start the same attempt

MOVE_TO_PREPARING = """
UPDATE jobs SET state = 'Preparing', reason = :reason, changed_at = :now
WHERE id = :job AND state = 'Provisioning' AND attempt = :attempt
RETURNING attempt
"""

MOVE_TO_RUNNING = """
UPDATE jobs SET state = 'Running', reason = :reason, changed_at = :now, started_at = :now
WHERE id = :job AND state = 'Preparing' AND attempt = :attempt
RETURNING attempt
"""

MOVE_TO_FINALIZING = """
UPDATE jobs SET state = 'Finalizing', reason = :reason, changed_at = :now
WHERE id = :job AND state = 'Running' AND attempt = :attempt
RETURNING attempt
"""

REQUEUE = """
UPDATE jobs SET state = 'Queued', reason = :reason, changed_at = :now, started_at = NULL,
    not_before = :not_before, hold = :hold
WHERE id = :job AND state IN ('Provisioning', 'Preparing', 'Running', 'Finalizing')
    AND attempt = :attempt AND cancel_requested_at IS NULL
RETURNING attempt
"""  # the serial stays, and with it the position. A job with a cancel request is not queued again

COMPLETE = """
UPDATE jobs SET state = 'Completed', reason = :reason, failure = :failure, changed_at = :now,
    ended_at = :now
WHERE id = :job AND state = 'Finalizing' AND attempt = :attempt
RETURNING attempt
"""

FAIL = """
UPDATE jobs SET state = 'Failed', reason = :reason, failure = :failure, changed_at = :now,
    ended_at = :now
WHERE id = :job AND state IN ('Queued', 'Provisioning', 'Preparing', 'Running', 'Finalizing')
    AND attempt = :attempt
RETURNING attempt
"""

CANCEL = """
UPDATE jobs SET state = 'Canceled', reason = :reason, cancellation = :cancellation,
    failure = :failure, changed_at = :now, ended_at = :now
WHERE id = :job AND state IN ('Queued', 'Provisioning', 'Preparing', 'Running', 'Finalizing')
    AND attempt = :attempt
RETURNING attempt
"""

CANCEL_QUEUED = """
UPDATE jobs SET state = 'Canceled', reason = :reason, cancellation = :cancellation,
    changed_at = :now, ended_at = :now, cancel_requested_at = :now
WHERE id = :job AND state = 'Queued' AND attempt = :attempt
RETURNING attempt
"""

MOVES: Mapping[tuple[JobState, JobState], str] = MappingProxyType(
    {
        (S.PROVISIONING, S.PREPARING): MOVE_TO_PREPARING,
        (S.PREPARING, S.RUNNING): MOVE_TO_RUNNING,
        (S.RUNNING, S.FINALIZING): MOVE_TO_FINALIZING,
    }
)

ENDS: Mapping[JobState, str] = MappingProxyType(
    {S.COMPLETED: COMPLETE, S.FAILED: FAIL, S.CANCELED: CANCEL}
)

ALL = (
    START,
    MOVE_TO_PREPARING,
    MOVE_TO_RUNNING,
    MOVE_TO_FINALIZING,
    REQUEUE,
    COMPLETE,
    FAIL,
    CANCEL,
    CANCEL_QUEUED,
)

INSERT_ATTEMPT = """
INSERT INTO attempts (job, number, allocation, created_at, hosts, exits, outcome)
VALUES (:job, :attempt, :allocation, :now, '[]', '[]', '')
RETURNING *
"""

ATTEMPT_STARTED = """
UPDATE attempts SET started_at = :now WHERE job = :job AND number = :attempt
"""

END_ATTEMPT = """
UPDATE attempts SET ended_at = :now, outcome = :outcome, failure = :failure
WHERE job = :job AND number = :attempt AND ended_at IS NULL
"""

SET_HOSTS = """
UPDATE attempts SET hosts = :hosts, cold_reason = :cold_reason
WHERE job = :job AND number = :attempt AND ended_at IS NULL
    AND EXISTS (SELECT 1 FROM jobs WHERE id = :job AND attempt = :attempt)
"""

SET_EXITS = """
UPDATE attempts SET exits = :exits
WHERE job = :job AND number = :attempt AND ended_at IS NULL
    AND EXISTS (SELECT 1 FROM jobs WHERE id = :job AND attempt = :attempt)
"""

INSERT_EVENT = """
INSERT INTO events (job, at, kind, message, attempt, data)
VALUES (:job, :now, :kind, :message, :attempt, :data)
"""
