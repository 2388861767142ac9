"""Types of option values: durations, names with values, job ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic from click 8.2 on


Function = TypeVar("Function", bound=Callable[..., Any])


class Duration(ParamType):
    """Seconds from ``90``, ``45s``, ``30m``, ``6h``, ``1d12h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return seconds."""
        from rayjobs.core.errors import UsageError
        from rayjobs.core.units import parse_duration

        try:
            return parse_duration(value)
        except UsageError as error:
            self.fail(f"{error.message}.", param, ctx)


class Since(ParamType):
    """A moment: a duration ago (``10m``), or a local time (``14:30``, ``2026-05-01 14:30``)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return seconds of the wall clock."""
        import time
        from datetime import datetime

        from rayjobs.core.errors import UsageError
        from rayjobs.core.units import parse_duration

        text = str(value).strip()
        now = datetime.now().astimezone()
        try:
            if ":" in text and "-" not in text:
                text = f"{now:%Y-%m-%d} {text}"
            if "-" in text:
                # Without a time zone it is local time.
                return datetime.fromisoformat(text).astimezone().timestamp()
            return time.time() - parse_duration(text)
        except (ValueError, UsageError):
            self.fail(
                f"{text!r} is neither a duration (90s, 10m, 2h) nor a time (14:30, "
                "2026-05-01 14:30, 2026-05-01T14:30:00Z).",
                param,
                ctx,
            )


class Names(ParamType):
    """Text whose known values a shell completes; other values are valid too.

    Args:
        source: A key of `completing.SOURCES`.
        separator: Separates several values in one text; the last one is completed.
    """

    name = "text"

    def __init__(self, source: str, *, separator: str = "") -> None:
        self.source = source
        self._separator = separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the known values that begin with `incomplete`."""
        from rayjobs.cli.completing import offered
        from rayjobs.cli.settings import Settings

        settings = ctx.find_object(Settings) or Settings()
        before, typed = "", incomplete
        if self._separator:
            head, found, tail = incomplete.rpartition(self._separator)
            before, typed = head + found, tail
        return [
            CompletionItem(before + value, help=text or None)
            for value, text in offered(self.source, settings, typed, ctx.params)
        ]


class FileName(ParamType):
    """A path, which the shell completes.

    Args:
        folders: Only folders.
    """

    name = "path"

    def __init__(self, *, folders: bool = False) -> None:
        self._kind = "dir" if folders else "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Leave completion to the shell."""
        return [CompletionItem(incomplete, type=self._kind)]


class JobId(Names):
    """A job's id or name; completes the ids of the workspace, newest first.

    Args:
        source: A key of `completing.SOURCES`, such as ``jobs`` or ``sweeps``.
    """

    name = "job"

    def __init__(self, source: str = "jobs") -> None:
        super().__init__(source)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text; the store looks up the job."""
        text = str(value).strip()
        if not text:
            self.fail("a job's id may not be empty.", param, ctx)
        return text


def pairs(values: Sequence[str], *, option: str, example: str) -> dict[str, str]:
    """Return ``K=V`` texts as a mapping; V may be empty.

    Raises:
        UsageError: a text has no name or no ``=``, or two texts give one name different values.
    """
    found: dict[str, str] = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{option} {text!r}: write it as NAME=VALUE, e.g. {example}")
        if found.get(name, value) != value:
            raise click.UsageError(
                f"{option} {name!r} is given as {found[name]!r} and as {value!r}; give one"
            )
        found[name] = value
    return found


def job_argument(function: Function) -> Function:
    """Add the argument JOB: an id, a prefix of an id or of its random tail, or a name."""
    return click.argument("job", type=JobId(), metavar="JOB")(function)


def complete_by_name(command: click.Command, words: str) -> None:
    """Set the completion of each parameter of a command and its subcommands, by name.

    Only plain text and `JobId` parameters get a source; other types have their own completion.
    """
    from rayjobs.cli.completing import ARGUMENTS, FILE, FOLDER, OPTIONS

    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            complete_by_name(below, f"{words} {name}")
        return
    for parameter in command.params:
        if parameter.type is not click.STRING and type(parameter.type) is not JobId:
            continue
        if isinstance(parameter, click.Argument):
            source = ARGUMENTS.get(f"{words} {parameter.name}")
        else:
            long = next((one for one in parameter.opts if one.startswith("--")), "")
            source = OPTIONS.get(f"{words} {long}", OPTIONS.get(long))
        if source in (FILE, FOLDER):
            parameter.type = FileName(folders=source == FOLDER)
        elif source is not None:
            is_job = isinstance(parameter.type, JobId)
            parameter.type = JobId(source) if is_job else Names(source)
