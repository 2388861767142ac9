"""What all commands share: common options, and the workspace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rayjobs.cli.output import talk
from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Settings:
    """The common options of one call, set while its command line is parsed.

    Attributes:
        workspace: The value of `--workspace`; None leaves the choice to `locate`.
        verbose: Tracebacks of errors are printed.
        no_color: Nothing is colored, not even on a terminal.
    """

    workspace: str | None = None
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    def open(self, *, create: bool = False) -> OpenWorkspace:
        """Open the workspace of this call.

        Raises:
            NotFoundError: no workspace exists, and `create` is off.
            UsageError: this is a process of a job, and what is found is not the job's workspace.
        """
        from rayjobs.workspace import server_choice
        from rayjobs.workspace.folder import WorkspaceFiles, locate, open_workspace

        server_choice.note = self.note
        if (server := server_choice.active()) is not None:
            from rayjobs.remote.workspace import open_server

            return open_server(server)
        path = locate(self.workspace)
        if self.workspace is None:
            _refuse_in_a_job(path)
        is_new = create and not WorkspaceFiles(path).record.exists()
        opened = open_workspace(path, create=create)
        if is_new:  # a mistyped path must not go unnoticed
            self.note(f"new workspace: {opened.path}")
        if create and opened.original is not None:
            from rayjobs.submit import copies

            try:
                for note in copies.become_own(opened):
                    self.note(note)
            finally:
                opened.close()
            opened = open_workspace(path)
        opened.map_addresses()
        return opened

    def note(self, text: str) -> None:
        """Print a note on stderr, wrapped at words; nothing with `--quiet`."""
        if not self.quiet:
            click.echo(talk(text), err=True)

    def colours(self, *, err: bool = False) -> bool:
        """Return whether colors are wanted and visible on stdout (or stderr)."""
        stream = sys.stderr if err else sys.stdout
        return not (self.no_color or os.environ.get("NO_COLOR")) and stream.isatty()

    def style(self, text: str, colour: str, *, err: bool = False) -> str:
        """Return `text`, colored where colors are wanted and visible."""
        return click.style(text, fg=colour) if self.colours(err=err) else text


def _refuse_in_a_job(path: Path) -> None:
    """Refuse the workspace that a job's process found by itself, unless it is the job's own.

    A job has neither ``RAYJOBS_WORKSPACE`` nor ``RAYJOBS_HOME``, and its folder is not where it was
    submitted: a command would use, or create, a workspace of the node's user, and start another
    target for it.

    Raises:
        UsageError: it is not the job's workspace.
    """
    from rayjobs.injob.run_token import has_token
    from rayjobs.workspace.folder import ENVIRONMENT, id_of

    if not has_token() or os.environ.get(ENVIRONMENT):
        return
    found = id_of(path)
    if found is not None and found == os.environ.get("AZUREML_WORKSPACE_ID"):
        return
    run = os.environ.get("RAYJOBS_RUN_ID", "")
    name = os.environ.get("RAYJOBS_WORKSPACE_NAME", "")
    raise UsageError(
        f"this command runs in job {run} of the workspace {name!r}, but finds another workspace "
        f"({path}). Scripts reach their workspace through Python: Run.get_context() has "
        "submit_child, get_children and experiment.workspace. For the command line, set "
        "RAYJOBS_WORKSPACE to a folder, and RAYJOBS_HOME if the shell that submits has it"
    )


class CommandList(click.Group):
    """A group whose help describes each command in a full sentence."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, or suggest the nearest ones."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from rayjobs.cli.guesses import unknown_command

            group = " ".join(ctx.command_path.split()[1:])
            ctx.fail(unknown_command(args[0], self.list_commands(ctx), group=group))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; long sentences are wrapped, where click would cut them."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=1000)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _setter(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def store(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value:
            if name == "workspace":  # an explicit folder takes precedence over any server
                from rayjobs.workspace import server_choice

                server_choice.allow(False)
            setattr(context.ensure_object(Settings), name, value)
        return value

    return store


def _shared(*names: str, setting: str, **options: Any) -> Callable[[Function], Function]:
    return click.option(*names, expose_value=False, callback=_setter(setting), **options)


def workspace_option(function: Function) -> Function:
    """Add `--workspace`, which is also accepted before the command."""
    return _shared(
        "--workspace",
        setting="workspace",
        metavar="DIR",
        is_eager=True,  # completion of ids needs it
        help="The workspace [RAYJOBS_WORKSPACE, else the nearest .rayjobs/ upward].",
    )(function)


def talk_options(function: Function) -> Function:
    """Add `-v` and `--no-color`."""
    function = _shared(
        "--no-color",
        setting="no_color",
        is_flag=True,
        help="No colors (as with NO_COLOR set).",
    )(function)
    return _shared(
        "-v",
        "--verbose",
        setting="verbose",
        is_flag=True,
        help="Print the traceback of an error.",
    )(function)


def common_options(function: Function) -> Function:
    """Add `--workspace`, `-v` and `--no-color` to a command."""
    return workspace_option(talk_options(function))


def json_option(function: Function) -> Function:
    """Add `--json`."""
    return _shared(
        "--json", setting="as_json", is_flag=True, help="Print JSON to stdout, for programs."
    )(function)


def quiet_option(help_text: str) -> Callable[[Function], Function]:
    """Add `-q`, with its meaning for this command."""
    return _shared("-q", "--quiet", setting="quiet", is_flag=True, help=help_text)
