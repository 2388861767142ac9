"""`rayjobs user`: manage the users of a served workspace, on the server's own machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.params import Since
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.users import user_name

EPILOG = """\b
Examples:
  rayjobs user add ada
  rayjobs user add eve --role viewer --days 7
  rayjobs user ls
  rayjobs user revoke ada
"""
ADD_EPILOG = """\b
Examples:
  rayjobs user add ada
  rayjobs user add eve --role viewer --days 7
"""
LS_EPILOG = """\b
Examples:
  rayjobs user ls
  rayjobs user ls --audit --since 7d
"""
LINK_EPILOG = """\b
Examples:
  rayjobs user link ada --issuer https://id.example.org/realms/team --subject 248289761001
"""
REVOKE_EPILOG = """\b
Examples:
  rayjobs user revoke ada
  rayjobs user revoke 1f3c88aa9c2e4d10
"""


@click.group(cls=CommandList, epilog=EPILOG)
def user() -> None:
    """Add, list and revoke users of a served workspace."""


@user.command(epilog=ADD_EPILOG)
@click.argument("name", metavar="USER")
@click.option(
    "--role",
    default="submitter",
    show_default=True,
    type=click.Choice(["viewer", "submitter", "admin"]),
    help="viewer reads, submitter also submits, admin also changes what others own.",
)
@click.option("--days", default=90.0, show_default=True, help="How long the token is valid.")
@json_option
@common_options
@click.pass_obj
def add(settings: Settings, name: str, role: str, days: float) -> None:
    """Create a token for a user, and print it. It is shown only once."""
    from rayjobs.workspace import server_choice, users
    from rayjobs.workspace.http_messages import NewTokenRow

    server_choice.refuse("`rayjobs user`")
    with settings.open(create=True) as workspace:
        made, text = users.add(
            workspace.store, name, users.role_of(role), by=user_name(), days=days
        )
    if settings.as_json:
        print_json(vars(NewTokenRow.with_secret(made, text)))
        return
    click.echo(text)
    settings.note(
        f"{made.user} has the role {role}; the token is valid until "
        f"{made.expires_at:%Y-%m-%d}. To use it: rayjobs login https://HOST:8400"
    )


@user.command("ls", epilog=LS_EPILOG)
@click.option("--audit", is_flag=True, help="List all changes of users and over HTTP.")
@click.option("--since", type=Since(), help="With --audit: only changes since then (7d, 14:30).")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, audit: bool, since: float | None) -> None:
    """List users and their tokens."""
    from rayjobs.workspace import server_choice, users
    from rayjobs.workspace.http_messages import TokenRow

    server_choice.refuse("`rayjobs user`")
    with settings.open() as workspace:
        if audit:
            store = workspace.store
            begin = None if since is None else datetime.fromtimestamp(since, UTC)
            changes = [*users.audit(store, since=begin), *users.http_audit(store, since=begin)]
            changes.sort(key=lambda one: str(one["at"]))
            if settings.as_json:
                print_json([dict(one) for one in changes])
            for one in [] if settings.as_json else changes:
                click.echo(f"{one['at']}  {one['by']}  {one['change']}  {_object(one)}".rstrip())
            return
        found = users.all_tokens(workspace.store)
    if settings.as_json:
        print_json([vars(TokenRow.of(one)) for one in found])
        return
    for token in found:
        date = f"{token.expires_at:%Y-%m-%d}"
        is_over = token.expires_at <= datetime.now(UTC)
        state = "revoked" if token.revoked_at else f"{'expired' if is_over else 'until'} {date}"
        click.echo(f"{token.id}  {token.user:<20}  {token.role.name.lower():<9}  {state}")


@user.command(epilog=LINK_EPILOG)
@click.argument("name", metavar="USER")
@click.option("--issuer", required=True, metavar="URL", help="The provider, as named in ID tokens.")
@click.option(
    "--subject", required=True, metavar="ID", help="The user at the provider: `sub` of ID tokens."
)
@common_options
@click.pass_obj
def link(settings: Settings, name: str, issuer: str, subject: str) -> None:
    """Bind an existing name to a person who logs in with OpenID Connect.

    The first login binds a name automatically, unless `rayjobs user add` has created that name.
    """
    from rayjobs.workspace import server_choice, users

    server_choice.refuse("`rayjobs user`")
    identity = users.Identity(issuer=issuer, subject=subject)
    with settings.open() as workspace:
        users.link(workspace.store, name, identity, by=user_name())
    settings.note(f"{name} is {subject} of {issuer}")


@user.command(epilog=REVOKE_EPILOG)
@click.argument("name", metavar="USER|TOKEN")
@common_options
@click.pass_obj
def revoke(settings: Settings, name: str) -> None:
    """Revoke all tokens of a user, or the one with this id; servers refuse them within a second."""
    from rayjobs.core.text import counted
    from rayjobs.workspace import server_choice, users

    server_choice.refuse("`rayjobs user`")
    with settings.open() as workspace:
        ended = users.revoke(workspace.store, name, by=user_name())
    settings.note(f"revoked {counted(len(ended), 'token')}")


def _object(change: Mapping[str, Any]) -> str:
    """Return the object of a change, and the status if it was refused or failed."""
    status = change.get("status", 200)
    found = str(change.get("object") or change.get("user", ""))
    return found if status == 200 else f"{found}  ({status})".strip()
