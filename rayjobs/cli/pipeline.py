"""`rayjobs pipeline`: run steps that pass data to each other."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit, of_job
from rayjobs.cli.jobviews import end_text, job_json, short_id
from rayjobs.cli.naming import newest_named
from rayjobs.cli.outlook import outlooks, state_now, waits_for_first
from rayjobs.cli.output import ago_text, facts, print_json, state_colour, table
from rayjobs.cli.params import JobId, pairs
from rayjobs.cli.pipeline_schedule import schedule
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option, quiet_option
from rayjobs.cli.unknown_names import require_experiment
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.terminal import plain_text
from rayjobs.core.text import counted, duration_text
from rayjobs.core.users import user_name

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job, Pipeline, PublishedRecord
    from rayjobs.pipelines.planning import PlannedRun
    from rayjobs.pipelines.submitter import SubmittedPipeline
    from rayjobs.pipelines.views import StepView
    from rayjobs.workspace.folder import OpenWorkspace

RUN = click.argument("run", metavar="RUN", type=JobId())
FINISHED_SHOWN = 10
LOOK_EVERY_S = 0.2
OUTLOOK_EVERY_S = 1.0

EPILOG = """\b
Examples:
  rayjobs pipeline run -f pipeline.yaml -p epochs=5
  rayjobs pipeline show 1f3c
  rayjobs pipeline why-rerun 1f3c train

A step is a job: `rayjobs ls --parent 1f3c`, `rayjobs logs JOB`.
"""


@click.group(cls=CommandList, epilog=EPILOG)
def pipeline() -> None:
    """Run steps that pass data to each other; unchanged ones are not run again."""


@pipeline.command(
    epilog="\b\nExamples:\n  rayjobs pipeline run -f pipeline.yaml\n"
    "  rayjobs pipeline run -f pipeline.yaml -p epochs=5 -d\n"
    "  rayjobs pipeline run -f pipeline.yaml --dry-run\n"
)
@click.argument("extra", nargs=-1, metavar="")
@click.option("-f", "--file", metavar="FILE", help="A pipeline file.")
@click.option("--published", metavar="PIPELINE", help="Or a published pipeline, by id or name.")
@click.option("-e", "--experiment", metavar="NAME", help="Experiment (default: the name).")
@click.option("-p", "--parameter", metavar="NAME=VALUE", multiple=True, help="Set a parameter.")
@click.option("--regenerate", is_flag=True, help="Run every step; reuse nothing.")
@click.option(
    "--continue-on-failure",
    is_flag=True,
    help="After a failure, run the steps that do not depend on the failed one.",
)
@click.option("-d", "--detach", is_flag=True, help="Return at once; do not follow the run.")
@click.option("--attach", is_flag=True, help="Follow the run even without a terminal.")
@click.option("--dry-run", is_flag=True, help="Show the graph and what is reused; submit nothing.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="A repeated call with the same key returns the first run.",
)
@quiet_option("Print only the id; do not follow the run.")
@json_option
@common_options
@click.pass_obj
def run(
    settings: Settings,
    extra: tuple[str, ...],
    file: str | None,
    published: str | None,
    experiment: str | None,
    parameter: tuple[str, ...],
    regenerate: bool,
    continue_on_failure: bool,
    detach: bool,
    attach: bool,
    dry_run: bool,
    idempotency_key: str | None,
) -> int:
    """Submit the pipeline in FILE. On a terminal the command follows it; Ctrl-C detaches."""
    from rayjobs.pipelines.pipeline_file import load_pipeline
    from rayjobs.pipelines.submitter import RunRequest, submit_pipeline

    if extra:
        raise click.UsageError(
            f"{extra[0]!r} needs an option. Name a pipeline file with -f ({extra[0]}), a published "
            "pipeline with --published, a parameter with -p NAME=VALUE."
        )
    if attach and (detach or settings.quiet or settings.as_json):
        raise click.UsageError("--attach cannot be combined with -d, -q or --json.")
    if (file is None) == (published is None):
        raise click.UsageError("give a pipeline: -f FILE, or --published PIPELINE.")
    spec = None if file is None else load_pipeline(file)
    values = pairs(parameter, option="-p", example="epochs=5")
    with settings.open(create=spec is not None) as workspace:
        source: str | None = None
        if spec is None:
            from rayjobs.pipelines.published import definition_of

            record = workspace.store.published_pipeline(str(published))
            spec, source = definition_of(record), record.id
        if dry_run:
            from rayjobs.pipelines.planning import Packer, plan

            with _problems_of(file):
                planned = plan(
                    workspace,
                    spec,
                    experiment=experiment or spec.name,
                    values=values,
                    regenerate=regenerate,
                    packer=Packer(workspace, stores=False),
                )
            return _show_plan(settings, planned)
        with _problems_of(file):
            done = submit_pipeline(
                workspace,
                spec,
                RunRequest(
                    experiment=experiment,
                    values=values,
                    regenerate=regenerate,
                    continues=continue_on_failure or None,
                    published=source,
                    idempotency_key=idempotency_key,
                ),
            )
        return _submitted(settings, workspace, done, detach=detach, attach=attach)


@contextlib.contextmanager
def _problems_of(file: str | None) -> Iterator[None]:
    """Add the file's name to an error about its contents."""
    from rayjobs.pipelines.spec import PipelineError

    try:
        yield
    except PipelineError as error:
        if file is None or not error.problems:
            raise
        count = counted(len(error.problems), "problem")
        raise PipelineError(f"{file} has {count}", problems=error.problems) from None


@pipeline.command(
    epilog="\b\nExamples:\n  rayjobs pipeline publish -f pipeline.yaml\n"
    "  rayjobs pipeline run --published digits -p epochs=5\n"
)
@click.option("-f", "--file", metavar="FILE", required=True, help="A pipeline file.")
@click.option("--name", metavar="NAME", help="Name (default: the pipeline's).")
@click.option("--label", metavar="TEXT", help="A label for this version.")
@json_option
@common_options
@click.pass_obj
def publish(settings: Settings, file: str, name: str | None, label: str | None) -> None:
    """Store the pipeline in FILE with its code, so that it can be run by id or name."""
    from rayjobs.pipelines.pipeline_file import load_pipeline
    from rayjobs.pipelines.published import publish as publish_pipeline

    spec = load_pipeline(file)
    with settings.open(create=True) as workspace, _problems_of(file):
        record = publish_pipeline(
            workspace, spec, name=name or spec.name, version=label, description=spec.description
        )
    if settings.as_json:
        print_json(published_json(record))
        return
    click.echo(record.id)
    settings.note(f"run it: rayjobs pipeline run --published {record.name}")


@pipeline.command(epilog="\b\nExample:\n  rayjobs pipeline resume 1f3c\n")
@RUN
@click.option("-d", "--detach", is_flag=True, help="Return at once; do not follow the run.")
@click.option("--attach", is_flag=True, help="Follow the run even without a terminal.")
@quiet_option("Print only the id; do not follow the run.")
@json_option
@common_options
@click.pass_obj
def resume(settings: Settings, run: str, detach: bool, attach: bool) -> int:
    """Run a failed or canceled pipeline again; steps that completed are not repeated."""
    from rayjobs.pipelines.submitter import resume_pipeline

    with settings.open() as workspace:
        found = find_pipeline(settings, workspace, run)
        done = resume_pipeline(workspace, found.job.id)
        return _submitted(settings, workspace, done, detach=detach, attach=attach)


@pipeline.command(epilog="\b\nExample:\n  rayjobs pipeline ls\n")
@click.option("-a", "--all", "show_all", is_flag=True, help="All runs, including old ones.")
@click.option("-e", "--experiment", metavar="NAME", help="Only runs of this experiment.")
@click.option("--published", is_flag=True, help="List published pipelines instead of runs.")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, show_all: bool, experiment: str | None, published: bool) -> None:
    """List runs of pipelines, newest first."""
    with settings.open() as workspace:
        if published:
            _list_published(settings, workspace.store.published_pipelines(active=not show_all))
            return
        limit = None if show_all else FINISHED_SHOWN
        found = workspace.store.pipelines(experiment=experiment, limit=limit)
        counts = workspace.store.member_counts([one.job.id for one in found])
        if not found:
            require_experiment(workspace.store, experiment)
    if settings.as_json:
        print_json(
            [
                {**job_json(one.job), "steps": {str(k): n for k, n in counts[one.job.id].items()}}
                for one in found
            ]
        )
        return
    if not found:
        settings.note("No pipelines yet. Start one: rayjobs pipeline run -f pipeline.yaml")
        return
    rows, colours = [], []
    for one in found:
        by_state = counts[one.job.id]
        ended = sum(n for state, n in by_state.items() if state.is_final)
        state = str(state_now(one.job))
        rows.append(
            (
                short_id(one.job),
                one.job.spec.name,
                state,
                ago_text(one.job.submitted_at),
                f"{ended}/{sum(by_state.values())}",
                "" if one.job.state == "Completed" else end_reason(one.job),
            )
        )
        colours.append(
            [None, None, state_colour(state) if settings.colours() else None] + [None] * 3
        )
    header = ("ID", "NAME", "STATE", "SUBMITTED", "STEPS", "")
    click.echo(table(rows, header, right=(4,), colours=colours))


@pipeline.command(
    epilog="\b\nExamples:\n  rayjobs pipeline show 1f3c\n  rayjobs pipeline show --json 1f3c\n"
    "  rayjobs pipeline show 1f3c --plot graph.svg\n"
)
@RUN
@click.option("--plot", metavar="FILE", help="Draw the graph into FILE (.svg, .png or .pdf).")
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, run: str, plot: str | None) -> None:
    """Draw a run's graph with the states and times of its steps."""
    from rayjobs.pipelines.views import critical_path, views_of

    with settings.open() as workspace:
        found = find_pipeline(settings, workspace, run)
        views = views_of(workspace, found)
        head = "" if settings.as_json else _head(settings, workspace, found)
    path = critical_path(views)
    if plot is not None:
        _draw(settings, found, views, plot)
    if settings.as_json:
        print_json(
            {
                **job_json(found.job),
                "parameters": dict(found.parameters),
                "continues": found.continues,
                "critical_path": path,
                "steps": [step_json(view) for view in views],
            }
        )
        return
    click.echo(head)
    click.echo("\n" + _steps_table(settings, found, views))
    if found.job.state.is_final and len(path) > 1:
        total = sum(view.ran_s for view in views if view.name in path)
        click.echo(f"\nCritical path: {' → '.join(path)} (ran {duration_text(total)})")


@pipeline.command(
    "why-rerun",
    epilog="\b\nExamples:\n  rayjobs pipeline why-rerun 1f3c train\n"
    "  rayjobs pipeline why-rerun 1f3c        all steps\n",
)
@RUN
@click.argument("step", required=False, metavar="[STEP]")
@json_option
@common_options
@click.pass_obj
def why_rerun(settings: Settings, run: str, step: str | None) -> None:
    """Explain why steps ran again or were reused, with the parts that differ."""
    from rayjobs.pipelines.explaining import explained

    with settings.open() as workspace:
        found = find_pipeline(settings, workspace, run)
        rows = workspace.store.steps(found.job.id)
        names = [one.name for one in rows]
        if step is not None and step not in names:
            raise NotFoundError(
                f"{found.job.id} has no step {step!r}; it has: {', '.join(names)}", step=step
            )
        reasons = [explained(workspace, one) for one in rows if step in (None, one.name)]
    if settings.as_json:
        print_json([one.to_json() for one in reasons])
        return
    for one in reasons:
        click.echo(f"{one.step}: {one.reason}")
        for difference in one.differences:
            click.echo(f"  {difference.part}")
            for line in difference.lines:
                click.echo(f"    {plain_text(line)}")


@pipeline.command(epilog="\b\nExample:\n  rayjobs pipeline watch 1f3c\n")
@RUN
@common_options
@click.pass_obj
def watch(settings: Settings, run: str) -> int:
    """Follow a run until it ends; exits with its result. Ctrl-C detaches."""
    with settings.open() as workspace:
        found = find_pipeline(settings, workspace, run)
        return stay(settings, workspace, found.job.id, start_target=False)


@pipeline.command(epilog="\b\nExample:\n  rayjobs pipeline cancel 1f3c\n")
@RUN
@json_option
@common_options
@click.pass_obj
def cancel(settings: Settings, run: str) -> None:
    """Cancel a run: its waiting steps never start, its running ones end.

    A name stands for the only run with that name that has not ended.
    """
    from rayjobs.cli.waking import wake_quietly
    from rayjobs.pipelines.views import views_of

    with settings.open() as workspace:
        found = _open_one(settings, workspace, run)
        before = found.job
        targets = dict.fromkeys(
            view.job.target for view in views_of(workspace, found) if not view.is_final
        )
        state = workspace.store.request_cancel(before.id, by=user_name())
        if not state.is_final:
            for target in targets:
                wake_quietly(target, workspace.path)
    if settings.as_json:
        print_json({"id": before.id, "state": state, "was": before.state})
    elif before.state.is_final:
        click.echo(f"{before.id} has already ended ({before.state})")
    elif state.is_final:
        click.echo(f"{before.id}: {state}")
    else:
        click.echo(f"{before.id}: cancel requested (still {state})")


pipeline.add_command(schedule)


# -- shared ------------------------------------------------------------------------------------


def find_pipeline(
    settings: Settings, workspace: OpenWorkspace, text: str, *, strict: bool = False
) -> Pipeline:
    """Return the pipeline run that `text` names, looking only among pipeline runs.

    Args:
        settings: The options of this call.
        workspace: The workspace of the run.
        text: An id, a prefix of one, or a name.
        strict: Refuse a name that several runs have; otherwise take the newest, with a note.

    Raises:
        NotFoundError: there is no such run, or `text` names another kind of job.
        UsageError: `text` names several.
    """
    store = workspace.store
    try:
        if strict:
            found = store.find(text, kind="pipeline")
        else:
            found = newest_named(settings, store, text, kind="pipeline")
    except NotFoundError as error:
        try:
            found = store.find(text)  # a single job: `pipeline` refuses it if it is not a pipeline
        except (NotFoundError, UsageError):
            raise error from None
    return store.pipeline(found.id)


def _open_one(settings: Settings, workspace: OpenWorkspace, text: str) -> Pipeline:
    """Return the run that `text` names; of several, the only one that has not ended.

    Raises:
        NotFoundError, UsageError: see `find_pipeline`.
    """
    try:
        return find_pipeline(settings, workspace, text, strict=True)
    except UsageError as error:
        states = workspace.store.job_states(error.values.get("matches", ()))
        unfinished = [job for job, state in states.items() if not state.is_final]
        if len(unfinished) != 1:
            raise
        return workspace.store.pipeline(unfinished[0])


def end_reason(job: Job) -> str:
    """Return the reason for a run's state, on one line."""
    text = job.failure.message if job.failure is not None else job.reason
    return " ".join(plain_text(text).split())


def published_json(record: PublishedRecord) -> dict[str, Any]:
    """Return a published pipeline as JSON data; its keys are part of the contract."""
    return {
        "id": record.id,
        "name": record.name,
        "version": record.version,
        "description": record.description,
        "is_active": record.is_active,
        "created_by": record.created_by,
        "created_at": record.created_at,
        "parameters": {name: one.get("default") for name, one in record.spec["parameters"].items()},
    }


def _list_published(settings: Settings, found: list[PublishedRecord]) -> None:
    if settings.as_json:
        print_json([published_json(one) for one in found])
        return
    if not found:
        settings.note("No published pipelines. Publish one: rayjobs pipeline publish -f FILE")
        return
    rows = [
        (
            one.id[:12],
            one.name,
            one.version or "-",
            "active" if one.is_active else "disabled",
            ago_text(one.created_at),
            one.description,
        )
        for one in found
    ]
    click.echo(table(rows, ("ID", "NAME", "VERSION", "STATUS", "PUBLISHED", "")))


def step_json(view: StepView) -> dict[str, Any]:
    """Return a step as JSON data; its keys are part of the command line's contract."""
    return {
        **job_json(view.job),
        "step": view.name,
        "status": view.status,
        "after": list(view.row.after),
        "original": view.row.original,
        "decision": dict(view.row.decision),
    }


def _head(settings: Settings, workspace: OpenWorkspace, found: Pipeline) -> str:
    reason = end_reason(found.job)
    if not found.job.state.is_final and not reason:
        reason = outlooks(workspace.path, [found.job])[found.job.id].reason
    state = str(state_now(found.job))
    values = ", ".join(f"{name}={value}" for name, value in found.parameters.items())
    return facts(
        [
            ("Pipeline", found.job.id),
            ("Name", found.job.spec.name),
            ("Experiment", found.job.experiment),
            ("State", state),
            ("Reason", reason),
            ("Parameters", values),
        ],
        colours={"State": state_colour(state) if settings.colours() else None},
    )


def _draw(settings: Settings, found: Pipeline, views: list[StepView], plot: str) -> None:
    from pathlib import Path

    from rayjobs.pipelines.graph import graph_of
    from rayjobs.pipelines.plot import write_plot
    from rayjobs.pipelines.spec import read_pipeline

    order = graph_of(read_pipeline(found.spec)).order
    title = f"{found.job.spec.name}  {found.job.id}  {state_now(found.job)}"
    settings.note(f"wrote the plot to {write_plot(Path(plot), views, order, title=title)}")


def _steps_table(settings: Settings, found: Pipeline, views: list[StepView]) -> str:
    from rayjobs.pipelines.drawing import cells_of
    from rayjobs.pipelines.graph import graph_of
    from rayjobs.pipelines.spec import read_pipeline

    by_name = {view.name: view for view in views}
    order = graph_of(read_pipeline(found.spec)).order
    before = {name: by_name[name].row.after for name in order if name in by_name}
    cells = cells_of(before, {name: by_name[name].status for name in before})
    rows, colours = [], []
    for cell, name in cells:
        view = by_name[name]
        rows.append(
            (
                cell,
                view.status,
                duration_text(view.waited_s) if view.row.original is None else "-",
                duration_text(view.ran_s) if view.job.started_at and not view.row.original else "-",
                short_id(view.job),
                "" if view.job.state == "Completed" and not view.row.original else _why(view),
            )
        )
        colour = state_colour(str(view.job.state)) if settings.colours() else None
        colours.append([None, colour, None, None, None, None])
    header = ("STEP", "STATE", "WAITED", "RAN", "JOB", "")
    return table(rows, header, right=(2, 3), colours=colours)


def _why(view: StepView) -> str:
    if view.row.original is not None:
        return f"reused from {view.row.original}"
    if view.job.failure is not None:
        return " ".join(plain_text(view.job.failure.message).split())
    return " ".join(view.job.reason.split())


def _show_plan(settings: Settings, planned: PlannedRun) -> int:
    from rayjobs.pipelines.drawing import cells_of

    before = {name: planned.graph.before(name) for name in planned.graph.order}
    by_name = {one.name: one for one in planned.steps}
    reused = {one.name for one in planned.reused}
    if settings.as_json:
        print_json(
            {
                "pipeline": planned.spec.name,
                "parameters": dict(planned.values),
                "steps": [
                    {
                        "step": one.name,
                        "after": list(before[one.name]),
                        "reused": one.name in reused,
                        **one.decision.to_json(),
                    }
                    for one in planned.steps
                ],
                "warnings": planned.warnings,
            }
        )
        return Exit.DONE
    statuses = {name: "Reused" if name in reused else "Queued" for name in before}
    rows = [
        (
            cell,
            "reused" if name in reused else "runs",
            by_name[name].decision.cause,
        )
        for cell, name in cells_of(before, statuses)
    ]
    click.echo(table(rows, ("STEP", "", "")))
    _warn(settings, planned.warnings)
    settings.note(
        f"{counted(len(planned.steps), 'step')}: {len(reused)} reused, "
        f"{len(planned.steps) - len(reused)} would run. Nothing was submitted"
    )
    return Exit.DONE


def _warn(settings: Settings, warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        settings.note(f"{settings.style('warning', 'yellow', err=True)}: {warning}")


def _submitted(
    settings: Settings,
    workspace: OpenWorkspace,
    done: SubmittedPipeline,
    *,
    detach: bool,
    attach: bool,
) -> int:
    """Report a submitted run, and follow it if requested."""
    job = done.pipeline.job
    _warn(settings, done.warnings)
    if not done.created:
        settings.note(f"nothing was submitted: run {job.id} has this key")
    else:
        for one in done.run.steps:
            settings.note(f"{one.name}: {plain_text(one.decision.reason)}")
    stays = attach or (sys.stdout.isatty() and not (detach or settings.quiet))
    if stays and not settings.as_json:
        if done.created:
            settings.note(f"submitted {job.id}")
        return stay(settings, workspace, job.id, start_target=True)
    if settings.as_json:
        decisions: Mapping[str, Any] = {one.name: one.decision.to_json() for one in done.run.steps}
        print_json(
            {
                **job_json(job),
                "created": done.created,
                "warnings": done.warnings,
                "decisions": decisions if done.created else {},
                "target_starting": done.starting,
            }
        )
        return Exit.DONE
    click.echo(job.id)
    if not settings.quiet:
        from rayjobs.cli.summary import useful_commands

        hints = [
            ("pipeline watch", "follow it"),
            ("pipeline show", "its graph and steps"),
            ("pipeline cancel", "cancel it"),
        ]
        for line in useful_commands(short_id(job), hints):
            settings.note(line)
    return Exit.DONE


def stay(
    settings: Settings, workspace: OpenWorkspace, pipeline_id: str, *, start_target: bool
) -> int:
    """Follow a run to its end, with a line for each change; return the exit code of its outcome.

    Args:
        settings: The options of this call.
        workspace: The workspace of the run.
        pipeline_id: The run.
        start_target: Start its targets if they do not run, and report the start.
    """
    from rayjobs.pipelines.views import views_of

    store = workspace.store
    found = store.pipeline(pipeline_id)
    printed: dict[str, str] = {}
    try:
        if start_target and not found.job.state.is_final:
            from rayjobs.core.paths import home
            from rayjobs.target.starting import ensure_target

            for target in dict.fromkeys(
                view.job.target for view in views_of(workspace, found) if not view.is_final
            ):
                ensure_target(target, home=home(), workspace=workspace.path, on_stage=settings.note)
        shown_reason = ""
        looked_s = time.monotonic()
        while True:
            job = store.job(pipeline_id)
            if waits_for_first(job) and time.monotonic() - looked_s >= OUTLOOK_EVERY_S:
                looked_s = time.monotonic()
                reason = outlooks(workspace.path, [job])[pipeline_id].reason
                if reason and reason != shown_reason:
                    shown_reason = reason
                    settings.note(f"Queued: {plain_text(reason)}")
            for view in views_of(workspace, found):
                if printed.get(view.name) != view.status and view.status != "Queued":
                    printed[view.name] = view.status
                    click.echo(f"{view.name}: {plain_text(view.text)}")
            if job.state.is_final:
                break
            time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        short = short_id(found.job)
        settings.note(
            f"detached; {pipeline_id} continues.\n"
            f"  rayjobs pipeline watch {short}    follow it again\n"
            f"  rayjobs pipeline cancel {short}   cancel it"
        )
        return Exit.INTERRUPTED
    colour = state_colour(str(job.state))
    settings.note(settings.style(plain_text(end_text(job)), colour, err=True))
    for line in job.failure.lines if job.failure is not None else ():
        settings.note(f"  {plain_text(line)}")
    return of_job(job)
