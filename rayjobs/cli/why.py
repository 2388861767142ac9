"""`rayjobs why`: explain what a job waits for, in the words of the policy that decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.jobviews import earlier_runs, end_text, job_json, short_id
from rayjobs.cli.naming import newest_named
from rayjobs.cli.outlook import ANSWER_S, key_of, outlooks
from rayjobs.cli.output import facts, print_json
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.errors import NotFoundError
from rayjobs.core.paths import home
from rayjobs.core.terminal import plain_text
from rayjobs.core.text import duration_text, size_text
from rayjobs.jobs.records import name_of
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target.answers import ExplainAnswer, FreeNode, JobDecision
from rayjobs.target.requests import TargetRequest
from rayjobs.target.wake_client import ask_target

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store

EPILOG = """\b
Examples:
  rayjobs why 1f3c
  rayjobs why '1f3c[3]'           a member of an array
  rayjobs why --json 1f3c | jq .decision.estimate_s

The estimate is the policy's current one; `rayjobs report queue` shows how good
such estimates were.
"""
HELD = "held"
# Rules that more capacity would satisfy.
ABOUT_CAPACITY = ("capacity", "line", "yielding", "never_fits")
# The basis of an estimate, in words.
BASES = {
    "history": "from the duration of similar jobs",
    "script": "from the script's duration in other experiments",
    "limit": "from the time limits of the jobs ahead",
    "outrun": "a guess",
    "elapsed": "a guess: each running job is assumed to run as long again as it has",
}


@click.command(epilog=EPILOG)
@job_argument
@json_option
@common_options
@click.pass_obj
def why(settings: Settings, job: str) -> None:
    """Explain why a job is waiting and when it should start."""
    with settings.open() as workspace:
        store = workspace.store
        named = newest_named(settings, store, job)
        found = _next_member(store, named)
        decision = _decision(workspace.path, found)
        outlook = outlooks(workspace.path, [found], store=store)[found.id]
        earlier_s = earlier_runs(store, [found]).get(found.id)
        ahead = _named(store, workspace.path, decision)
        waits_for = _known_without_target(store, found) if decision is None else []
        outrun = _outrun(store, found)
    if settings.as_json:
        data = job_json(found, outlook, earlier_s=earlier_s)
        print_json(
            {
                **data,
                "decision": None if decision is None else decision.to_json(),
                "ahead": ahead,
                "waits_for": waits_for,
                "outrun": outrun,
            }
        )
        return
    if found.id != named.id:
        kind, part = ("pipeline", "step") if named.kind == "pipeline" else ("array", "member")
        article = "a" if kind == "pipeline" else "an"
        click.echo(
            f"{named.id} is {article} {kind}; this explains {name_of(found)}, its next {part}"
        )
    if found.state is JobState.QUEUED:
        number = f" (number {outlook.position} in the queue)" if outlook.position else ""
        click.echo(plain_text(f"{found.id} is {outlook.state}{number}: {outlook.reason}"))
        details = facts(_details(found, decision, ahead, waits_for))
        if details:
            click.echo(plain_text(details))
    elif found.state.is_final:
        click.echo(f"{found.id} is not waiting: it is {end_text(found)}")
    elif found.state is JobState.PROVISIONING and outlook.is_scaling:
        click.echo(f"{found.id} {outlook.reason}")
    else:
        rest = f": {outlook.reason}" if outlook.reason else ""
        click.echo(f"{found.id} is not waiting: it is {outlook.state}{rest}")
        if outrun is not None:
            click.echo(f"its end is a guess: {plain_text(outrun['text'])}")


def _next_member(store: Store, job: Job) -> Job:
    """Return the first waiting member of an array or step of a pipeline; any other job itself."""
    if job.kind not in ("array", "pipeline") or job.state.is_final:
        return job
    waiting = store.job_lines(
        JobFilter(parent=job.id, states=[JobState.QUEUED], limit=1, newest_first=False)
    )
    return store.job(waiting[0].id) if waiting else job


def _decision(workspace: Path, job: Job) -> JobDecision | None:
    """Return the decision of the target's policy about a job; None without an answer."""
    if job.state is not JobState.QUEUED:
        return None
    request = TargetRequest("explain", key=key_of(workspace, job))
    decision = _ask(job.target, request)
    if decision is None or (decision.rule == HELD) == (job.held is not None):
        return decision
    # The target sees a hold or its release a moment after the store has it.
    return _ask(job.target, replace(request, after_turn=True))


def _ask(target: str, request: TargetRequest) -> JobDecision | None:
    try:
        answer = ask_target(target, home(), request, ExplainAnswer, timeout_s=ANSWER_S)
    except TimeoutError:
        return None
    return None if answer is None else answer.decision


def _outrun(store: Store, job: Job) -> dict[str, Any] | None:
    """Return facts about the earlier runs if a running job takes longer than all; else None."""
    if job.state is not JobState.RUNNING or job.kind != "job" or job.started_at is None:
        return None
    entry = (job.experiment, job.spec.entry)
    known = store.usual_durations(job.target).get(entry)
    if known is None or (datetime.now(UTC) - job.started_at).total_seconds() <= known.longest_s:
        return None
    text = known.outrun_by(job.id, *entry)
    return {"runs": known.count, "longest_s": known.longest_s, "text": text}


def _named(store: Store, workspace: Path, decision: JobDecision | None) -> list[dict[str, Any]]:
    """Return the jobs ahead: jobs of this workspace by name, others by their workspace."""
    found = []
    for key in () if decision is None else decision.ahead:
        path, _, job_id = key.rpartition("::")
        one: dict[str, Any] = {"id": job_id, "workspace": path, "name": None, "user": None}
        if path == str(workspace):
            try:
                job = store.job(job_id)
            except NotFoundError:
                continue  # it has been pruned since
            one |= {"name": name_of(job), "user": job.user, "priority": job.priority}
            one["short_id"] = short_id(job)
        found.append(one)
    return found


def _known_without_target(store: Store, job: Job) -> list[str]:
    """Return what keeps a job from starting even if its target were running."""
    if job.state is not JobState.QUEUED:
        return []
    found = []
    if job.held is not None:
        found.append(f"its release (`rayjobs update {short_id(job)} --release`)")
    for dependency in job.spec.depends_on:
        try:
            parent = store.job(dependency.job)
        except NotFoundError:
            found.append(f"{dependency.job}, which was removed: the job will be canceled")
            continue
        if not parent.state.is_final:
            found.append(f"{parent.id} ({parent.state})")
    return found


def _details(
    job: Job,
    decision: JobDecision | None,
    ahead: list[dict[str, Any]],
    waits_for: list[str],
) -> list[tuple[str, str]]:
    if decision is None:
        return [("  Also waits for", "; ".join(waits_for))]
    lines = [("  Rule", decision.rule)]
    names = [
        f"{one['short_id']} {one['name']}"
        if one.get("short_id")
        else f"a job of {one['workspace']}"
        for one in ahead
    ]
    more = decision.position - 1 - len(names)
    if names:
        rest = f" and {more} more" if more > 0 else ""
        lines.append(("  Ahead of it", ", ".join(names) + rest))
    for number, node in enumerate(decision.free):
        lines.append(("  Free" if number == 0 else "      ", _free_text(node)))
    if decision.rule in ABOUT_CAPACITY:
        lines.append(("  Nearest fit", decision.nearest))
    lines.append(("  Starts", _estimate_text(decision)))
    lines.append(("  To start it now", decision.remedy))
    lines.append(("  Command", _command(job, decision.change)))
    return lines


def _command(job: Job, change: Mapping[str, float]) -> str:
    """Return the command whose change would start the job; empty if there is none."""
    options = {
        "max_duration_s": lambda value: f"--max-duration {duration_text(value, exact=True)}",
        "priority": lambda value: f"--priority {value:g}",
        "nodes": lambda value: f"--nodes {value:g}",
    }
    chosen = [options[name](value) for name, value in change.items() if name in options]
    return f"rayjobs update {short_id(job)} {' '.join(chosen)}" if chosen else ""


def _free_text(node: FreeNode) -> str:
    text = f"{node.free_cpus:g} of {node.cpus:g} CPUs"
    if node.gpus:
        text += f", {node.free_gpus:g} of {node.gpus:g} GPUs"
    if node.memory:
        text += f", {size_text(node.free_memory)} of {size_text(node.memory)}"
    return f"{text} on {node.node_id[:12]}"


def _estimate_text(decision: JobDecision) -> str:
    estimate_s, latest_s, source = decision.estimate_s, decision.latest_s, decision.source
    parts = []
    if estimate_s is not None:
        basis = BASES.get(decision.basis, decision.basis)
        if source:
            basis = f"a guess: {source}" if decision.basis == "outrun" else f"from {source}"
        parts.append(f"in about {duration_text(estimate_s)}" + (f" ({basis})" * bool(basis)))
    if latest_s is not None:
        parts.append(f"within {duration_text(latest_s)} at the latest")
    return ", ".join(parts) or (
        "unknown (no duration history for the jobs ahead)"
        if decision.basis == "unknown"
        else "unknown"
    )
