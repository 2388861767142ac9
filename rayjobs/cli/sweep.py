"""`rayjobs sweep`: run a job many times with different parameters, and find the best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.jobviews import job_json, short_id
from rayjobs.cli.outlook import outlooks
from rayjobs.cli.output import ago_text, facts, print_json, state_colour, table
from rayjobs.cli.params import JobId
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option, quiet_option
from rayjobs.cli.sweepviews import (
    counts,
    find_sweep,
    kind_text,
    read_sweep,
    stands,
    trial_json,
    warm_start_text,
)
from rayjobs.cli.unknown_names import require_experiment
from rayjobs.core.errors import NotFoundError
from rayjobs.core.text import counted
from rayjobs.core.users import user_name

if TYPE_CHECKING:
    from rayjobs.tuning.spec import SweepSpec
    from rayjobs.tuning.submitter import SubmittedSweep
    from rayjobs.workspace.folder import OpenWorkspace

SWEEP = click.argument("sweep_id", metavar="SWEEP", type=JobId())
FINISHED_SHOWN = 10

EPILOG = """\b
Examples:
  rayjobs sweep create -f sweep.yaml
  rayjobs sweep watch 1f3c
  rayjobs sweep best 1f3c
  rayjobs sweep plot 1f3c -o plots

A trial is a job: `rayjobs ls --parent 1f3c`, `rayjobs logs JOB`.
"""


@click.group(cls=CommandList, epilog=EPILOG)
def sweep() -> None:
    """Search hyperparameters: run many trials of one job, and end hopeless ones early."""


@sweep.command(
    epilog="\b\nExamples:\n  rayjobs sweep create -f sweep.yaml\n"
    "  rayjobs sweep create -f sweep.yaml -d         prints the id and returns\n"
    "  rayjobs sweep create -f sweep.yaml --dry-run  the first trials; submits nothing\n"
)
@click.option("-f", "--file", metavar="FILE", required=True, help="A sweep file (YAML or JSON).")
@click.option("-e", "--experiment", metavar="NAME", help="Experiment (default: the sweep's name).")
@click.option("-d", "--detach", is_flag=True, help="Return at once; do not follow the sweep.")
@click.option("--attach", is_flag=True, help="Follow the sweep even without a terminal.")
@click.option("--dry-run", is_flag=True, help="Check, show the first trials; submit nothing.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="A repeated create with the same key returns the first sweep.",
)
@quiet_option("Print only the id; do not follow the sweep.")
@json_option
@common_options
@click.pass_obj
def create(
    settings: Settings,
    file: str,
    experiment: str | None,
    detach: bool,
    attach: bool,
    dry_run: bool,
    idempotency_key: str | None,
) -> int:
    """Submit the sweep in FILE. On a terminal the command follows it; Ctrl-C detaches."""
    import sys

    from rayjobs.submit.project import load_project, with_defaults
    from rayjobs.tuning.submitter import submit_sweep
    from rayjobs.tuning.sweep_file import load_sweep

    if attach and (detach or settings.quiet or settings.as_json):
        raise click.UsageError("--attach cannot be combined with -d, -q or --json.")
    project = load_project()
    spec = load_sweep(file)
    spec = spec.model_copy(update={"job": with_defaults(spec.job, project)})
    experiment = experiment or project.experiment
    with settings.open(create=True) as workspace:
        if dry_run:
            return _show_plan(settings, workspace, spec)
        done = submit_sweep(
            workspace,
            spec,
            experiment=experiment,
            idempotency_key=idempotency_key,
            on_stage=lambda _text: None,
        )
        _warn(settings, done, workspace)
        stays = attach or (sys.stdout.isatty() and not (detach or settings.quiet))
        if stays and not settings.as_json:
            from rayjobs.cli.sweep_watch import stay

            if done.created:
                settings.note(f"submitted {done.sweep.job.id}")
            return stay(settings, workspace, done.sweep.job.id, start_target=True)
        _tell(settings, done)
    return Exit.DONE


def _warn(settings: Settings, done: SubmittedSweep, workspace: OpenWorkspace) -> None:
    from rayjobs.cli.submit import snapshot_line, warnings_to_show

    for warning in warnings_to_show(settings, done.warnings, done.packed, workspace):
        settings.note(f"{settings.style('warning', 'yellow', err=True)}: {warning}")
    if done.packed is not None and done.packed.summary.is_large:
        settings.note(snapshot_line(done.packed.summary))
    for note in done.notes:
        settings.note(f"note: {note}")
    if not done.created:
        settings.note(f"nothing was submitted: sweep {done.sweep.job.id} has this key")


def _tell(settings: Settings, done: SubmittedSweep) -> None:
    job = done.sweep.job
    if settings.as_json:
        details = {"created": done.created, "warnings": done.warnings, "notes": done.notes}
        print_json({**job_json(job), **details, "target_starting": done.starting})
        return
    click.echo(job.id)
    if settings.quiet:
        return
    from rayjobs.cli.summary import useful_commands

    hints = [
        ("sweep watch", "follow it"),
        ("sweep best", "the best trial so far"),
        ("sweep cancel", "cancel it"),
    ]
    for line in useful_commands(short_id(job), hints):
        settings.note(line)


def _show_plan(settings: Settings, workspace: OpenWorkspace, spec: SweepSpec) -> int:
    from rayjobs import snapshots
    from rayjobs.cli.submit import snapshot_line
    from rayjobs.core.clock import SystemClock
    from rayjobs.tuning import warm_start
    from rayjobs.tuning.arguments import override_arguments
    from rayjobs.tuning.submitter import check_sweep

    spec = warm_start.checked(workspace, spec)
    checked = check_sweep(workspace, spec)
    warm = warm_start.load(workspace.store, spec, until=SystemClock().now())
    sampler = warm_start.WarmSampler(spec.sampling, spec.sampling.sampler(spec.goal), warm)
    first = [sampler.suggest(number) for number in range(min(spec.total, 5))]
    surveyed, packed = None, None
    if checked.source is not None:
        surveyed = snapshots.survey(checked.source, entry=checked.spec.script)
        packed = snapshots.Summary.of(surveyed)
    warnings = [*spec.advice, *checked.warnings, *(surveyed.warnings if surveyed else ())]
    lines = [
        [checked.spec.script or "", *override_arguments(checked.spec.arguments, parameters)]
        for parameters in first
        if parameters is not None
    ]
    planned = spec.model_dump(mode="json")
    # A submit would not use the seed that was drawn for this call.
    seed = None if spec.sampling.is_seed_drawn else spec.sampling.seed
    if seed is None:
        planned["sampling"].pop("seed", None)
    if settings.as_json:
        print_json(
            {
                "sweep": planned,
                "trials": spec.total,
                "first_trials": [parameters for parameters in first if parameters is not None],
                "first_commands": lines,
                "seed": seed if spec.sampling.size is None else None,
                "snapshot": None if packed is None else packed.to_dict(),
                "warnings": warnings,
            }
        )
        return Exit.DONE
    click.echo(
        f"{counted(spec.total, 'trial')}, {spec.limits.at_a_time} at a time; the first ones:"
    )
    for number, line in enumerate(lines):
        click.echo(f"  {number}  {' '.join(line)}")
    if warm:
        settings.note(f"warm start: {warm.text(spec)}")
    if spec.sampling.size is None:
        settings.note(
            "these trials are examples: the file sets no seed, so a submit draws other values. Set "
            "`seed: NUMBER` below `sampling` to get the same trials each time"
            if seed is None
            else f"a submit gets the same trials: the file sets seed {seed}"
        )
    if packed is not None:
        settings.note(snapshot_line(packed))
    for warning in warnings:
        settings.note(f"{settings.style('warning', 'yellow', err=True)}: {warning}")
    return Exit.DONE


@sweep.command(epilog="\b\nExample:\n  rayjobs sweep ls\n")
@click.option("-a", "--all", "show_all", is_flag=True, help="All sweeps, including old ones.")
@click.option("-e", "--experiment", metavar="NAME", help="Only sweeps of this experiment.")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, show_all: bool, experiment: str | None) -> None:
    """List sweeps, newest first."""
    with settings.open() as workspace:
        limit = None if show_all else FINISHED_SHOWN
        found = workspace.store.sweeps(experiment=experiment, limit=limit)
        rows = [(one.job, *read_sweep(workspace.store, one.job.id)) for one in found]
        seen = outlooks(workspace.path, [one.job for one in found])
        if not rows:
            require_experiment(workspace.store, experiment)
    if settings.as_json:
        print_json(
            [{**job_json(job, seen[job.id]), **counts(spec, state)} for job, spec, state in rows]
        )
        return
    if not rows and experiment is not None:
        settings.note(f"Experiment {experiment} has no sweeps; `rayjobs sweep ls -a` lists all.")
        return
    if not rows:
        settings.note("No sweeps yet. Start one: rayjobs sweep create -f sweep.yaml")
        return
    cells, colours = [], []
    for job, spec, state in rows:
        found_so_far = counts(spec, state)
        best = found_so_far["best"]
        cells.append(
            (
                short_id(job),
                job.display_name or job.spec.name,
                seen[job.id].state,
                ago_text(job.submitted_at),
                f"{found_so_far['ended']}/{found_so_far['total']}",
                "-" if best is None else f"{spec.metric} = {best['value']:.6g}",
                "" if job.state == "Completed" else " ".join(seen[job.id].reason.split()),
            )
        )
        colour = state_colour(seen[job.id].state) if settings.colours() else None
        colours.append([None, None, colour, None, None, None, None])
    header = ("ID", "NAME", "STATE", "SUBMITTED", "TRIALS", "BEST", "")
    click.echo(table(cells, header, right=(4,), colours=colours))


@sweep.command(
    epilog="\b\nExamples:\n  rayjobs sweep show 1f3c\n  rayjobs sweep show --json 1f3c\n"
)
@SWEEP
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, sweep_id: str) -> None:
    """Show all details of a sweep: its search, its trials, and why each one ended."""
    from rayjobs.cli.sweep_watch import metric_text, model_text, trials_table
    from rayjobs.core.clock import SystemClock
    from rayjobs.tuning.watch import head_line

    with settings.open() as workspace:
        found = find_sweep(settings, workspace.store, sweep_id)
        spec, state = read_sweep(workspace.store, found)
        warm_start = warm_start_text(workspace.store, found)
        model_notice = model_text(settings, workspace, found)
        job = workspace.store.job(found)
        outlook, shown = stands(workspace, job, state)
    if settings.as_json:
        print_json(
            {
                **job_json(job, outlook),
                **counts(spec, state),
                "sweep": spec.model_dump(mode="json"),
                "trials": [trial_json(trial, spec, shown) for trial in state.trials],
            }
        )
        return
    failed = job.failure.lines if job.failure is not None else ()
    click.echo(
        facts(
            [
                ("Sweep", job.id),
                ("Name", spec.name),
                ("Experiment", job.experiment),
                ("State", outlook.state),
                ("Reason", " ".join((outlook.reason or job.reason).split())),
                ("Searches", f"{str(spec.goal).lower()} {spec.metric}"),
                ("Sampling", kind_text(spec.sampling.to_dict())),
                ("Policy", kind_text(spec.policy.to_dict())),
                ("Warm start", warm_start),
                ("Trials", head_line(state, spec, now=SystemClock().now(), shown=shown)),
                ("Model", job.properties.get("model", "")),
            ],
            colours={"State": state_colour(outlook.state) if settings.colours() else None},
        )
    )
    if notice := metric_text(settings, state, spec):
        click.echo(notice)
    if model_notice:
        click.echo(model_notice)
    click.echo("\n" + trials_table(settings, state, spec, shown=shown))
    if not any(trial.reason for trial in state.trials):  # otherwise the table has them
        for line in failed:
            click.echo(f"  {' '.join(line.split())}")


@sweep.command(epilog="\b\nExample:\n  rayjobs sweep watch 1f3c\n")
@SWEEP
@common_options
@click.pass_obj
def watch(settings: Settings, sweep_id: str) -> int:
    """Follow a sweep until it ends; exits with its result. Ctrl-C detaches.

    Shows a live table on a terminal, otherwise one line per event.
    """
    from rayjobs.cli.sweep_watch import stay

    with settings.open() as workspace:
        found = find_sweep(settings, workspace.store, sweep_id)
        return stay(settings, workspace, found, start_target=False)


@sweep.command(epilog="\b\nExamples:\n  rayjobs sweep best 1f3c\n  rayjobs sweep best -n 3 1f3c\n")
@SWEEP
@click.option(
    "-n", "--top", type=click.IntRange(1), default=1, metavar="N", help="Show the best N."
)
@json_option
@common_options
@click.pass_obj
def best(settings: Settings, sweep_id: str, top: int) -> None:
    """Show the best trial among completed ones with a finite last value of the metric."""
    from rayjobs.results.metrics import number_text
    from rayjobs.tuning.results import ranked
    from rayjobs.tuning.trials import TrialState
    from rayjobs.tuning.watch import parameters_text

    with settings.open() as workspace:
        found = find_sweep(settings, workspace.store, sweep_id)
        spec, state = read_sweep(workspace.store, found)
    completed = (trial for trial in state.trials if trial.state is TrialState.COMPLETED)
    valued = ranked(completed, spec.goal)
    if not valued:
        raise NotFoundError(
            f"no trial of {found} has completed with a finite last value of {spec.metric!r} so "
            f"far; `rayjobs sweep show {found}` lists its {counted(len(state.trials), 'trial')}"
        )
    chosen = valued[:top]
    if settings.as_json:
        listed = [trial_json(trial, spec, {}) for trial in chosen]
        print_json(listed[0] if top == 1 else listed)
        return
    for trial in chosen:
        best_value, end_value = trial.best(spec.goal), trial.values[-1]
        last = "" if end_value == best_value else f" (at its end {number_text(end_value)})"
        click.echo(
            facts(
                [
                    ("Trial", str(trial.number)),
                    ("Job", trial.job_id or ""),
                    (spec.metric, f"{number_text(best_value)}{last}"),
                    ("Parameters", parameters_text(trial)),
                ]
            )
        )
        if top == 1 and trial.job_id is not None:
            settings.note(f"fetch its files: rayjobs download {trial.job_id.rpartition('_')[2]}")


@sweep.command(
    epilog="\b\nExamples:\n  rayjobs sweep plot 1f3c -o plots\n"
    "  rayjobs sweep plot 1f3c --format svg\n"
)
@SWEEP
@click.option("-o", "--output", metavar="DIR", default=".", help="Folder to write to [here].")
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["png", "svg", "pdf"]),
    default="png",
    show_default=True,
    help="Format of the plots.",
)
@json_option
@common_options
@click.pass_obj
def plot(settings: Settings, sweep_id: str, output: str, suffix: str) -> None:
    """Plot history, parallel coordinates and learning curves, and write one HTML page with all."""
    from rayjobs.tuning.pages import write_html
    from rayjobs.tuning.plots import KINDS, write_plot

    with settings.open() as workspace:
        found = find_sweep(settings, workspace.store, sweep_id)
        spec, state = read_sweep(workspace.store, found)
        short = short_id(workspace.store.job(found))
    what = {"name": spec.name, "metric": spec.metric, "goal": spec.goal}
    folder = Path(output)
    stem = f"{spec.name}-{short}"
    written = [
        write_plot(folder / f"{stem}-{kind}.{suffix}", kind, state.trials, **what)  # type: ignore[arg-type]
        for kind in KINDS
    ]
    written.append(write_html(folder / f"{stem}.html", state.trials, **what))  # type: ignore[arg-type]
    if settings.as_json:
        print_json([str(path) for path in written])
        return
    for path in written:
        click.echo(path)


@sweep.command(
    epilog="\b\nExamples:\n  rayjobs sweep cancel 1f3c\n  rayjobs sweep cancel 1f3c 88aa\n"
)
@click.argument("sweep_ids", nargs=-1, required=True, metavar="SWEEP...", type=JobId())
@json_option
@common_options
@click.pass_obj
def cancel(settings: Settings, sweep_ids: tuple[str, ...]) -> None:
    """Cancel sweeps: their trials are canceled, and no new ones start.

    If a name is wrong, nothing is canceled. With --json, several sweeps are printed as a list.
    """
    from rayjobs.cli.waking import wake_quietly

    rows: list[dict[str, str]] = []
    reasons: list[str] = []
    with settings.open() as workspace:
        store = workspace.store
        found = [find_sweep(settings, store, text, strict=True) for text in sweep_ids]
        for one in dict.fromkeys(found):
            before = store.job(one)
            state = store.request_cancel(one, by=user_name())
            rows.append({"id": one, "state": state, "was": before.state})
            condition = None if state.is_final else wake_quietly(before.target, workspace.path)
            if condition is not None and condition.reason:
                reasons.append(f"{condition.reason}; the sweep ends once the target runs")
            if settings.as_json:
                continue
            if before.state.is_final:
                click.echo(f"{one} has already ended ({before.state})")
            elif state.is_final:
                click.echo(f"{one}: {state}")
            else:
                click.echo(f"{one}: cancel requested (still {state})")
    if settings.as_json:
        print_json(rows if len(sweep_ids) > 1 else rows[0])
        return
    for reason in dict.fromkeys(reasons):
        settings.note(reason)
