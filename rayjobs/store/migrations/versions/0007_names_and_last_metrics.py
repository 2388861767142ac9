"""Find jobs by the name that people see, and keep the newest point of each metric."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# As `runs.KEEP_LAST` decides: the newest attempt, its lowest rank, that rank's newest point.
FILL = """
INSERT INTO last_metrics (name, job_serial, attempt, rank, sequence, value)
SELECT name, job_serial, attempt, rank, sequence, value FROM (
    SELECT name, job_serial, attempt, rank, sequence, value, ROW_NUMBER() OVER (
        PARTITION BY name, job_serial ORDER BY attempt DESC, rank, sequence DESC) AS place
    FROM metrics WHERE NOT late)
WHERE place = 1
"""


def upgrade() -> None:
    """Add the index and the table, and fill it from the points that are there."""
    op.create_index("ix_jobs_display_name", "jobs", ["display_name"])
    op.create_table(
        "last_metrics",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("job_serial", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_last_metrics_job", "last_metrics", ["job_serial"])
    op.execute(FILL)
