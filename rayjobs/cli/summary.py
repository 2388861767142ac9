"""What stands on the screen when a job has ended, and what to type next."""

from __future__ import annotations

from rayjobs.cli.jobviews import earlier_runs, end_text, ran_s, short_id, waited_s
from rayjobs.cli.output import duration_text, size_text, state_colour
from rayjobs.cli.settings import Settings
from rayjobs.metrics import number_text, summaries
from rayjobs.records import Job
from rayjobs.states import JobState
from rayjobs.store.base import Store
from rayjobs.terminal import plain_text
from rayjobs.workspace_files import OpenWorkspace

METRICS_SHOWN = 8


LEFT_OUT_SHOWN = 5


def left_out(store: Store, job: Job) -> list[str]:
    """Return what of a job's newest attempt could not be stored, a sentence each."""
    found = [
        plain_text(event.message)
        for event in store.events(job.id)
        if event.kind == "left_out" and event.attempt == job.attempt
    ]
    more = len(found) - LEFT_OUT_SHOWN
    return found[:LEFT_OUT_SHOWN] + (
        [f"and {more} more: rayjobs events {short_id(job)}"] if more > 0 else []
    )


def summary_lines(settings: Settings, workspace: OpenWorkspace, job: Job) -> list[str]:
    """Return the closing lines: end, times, last values, files, useful commands."""
    store = workspace.store
    head = settings.style(plain_text(end_text(job)), state_colour(str(job.state)), err=True)
    earlier_s = earlier_runs(store, [job]).get(job.id)
    times = (
        f"waited {duration_text(waited_s(job, earlier_s=earlier_s))}, "
        f"ran {duration_text(ran_s(job, earlier_s=earlier_s))}"
    )
    if job.attempt > 1:
        times += f", {job.attempt} attempts"
    lines = [head, f"  {times}"]
    for sentence in left_out(store, job):
        lines.append(f"  {settings.style('left out', 'yellow', err=True)}: {sentence}")
    measured = summaries(store.metrics(job.id), width=20)
    for one in measured[:METRICS_SHOWN]:
        lines.append(f"  {one.name} {number_text(one.last)}  {one.line}".rstrip())
    if len(measured) > METRICS_SHOWN:
        lines.append(f"  and {len(measured) - METRICS_SHOWN} more metrics")
    stored = [one for one in store.files(job.id) if one.name.startswith("outputs/")]
    if stored:
        size = size_text(sum(one.size for one in stored))
        lines.append(f"  {len(stored)} stored file{'s' if len(stored) > 1 else ''} ({size})")
    commands = [("show", "everything about it")]
    if job.state is JobState.FAILED:
        commands.append(("logs --failed", "the lines that matter"))
    if measured:
        commands.append(("metrics", "what it logged"))
    if stored:
        commands.append(("download", "fetch its files"))
    return [*lines, *useful_commands(short_id(job), commands)]


def useful_commands(short: str, commands: list[tuple[str, str]]) -> list[str]:
    """Return lines of commands that could come next, aligned."""
    wide = max(len(f"rayjobs {command} {short}") for command, _ in commands)
    return [f"  {f'rayjobs {command} {short}'.ljust(wide)}   {why}" for command, why in commands]
