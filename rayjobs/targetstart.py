"""Starts a target from a process of its own: ``-m rayjobs.targetstart HOME NAME WORKSPACE``.

A submit that found no target must not wait for one; this process does. With ``--revive`` it brings
a target back that died. What fails stands in the target's log and in its `revival.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rayjobs.errors import RayjobsError


def main(arguments: list[str]) -> int:
    """Start the target, unless it runs by then; 1 when that failed."""
    from rayjobs.compute.headstop import Place
    from rayjobs.compute.starting import ensure_target
    from rayjobs.target import revive

    revives = "--revive" in arguments
    home, name, workspace = [one for one in arguments if one != "--revive"]
    place = Place(name, Path(home))
    failures = revive.started(place)
    try:
        ensure_target(
            name, home=place.home, workspace=Path(workspace), is_patient=True, revives=revives
        )
    except RayjobsError as error:
        sys.stderr.write(f"{error}\n")
        revive.failed(place, error.message, before=failures)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
