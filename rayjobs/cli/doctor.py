"""`rayjobs doctor`: check this machine, the target and what was left behind."""

from __future__ import annotations

from dataclasses import asdict

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, common_options, json_option

_COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}

EPILOG = """\b
Examples:
  rayjobs doctor
  rayjobs doctor --json
"""


@click.command(epilog=EPILOG)
@json_option
@common_options
@click.pass_obj
def doctor(settings: Settings) -> int:
    """Check versions, capabilities, ports, token, disks, clock and leftovers.

    Each line is OK, WARN (works, but less well or not for long) or FAIL, with what to do about it.
    Nothing is changed. Exits with 1 if any line is FAIL.
    """
    from rayjobs.core.paths import home
    from rayjobs.housekeeping.doctor import examine
    from rayjobs.workspace import server_choice
    from rayjobs.workspace.folder import WorkspaceFiles, locate

    if settings.workspace is None:
        server_choice.refuse("`rayjobs doctor`")
    workspace = locate(settings.workspace)
    known = workspace if WorkspaceFiles(workspace).record.exists() else None
    findings = []
    for finding in examine(home(), known):
        findings.append(finding)
        if not settings.as_json:
            level = settings.style(f"{finding.level:<4}", _COLOURS[finding.level])
            click.echo(f"{level}  {finding.topic}: {finding.text}")
            if finding.remedy:
                click.echo(f"      → {finding.remedy}")
    if settings.as_json:
        print_json([asdict(finding) for finding in findings])
    worst = sum(finding.level == "FAIL" for finding in findings)
    if worst:
        settings.note(f"{worst} of {len(findings)} checks failed")
    return Exit.FAILED if worst else Exit.DONE
