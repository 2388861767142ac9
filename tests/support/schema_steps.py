"""A made-up migration to the next version of the store's schema."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rayjobs.store import care, schema
from rayjobs.store.migrations import upgrade

NEXT = schema.VERSION + 1
NEWEST_STORE = Path(__file__).parents[1] / "assets" / "stores" / f"version-{schema.VERSION}.db"
STEP = f'''"""A made-up migration."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT:04d}"
down_revision = "{schema.VERSION:04d}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column, fill and index it."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("length", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE jobs SET length = LENGTH(name)")
    op.create_index("ix_jobs_length", "jobs", ["length"])
'''


def with_next_step(folder: Path) -> Path:
    """Fill a new folder with all migrations and the made-up one; return the folder."""
    shutil.copytree(upgrade.VERSIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / f"{NEXT:04d}_made_up.py").write_text(STEP)
    return folder


def use_next_version(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this process act as a later rayjobs, whose schema has the made-up migration."""
    monkeypatch.setattr(upgrade, "VERSIONS", with_next_step(folder))
    monkeypatch.setattr(schema, "VERSION", NEXT)
    monkeypatch.setattr(care, "VERSION", NEXT)
