"""Lists modules longer than a reader likes; only much longer ones fail."""

from __future__ import annotations

import sys

from files import ROOT, project_files

ADVISED_LINES = 400
LIMIT_LINES = 700


def main() -> int:
    lengths = []
    for path in project_files(".py"):
        name = path.relative_to(ROOT)
        if name.parts[0] in ("rayjobs", "tuning", "datastore"):
            lengths.append((len(path.read_text(encoding="utf-8").splitlines()), str(name)))
    long = sorted((entry for entry in lengths if entry[0] > ADVISED_LINES), reverse=True)
    over = [entry for entry in long if entry[0] > LIMIT_LINES]
    for lines, name in over:
        print(f"{name}: {lines} lines, more than {LIMIT_LINES}: divide it")
    named = ", ".join(f"{name} {lines}" for lines, name in long)
    print(f"{len(lengths)} modules; longer than {ADVISED_LINES} lines: {named or 'none'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
