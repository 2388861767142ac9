"""Versions of registered environments, and labels for them."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two tables."""
    op.execute(
        "CREATE TABLE environments (name TEXT NOT NULL, version INTEGER NOT NULL, "
        "definition TEXT NOT NULL, digest TEXT NOT NULL, created_by TEXT NOT NULL, "
        "created_at TEXT NOT NULL, PRIMARY KEY (name, version))"
    )
    op.execute(
        "CREATE TABLE environment_labels (name TEXT NOT NULL, label TEXT NOT NULL, "
        "version INTEGER NOT NULL, PRIMARY KEY (name, label))"
    )
