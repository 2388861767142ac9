"""`rayjobs show`: show everything about a job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from rayjobs.cli.jobviews import (
    attempt_json,
    attempt_times,
    bounded_runs,
    earlier_runs,
    job_json,
    ran_s,
    ran_text,
    short_id,
    waited_s,
)
from rayjobs.cli.naming import newest_named
from rayjobs.cli.outlook import Outlook, members_text, outlooks
from rayjobs.cli.output import facts, local_time, print_json, state_colour
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.summary import left_out, stored_later
from rayjobs.core.failures import signal_name
from rayjobs.core.terminal import plain_text
from rayjobs.core.text import GIB, counted, duration_text, size_text
from rayjobs.data.made import OutputLocation, outputs_stored
from rayjobs.data.pins import InputRead, inputs_read
from rayjobs.jobs.events import ModelRefused
from rayjobs.jobs.hosts import described
from rayjobs.jobs.records import INTERACTIVE, Attempt, Job, name_of
from rayjobs.jobs.states import JobState
from rayjobs.results.gone import why_gone
from rayjobs.results.merged_logs import rank_set
from rayjobs.results.metrics import number_text, summaries
from rayjobs.results.usage import peak_bytes, records_of
from rayjobs.snapshots import git
from rayjobs.workspace.folder import OpenWorkspace

METRICS_SHOWN = 20
EPILOG = """\b
Examples:
  rayjobs show 1f3c
  rayjobs show --json 1f3c | jq .attempts
"""


@click.command(epilog=EPILOG)
@job_argument
@click.option("--diff", is_flag=True, help="Print only its recorded uncommitted changes.")
@click.option("--packages", is_flag=True, help="Print only the packages it ran with.")
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, job: str, diff: bool, packages: bool) -> None:
    """Show a job: its script, state, cause of failure, metrics and files.

    With -v also its settings and each attempt: its nodes, hardware, and how each rank ended.
    """
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        if diff:
            _print_diff(settings, workspace, found)
            return
        if packages:
            listed = _packages(workspace, workspace.store.attempts(found.id))
            click.echo("\n".join(listed)) if listed else settings.note("no packages are recorded")
            return
        outlook = outlooks(workspace.path, [found], store=workspace.store)[found.id]
        attempts = workspace.store.attempts(found.id)
        earlier_s = earlier_runs(workspace.store, [found]).get(found.id)
        at_most = bool(bounded_runs(workspace.store, [found], {found.id: outlook}))
        if settings.as_json:
            print_json(_as_json(workspace, found, outlook, attempts, earlier_s, at_most))
            return
        inputs = inputs_read(workspace.store, found)
        lost = left_out(workspace.store, found)
        gone = why_gone(workspace.store, found)
        revision = _revision(workspace.store.revision(found.id))
        outputs = outputs_stored(workspace.store, found)
        data = [*_input_lines(inputs), *_output_lines(outputs)]
        head = _head(found, outlook, attempts, data, earlier_s, at_most, lost)
        if gone:
            head.append(("Gone", plain_text(gone)))
        if stored_later(workspace.store, found):
            head.append(("Stored", "its outputs, after its end (`rayjobs store`)"))
        colour = state_colour(outlook.state) if settings.colours() else None
        click.echo(facts([*head, *revision], colours={"State": colour}))
        sections = [
            _failure(found),
            _metrics(workspace, found),
            _files(workspace, found),
            _models(workspace, found),
        ]
        if settings.verbose:
            sections += [
                _section("Runs", _spec_facts(found)),
                *[_attempt(attempt, found) for attempt in attempts],
            ]
        for section in sections:
            if section:
                click.echo("\n" + section)
        if found.kind == "pipeline":
            settings.note(f"\nits graph and steps: rayjobs pipeline show {short_id(found)}")
        elif not settings.verbose:
            settings.note(f"\nsettings and attempts: rayjobs show -v {short_id(found)}")


def _print_diff(settings: Settings, workspace: OpenWorkspace, job: Job) -> None:
    """Print how tracked files differed from the commit when the job was submitted."""
    known = git.of_properties(job.properties) or {}
    digest = known.get("diff")
    if digest is None:
        why = known.get("why") or (
            "it has no uncommitted changes" if known.get("dirty") is False else "none is recorded"
        )
        settings.note(f"{job.id} has no recorded diff: {why}")
        return
    click.echo(workspace.store.catalogue.manifest(str(digest)).decode(), nl=False)
    if known.get("diff_truncated"):
        settings.note("the recorded diff ends here; the rest was above the limit")
    for sentence in known.get("diff_left_out", ()):
        settings.note(f"left out: {sentence}")


def _as_json(
    workspace: OpenWorkspace,
    job: Job,
    outlook: Outlook,
    attempts: list[Attempt],
    earlier_s: float | None,
    at_most: bool,
) -> dict[str, Any]:
    store = workspace.store
    return {
        **job_json(job, outlook, earlier_s=earlier_s, at_most=at_most),
        "workspace": str(workspace.path),
        "spec": job.spec.model_dump(mode="json"),
        "revision": store.revision(job.id),
        "git": git.of_properties(job.properties),
        "inputs": [one.to_json() for one in inputs_read(store, job)],
        "outputs": [asdict(one) for one in outputs_stored(store, job)],
        "attempts": [attempt_json(attempt) for attempt in attempts],
        "packages": _packages(workspace, attempts),
        "metrics": {one.name: one.last for one in summaries(store.metrics(job.id))},
        "files": [
            {"name": one.name, "size": one.size, "digest": one.digest, "attempt": one.attempt}
            for one in store.files(job.id)
        ],
        "models": [
            {"name": one.name, "version": one.version, "path": one.path}
            for one in store.models(run=job.id)
        ],
        "models_refused": [one.to_json() for one in _refused(workspace, job)],
    }


def _head(
    job: Job,
    outlook: Outlook,
    attempts: list[Attempt],
    data: list[tuple[str, str]],
    earlier_s: float | None,
    at_most: bool,
    lost: list[str],
) -> list[tuple[str, str]]:
    number = f" (number {outlook.position} in the queue)" if outlook.position else ""
    shows_reason = job.failure is None and job.state is not JobState.COMPLETED
    ran = ran_s(job, earlier_s=earlier_s)
    return [
        ("Job", job.id),
        ("Name", name_of(job)),
        ("Description", plain_text(job.description)),
        ("Script" if job.spec.script else "Command", _what(job)),
        ("Processes", _processes(job) if job.spec.distribution.world_size > 1 else ""),
        ("State", f"{outlook.state}{number}"),
        ("Reason", _reason(job, outlook) if shows_reason else ""),
        ("Trial", plain_text(outlook.trial)),
        ("Held", plain_text(job.held) if job.held else ""),
        (
            "Members",
            members_text(outlook.members) if outlook.members and job.kind == "array" else "",
        ),
        ("Git", plain_text(git.one_line(git.of_properties(job.properties) or {}))),
        *data,
        *[("Left out", sentence) for sentence in lost],
        *[("Substitute", str(one)) for one in job.spec.substitutes],
        ("Resumes from", job.spec.resume_from or ""),
        ("Array", _array_text(job)),
        ("After", ", ".join(f"{one.job} ({one.when})" for one in job.spec.depends_on)),
        ("Experiment", job.experiment),
        ("Target", job.target),
        ("User", job.user),
        ("Priority", str(job.priority) if job.priority else ""),
        ("Attempts", str(job.attempt) if job.attempt > 1 else ""),
        ("Parent", job.parent or ""),
        ("Index", "" if job.array_index is None else str(job.array_index)),
        ("Submitted", local_time(job.submitted_at)),
        ("Started", local_time(job.started_at) if job.started_at else ""),
        ("Ended", local_time(job.ended_at) if job.ended_at else ""),
        ("Waited", duration_text(waited_s(job, earlier_s=earlier_s))),
        ("Ran", ran_text(ran, at_most=at_most) if ran is not None else ""),
        ("Peak memory", _peak_memory(job, attempts)),
        ("Tags", ", ".join(f"{key}={value}" for key, value in job.tags.items())),
        (
            "Properties",
            ", ".join(
                f"{key}={value}"
                for key, value in job.properties.items()
                if not key.startswith(git.PREFIXES)
            ),
        ),
    ]


def _processes(job: Job) -> str:
    shape = job.spec.distribution
    return f"{shape.nodes} × {shape.processes_per_node} ({shape.backend})"


def _revision(number: int) -> list[tuple[str, str]]:
    if number == 1:
        return []
    return [("Revision", f"{number} (`rayjobs events` lists the changes)")]


def _spec_facts(job: Job) -> list[tuple[str, str]]:
    spec = job.spec
    each = spec.resources
    resources = counted(each.cpus, "CPU")
    if each.gpus:
        resources += f", {counted(each.gpus, 'GPU')}"
    if each.memory_gib:
        resources += f", {size_text(each.memory_gib * GIB)}"
    limit = spec.max_duration_s
    return [
        ("Source", spec.source_directory or ""),
        ("Snapshot", job.snapshot or ""),
        ("Environment", spec.environment_text),
        ("Image", spec.container_text),
        ("Variables", ", ".join(spec.environment_variables)),
        ("Secrets", ", ".join(spec.secrets)),
        ("Processes", "" if spec.distribution.world_size > 1 else _processes(job)),
        ("Each has", resources),
        ("Limit", duration_text(limit, exact=True) if limit else "none"),
        *[(f"Output {name}", one.destination) for name, one in spec.outputs.items()],
    ]


def _array_text(job: Job) -> str:
    array = job.spec.array
    if array is None:
        return ""
    return array.indices if array.limit is None else f"{array.indices}, {array.limit} at a time"


def _input_lines(inputs: Sequence[InputRead]) -> list[tuple[str, str]]:
    """Return a line for each input, and one for each whose files have changed."""
    return [
        *[(f"Input {one.name}", _input_text(one)) for one in inputs],
        *[("Changed", one.changed) for one in inputs if one.changed],
    ]


def _input_text(one: InputRead) -> str:
    """Describe an input, and its bytes once a node has it."""
    text, got = f"{one.source} ({one.mode})", one.provided
    if got is None:
        return text
    version = got.version if got.version not in ("", one.source.partition(":")[2]) else ""
    size = f", {counted(got.files, 'file')}, {size_text(got.bytes or 0)}" if got.files else ""
    return f"{text}: {got.how}{size}" + (f", {version}" if version else "")


def _output_lines(outputs: Sequence[OutputLocation]) -> list[tuple[str, str]]:
    """Return a line for each output: where it is, and what was stored there."""
    return [
        (
            f"Output {one.name}",
            f"{one.stored_at} (not stored yet)"
            if one.files is None or one.bytes is None
            else f"{one.stored_at}: {counted(one.files, 'file')}, {size_text(one.bytes)}",
        )
        for one in outputs
    ]


def _what(job: Job) -> str:
    spec = job.spec
    if job.kind == INTERACTIVE:
        return "none: an interactive run, which a process logs into"
    return plain_text(spec.command or shlex.join([spec.script or "", *spec.arguments]))


def _reason(job: Job, outlook: Outlook) -> str:
    if job.state is not JobState.CANCELED:
        return plain_text(outlook.reason)
    at = local_time(job.cancel_requested_at or job.ended_at)
    return plain_text(outlook.reason_at(f"at {at}"))


def _peak_memory(job: Job, attempts: list[Attempt]) -> str:
    """Return the peak memory of a node in the newest attempt with records."""
    for attempt in reversed(attempts):
        peak = peak_bytes(attempt)
        if peak is not None:
            where = (
                "all processes of the busiest node" if len(attempt.hosts) > 1 else "all processes"
            )
            # A fork shares the packages that its warm interpreter has loaded; they count too.
            is_cold = job.spec.cold or attempt.cold_reason
            loaded = "" if is_cold else ", with the preloaded packages"
            return f"{size_text(peak)} ({where}{loaded})"
    return ""


def _section(title: str, pairs: list[tuple[str, str]]) -> str:
    body = facts([(f"  {name}", value) for name, value in pairs if value])
    return f"{title}\n{body}" if body else ""


def _attempt(attempt: Attempt, job: Job) -> str:
    nodes = []
    shape = job.spec.distribution
    for host in attempt.hosts:
        number = host.node
        node = f"node {number}"
        if shape.world_size > 1:
            first = number * shape.processes_per_node
            node += f" ({rank_set(range(first, first + shape.processes_per_node))})"
        nodes.append(f"{node}: {host.node_id[:12]} pid {host.pid or '-'}")
    failure = attempt.failure
    return _section(
        f"Attempt {attempt.number}",
        [
            ("Outcome", attempt.outcome),
            ("Created", local_time(attempt.created_at)),
            ("Started", local_time(attempt.started_at) if attempt.started_at else ""),
            ("Took", attempt_times(attempt)),
            *_ran_on(attempt),
            ("Used", _used(attempt)),
            ("Allocation", attempt.allocation or ""),
            ("Where", "; ".join(nodes)),
            ("Ranks", _ends(attempt) if shape.world_size > 1 else ""),
            ("Folder", attempt.hosts[0].root if attempt.hosts else ""),
            ("Cold start", attempt.cold_reason or ""),
            ("Failure", plain_text(failure.message) if failure else ""),
        ],
    )


def _used(attempt: Attempt) -> str:
    """Return an attempt's peak memory, and its CPU time over all nodes."""
    parts = []
    peak = peak_bytes(attempt)
    if peak is not None:
        parts.append(f"peak memory {size_text(peak)}")
    cpu_s = sum(found.cpu_s for _, found in records_of(attempt))
    if cpu_s:
        parts.append(f"{duration_text(cpu_s)} of CPU time")
    return ", ".join(parts)


def _ran_on(attempt: Attempt) -> list[tuple[str, str]]:
    """Return what an attempt ran on; identical nodes are grouped."""
    rows: list[tuple[str, str]] = []
    for what, number in (("Runs on", 0), ("Machine", 1)):
        texts: dict[str, list[int]] = {}
        for host in attempt.hosts:
            if host.facts is not None:
                text = plain_text(described(host.facts.known())[number])
                texts.setdefault(text, []).append(host.node)
        for text, nodes in texts.items():
            numbers = ", ".join(str(node) for node in nodes)
            rows.append((what, text if len(texts) == 1 else f"node {numbers}: {text}"))
    return rows


def _packages(workspace: OpenWorkspace, attempts: list[Attempt]) -> list[str]:
    """Return the packages of the newest attempt's first node, as requirements."""
    for attempt in reversed(attempts):
        for host in attempt.hosts:
            if host.facts is not None and host.facts.packages is not None:
                content = json.loads(workspace.store.catalogue.manifest(host.facts.packages))
                return [f"{name}=={version}" for name, version in content]
    return []


def _ends(attempt: Attempt) -> str:
    """Return how each rank ended; ranks that ended in the same way are grouped."""
    ends: dict[str, list[int]] = {}
    for record in attempt.exits:
        for one in record.ranks:
            end = f"exit code {one.exit_code}"
            if one.signal is not None:
                end = signal_name(one.signal)
            ends.setdefault(end, []).append(one.rank)
    return "; ".join(f"{rank_set(sorted(ranks))}: {end}" for end, ranks in ends.items())


def _failure(job: Job) -> str:
    failure = job.failure
    if failure is None:
        return ""
    where = f", rank {failure.rank}" if failure.rank is not None else ""
    lines = [f"Failure ({failure.failure_class}{where})", f"  {plain_text(failure.message)}"]
    return "\n".join([*lines, *(f"    {plain_text(line)}" for line in failure.lines)])


def _metrics(workspace: OpenWorkspace, job: Job) -> str:
    measured = summaries(workspace.store.metrics(job.id), width=30)
    pairs = [
        (one.name, f"{number_text(one.last)}  {one.line}".rstrip())
        for one in measured[:METRICS_SHOWN]
    ]
    if len(measured) > METRICS_SHOWN:
        pairs.append(("…", f"and {len(measured) - METRICS_SHOWN} more: `rayjobs metrics`"))
    return _section("Metrics", pairs)


def _files(workspace: OpenWorkspace, job: Job) -> str:
    stored = workspace.store.files(job.id)
    if not stored:
        return ""
    size = size_text(sum(one.size for one in stored))
    return f"Files\n  {len(stored)} ({size}): `rayjobs files`, `rayjobs download`"


# Events of a sweep that explain why its best trial is not a model.
_NO_MODEL = frozenset({"not_registered", "model_missing"})


def _models(workspace: OpenWorkspace, job: Job) -> str:
    """Return the models registered from the run, and the registrations that were refused."""
    made = workspace.store.models(run=job.id)
    return _section(
        "Models",
        [
            *[(f"{one.name}:{one.version}", one.path) for one in made],
            *[
                (one.name, plain_text(f"not registered: {one.why}"))
                for one in _refused(workspace, job)
            ],
            *[
                ("-", plain_text(event.message))
                for event in (workspace.store.events(job.id) if job.kind == "sweep" else ())
                if event.kind in _NO_MODEL
            ],
        ],
    )


def _refused(workspace: OpenWorkspace, job: Job) -> list[ModelRefused]:
    """Return what was refused at the run's end and has not been registered by hand since."""
    made = {(one.name, one.path) for one in workspace.store.models(run=job.id)}
    refused = (ModelRefused.of(event) for event in workspace.store.events(job.id))
    return [one for one in refused if one is not None and (one.name, one.path) not in made]
