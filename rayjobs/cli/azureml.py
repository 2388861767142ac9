"""`rayjobs azureml`: run programs written for the Azure ML SDK v1, and list what they need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option

EPILOG = """\b
Examples:
  rayjobs azureml check driver.py
  rayjobs azureml run driver.py --epochs 3
  rayjobs azureml run --allow-cpu notebook.ipynb
  rayjobs azureml map gpu-cluster=local
"""


@click.group(cls=CommandList, epilog=EPILOG)
def azureml() -> None:
    """Run programs written for the Azure ML SDK v1, and list what they use and need."""


@azureml.command(
    epilog="\b\nExample:\n  rayjobs azureml run driver.py --epochs 3\n",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--allow-cpu",
    is_flag=True,
    help="Run jobs that request GPUs on CPUs (nccl as gloo) where a target has no GPU.",
)
@click.argument("program", type=click.Path(path_type=Path), metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@common_options
@click.pass_obj
def run(settings: Settings, /, allow_cpu: bool, program: Path, arguments: tuple[str, ...]) -> None:
    """Run a driver script or a notebook unchanged: rayjobs provides `import azureml`.

    A compute runs its jobs on the target of the same name, else on the target that `rayjobs azureml
    map` sets for it, else on this machine. Exits with the program's exit code.
    """
    from rayjobs.azureml.running import run_program
    from rayjobs.workspace.folder import ENVIRONMENT

    if settings.workspace is not None:
        os.environ[ENVIRONMENT] = settings.workspace
    code = run_program(program, arguments, allow_cpu=allow_cpu)
    sys.stdout.flush()
    if code:
        raise click.exceptions.Exit(code)


@azureml.command(
    "map", epilog="\b\nExamples:\n  rayjobs azureml map cpu-cluster=local\n  rayjobs azureml map\n"
)
@click.argument("mappings", nargs=-1, metavar="[NAME=TARGET | URL=PATH]...")
@click.option("--remove", multiple=True, metavar="NAME|URL", help="Remove a mapping.")
@json_option
@common_options
@click.pass_obj
def map_(settings: Settings, /, mappings: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Set which target runs a compute's jobs, or which local path replaces a URL.

    Without arguments, list the mappings of this workspace.
    """
    from rayjobs.azureml import mapping

    with settings.open(create=bool(mappings or remove)) as workspace:
        kept = mapping.change(workspace, mappings, remove)
    if settings.as_json:
        print_json({"targets": kept.targets, "urls": kept.urls, "allow_cpu": kept.allow_cpu})
        return
    for name, value in [*kept.targets.items(), *kept.urls.items()]:
        click.echo(f"{name}={value}")


@azureml.command("allow-cpu", epilog="\b\nExample:\n  rayjobs azureml allow-cpu\n")
@click.option("--off", is_flag=True, help="Refuse such jobs again.")
@common_options
@click.pass_obj
def allow_cpu(settings: Settings, /, off: bool) -> None:
    """Let jobs of this workspace that request GPUs run on CPUs where a target has no GPU."""
    from rayjobs.workspace.azure import AzureSettings

    with settings.open(create=True) as workspace:
        AzureSettings(workspace.store).set_allow_cpu(not off)
    settings.note("jobs that request GPUs " + ("run only on GPUs" if off else "may run on CPUs"))


@azureml.command(epilog="\b\nExamples:\n  rayjobs azureml check driver.py\n")
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH..."
)
@click.option("--all", "everything", is_flag=True, help="Also list supported names.")
@json_option
@common_options
@click.pass_obj
def check(settings: Settings, /, paths: tuple[Path, ...], everything: bool) -> None:
    """Report what programs use of Azure ML and how rayjobs handles it; nothing is run.

    For a file, list the lines with names that are substituted, refused or missing; for a folder,
    print a table of its programs. Exits with 1 if a name is refused or missing, or if a
    program cannot be read.
    """
    from rayjobs.azureml import checking, reports

    found = checking.check(list(paths))
    if settings.as_json:
        print_json([reports.as_json(one) for one in found])
    elif any(path.is_dir() for path in paths):
        click.echo(reports.table(found, root=paths[0] if len(paths) == 1 else None))
    else:
        for one in found:
            click.echo(reports.lines(one, everything=everything))
    if any(not reports.runs(one) for one in found):
        raise click.exceptions.Exit(1)
