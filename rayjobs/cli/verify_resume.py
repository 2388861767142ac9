"""`rayjobs verify-resume`: kill a script at random, and compare with an undisturbed run."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.cli.spec_options import named_by_option, spec_options
from rayjobs.cli.submit import SubmitCommand, typed_spec
from rayjobs.core.errors import SpecError
from rayjobs.core.text import counted

if TYPE_CHECKING:
    from rayjobs.housekeeping.verify_resume.verify import Verdict

SEEDS = 1_000_000

EPILOG = """\b
Examples:
  rayjobs verify-resume train.py -- --steps 60
  rayjobs verify-resume --kills 5 --seed 7 train.py -- --steps 200
  rayjobs verify-resume --rtol 1e-3 --ignore images_per_s --gpus-per-proc 1 train.py

Runs the script without interruption, then again while its ranks are killed (SIGKILL) at random
steps; after each kill, the script resumes. The second run must report every step of every metric
once, with the same value, and end with the same tensors in its last checkpoint. Give the script
arguments that make it short. The options of `rayjobs submit` apply to both runs. Their jobs are
called NAME-undisturbed-1 and NAME-disturbed-1, where NAME is the job's name.

Exit codes: 0 the same, 1 something differs or a run failed, 2 wrong usage.
"""


@click.command(cls=SubmitCommand, epilog=EPILOG)
@click.argument("script", required=False, metavar="[SCRIPT]", type=click.Path())
@click.argument("extra", nargs=-1, metavar="[-- ARGUMENT]...")
@click.option("-f", "--file", metavar="FILE", help="A job file (YAML or JSON); - reads stdin.")
@click.option("-e", "--experiment", metavar="NAME", help="Experiment (default: the job's name).")
@click.option(
    "--kills", type=click.IntRange(1, 50), default=2, show_default=True, help="Number of kills."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the steps and ranks [random].")
@click.option(
    "--rtol",
    type=click.FloatRange(0),
    default=1e-5,
    show_default=True,
    help="Relative difference up to which two numbers count as the same.",
)
@click.option(
    "--atol",
    type=click.FloatRange(0),
    default=1e-8,
    show_default=True,
    help="Absolute difference up to which two numbers count as the same.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="METRIC",
    help="Metric to leave out of the comparison (a time); repeatable.",
)
@spec_options
@quiet_option("Print only the result.")
@json_option
@common_options
@click.pass_obj
def verify_resume(
    settings: Settings,
    /,
    *,
    script: str | None,
    extra: tuple[str, ...],
    file: str | None,
    experiment: str | None,
    kills: int,
    seed: int | None,
    rtol: float,
    atol: float,
    ignore: tuple[str, ...],
    **options: Any,
) -> int:
    """Verify that SCRIPT gives the same results when it is killed at random and resumed."""
    if extra:
        raise click.UsageError(
            f"{extra[0]!r} follows the script; put the script's own arguments after `--`."
        )
    if script is None and file is None and options.get("command") is None:
        raise click.UsageError("name a script, or give -f FILE or --command TEXT.")
    from rayjobs.housekeeping.verify_resume.compare import Tolerance
    from rayjobs.housekeeping.verify_resume.verify import Asked, verify
    from rayjobs.submit.project import load_project

    project = load_project()
    experiment = experiment or project.experiment
    try:
        spec = typed_spec(script, file, options, project)
        asked = Asked(
            spec=spec,
            experiment=experiment or spec.name,
            kills=kills,
            seed=secrets.randbelow(SEEDS) if seed is None else seed,
            tolerance=Tolerance(rtol, atol),
            ignore=frozenset(ignore),
        )
        with settings.open(create=True) as workspace:
            verdict = verify(workspace, asked, say=settings.note)
    except KeyboardInterrupt:
        settings.note(
            f"interrupted: nothing was verified, and its runs are canceled (`rayjobs ls -e "
            f"{experiment or spec.name}` lists them). To start over, run the command again"
        )
        return Exit.INTERRUPTED
    except SpecError as error:
        raise named_by_option(error, options) from error.__cause__
    if settings.as_json:
        print_json(as_data(verdict))
    else:
        for line in verdict_lines(verdict):
            click.echo(line)
    return Exit.DONE if verdict.is_same else Exit.FAILED


def as_data(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data."""
    return {
        "same": verdict.is_same,
        "seed": verdict.seed,
        "undisturbed": verdict.undisturbed,
        "resumed": verdict.resumed,
        "tolerance": asdict(verdict.tolerance),
        "kills": [asdict(kill) for kill in verdict.kills],
        "metrics": [asdict(curve) for curve in verdict.curves],
        "not_compared": list(verdict.not_compared),
        "checkpoint_step": verdict.checkpoint_step,
        "files": [{"name": one.name, **one.facts} for one in verdict.files],
        "problems": list(verdict.problems),
    }


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the verdict as lines of text."""
    lines = [f"differs: {problem}" for problem in verdict.problems]
    lines += [
        f"not compared: metric {name!r}, which was logged without step="
        for name in verdict.not_compared
    ]
    points = sum(curve.points for curve in verdict.curves)
    count = len(verdict.kills)
    how = (
        f"{counted(count, 'kill')} (seed {verdict.seed}), {counted(points, 'point')} of "
        f"{counted(len(verdict.curves), 'metric')}, checkpoint of step {verdict.checkpoint_step}, "
        f"rtol {verdict.tolerance.rtol:g}, atol {verdict.tolerance.atol:g}"
    )
    lines.append(f"{'the same' if verdict.is_same else 'not the same'}: {how}")
    lines.append(f"undisturbed {verdict.undisturbed}, resumed {verdict.resumed}")
    return lines
