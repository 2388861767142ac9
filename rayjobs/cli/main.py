"""The group of all commands: registers them, and imports a command only when it is used."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rayjobs.cli.params import complete_by_name
from rayjobs.cli.reporting import PipeClosedError, invoke
from rayjobs.cli.settings import Settings, talk_options, workspace_option
from rayjobs.core.version import __version__

# Command → (module:function, its line in the help). Sections of `rayjobs -h`, in order.
SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Jobs": {
        "submit": ("submit:submit", "Run a training script."),
        "ls": ("ls:ls", "List jobs (also: ps; `queue`: in queue order)."),
        "show": ("show:show", "Show everything about a job."),
        "logs": ("logs:logs", "Print or follow a job's log."),
        "store": ("store:store", "Store outputs that could not be stored because of an outage."),
        "wait": ("wait:wait", "Wait until jobs have ended; exit with their result."),
        "cancel": ("cancel:cancel", "Cancel jobs."),
        "rerun": ("rerun:rerun", "Run a job again, with changes."),
        "resume": ("resume:resume", "Continue from a job's checkpoint, in a new job."),
        "verify-resume": (
            "verify_resume:verify_resume",
            "Prove that a script resumes correctly after random kills.",
        ),
        "update": (
            "update:update",
            "Change a waiting job's time limit, resources, priority or tags.",
        ),
        "stacks": ("stacks:stacks", "Show the Python stack of each rank of a running job."),
        "exec": ("exec:exec_", "Run a command or a shell next to a rank of a running job."),
        "port": ("port:port", "Reach a port of a running job from this machine."),
        "simulate-eviction": (
            "simulate_eviction:simulate_eviction",
            "Evict a job as a spot machine would.",
        ),
        "why": ("why:why", "Explain why a job is waiting and when it should start."),
        "top": ("top:top", "Show current usage and waiting jobs."),
        "events": ("events:events", "List a job's history."),
    },
    "Results": {
        "compare": ("compare:compare", "Compare jobs side by side."),
        "metrics": ("metrics:metrics", "Show a job's metrics."),
        "files": ("files:files", "List a job's stored files."),
        "download": ("download:download", "Download a job's stored files."),
        "tensorboard": ("tensorboard:tensorboard", "Serve TensorBoard for a job or a sweep."),
        "model": ("model:model", "Register, list, show, export and download models."),
    },
    "Sweeps": {
        "sweep": ("sweep:sweep", "Search hyperparameters: create, watch, best, plot, cancel."),
    },
    "Pipelines": {
        "pipeline": ("pipeline:pipeline", "Run steps that pass data to each other."),
    },
    "Data": {
        "datastore": ("datastore:datastore", "Manage datastores (named storage locations)."),
        "data": ("data:data", "Upload, download and register versioned data."),
    },
    "Images": {
        "images": ("images:images", "Train image classifiers: convert, train, score."),
    },
    "Azure ML": {
        "azureml": ("azureml:azureml", "Run and check programs of the Azure ML SDK v1."),
    },
    "Compute": {
        "target": ("target:target", "Create, list, start and stop compute targets."),
        "simulate": ("simulate:simulate", "Replay a job trace under each scheduling policy."),
        "notify": ("notify:notify", "Notify people and programs when jobs end."),
        "report": ("report:report", "Report wait times and how accurate the estimates were."),
        "dashboard": ("dashboard:dashboard", "Print or open the Ray dashboard."),
        "env": ("env:env", "List, build, compare and remove environments."),
        "horovod": ("horovod:horovod", "Build Horovod for an environment's PyTorch."),
    },
    "Housekeeping": {
        "doctor": ("doctor:doctor", "Check this machine, its targets and leftovers."),
        "prune": ("prune:prune", "Remove stored files and records of old jobs."),
        "db": ("db:db", "Upgrade, back up, restore, check or move a workspace's store."),
        "serve": ("serve:serve", "Serve a workspace to clients over HTTP."),
        "user": ("user:user", "Add, list and revoke users of a served workspace."),
        "login": ("login:login", "Use a served workspace from this machine."),
        "logout": ("login:logout", "Forget the server of `rayjobs login`."),
        "whoami": ("login:whoami", "Show the server, the user and the role."),
        "workspace": (
            "workspace:workspace",
            "Create, show, check, back up and restore workspaces.",
        ),
    },
    "Other": {
        "init": ("init:init", "Write the files of a new project."),
        "schema": ("schema:schema", "Print the JSON schema of job files."),
        "completion": ("completion:completion", "Print the completion script of a shell."),
    },
}
ALIASES = {"ps": "ls", "queue": "ls", "list": "ls", "status": "show", "log": "logs"}
SHOWN_ALIASES = ("ps", "queue")

EPILOG = """\b
Examples:
  rayjobs submit train.py -- --epochs 3
  rayjobs ls
  rayjobs logs -f 1f3c
  rayjobs show 1f3c

JOB is an id, a unique prefix of it (or of its last part), or a name; commands that
only read take the newest job with that name. Exit codes: 0 done, 1 failed,
2 wrong usage, 3 not found, 4 can never be placed, 5 unreachable, 124 time limit,
130 interrupted.
"""


class Commands(click.Group):
    """Finds commands in the table above; listing and completing them imports nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        name = ALIASES.get(cmd_name, cmd_name)
        for section in SECTIONS.values():
            if name in section:
                module, _, attribute = section[name][0].partition(":")
                loaded: click.Command = getattr(
                    importlib.import_module(f"rayjobs.cli.{module}"), attribute
                )
                complete_by_name(loaded, name)
                return loaded
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, or suggest the probable one."""
        if args and self.get_command(ctx, args[0]) is None:
            from rayjobs.cli.guesses import unknown_command

            ctx.fail(unknown_command(args[0], [*self.list_commands(ctx), *ALIASES]))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a closed pipe gets its own exit code, where click would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosedError from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing them."""
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands."""
        items = [
            CompletionItem(name, help=line)
            for section in SECTIONS.values()
            for name, (_, line) in section.items()
            if name.startswith(incomplete)
        ]
        items += [CompletionItem(name) for name in SHOWN_ALIASES if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]


CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, context_settings=CONTEXT, epilog=EPILOG)
@click.version_option(__version__, prog_name="rayjobs", message="%(prog)s %(version)s")
@talk_options
@workspace_option
@click.pass_context
def main(context: click.Context) -> None:
    """Submit training scripts to a Ray cluster, and find their logs, metrics and files."""
    context.ensure_object(Settings)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    from rayjobs.workspace import server_choice

    server_choice.allow()
    if "_RAYJOBS_COMPLETE" in os.environ:
        from rayjobs.cli import shells

        shells.install()
    return invoke(main, arguments)
