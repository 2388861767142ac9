"""`rayjobs completion`: print the completion script of a shell."""

from __future__ import annotations

import click

from rayjobs.cli.settings import common_options

EPILOG = """\b
Examples:
  eval "$(rayjobs completion bash)"                                  in ~/.bashrc
  eval "$(rayjobs completion zsh)"                                   in ~/.zshrc
  rayjobs completion fish > ~/.config/fish/completions/rayjobs.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell: commands, options and their values."""
    from click.shell_completion import get_completion_class

    from rayjobs.cli import shells

    shells.install()
    kind = get_completion_class(shell)
    assert kind is not None  # click's own, one per shell above
    root = context.find_root()
    # Skip the check of the shell's version, which would start the shell.
    script = kind(root.command, {}, "rayjobs", "_RAYJOBS_COMPLETE")
    click.echo(script.source_template % script.source_vars())
