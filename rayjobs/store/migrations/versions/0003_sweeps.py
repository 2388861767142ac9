"""Keep sweeps and their trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both tables; there were no sweeps before."""
    op.create_table(
        "sweeps",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("driver", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
    )
    op.create_table(
        "trials",
        sa.Column("sweep", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("job", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("reports", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("judged", sa.Integer, nullable=False),
        sa.Column("stop_requested", sa.Integer, nullable=False),
        sa.Column("metric_names", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text),
        sa.Column("ended_at", sa.Text),
    )
