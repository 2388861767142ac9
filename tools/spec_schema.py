"""Writes rayjobs/job.schema.json, the JSON schema of spec files for editors."""

from __future__ import annotations

import json

from files import ROOT

from rayjobs.spec.file import editor_schema

SCHEMA = ROOT / "rayjobs" / "job.schema.json"


def text() -> str:
    return json.dumps(editor_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
    print(f"written: {SCHEMA.name}")
