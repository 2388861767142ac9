"""`rayjobs workspace`: create, show and check workspaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rayjobs.cli.output import facts, print_json
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.text import counted

EPILOG = """\b
Examples:
  rayjobs workspace create /shared/team --store postgresql://ada@db.example.org/rayjobs
  rayjobs workspace show
  rayjobs workspace check

A workspace is made by the first submit; `create` is for one whose records are kept
in PostgreSQL. Its folder may be on a network file system, and other machines can read
it; submit from the machine that runs the target. The password is read from PGPASSWORD
or ~/.pgpass, and is never stored.
"""


@click.group(cls=CommandList, epilog=EPILOG)
def workspace() -> None:
    """Create a workspace with its store in PostgreSQL; show and check workspaces."""


@workspace.command(
    epilog="\b\nExample:\n"
    "  rayjobs workspace create /shared/team --store postgresql://ada@db.example.org/rayjobs\n"
)
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--store",
    metavar="URL",
    required=True,
    help="postgresql://USER@HOST[:PORT]/DATABASE[?schema=NAME].",
)
@json_option
@common_options
@click.pass_obj
def create(settings: Settings, folder: Path, store: str) -> None:
    """Create a workspace in FOLDER whose records are in PostgreSQL.

    Snapshots, logs and stored files stay in FOLDER. Each workspace has its own schema.
    """
    from rayjobs.workspace.folder import create_in

    with create_in(folder, store) as opened:
        values = _facts(opened)
    if settings.as_json:
        print_json(values)
        return
    click.echo(f"created the workspace {values['folder']}, with its store at {values['store']}")
    click.echo(f"use it: export RAYJOBS_WORKSPACE={values['folder']}", err=True)


@workspace.command(epilog="\b\nExample:\n  rayjobs workspace show\n")
@json_option
@common_options
@click.pass_obj
def show(settings: Settings) -> None:
    """Show which workspace is used here, and where its records are."""
    with _opened(settings) as opened:
        values = _facts(opened)
        counts = opened.store.counts()
    if settings.as_json:
        print_json({**values, "jobs": {str(state): count for state, count in counts.items()}})
        return
    jobs = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
    click.echo(facts([*values.items(), ("jobs", jobs)]))


@workspace.command(epilog="\b\nExample:\n  rayjobs workspace check\n")
@json_option
@common_options
@click.pass_obj
def check(settings: Settings) -> None:
    """Check that records can be read and written, and that files can be stored."""
    import time

    from rayjobs.core.ids import token

    with _opened(settings) as opened:
        started_s = time.perf_counter()
        opened.store.catalogue.datastores()
        read_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        opened.store.correct_submitted({})  # a write that changes nothing
        write_s = time.perf_counter() - started_s
        probe = opened.path / f".check-{token(4)}"
        probe.write_bytes(b"rayjobs")
        probe.unlink()
        values = {
            **_facts(opened),
            "jobs": sum(opened.store.counts().values()),
            "read_ms": round(read_s * 1e3, 1),
            "write_ms": round(write_s * 1e3, 1),
        }
    if settings.as_json:
        print_json(values)
        return
    click.echo(
        f"{values['folder']} can be used: {counted(values['jobs'], 'job')}; a read took "
        f"{values['read_ms']} ms and a write {values['write_ms']} ms at {values['store']}"
    )


def _opened(settings: Settings) -> Any:
    from rayjobs.workspace.folder import locate, open_workspace

    return open_workspace(locate(settings.workspace), create=False)


def _facts(opened: Any) -> dict[str, Any]:
    from rayjobs.workspace.folder import WorkspaceFiles, store_address

    address = store_address(opened.path)
    return {
        "folder": str(opened.path),
        "name": opened.name,
        "id": opened.id,
        "store": address or str(WorkspaceFiles(opened.path).store),
    }
