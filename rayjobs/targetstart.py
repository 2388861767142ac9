"""Starts a target from a process of its own: ``python -m rayjobs.targetstart HOME NAME WORKSPACE``.

A submit that found no target must not wait for one; this process does, and tells the target's
log and its progress file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rayjobs.errors import RayjobsError


def main(arguments: list[str]) -> int:
    """Start the target, unless it runs by then; 1 when that failed."""
    from rayjobs.compute.starting import ensure_target

    home, name, workspace = arguments
    try:
        ensure_target(name, home=Path(home), workspace=Path(workspace))
    except RayjobsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
