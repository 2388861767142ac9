"""`rayjobs horovod`: build Horovod for an environment's PyTorch, and install it."""

from __future__ import annotations

from pathlib import Path

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option

EPILOG = """\b
Examples:
  rayjobs horovod install
  rayjobs horovod install --env ~/envs/train
  rayjobs horovod install --gpu
"""


@click.group(cls=CommandList, epilog=EPILOG)
def horovod() -> None:
    """Build Horovod for an environment's PyTorch, and install it there."""


@horovod.command(epilog="\b\nExample:\n  rayjobs horovod install --env ~/envs/train\n")
@click.option("--env", metavar="PATH", help="Python or virtual environment [that of rayjobs].")
@click.option(
    "--gpu/--cpu",
    default=None,
    help="With or without GPU operations [with, if the CUDA toolkit and NCCL are found].",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1), metavar="N", help="Parallel compilers [number of CPUs]."
)
@click.option("--if-needed", is_flag=True, help="Do nothing if a working Horovod is installed.")
@json_option
@common_options
@click.pass_obj
def install(
    settings: Settings, /, env: str | None, gpu: bool | None, jobs: int | None, if_needed: bool
) -> None:
    """Install Horovod, built for the environment's PyTorch; a second call uses the stored wheel.

    The build takes some minutes and needs g++, make, cmake and Open MPI's headers. The wheel is
    kept in the user's cache folder, for each version of PyTorch, Python and Open MPI.
    """
    from rayjobs.environments import interpreter
    from rayjobs.environments.horovod import install as installing

    python = installing.default_python() if env is None else Path(interpreter.path_of(env))
    if if_needed and installing.is_current(python):
        settings.note(f"{python} has a working Horovod")
        return
    done = installing.install(python, gpu=gpu, jobs=jobs, say=settings.note)
    if settings.as_json:
        print_json(
            {
                "wheel": str(done.wheel),
                "built": done.was_built,
                "gpu_operations": done.has_gpu_operations,
            }
        )
    else:
        kind = "MPI, Gloo and NCCL" if done.has_gpu_operations else "MPI and Gloo on the CPU"
        click.echo(f"Horovod is installed for {python}: {kind}")
