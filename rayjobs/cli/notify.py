"""`rayjobs notify`: who is notified when jobs end."""

from __future__ import annotations

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.users import user_name

PATH = "/v1/notifications"
EPILOG = """\b
Examples:
  rayjobs notify add ada@example.org
  rayjobs notify add failed=https://hooks.example.org/$RAYJOBS_SECRET_HOOK --everyone
  rayjobs notify mail smtps://robot@mail.example.org --from robot@example.org
  rayjobs notify ls
  rayjobs submit train.py --notify ada@example.org     for one job
"""


@click.group(cls=CommandList, epilog=EPILOG)
def notify() -> None:
    """Notify people and programs when jobs end, by mail or a web request."""


@notify.command(
    epilog="""\b
Examples:
  rayjobs notify add ada@example.org
  rayjobs notify add failed=https://hooks.example.org/$RAYJOBS_SECRET_HOOK --everyone

$RAYJOBS_SECRET_… stands for a secret of the target (`rayjobs target secret set`).
"""
)
@click.argument("receiver", metavar="[STATE=]URL|MAILBOX")
@click.option("--everyone", is_flag=True, help="For the jobs of all users, not only your own.")
@json_option
@common_options
@click.pass_obj
def add(settings: Settings, receiver: str, everyone: bool) -> None:
    """Add a receiver that is notified when your jobs end."""
    from rayjobs.workspace import notifications
    from rayjobs.workspace.http_messages import NewNotification, NotificationRow

    with settings.open(create=True) as workspace:
        if workspace.server is not None:
            body = NewNotification(receiver, everyone)
            made = workspace.server.ask("POST", PATH, NotificationRow, body=body, repeats=True)
        else:
            name = user_name()
            made = NotificationRow.of(
                notifications.subscribe(
                    workspace.store, receiver, user=None if everyone else name, by=name
                )
            )
    if settings.as_json:
        print_json(vars(made))
        return
    click.echo(made.id)


@notify.command(
    epilog="""\b
Examples:
  rayjobs notify ls
"""
)
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings) -> None:
    """List the receivers."""
    from rayjobs.workspace import notifications
    from rayjobs.workspace.http_messages import NotificationRow

    with settings.open() as workspace:
        if workspace.server is not None:
            rows = workspace.server.ask("GET", PATH, list[NotificationRow])
        else:
            rows = [NotificationRow.of(one) for one in notifications.subscriptions(workspace.store)]
    if settings.as_json:
        print_json([vars(one) for one in rows])
        return
    for one in rows:
        click.echo(f"{one.id}  {one.user or 'everyone':<20}  {one.receiver}")


@notify.command(
    epilog="""\b
Examples:
  rayjobs notify rm 1f3c88aa9c2e
"""
)
@click.argument("name", metavar="ID")
@common_options
@click.pass_obj
def rm(settings: Settings, name: str) -> None:
    """Remove a receiver."""
    from rayjobs.workspace import notifications

    with settings.open() as workspace:
        if workspace.server is not None:
            workspace.server.ask("DELETE", f"{PATH}/{name}", bool)
        else:
            notifications.unsubscribe(workspace.store, name)
    settings.note(f"removed {name}")


@notify.command(
    epilog="""\b
Examples:
  rayjobs notify mail smtps://robot@mail.example.org --from robot@example.org
  rayjobs notify mail smtp://localhost --from robot@example.org
  rayjobs notify mail none

With a user, the password is the target's secret RAYJOBS_SECRET_SMTP:
`rayjobs target secret set RAYJOBS_SECRET_SMTP`.
"""
)
@click.argument("server", metavar="smtp[s]://[USER@]HOST[:PORT]|none")
@click.option("--from", "sender", metavar="MAILBOX", help="The sender of the mails.")
@common_options
@click.pass_obj
def mail(settings: Settings, server: str, sender: str | None) -> None:
    """Set the mail server of a workspace. Works on the server's own machine."""
    from rayjobs.workspace import notifications, server_choice

    server_choice.refuse("`rayjobs notify mail`")
    with settings.open(create=True) as workspace:
        made = None if server == "none" else notifications.mailer_of(server, sender)
        notifications.set_mailer(workspace.store, made)
