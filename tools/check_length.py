"""Fails on modules that are too long to read."""

from __future__ import annotations

import sys

from files import ROOT, project_files

LIMIT_LINES = 700  # every module has fewer


def main() -> int:
    lengths = []
    for path in project_files(".py"):
        name = path.relative_to(ROOT)
        if name.parts[0] in ("rayjobs", "tuning", "datastore", "tests", "benchmarks", "tools"):
            lengths.append((len(path.read_text(encoding="utf-8").splitlines()), str(name)))
    over = sorted((entry for entry in lengths if entry[0] >= LIMIT_LINES), reverse=True)
    for lines, name in over:
        print(f"{name}: {lines} lines, {LIMIT_LINES} or more: divide it")
    if not over:
        print(f"{len(lengths)} modules")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
