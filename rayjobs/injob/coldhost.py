"""Starts an attempt host, warm (forked) or cold, and waits until it has taken over.

Run as `python coldhost.py PLAN [--cold-reason TEXT]`, it is the cold host: it detaches itself,
reads one JSON line of secrets from standard input, and prints its identity as one line.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Mapping

if __name__ == "__main__":
    # Run by path, to keep the working directory off the module path. This folder must be off it
    # too: its module names are common words.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from rayjobs.injob import detach, kernel
from rayjobs.injob import plan as plans
from rayjobs.injob.answers import StartAnswer
from rayjobs.injob.control import encode
from rayjobs.injob.host import Host
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.injob.ranks import Program, WarmState


def take_over(
    plan: plans.LaunchPlan,
    secrets: Mapping[str, str],
    *,
    warm: WarmState | None,
    reason: str | None = None,
) -> Program | None:
    """Act as the host of `plan` in this detached process; return the program in a warm rank."""
    try:
        detach.point_output(os.path.join(plan.root, "host.log"))
        kernel.write_marker(plan.marker)
        os.environ[MARKER_VARIABLE] = plan.marker
        use_cgroups = os.environ.get("RAYJOBS_CGROUPS", "1") != "0"
        host = Host(plan, secrets, warm=warm, cold_reason=reason, use_cgroups=use_cgroups)
    except Exception as error:
        detach.note(traceback.format_exc())
        detach.report(StartAnswer.refused(f"the attempt host cannot start: {error}"))
        return None
    detach.report()
    return host.run()


def start(path: str, reason: str | None) -> int:
    """Detach a cold host for the plan at `path` and print the line it reports.

    Returns:
        The exit code of the starting process, or of the host itself.
    """
    try:
        plan = plans.load(path)
    except plans.PlanError as error:
        os.write(1, encode(StartAnswer.refused(str(error))))
        return 1
    if len(os.environ.get(MARKER_VARIABLE, "")) < len(plan.marker):
        # Only padding: with the real marker, this process would count as one of the attempt's.
        os.environ[MARKER_VARIABLE] = "-" * len(plan.marker)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    line = sys.stdin.readline()
    secrets = {str(key): str(value) for key, value in json.loads(line or "{}").items()}
    reader = detach.fork_detached()
    if reader is not None:
        line = detach.read_report(reader)
        os.write(1, line or encode(StartAnswer.refused("the attempt host died at its start")))
        return 0 if b'"ok": true' in line else 1
    take_over(plan, secrets, warm=None, reason=reason or plan.cold or "started cold")
    sys.stdout.flush()
    return 0


def main(arguments: list[str]) -> int:
    """Start the cold host of a plan; return 0 once it has taken over the attempt."""
    reason = arguments[2] if arguments[1:2] == ["--cold-reason"] else None
    return start(arguments[0], reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
