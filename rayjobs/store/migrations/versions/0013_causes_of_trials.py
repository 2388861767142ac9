"""What decided the end of a sweep's trial, apart from the sentence for people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# The beginnings of the sentences that version 12 stored; any other is that of the trial's job.
FILL = """
UPDATE trials SET cause = CASE
    WHEN state = 'Failed' AND reason LIKE 'trial ' || number || ' never reported the metric %'
        THEN 'no_metric'
    WHEN reason LIKE 'stopped trial ' || number || ' at interval %' THEN 'policy'
    WHEN reason = 'stopped trial ' || number || ': the sweep was canceled' THEN 'sweep_canceled'
    WHEN reason LIKE 'stopped trial ' || number || ': %' THEN 'sweep_ended'
    ELSE 'job'
END
WHERE reason != ''
"""


def upgrade() -> None:
    """Add a column, and fill it from the stored sentences."""
    op.add_column("trials", sa.Column("cause", sa.Text))
    op.get_bind().exec_driver_sql(FILL)
