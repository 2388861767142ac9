"""`rayjobs store`: store outputs that could not be stored at the end of their job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from rayjobs.cli.asking import ask_target
from rayjobs.cli.exits import Exit
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.errors import UsageError
from rayjobs.core.terminal import plain_text
from rayjobs.core.text import duration_text
from rayjobs.data.events import OutputStored
from rayjobs.jobs import unstored
from rayjobs.jobs.records import Job
from rayjobs.target.answers import StoreAnswer
from rayjobs.target.requests import TargetRequest

# The target answers sooner; until everything is stored, the command repeats its request.
ANSWER_S = 60.0
# A line is printed after this time, even if no file has moved.
QUIET_S = 30.0

EPILOG = """\b
Examples:
  rayjobs store 1f3c
"""


@click.command(epilog=EPILOG)
@job_argument
@json_option
@common_options
@click.pass_obj
def store(settings: Settings, job: str) -> int:
    """Store the outputs of a job that ended while their storage was unavailable.

    The script does not run again: its files stay on the node for seven days. The job stays Failed
    or Canceled. Exits with 1 if something could not be stored; run the command again later. Ctrl-C
    stops waiting; the target continues to store.
    """
    from rayjobs.core.paths import home
    from rayjobs.target.starting import ensure_target

    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        attempts = workspace.store.attempts(found.id)
        events = workspace.store.events(found.id)
        why_not = unstored.why_not(found, attempts, events)
        if why_not:
            raise UsageError(f"there is nothing to store: {why_not}")
        ensure_target(found.target, home=home(), workspace=workspace.path, on_stage=settings.note)
        reporter = _Reporter(settings)
        while not (answer := _ask(found, workspace.path)).done:
            # A target of an earlier version does not report it.
            reporter.show(answer.progress)
        stored = [
            one.message
            for one in workspace.store.events(found.id)
            if one.kind == OutputStored.KIND and one.attempt == found.attempt
        ]
    if settings.as_json:
        print_json({"id": found.id, "stored": stored, "problems": answer.problems})
    else:
        for line in stored:
            click.echo(plain_text(line))
        for line in answer.problems:
            settings.note(f"not stored: {plain_text(line)}")
    return Exit.FAILED if answer.problems else Exit.DONE


def _ask(job: Job, workspace: Path) -> StoreAnswer:
    return ask_target(job, workspace, TargetRequest("store"), StoreAnswer, timeout_s=ANSWER_S)


class _Reporter:
    """Prints each line of the progress when it changes, and a sign of life after `QUIET_S`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last: Sequence[str] = ()
        self._begun_s = self._shown_s = time.monotonic()

    def show(self, lines: Sequence[str]) -> None:
        """Print the nodes' reports; without any, print that storing continues."""
        now = time.monotonic()
        changed = [line for line in lines if line not in self._last]
        if changed:
            self._last = lines
        elif now - self._shown_s >= QUIET_S:
            changed = [f"still storing, for {duration_text(now - self._begun_s)}"]
        for line in changed:
            self._settings.note(plain_text(line))
            self._shown_s = now
