"""`rayjobs submit`: run a training script."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit, of_job
from rayjobs.cli.jobviews import job_json, short_id
from rayjobs.cli.late_notes import LateNotes
from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.cli.spec_options import from_options, named_by_option, spec_options
from rayjobs.core.errors import CannotBePlacedError, Problem, SpecError, TargetError
from rayjobs.core.text import name_from

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.snapshots import Summary
    from rayjobs.spec.model import JobSpec
    from rayjobs.submit.project import Project
    from rayjobs.submit.submitting import Packed, Submitted
    from rayjobs.workspace.folder import OpenWorkspace

EPILOG = """\b
Examples:
  rayjobs submit train.py -- --epochs 3
  rayjobs submit -d train.py                 prints the id and returns
  rayjobs submit -q train.py                 prints only the id
  rayjobs submit --gpus-per-proc 1 --max-duration 6h --retries 2 train.py
  rayjobs submit -f job.yaml --priority 10   a file, with options on top
  rayjobs submit --dry-run --json train.py   spec and plan; submits nothing
  rayjobs submit --command nvidia-smi        shell text; packs no folder
  rayjobs submit --source . --command 'make data && python train.py'
  rayjobs submit --array 0-15%4 train.py -- --shard '$RAYJOBS_ARRAY_INDEX'

On a terminal the command follows the job: stages on stderr, the script's own
lines on stdout; its exit code is the job's result. Ctrl-C detaches; the
job continues.
"""
SCRIPT_ARGUMENTS = "rayjobs.script_arguments"
_DEFAULT_NAME = "rayjobs.default_name"


class SubmitCommand(click.Command):
    """Treats everything after ``--`` as the script's own arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first ``--``."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[SCRIPT_ARGUMENTS] = args[:at], args[at + 1 :]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from rayjobs.cli.guesses import option_for, unknown_option

            known = [name for option in self.get_params(ctx) for name in option.opts]
            text = unknown_option(error.option_name, known)
            if not option_for(error.option_name, known):
                text += f" Put arguments of the script after `--`: -- {error.option_name} …"
            raise click.UsageError(text, ctx) from error


def script_arguments() -> tuple[str, ...] | None:
    """Return the words after ``--`` on this command line; None without ``--``."""
    given = click.get_current_context().meta.get(SCRIPT_ARGUMENTS)
    return None if given is None else tuple(given)


@click.command(cls=SubmitCommand, epilog=EPILOG)
@click.argument("script", required=False, metavar="[SCRIPT]", type=click.Path())
@click.argument("extra", nargs=-1, metavar="[-- ARGUMENT]...")
@click.option("-f", "--file", metavar="FILE", help="A job file (YAML or JSON); - reads stdin.")
@click.option("-e", "--experiment", metavar="NAME", help="Experiment (default: the job's name).")
@spec_options
@click.option("-d", "--detach", is_flag=True, help="Return at once; do not follow the job.")
@click.option("--attach", is_flag=True, help="Follow the job even without a terminal.")
@click.option("--dry-run", is_flag=True, help="Check and show the plan; submit nothing.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="A repeated submit with the same key returns the first job.",
)
@quiet_option("Print only the id; do not follow the job.")
@json_option
@common_options
@click.pass_obj
def submit(
    settings: Settings,
    /,
    *,
    script: str | None,
    extra: tuple[str, ...],
    file: str | None,
    experiment: str | None,
    detach: bool,
    attach: bool,
    dry_run: bool,
    idempotency_key: str | None,
    **options: Any,
) -> int:
    """Run SCRIPT on a compute target, with everything after `--` as its arguments.

    The script's folder is packed (see .rayjobsignore); --source names another one. A --command
    without --source packs nothing.
    """
    if extra:
        raise click.UsageError(
            f"{extra[0]!r} follows the script; put the script's own arguments after `--`:\n"
            f"  rayjobs submit {script} -- {' '.join(extra)}"
        )
    if attach and (detach or settings.quiet or settings.as_json):
        raise click.UsageError("--attach cannot be combined with -d, -q or --json.")
    if script is None and file is None and options.get("command") is None:
        raise click.UsageError("name a script, or give -f FILE or --command TEXT.")
    return submit_typed(
        settings,
        script,
        file,
        options,
        experiment=experiment,
        detach=detach,
        attach=attach,
        dry_run=dry_run,
        idempotency_key=idempotency_key,
    )


def submit_typed(
    settings: Settings,
    script: str | None,
    file: str | None,
    options: dict[str, Any],
    *,
    experiment: str | None,
    detach: bool,
    attach: bool,
    dry_run: bool,
    idempotency_key: str | None,
    default_name: str | None = None,
    is_own_source: bool = True,
) -> int:
    """Submit what was typed, or show its plan; return the exit code. See `submit`.

    Args:
        default_name: The job's name if none is typed; None: the script's name.
        is_own_source: Whether the source folder is the user's, so that warnings about it are
            useful.

    Raises:
        SpecError, CannotBePlacedError: the job is wrong; problems are named by the options.
    """
    from rayjobs.submit.project import load_project

    project = load_project()
    experiment = experiment or project.experiment
    try:
        spec = typed_spec(script, file, options, project, default_name=default_name)
        if dry_run:
            return _show_plan(settings, spec, experiment)
        with settings.open(create=True) as workspace:
            done = _submit(settings, workspace, spec, experiment, idempotency_key)
            note_submitted(settings, done, workspace, is_own_source=is_own_source)
            stays = attach or (sys.stdout.isatty() and not (detach or settings.quiet))
            if stays and not settings.as_json:
                return stay(settings, workspace, done)
            tell(settings, done)
    except (SpecError, CannotBePlacedError) as error:
        renamed = named_by_option(
            error,
            options,
            only_options=file is None and not project.job,
            defaults=_target_default(project, options, file),
        )
        raise renamed from error.__cause__
    return Exit.DONE


def _target_default(project: Project, options: dict[str, Any], file: str | None) -> dict[str, str]:
    """Return where the default target comes from if neither an option nor a job file sets it."""
    from rayjobs.submit.project import default_target

    if file is not None or options.get("target") is not None:
        return {}
    chosen = default_target(project)
    return {"target": chosen.origin} if chosen.origin != "default" else {}


def typed_spec(
    script: str | None,
    file: str | None,
    options: dict[str, Any],
    project: Project,
    *,
    default_name: str | None = None,
) -> JobSpec:
    """Return the spec from options, the file and the project's defaults, in order of precedence.

    Without a name, the job gets `default_name`, else the script's name.

    Raises:
        SpecError: options, file or the script's path are wrong; all problems at once.
    """
    from rayjobs.spec.file import build_spec, load_spec_file, merge
    from rayjobs.submit.project import with_defaults

    problems: list[Problem] = []
    typed = from_options(script, script_arguments() or (), options, problems)
    filed = {} if file is None else load_spec_file(file)
    if {"job", "sampling"} <= filed.keys():
        raise click.UsageError(
            f"{file} describes a sweep, not a job. Submit it with:\n"
            f"  rayjobs sweep create -f {file}"
        )
    data = typed if file is None else merge(filed, typed)
    data = with_defaults(data, project)
    has_packages_alone = options.get("pip") and not options.get("env")
    if has_packages_alone and not (
        data.get("container") or filed.get("environment") or project.job.get("environment")
    ):
        # Whoever adds a package on the command line still wants the target's torch.
        data["environment"]["base"] = "target"
    if "name" not in data:
        of_script = Path(str(data.get("script") or "job")).stem
        data["name"] = default_name or name_from(of_script, default="job")
        click.get_current_context().meta[_DEFAULT_NAME] = True
    try:
        spec = build_spec(data)
        if spec.resume_from is not None and spec.script is not None:
            from rayjobs.results.resuming import with_arguments

            arguments = with_arguments(spec.arguments)
            spec = spec.model_copy(update={"arguments": arguments})
    except SpecError as error:
        problems += error.problems or (Problem("", error.message),)
        problems += _other_problems(data, error.problems)
    else:
        if problems:  # an option could not be parsed: check the others anyway
            problems += _other_problems(data, ())
    if problems:
        raise SpecError(problems=problems)
    return spec


def _other_problems(data: dict[str, Any], known: Sequence[Problem]) -> list[Problem]:
    """Check the rest of a spec, without the parts that are known to be wrong."""
    from rayjobs.spec.file import build_spec
    from rayjobs.spec.model import JobSpec
    from rayjobs.submit.checks import check

    left = copy.deepcopy(data)
    for problem in known:
        _take_out(left, problem.path.split("."))
    folder = left.get("source_directory")
    try:
        spec = build_spec(left)
    except SpecError:
        # More is malformed than could be removed: at least check the script.
        script = data.get("script")
        if not isinstance(script, str) or data.get("command"):
            return []
        spec = JobSpec(script=script)
    found = check(spec, source=Path(folder) if isinstance(folder, str) else None)
    wrong = {problem.path for problem in known}
    # The removed parts now have default values, which the user did not choose.
    return [problem for problem in found if problem.path not in wrong]


def _take_out(data: dict[str, Any], path: Sequence[str]) -> None:
    *parts, last = path
    for part in parts:
        inner = data.get(part)
        if not isinstance(inner, dict):
            data.pop(part, None)
            return
        data = inner
    data.pop(last, None)
    data.pop(last.removesuffix("_s"), None)


def _submit(
    settings: Settings,
    workspace: OpenWorkspace,
    spec: JobSpec,
    experiment: str | None,
    idempotency_key: str | None,
) -> Submitted:
    from rayjobs.submit.submitting import Entry
    from rayjobs.submit.submitting import submit as submit_job

    with LateNotes(settings.note) as late:
        return submit_job(
            workspace,
            spec,
            experiment=experiment or spec.name,
            entry=Entry(
                idempotency_key=idempotency_key,
                is_numbered=click.get_current_context().meta.get(_DEFAULT_NAME, False),
            ),
            on_stage=late.on_stage,
        )


def note_submitted(
    settings: Settings, done: Submitted, workspace: OpenWorkspace, *, is_own_source: bool = True
) -> None:
    """Print warnings and notes; repeat a warning about the source only when it changes.

    Unless the source is the user's own (`is_own_source`), such warnings are left out.
    """
    packed = done.packed
    for warning in warnings_to_show(settings, done.warnings, packed, workspace):
        if not is_own_source and packed is not None and warning in packed.warnings:
            continue
        settings.note(f"{settings.style('warning', 'yellow', err=True)}: {warning}")
    if packed is not None and packed.summary.is_large:
        settings.note(snapshot_line(packed.summary))
    for note in done.notes:
        settings.note(f"note: {note}")
    if not done.created:
        settings.note(f"nothing was submitted: job {done.job.id} has this key")


def warnings_to_show(
    settings: Settings,
    warnings: Sequence[str],
    packed: Packed | None,
    workspace: OpenWorkspace,
) -> list[str]:
    """Return the warnings, without those about the source that the last submit showed."""
    if packed is None or settings.verbose or settings.quiet:
        return list(warnings)  # -q shows nothing, so nothing may count as shown
    from rayjobs.submit.warned import unseen

    shown = set(unseen(workspace.own_files, packed.source, packed.warnings))
    return [one for one in warnings if one in shown or one not in packed.warnings]


def snapshot_line(summary: Summary) -> str:
    """Return one line about a snapshot: its size, and what is left out."""
    left = summary.left_out_line
    return f"snapshot: {summary.size_line}" + (f"; left out: {left}" if left else "")


def tell(settings: Settings, done: Submitted) -> None:
    """Print the id on stdout, and the next commands on stderr."""
    job = done.job
    if settings.as_json:
        details = {"created": done.created, "warnings": done.warnings, "notes": done.notes}
        print_json({**job_json(job), **details, "target_starting": done.starting})
        return
    click.echo(job.id)
    if settings.quiet:
        return
    from rayjobs.cli.summary import useful_commands

    if done.starting:
        settings.note(f"starting the target {job.target} in the background")
    if job.kind == "array":
        first, last = ("ls --parent", "list its members"), ("wait", "wait until all have ended")
    else:
        first, last = ("logs -f", "follow its log"), ("show", "all details")
    hints = [first, last, ("cancel", "cancel it")]
    if job.state.is_final:  # it was submitted before, or the job it depends on has failed
        reason = f": {job.reason}" if job.reason else ""
        settings.note(f"it has ended already ({job.state}){reason}")
        hints = [("rerun", "submit it again"), ("show", "all details")]
    for line in useful_commands(short_id(job), hints):
        settings.note(line)


def stay(settings: Settings, workspace: OpenWorkspace, done: Submitted) -> int:
    """Follow the job to its end; return the exit code. Ctrl-C detaches."""
    from rayjobs.cli.following import (
        Shown,
        await_end,
        detached_text,
        follow_logs,
        where_it_is,
    )
    from rayjobs.cli.screen import Screen
    from rayjobs.cli.summary import summary_lines
    from rayjobs.core.paths import home
    from rayjobs.target.starting import ensure_target

    job = done.job
    screen = Screen(settings)
    if done.created:
        screen.note(f"submitted {job.id}")
    try:
        if not job.state.is_final:
            ensure_target(job.target, home=home(), workspace=workspace.path, on_stage=screen.note)
        shown = Shown()

        def follow(at: OpenWorkspace) -> tuple[Job, list[str]]:
            if job.kind == "array":  # many logs at once are unreadable: show the state instead
                ended = await_end(at, [job.id], screen.note)[0]
            elif job.spec.distribution.world_size > 1:
                from rayjobs.cli.loglines import follow_ranks

                ended = follow_ranks(settings, at, job, screen)
            else:
                ended = follow_logs(at, job.id, screen, shown=shown)
            return ended, summary_lines(settings, at, ended)

        ended, lines = where_it_is(workspace, follow, screen.note)
    except KeyboardInterrupt:
        screen.note(detached_text(job))
        return Exit.INTERRUPTED
    except TargetError:
        screen.note(f"{job.id} stays queued; `rayjobs cancel {short_id(job)}` cancels it")
        raise
    for line in lines:
        screen.note(line)
    return of_job(ended)


def _show_plan(settings: Settings, spec: JobSpec, experiment: str | None) -> int:
    from rayjobs.cli.dryrun import dry_run, plan_text

    plan = dry_run(settings, spec, experiment=experiment or spec.name)
    if settings.as_json:
        print_json(plan)
    else:
        click.echo(plan_text(plan))
    return Exit.DONE
