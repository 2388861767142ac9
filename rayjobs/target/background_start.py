"""Starts a target from a separate process.

It is run as ``-m rayjobs.target.background_start HOME NAME WORKSPACE``.

A submit that finds no target must not wait for one; this process does. With ``--revive`` it revives
a target that died. ``--stop-seen=ID`` names the last stop before this start: a newer stop takes
precedence. The target's log and its `revival.json` record failures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rayjobs.core.errors import RayjobsError


def main(arguments: list[str]) -> int:
    """Start the target unless it runs by now; return 1 if that fails."""
    from rayjobs.datastore import credentials
    from rayjobs.target import revive
    from rayjobs.target.secrets import TargetSecrets
    from rayjobs.target.starting import ensure_target
    from rayjobs.target.stopping import TargetLocation

    parser = argparse.ArgumentParser(prog="rayjobs.target.background_start")
    for name in ("home", "name", "workspace"):
        parser.add_argument(name)
    parser.add_argument("--revive", action="store_true")
    parser.add_argument("--stop-seen")
    options = parser.parse_args(arguments)
    location = TargetLocation(options.name, Path(options.home))
    # The shell's variables are not passed on: the workspace is opened with the target's secrets.
    credentials.give(TargetSecrets(location.name, home=location.home).values())
    failures = revive.started(location)
    try:
        ensure_target(
            location.name,
            home=location.home,
            workspace=Path(options.workspace),
            is_patient=True,
            revives=options.revive,
            stop_seen=options.stop_seen,
        )
    except RayjobsError as error:
        sys.stderr.write(f"{error}\n")
        revive.failed(location, error.message, before=failures)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
