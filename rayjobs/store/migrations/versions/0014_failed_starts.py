"""Why a schedule could not start its run yet, apart from the note for people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# The beginning of the note that version 13 stored in this case.
FILL = """
UPDATE pipeline_schedules SET failed_start = substr(note, 14) WHERE note LIKE 'tries again: %'
"""


def upgrade() -> None:
    """Add a column, and fill it from the stored notes."""
    op.add_column(
        "pipeline_schedules",
        sa.Column("failed_start", sa.Text, nullable=False, server_default=""),
    )
    op.get_bind().exec_driver_sql(FILL)
