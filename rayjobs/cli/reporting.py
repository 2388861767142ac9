"""Runs a command and turns its errors into text on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from rayjobs.cli.exits import Exit, of_data_error
from rayjobs.cli.output import talk
from rayjobs.cli.settings import Settings
from rayjobs.core.errors import RayjobsError
from rayjobs.core.extras import explained
from rayjobs.core.terminal import safe_text
from rayjobs.datastore.errors import DatastoreError


class PipeClosedError(Exception):
    """The reader of our output has closed the pipe (``rayjobs logs JOB | head``)."""


def invoke(group: click.Group, arguments: Sequence[str], *, program: str = "rayjobs") -> int:
    """Run the command line and return its exit code; raises nothing but SystemExit."""
    settings = Settings()
    try:
        try:
            result = group.main(
                list(arguments), prog_name=program, standalone_mode=False, obj=settings
            )
            sys.stdout.flush()
            return int(result) if isinstance(result, int) else Exit.DONE
        except click.exceptions.Exit as end:
            return end.exit_code
        except (KeyboardInterrupt, click.Abort):
            say("interrupted")
            return Exit.INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:
            say(error.format_message())  # the help of a group without a command
            return Exit.USAGE
        except click.UsageError as error:
            return _wrong_usage(error)
        except click.ClickException as error:
            say(f"error: {error.format_message()}")
            return Exit.USAGE
        except PipeClosedError:
            return _pipe_closed()
        except RayjobsError as error:
            _print_causes(error)
            _print_traceback(error, settings)
            return error.exit_code
        except DatastoreError as error:
            _print_causes(error)
            _print_traceback(error, settings)
            return of_data_error(error)
        except Exception as error:
            return _unexpected(error, settings)
    except BrokenPipeError:
        return _pipe_closed()


def _unexpected(error: Exception, settings: Settings) -> int:
    """Report an error that is not one of ours, and return the exit code."""
    if (missing := explained(error)) is not None:
        say(f"error: {missing.message}")
        _print_traceback(error, settings)
        return missing.exit_code
    if isinstance(error, FileNotFoundError) and _is_folder_gone():
        say(
            "error: the current directory no longer exists: it was removed or "
            "replaced. Change to one that exists, such as with `cd ~`."
        )
        _print_traceback(error, settings)
        return Exit.USAGE
    _print_unexpected(error, settings)
    return Exit.FAILED


def _is_folder_gone() -> bool:
    """Whether this process's current directory was removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def say(text: str) -> None:
    """Print a line to stderr, wrapped at words on a terminal."""
    # The text may quote a name, or a line of a log.
    click.echo(talk(safe_text(text, colour=True)), err=True)


def causes(error: BaseException) -> list[str]:
    """Return an error's message and those of its causes, outermost first, without repeats."""
    lines: list[str] = []
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = str(current).strip() or type(current).__name__
        if (
            not isinstance(current, RayjobsError | DatastoreError | OSError)
            and current is not error
        ):
            text = f"{type(current).__name__}: {text}"
        if not any(text in line for line in lines):
            lines.append(text)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return lines


def _print_causes(error: RayjobsError | DatastoreError) -> None:
    first, *rest = causes(error)
    say(f"error: {first}")
    for line in rest:
        say(f"  caused by: {line}")


def _print_traceback(error: BaseException, settings: Settings) -> None:
    if settings.verbose:
        say("".join(traceback.format_exception(error)).rstrip())


def _print_unexpected(error: Exception, settings: Settings) -> None:
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        say(f"error: {what}")
    else:
        say(f"internal error ({type(error).__name__}: {error})")
        say("This is a bug in rayjobs: please report it with the output of `-v`.")
    if settings.verbose:
        _print_traceback(error, settings)
    else:
        say("Run the command again with -v for the traceback.")


def _wrong_usage(error: click.UsageError) -> int:
    say(f"error: {_usage_text(error)}")
    if error.ctx is not None:
        say(f"Try `{error.ctx.command_path} -h`.")
    return Exit.USAGE


def _usage_text(error: click.UsageError) -> str:
    """Return the problem of the command line, with a suggestion where there is one."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        from rayjobs.cli.guesses import unknown_option

        known = [name for option in error.ctx.command.get_params(error.ctx) for name in option.opts]
        return unknown_option(error.option_name, known)
    text = error.format_message()
    if isinstance(error, click.MissingParameter):
        metavar = getattr(error.param, "metavar", None) or ""
        if metavar.startswith("JOB"):
            text += " `rayjobs ls` lists jobs."
        elif metavar.startswith("SWEEP"):
            text += " `rayjobs sweep ls` lists sweeps."
    return text


def _pipe_closed() -> int:
    """Discard what stdout still holds; return the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # so that the last flush at exit does not hit a closed pipe
    return Exit.PIPE_CLOSED
