"""`rayjobs workspace`: create, add, show, check, take over, back up and restore workspaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import facts, print_json
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.cli.target import TargetName

EPILOG = """\b
Examples:
  rayjobs workspace create team --store postgresql://ada@db.example.org/rayjobs \\
      --blobs s3://bucket/team
  rayjobs workspace add team --store 'postgresql://ada@db.example.org/rayjobs?schema=…'
  rayjobs workspace show
  rayjobs workspace check

The first submit creates a workspace; `create` is for one that several machines use: its records are
in PostgreSQL, its files in S3. Every machine has a small folder that names the two. Without --blobs
the files are in the folder, which may be on a network file system. The password of the database is
read from PGPASSWORD or ~/.pgpass, keys of S3 from the usual AWS places; none is stored in the
workspace.
"""


@click.group(cls=CommandList, epilog=EPILOG)
def workspace() -> None:
    """Create, show, check, back up and restore workspaces."""


@workspace.command(
    epilog="\b\nExample:\n"
    "  rayjobs workspace create team --store postgresql://ada@db.example.org/rayjobs \\\n"
    "      --blobs s3://bucket/team\n"
)
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--store",
    metavar="URL",
    required=True,
    help="postgresql://USER@HOST[:PORT]/DATABASE[?schema=NAME].",
)
@click.option("--blobs", metavar="URL", help="s3://BUCKET/PREFIX [FOLDER].")
@click.option("--make-bucket", is_flag=True, help="Create the bucket unless it exists.")
@click.option("--endpoint-url", metavar="URL", help="The S3 server [AWS].")
@click.option("--region", metavar="NAME", help="The region of the bucket.")
@click.option("--profile", metavar="NAME", help="A profile of the AWS files on every machine.")
@json_option
@common_options
@click.pass_obj
def create(
    settings: Settings,
    folder: Path,
    store: str,
    blobs: str | None,
    make_bucket: bool,
    endpoint_url: str | None,
    region: str | None,
    profile: str | None,
) -> None:
    """Create a workspace in FOLDER with its records in PostgreSQL and its files in S3.

    If the addresses already belong to a workspace, FOLDER becomes this machine's folder for it.
    Each workspace has its own schema and prefix.
    """
    from rayjobs.workspace import shared
    from rayjobs.workspace.s3_address import S3Address

    if blobs is None and (endpoint_url or region or profile or make_bucket):
        raise click.UsageError(
            "--endpoint-url, --region, --profile and --make-bucket belong to --blobs."
        )
    address = None
    if blobs is not None:
        address = S3Address.parsed(
            blobs, endpoint=endpoint_url or "", region=region or "", profile=profile or ""
        )
    _say(settings, shared.create(folder, store, blobs=address, make_bucket=make_bucket))


@workspace.command(
    epilog="\b\nExample:\n"
    "  rayjobs workspace add team --store 'postgresql://ada@db.example.org/rayjobs?schema=…'\n"
)
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--store",
    metavar="URL",
    required=True,
    help="As printed by `rayjobs workspace show` on a machine that has the workspace.",
)
@click.option("--profile", metavar="NAME", help="A profile of this machine's AWS files.")
@json_option
@common_options
@click.pass_obj
def add(settings: Settings, folder: Path, store: str, profile: str | None) -> None:
    """Make FOLDER this machine's folder of an existing workspace.

    The workspace's store records where its files are.
    """
    from rayjobs.workspace import shared

    _say(settings, shared.join(folder, store, profile=profile or ""))


def _say(settings: Settings, made: Any) -> None:
    with made.workspace as opened:
        values = {**_facts(opened), "joined": made.joined}
    if settings.as_json:
        print_json(values)
        return
    what = "joined the workspace" if made.joined else "created the workspace"
    click.echo(
        f"{what} {values['name']} in {values['folder']}, with its store at {values['store']} and "
        f"its files in {values['files']}"
    )
    if values["join"] and not made.joined:
        click.echo(f"on other machines: {values['join']}", err=True)
    click.echo(f"use it: export RAYJOBS_WORKSPACE={values['folder']}", err=True)


@workspace.command(epilog="\b\nExample:\n  rayjobs workspace show\n")
@json_option
@common_options
@click.pass_obj
def show(settings: Settings) -> None:
    """Show which workspace is used here, where it is stored, and which machines serve it."""
    with _opened(settings) as opened:
        values = _facts(opened)
        counts = opened.store.counts()
        targets = [
            serving
            for name in sorted({"local", *(line.target for line in opened.store.job_lines())})
            if (serving := opened.store.serving(name)) is not None
        ]
    jobs = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
    if settings.as_json:
        print_json(
            {
                **values,
                "jobs": {str(state): count for state, count in counts.items()},
                "targets": [
                    {
                        "name": one.target,
                        "host": one.claimant.host,
                        "live": one.is_live,
                        "silent_s": one.silent_s,
                        "version": one.claimant.version,
                    }
                    for one in targets
                ],
            }
        )
        return
    served = [
        (
            "target",
            f"{one.target} on {one.claimant.host}" + ("" if one.is_live else ", not running"),
        )
        for one in targets
    ]
    shown = [(name, value) for name, value in values.items() if value]
    click.echo(facts([*shown, *served, ("jobs", jobs)]))


@workspace.command(epilog="\b\nExample:\n  rayjobs workspace check\n")
@json_option
@common_options
@click.pass_obj
def check(settings: Settings) -> int:
    """Check that the workspace's store and files can be used from here.

    The check writes, reads and removes a record and a file, and checks permissions, versions and
    clocks.
    """
    from rayjobs.housekeeping.workspace_check import look

    with _opened(settings) as opened:
        values, report = _facts(opened), look(opened)
    if settings.as_json:
        print_json({**values, **report.to_json()})
    else:
        for line in report.lines:
            click.echo(line)
        for problem in report.problems:
            click.echo(f"problem: {problem}", err=True)
        if not report.problems:
            click.echo(f"{values['folder']} can be used")
    return Exit.UNREACHABLE if report.problems else Exit.DONE


@workspace.command("take-over", epilog="\b\nExample:\n  rayjobs workspace take-over local\n")
@click.argument("target", default="local", metavar="[TARGET]", type=TargetName())
@json_option
@common_options
@click.pass_obj
def take_over(settings: Settings, target: str) -> None:
    """Serve the workspace's target TARGET [local] from this machine from now on.

    It must not be running where it was served before.
    """
    from rayjobs.core.paths import home
    from rayjobs.target import elsewhere

    with _opened(settings) as opened:
        before = opened.store.take_over(target, elsewhere.claimant(home()))
    if settings.as_json:
        print_json({"target": target, "before": None if before is None else before.claimant.host})
        return
    click.echo(f"target {target!r} of this workspace now belongs to this machine")
    click.echo(f"start it: rayjobs target start {target}, or the next submit does", err=True)


@workspace.command(epilog="\b\nExample:\n  rayjobs workspace backup /backup/team\n")
@click.argument("to", metavar="FOLDER", type=click.Path(path_type=Path))
@json_option
@common_options
@click.pass_obj
def backup(settings: Settings, to: Path) -> None:
    """Copy records and stored files into FOLDER, while jobs run.

    An existing copy there gets the new records and the missing files. Data in datastores is not
    copied.
    """
    from rayjobs.housekeeping import workspace_backup
    from rayjobs.workspace import server_choice
    from rayjobs.workspace.folder import locate

    server_choice.refuse("`rayjobs workspace backup`")
    found = locate(settings.workspace).resolve()
    _say_copied(settings, workspace_backup.backup(found, to.expanduser().absolute()))


@workspace.command(epilog="\b\nExample:\n  rayjobs workspace restore /backup/team ~/team-again\n")
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("to", metavar="FOLDER", type=click.Path(path_type=Path))
@json_option
@common_options
@click.pass_obj
def restore(settings: Settings, source: Path, to: Path) -> None:
    """Create a workspace in FOLDER from a BACKUP.

    Its records are in a file there; `rayjobs db move` moves them into PostgreSQL. Unfinished jobs
    continue there, unless the original still exists.
    """
    from rayjobs.housekeeping import workspace_backup

    done = workspace_backup.restore(source.expanduser().absolute(), to.expanduser().absolute())
    _say_copied(settings, done)


def _say_copied(settings: Settings, done: Any) -> None:
    from rayjobs.core.text import counted, size_text

    if settings.as_json:
        print_json({**vars(done), "folder": str(done.folder)})
        return
    click.echo(
        f"{done.folder}: records and {counted(done.files, 'file')} "
        f"({done.copied} copied now, {size_text(done.size)})"
    )


def _opened(settings: Settings) -> Any:
    from rayjobs.workspace import server_choice
    from rayjobs.workspace.folder import locate, open_workspace

    if settings.workspace is None:
        server_choice.refuse("`rayjobs workspace`")
    return open_workspace(locate(settings.workspace), create=False)


def _facts(opened: Any) -> dict[str, Any]:
    from rayjobs.workspace.folder import WorkspaceFiles, record_of
    from rayjobs.workspace.shared import join_command

    record = record_of(opened.path)
    store = None if record is None else record.store
    files, blobs = WorkspaceFiles(opened.path), opened.blobs_address
    return {
        "folder": str(opened.path),
        "name": opened.name,
        "id": opened.id,
        "store": store or str(files.store),
        "files": str(files.blobs) if blobs is None else blobs.where,
        "join": None if blobs is None or store is None else join_command(store),
    }
