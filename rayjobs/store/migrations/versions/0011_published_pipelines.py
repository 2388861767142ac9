"""Published pipelines and their endpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "published_pipelines",
        sa.Column("serial", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Text),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("is_active", sa.Integer, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_published_pipelines_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "pipeline_endpoints",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("pipeline", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("is_default", sa.Integer, nullable=False),
        sa.Column("is_active", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
