"""`rayjobs dashboard`: the Ray dashboard of a target."""

from __future__ import annotations

import sys

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.target import NAME, TargetName

EPILOG = """\b
Examples:
  rayjobs dashboard                   prints its address
  rayjobs dashboard --open            opens a browser
  rayjobs dashboard --show-token      also prints the token that its login asks for
\b
`ray job list`, `ray job status ID` and `ray job logs -f ID` show the same jobs:
  export RAY_ADDRESS=$(rayjobs dashboard) RAY_AUTH_MODE=token
  export RAY_AUTH_TOKEN_PATH=FILE     the token_file of `rayjobs dashboard --json`
"""


@click.command(epilog=EPILOG)
@NAME
@click.option("--target", "of_target", type=TargetName(), hidden=True)  # as in `submit`
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
@click.option(
    "--show-token",
    is_flag=True,
    help="Print the login token. It gives full control of the cluster.",
)
@json_option
@common_options
@click.pass_obj
def dashboard(
    settings: Settings, name: str, of_target: str | None, open_browser: bool, show_token: bool
) -> None:
    """Print or open the Ray dashboard of a target.

    Its Jobs page lists the target's jobs by id, with their states, messages and live logs: all
    running jobs, the newest 100 waiting ones and the newest 100 that have ended. Its login asks for
    the target's token; --json names the file that holds it.
    """
    from rayjobs.target.dashboard import dashboard_of
    from rayjobs.workspace import server_choice

    server_choice.refuse("`rayjobs dashboard`")
    name = of_target or name
    found = dashboard_of(name)
    token = found.read_token() if show_token else None
    if settings.as_json:
        data = {"target": name, "url": found.url, "token_file": None}
        if found.token_file is not None:
            data["token_file"] = str(found.token_file)
        print_json({**data, "token": token} if token is not None else data)
    else:
        click.echo(found.url)
        if token is not None:
            click.echo(token)
        elif found.token_file is None:
            settings.note(f"the cluster of target {name} requires no token, so it has no login")
        elif sys.stderr.isatty():
            settings.note(f"its login asks for the token in {found.token_file} (--show-token)")
    if open_browser and not found.open():
        settings.note("this machine has no browser; open the address in a browser elsewhere")
