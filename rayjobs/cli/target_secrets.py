"""`rayjobs target secret`: set credentials for a target's jobs, without restarting it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import print_json, table
from rayjobs.cli.params import ParamType
from rayjobs.cli.settings import Settings, common_options, json_option

if TYPE_CHECKING:
    from rayjobs.target.secrets import TargetSecrets

EPILOG = """\b
Examples:
  rayjobs target secret set PHOTOS_KEY               takes this shell's variable, or asks for it
  vault read … | rayjobs target secret set PHOTOS_KEY --stdin
  rayjobs target secret ls
  rayjobs target secret rm PHOTOS_KEY
"""
TARGET = click.option(
    "--target", "target_name", metavar="NAME", help="The target (default: your default target)."
)


class SecretName(ParamType):
    """A secret's name; completes the names of the target's secrets."""

    name = "secret"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names that begin with `incomplete`."""
        from rayjobs.core.errors import RayjobsError

        try:
            names = _secrets(ctx.params.get("target_name")).all()
        except (RayjobsError, OSError):
            return []  # an error would garble the shell's prompt
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


@click.group(epilog=EPILOG)
def secret() -> None:
    """Set, list and remove the secrets of a target; values are never printed.

    Datastores name the variables of their credentials; jobs name theirs with `--secret`. A submit
    passes on those that your shell exports; set the others here. Jobs that start later use the new
    value; the target is not restarted.
    """
    from rayjobs.workspace import server_choice

    server_choice.refuse("`rayjobs target secret`")


def _secrets(target_name: str | None) -> TargetSecrets:
    from rayjobs.core.paths import home
    from rayjobs.submit.project import default_target
    from rayjobs.target.record import load_target
    from rayjobs.target.secrets import TargetSecrets

    name = target_name or default_target().name
    load_target(name, home=home())
    return TargetSecrets(name, home=home())


@secret.command("set", epilog="\b\nExample:\n  rayjobs target secret set PHOTOS_KEY\n")
@click.argument("name", type=SecretName())
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the value from standard input.")
@TARGET
@common_options
@click.pass_obj
def set_secret(
    settings: Settings, name: str, from_stdin: bool, target_name: str | None
) -> int | None:
    """Set a secret of a target, or replace it.

    The value is read from --stdin, else from this shell's variable NAME, else the command asks for
    it.
    """
    secrets = _secrets(target_name)
    if from_stdin:
        value = sys.stdin.read().rstrip("\r\n")
    elif os.environ.get(name):
        value = os.environ[name]
    elif sys.stdin.isatty():
        value = click.prompt(name, hide_input=True, err=True)
    else:
        settings.note(
            f"{name} is not exported here, and there is no terminal to ask for it. Export it, or "
            "pass its value with --stdin."
        )
        return Exit.USAGE
    dropped = secrets.set(name, value)
    settings.note(f"target {secrets.target} has {name}, in {secrets.path}")
    if dropped:
        settings.note(
            f"removed {', '.join(dropped)}, which a submit had passed on with another {name}: set "
            f"the whole AWS credential"
        )
    return None


@secret.command("ls", epilog="\b\nExample:\n  rayjobs target secret ls --target lab\n")
@TARGET
@json_option
@common_options
@click.pass_obj
def list_secrets(settings: Settings, target_name: str | None) -> None:
    """List the names of a target's secrets, and who set each."""
    secrets = _secrets(target_name)
    found = sorted(secrets.all().values(), key=lambda one: one.name)
    if settings.as_json:
        print_json([{"name": one.name, "given_by": one.given_by} for one in found])
    elif found:
        click.echo(table([(one.name, one.given_by) for one in found], ("NAME", "GIVEN BY")))
    else:
        settings.note(f"target {secrets.target} has no secrets")


@secret.command("rm", epilog="\b\nExample:\n  rayjobs target secret rm PHOTOS_KEY\n")
@click.argument("name", type=SecretName())
@TARGET
@common_options
@click.pass_obj
def remove_secret(settings: Settings, name: str, target_name: str | None) -> int | None:
    """Remove a secret from a target; jobs that already run keep it."""
    secrets = _secrets(target_name)
    if not secrets.remove(name):
        settings.note(f"target {secrets.target} has no secret {name}")
        return Exit.NOT_FOUND
    settings.note(f"target {secrets.target} no longer has {name}")
    return None
