"""Schedules of published pipelines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table."""
    op.create_table(
        "pipeline_schedules",
        sa.Column("serial", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("pipeline", sa.Text),
        sa.Column("endpoint", sa.Text),
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("continues", sa.Integer),
        sa.Column("recurrence", sa.Text),
        sa.Column("watched", sa.Text),
        sa.Column("seen", sa.Text),
        sa.Column("is_active", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Text),
        sa.Column("last_run", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_pipeline_schedules_id"),
        sqlite_autoincrement=True,
    )
