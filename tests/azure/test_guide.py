"""The migration guide matches the code: it is generated from the same tables."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_guide_matches_the_tables() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "azure_guide.py"))["guide"]()
    written = (ROOT / "docs" / "guides" / "azure.md").read_text(encoding="utf-8")
    assert made == written, "python tools/azure_guide.py > docs/guides/azure.md"
