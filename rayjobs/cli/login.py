"""`rayjobs login`, `logout` and `whoami`: which server this machine uses."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, json_option, talk_options

PATIENCE_S = 2.0  # the address has just been typed: a mistake in it is likelier than a restart


@click.command(
    epilog="""\b
Examples:
  rayjobs login https://head.example.org:8400
  rayjobs login http://127.0.0.1:8400 < token
  rayjobs login https://head.example.org:8400 --oidc
"""
)
@click.argument("address", metavar="URL")
@click.option("--oidc", is_flag=True, help="Log in at your team's provider, in a browser.")
@talk_options
@click.pass_obj
def login(settings: Settings, address: str, oidc: bool) -> None:
    """Use the workspace of a server from now on. Asks for the token, or reads it from stdin.

    The token may also be in RAYJOBS_TOKEN. It is stored in a file that only you can read. If
    RAYJOBS_CA_FILE names the certificates of a private authority, that path is stored with it.
    """
    from rayjobs.core.errors import UsageError
    from rayjobs.workspace import connection, logins, server_choice
    from rayjobs.workspace.http_messages import CurrentUser

    parts = urlsplit(address)
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        settings.note("without https, the token and your code travel in plain text")
    address = address.rstrip("/")
    ca_file = _authority(address)
    text = None if oidc else os.environ.get(server_choice.TOKEN)
    if oidc:
        from rayjobs.cli.oidc_login import token_of

        without_token = logins.Login(address, "", ca_file)
        text = token_of(without_token, settings.note, first_patience_s=PATIENCE_S)
    if not text:
        is_terminal = sys.stdin.isatty()
        text = click.prompt("Token", hide_input=True) if is_terminal else sys.stdin.readline()
    if not (token := str(text).strip()):
        raise UsageError(
            f"no token was given: type it, pipe it in, or export {server_choice.TOKEN}. An admin "
            f"makes one with `rayjobs user add`"
        )
    chosen = logins.Login(address, token, ca_file)
    server = connection.Connection(chosen, first_patience_s=PATIENCE_S, note=settings.note)
    user = server.ask("GET", "/v1/user", CurrentUser)
    logins.save_login(chosen)
    settings.note(f"logged in at {chosen.address} as {user.user} ({user.role})")


def _authority(address: str) -> str:
    """Return the file of the server's certificate authority; empty: use this machine's."""
    from rayjobs.workspace import connection, logins

    if named := os.environ.get(connection.CERTIFICATES):
        return str(Path(named).absolute())
    kept = logins.read_login()  # a new token for the same server
    return kept.ca_file if kept is not None and kept.address == address else ""


@click.command(
    epilog="""\b
Examples:
  rayjobs logout
"""
)
@talk_options
@click.pass_obj
def logout(settings: Settings) -> None:
    """Forget the server and its token; later commands use local workspace folders again."""
    from rayjobs.workspace import logins

    had = logins.drop_login()
    settings.note("logged out" if had else "there was no login")


@click.command(
    epilog="""\b
Examples:
  rayjobs whoami
"""
)
@json_option
@talk_options
@click.pass_obj
def whoami(settings: Settings) -> None:
    """Show the server, the user and the role."""
    from rayjobs.core.users import user_name
    from rayjobs.workspace import server_choice

    server = server_choice.active()
    if server is None:
        facts = {"server": None, "user": user_name(), "role": None}
    else:
        from rayjobs.workspace.http_messages import CurrentUser

        user = server.ask("GET", "/v1/user", CurrentUser)
        facts = {"server": server.address, **vars(user)}
    if settings.as_json:
        print_json(facts)
    elif server is None:
        click.echo(f"{facts['user']}, without a server")
    else:
        click.echo(f"{facts['user']} ({facts['role']}) at {facts['server']}")
