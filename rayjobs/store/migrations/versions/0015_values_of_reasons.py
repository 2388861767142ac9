"""Values of sentences for people: who canceled a job, and why a trial ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# While a job was running, an event recorded who requested its end. Version 14 stored as the reason
# "canceled by PERSON", which may be followed by "; REMARKS".
REQUESTED = """
WITH requested AS (
    SELECT job, COALESCE(json_extract(data, '$.by'), '') AS person,
        CASE WHEN COALESCE(json_extract(data, '$.by'), '') = '' THEN 'canceled'
            ELSE 'canceled by ' || json_extract(data, '$.by') END AS head
    FROM events
    WHERE serial IN (SELECT MAX(serial) FROM events WHERE kind = 'cancel' GROUP BY job)
)
UPDATE jobs
SET cancellation = json_object('by', person, 'remarks', substr(reason, length(head) + 3))
FROM requested
WHERE requested.job = jobs.id AND state = 'Canceled'
    AND (reason = head OR substr(reason, 1, length(head) + 2) = head || '; ')
"""
# A job that was still queued ended at once: its reason has nothing but the person.
QUEUED = """
UPDATE jobs
SET cancellation = json_object('by', substr(reason, 13))
WHERE state = 'Canceled' AND (reason = 'canceled' OR reason LIKE 'canceled by %')
    AND NOT EXISTS (SELECT 1 FROM events WHERE job = jobs.id AND kind = 'cancel')
"""
# The reason of a trial that its sweep ended began with the trial's number.
DETAILS = """
UPDATE trials SET detail = CASE
    WHEN cause = 'policy' AND reason LIKE 'stopped trial ' || number || ' at %'
        THEN substr(reason, length('stopped trial ' || number || ' at ') + 1)
    WHEN cause IN ('sweep_ended', 'sweep_canceled')
        AND reason LIKE 'stopped trial ' || number || ': %'
        THEN substr(reason, length('stopped trial ' || number || ': ') + 1)
    WHEN cause = 'no_metric' AND reason LIKE 'trial ' || number || ' %'
        THEN substr(reason, length('trial ' || number || ' ') + 1)
    ELSE '' END
"""


def upgrade() -> None:
    """Add two columns, and fill them from the stored reasons."""
    op.add_column("jobs", sa.Column("cancellation", sa.Text))
    op.add_column("trials", sa.Column("detail", sa.Text, nullable=False, server_default=""))
    for statement in (REQUESTED, QUEUED, DETAILS):
        op.get_bind().exec_driver_sql(statement)
