"""The schema of the first release.

No step leads here: a new store is created from `schema.sql`, and earlier schemas were never
released (docs/decisions/0022-one-first-schema.md). Later steps start here.
"""

from __future__ import annotations

revision = "0007"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Refuse to run: every store that this code opens has at least this version."""
    raise RuntimeError("a new store is created from schema.sql, not by migrations")
