"""Find a job by the random end of its id through an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, fill it from the ids that are there, then index it."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("tail", sa.Text, nullable=False, server_default=""))
    connection = op.get_bind()
    ids = [row.id for row in connection.execute(sa.text("SELECT id FROM jobs"))]
    if ids:
        connection.execute(
            sa.text("UPDATE jobs SET tail = :tail WHERE id = :id"),
            [{"id": job, "tail": job.rpartition("_")[2]} for job in ids],
        )
    op.create_index("ix_jobs_tail", "jobs", ["tail"])
