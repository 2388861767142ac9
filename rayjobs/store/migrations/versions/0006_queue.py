"""Keep what the queue's users ask about: arrays, holds, first places, predicted starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# The script, else the command, of the specs that are there (JSON text).
FILL_ENTRY = """
UPDATE jobs SET entry =
    COALESCE(json_extract(spec, '$.script'), json_extract(spec, '$.command'), '')
"""
# A job's first attempt was made when it first got a place.
FILL_PLACED_AT = """
UPDATE jobs SET placed_at =
    (SELECT MIN(created_at) FROM attempts WHERE attempts.job = jobs.id)
WHERE kind = 'job'
"""


def upgrade() -> None:
    """Add the columns, fill those that what is there tells, then index and add the table."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("entry", sa.Text, nullable=False, server_default=""))
        jobs.add_column(sa.Column("array_index", sa.Integer))
        jobs.add_column(sa.Column("placed_at", sa.Text))
        jobs.add_column(sa.Column("hold", sa.Text))
    op.execute(FILL_ENTRY)
    op.execute(FILL_PLACED_AT)
    op.drop_index("ix_jobs_parent", "jobs")
    op.create_index("ix_jobs_parent_state", "jobs", ["parent", "state"])
    op.create_index("ix_jobs_history", "jobs", ["experiment", "entry", "state", "ended_at"])
    op.create_table(
        "predictions",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("first_at", sa.Text, nullable=False),
        sa.Column("first_starts_at", sa.Text, nullable=False),
        sa.Column("first_basis", sa.Text, nullable=False),
        sa.Column("last_at", sa.Text, nullable=False),
        sa.Column("last_starts_at", sa.Text, nullable=False),
        sa.Column("last_basis", sa.Text, nullable=False),
    )
