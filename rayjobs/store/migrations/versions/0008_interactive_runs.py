"""Interactive runs: who logs into those that have not ended; a description of every job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column; jobs that exist have no description."""
    op.add_column("jobs", sa.Column("description", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "writers",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("job", sa.Text),
        sa.Column("attempt", sa.Integer),
        sa.Column("process", sa.Text),
    )
    op.create_index("ix_writers_job", "writers", ["job", "attempt"])
