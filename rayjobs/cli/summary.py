"""The summary of an ended job, and the commands to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.cli.jobviews import earlier_runs, end_text, ran_s, short_id, waited_s
from rayjobs.cli.output import state_colour
from rayjobs.core.terminal import plain_text
from rayjobs.core.text import counted, duration_text, size_text
from rayjobs.data.events import InputChanged
from rayjobs.jobs import unstored
from rayjobs.jobs.states import JobState
from rayjobs.results.left_out import FileLeftOut
from rayjobs.results.metrics import number_text, summaries

if TYPE_CHECKING:
    from rayjobs.cli.settings import Settings
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store
    from rayjobs.workspace.folder import OpenWorkspace

METRICS_SHOWN = 8


LEFT_OUT_SHOWN = 5


def changed_inputs(store: Store, job: Job) -> list[str]:
    """Return a sentence for each input of a job's newest attempt that changed while it ran."""
    return [
        plain_text(event.message)
        for event in store.events(job.id)
        if event.kind == InputChanged.KIND and event.attempt == job.attempt
    ]


def left_out(store: Store, job: Job) -> list[str]:
    """Return a sentence for each file of a job's newest attempt that could not be stored."""
    found = [
        plain_text(event.message)
        for event in store.events(job.id)
        if event.kind == FileLeftOut.KIND and event.attempt == job.attempt
    ]
    more = len(found) - LEFT_OUT_SHOWN
    return found[:LEFT_OUT_SHOWN] + (
        [f"and {more} more: rayjobs events {short_id(job)}"] if more > 0 else []
    )


def closing_line(settings: Settings, job: Job) -> str:
    """Return in one line how a job ended: its final state, and the root cause of a failure."""
    return settings.style(plain_text(end_text(job)), state_colour(str(job.state)), err=True)


def summary_lines(settings: Settings, workspace: OpenWorkspace, job: Job) -> list[str]:
    """Return the closing lines: end, times, last values, files, useful commands."""
    store = workspace.store
    earlier_s = earlier_runs(store, [job]).get(job.id)
    times = (
        f"waited {duration_text(waited_s(job, earlier_s=earlier_s))}, "
        f"ran {duration_text(ran_s(job, earlier_s=earlier_s))}"
    )
    if job.attempt > 1:
        times += f", {job.attempt} attempts"
    lines = [closing_line(settings, job), f"  {times}"]
    for sentence in left_out(store, job):
        lines.append(f"  {settings.style('left out', 'yellow', err=True)}: {sentence}")
    for sentence in changed_inputs(store, job):
        lines.append(f"  {settings.style('changed', 'yellow', err=True)}: {sentence}")
    measured = summaries(store.metrics(job.id), width=20)
    for one in measured[:METRICS_SHOWN]:
        lines.append(f"  {one.name} {number_text(one.last)}  {one.line}".rstrip())
    if len(measured) > METRICS_SHOWN:
        lines.append(f"  and {len(measured) - METRICS_SHOWN} more metrics")
    stored = [one for one in store.files(job.id) if one.name.startswith("outputs/")]
    if stored:
        size = size_text(sum(one.size for one in stored))
        lines.append(f"  {counted(len(stored), 'file')} in outputs/ ({size})")
    for model in store.models(run=job.id):
        lines.append(f"  registered model {plain_text(model.name)}:{model.version}")
    commands = next_commands(
        job,
        has_metrics=bool(measured),
        has_files=bool(stored),
        has_unstored=has_unstored(store, job),
    )
    return [*lines, *useful_commands(short_id(job), commands)]


def has_unstored(store: Store, job: Job) -> bool:
    """Whether outputs of a job are only on its nodes, where `rayjobs store` may store them."""
    if job.state not in (JobState.FAILED, JobState.CANCELED) or not job.spec.outputs:
        return False
    return not unstored.why_not(job, store.attempts(job.id), store.events(job.id))


def stored_later(store: Store, job: Job) -> bool:
    """Whether the outputs of a job's newest attempt were stored after its end."""
    return job.state in (JobState.FAILED, JobState.CANCELED) and any(
        event.kind == unstored.STORED_EVENT and event.attempt == job.attempt
        for event in store.events(job.id)
    )


def next_commands(
    job: Job, *, has_metrics: bool = False, has_files: bool = False, has_unstored: bool = False
) -> list[tuple[str, str]]:
    """Return the commands that are useful in a job's current state, each with its purpose."""
    if job.kind == "sweep":
        commands = [("sweep show", "all trials, and why each one ended")]
        if job.state is not JobState.FAILED:
            commands += [("sweep best", "the best trial"), ("sweep plot", "plots and a page")]
        return commands
    if job.kind == "pipeline":
        commands = [("pipeline show", "all steps")]
        if job.state in (JobState.FAILED, JobState.CANCELED):
            commands.append(("pipeline resume", "repeat the steps that did not complete"))
        return commands
    commands = [("show", "all details")]
    if job.kind == "array":
        commands.append(("ls --parent", "list its members"))
    if job.state is JobState.FAILED:
        commands.append(("logs --failed", "the lines about the failure"))
        commands.append(("logs", "full log"))
    if has_metrics:
        commands.append(("metrics", "logged metrics"))
    if has_files:
        commands.append(("download", "fetch its files"))
    if has_unstored:
        commands.append(("store", "store its outputs; the script does not run again"))
    elif job.state in (JobState.FAILED, JobState.CANCELED):
        commands.append(("rerun", "run it again"))
    return commands


def useful_commands(short: str, commands: list[tuple[str, str]]) -> list[str]:
    """Return aligned lines of commands that could be next."""
    wide = max(len(f"rayjobs {command} {short}") for command, _ in commands)
    return [f"  {f'rayjobs {command} {short}'.ljust(wide)}   {why}" for command, why in commands]
