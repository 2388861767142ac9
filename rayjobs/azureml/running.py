"""Runs an Azure ML v1 program in this process: a script, or a notebook cell by cell."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rayjobs.azureml.program import become_azure_program
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.hiding import hiding
from rayjobs.injob.azureml import finder
from rayjobs.injob.azureml.exceptions import AzureMLException

NOTEBOOK = ".ipynb"
FAILED = 1


def run_program(path: Path, arguments: Sequence[str], *, allow_cpu: bool = False) -> int:
    """Run a script or a notebook, and return its exit code.

    From then on, rayjobs answers ``import azureml`` in this process.

    Args:
        arguments: The program's arguments in ``sys.argv``.
        allow_cpu: Run jobs that request GPUs on CPUs if their target has no GPU.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is neither a script nor a notebook.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}")
    if path.suffix not in (".py", NOTEBOOK):
        raise UsageError(f"{path} is neither a Python script (.py) nor a notebook (.ipynb)")
    real = finder.install()
    if real is not None:
        print(finder.notice(real), file=sys.stderr)  # noqa: T201 - a notice for the user
    if why := hiding(path.absolute().parent):
        print(f"warning: {why}", file=sys.stderr)  # noqa: T201
    become_azure_program(allow_cpu=allow_cpu)
    whole = path.absolute()
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(whole.parent))
    try:
        if path.suffix == NOTEBOOK:
            from rayjobs.azureml.notebooks import run_notebook

            os.chdir(whole.parent)  # as Jupyter does
            return run_notebook(whole)
        # The script's folder is put on the path above; `run_path` does that only for folders.
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return exit_code(end)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        report(error, str(path))
        return FAILED
    return 0


def exit_code(end: SystemExit) -> int:
    """Return the exit code of a program that ended itself; print its message, as Python does."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)  # noqa: T201
    return FAILED


def report(error: BaseException, program: str) -> None:
    """Print the error that ended a program: one line for an Azure ML error, else its own frames.

    Args:
        program: The file name in the program's frames.
    """
    trace = _from(error.__traceback__, program)
    if isinstance(error, AzureMLException):
        line = None if trace is None else _last_line(trace, program)
        at = program if line is None else f"{program}:{line}"
        print(f"{at}: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return
    lines = traceback.format_exception(type(error), error, trace)
    print("".join(lines), end="", file=sys.stderr)  # noqa: T201


def _from(trace: TracebackType | None, program: str) -> TracebackType | None:
    """Return the trace from the program's first frame on, or the whole if it has no such frame."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != program:
        found = found.tb_next
    return found if found is not None else trace


def _last_line(trace: TracebackType, program: str) -> int | None:
    line = None
    frames: TracebackType | None = trace
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == program:
            line = frames.tb_lineno
        frames = frames.tb_next
    return line
