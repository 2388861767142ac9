"""Runs of pipelines and their steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "pipelines",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("continues", sa.Integer, nullable=False),
        sa.Column("published", sa.Text),
    )
    op.create_table(
        "steps",
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("pipeline_name", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("reuse_key", sa.Text),
        sa.Column("parts", sa.Text, nullable=False),
        sa.Column("original", sa.Text),
        sa.Column("decision", sa.Text, nullable=False),
        sa.UniqueConstraint("job", name="uq_steps_job"),
    )
    op.create_index("ix_steps_reuse_key", "steps", ["reuse_key"])
    op.create_index("ix_steps_name", "steps", ["pipeline_name", "name"])
