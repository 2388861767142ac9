"""Who canceled a job and what else there is to say, apart from the sentence for people."""

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


def upgrade() -> None:
    """Add a column, and fill it from the stored reasons."""
    op.add_column("jobs", sa.Column("cancellation", sa.Text))
    op.get_bind().exec_driver_sql(REQUESTED)
    op.get_bind().exec_driver_sql(QUEUED)
