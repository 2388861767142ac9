"""`rayjobs simulate-eviction`: evict a job on purpose, as a spot machine would."""

from __future__ import annotations

import click

from rayjobs.cli.asking import ask_target, check_running
from rayjobs.cli.output import print_json
from rayjobs.cli.params import Duration, job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.text import duration_text
from rayjobs.target.answers import EvictAnswer
from rayjobs.target.requests import TargetRequest

ANSWER_S = 10.0

EPILOG = """\b
Examples:
  rayjobs simulate-eviction 1f3c               at once, as when a machine is switched off
  rayjobs simulate-eviction 1f3c --notice 30s  SIGTERM, then 30 s to save a checkpoint
"""


@click.command("simulate-eviction", epilog=EPILOG)
@job_argument
@click.option(
    "--notice", type=Duration(), metavar="TIME", help="Time from SIGTERM to the end [none]."
)
@json_option
@common_options
@click.pass_obj
def simulate_eviction(settings: Settings, job: str, notice: float | None) -> None:
    """End a running job's attempt like an eviction, to test that the job resumes.

    The job returns to its old position in the queue with class `preempted`; its next attempt
    continues from its newest complete checkpoint. `rayjobs events` shows how many steps are
    repeated.
    """
    with settings.open() as workspace:
        found = workspace.store.find(job)
        check_running(found)
        request = TargetRequest("evict", notice_s=notice)
        answer = ask_target(found, workspace.path, request, EvictAnswer, timeout_s=ANSWER_S)
    if settings.as_json:
        print_json({"id": found.id, "attempt": answer.attempt, "notice_s": notice})
    else:
        how = "without notice" if notice is None else f"with {duration_text(notice)} of notice"
        click.echo(f"{found.id} attempt {answer.attempt} is evicted {how}")
