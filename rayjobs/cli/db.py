"""`rayjobs db`: upgrade, back up, check and move the store of a workspace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import print_json
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.terminal import one_line
from rayjobs.core.text import counted, size_text, verb

if TYPE_CHECKING:
    from rayjobs.store.care import Report
    from rayjobs.store.dropped import Dropped

NAMED_AT_MOST = 10

EPILOG = """\b
Examples:
  rayjobs db check
  rayjobs db backup ~/rayjobs-monday.db
  rayjobs db restore ~/rayjobs-monday.db
  rayjobs db upgrade
  rayjobs db move postgresql://ada@db.example.org/rayjobs
"""


@click.group(cls=CommandList, epilog=EPILOG)
def db() -> None:
    """Upgrade, back up, restore, check or move a workspace's store (its file store.db).

    Never copy store.db with cp while it is in use: the newest records are in files next to it.
    """


@db.command(epilog="\b\nExample:\n  rayjobs db check --json\n")
@json_option
@common_options
@click.pass_obj
def check(settings: Settings) -> int:
    """Check that the store is intact, has the current version, and is on a local disk."""
    from rayjobs.store import care

    return _print(settings, care.check(_store(settings)))


@db.command(epilog="\b\nExample:\n  rayjobs db backup ~/rayjobs-monday.db\n")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@json_option
@common_options
@click.pass_obj
def backup(settings: Settings, file: Path) -> None:
    """Write a complete copy of the store to FILE, while jobs keep running.

    The copy holds records and metrics. Stored files are in the folder blobs/ next to the
    store; each is written once and never changed, so any tool can copy them afterwards.
    """
    from rayjobs.store import care

    target = file.expanduser().absolute()
    care.backup(_store(settings), target)
    size = target.stat().st_size
    if settings.as_json:
        print_json({"file": str(target), "bytes": size})
    else:
        click.echo(f"{target} is a complete copy ({size_text(size)})")


@db.command(epilog="\b\nExample:\n  rayjobs db upgrade\n")
@click.option("--no-backup", is_flag=True, help="Do not keep a copy of the old store.")
@json_option
@common_options
@click.pass_obj
def upgrade(settings: Settings, no_backup: bool) -> None:
    """Upgrade the store to this version, and keep a copy of the old one next to it.

    Older versions of rayjobs cannot use the upgraded store.
    """
    from rayjobs.store import care

    done = care.upgrade(_store(settings), keep_copy=not no_backup)
    if settings.as_json:
        print_json({"from": done.old, "to": done.new, "copy": done.copy and str(done.copy)})
    elif done.old == done.new:
        click.echo(f"the store has version {done.new} already")
    else:
        click.echo(f"upgraded from version {done.old} to {done.new}")
        if done.copy is not None:
            click.echo(f"the old one is kept in {done.copy}")


@db.command(
    epilog="\b\nExamples:\n  rayjobs db restore ~/rayjobs-monday.db\n  rayjobs db restore --as-is\n"
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--as-is", is_flag=True, help="Accept the existing store, or create an empty one.")
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Do not ask; required to drop records where there is no terminal.",
)
@json_option
@common_options
@click.pass_obj
def restore(settings: Settings, file: Path | None, as_is: bool, yes: bool) -> None:
    """Restore a backup in place of a store that is missing, damaged or incomplete.

    The old store is kept next to it. Stop its targets first (`rayjobs target stop`): while a target
    or another process uses the store, nothing is replaced. Records made after the backup are lost:
    the command lists them and asks first.
    """
    from rayjobs.core.paths import home
    from rayjobs.store import care
    from rayjobs.target.unfinished import check_not_served
    from rayjobs.workspace.folder import WorkspaceFiles, locate

    if (file is None) != as_is:
        raise click.UsageError("give either a backup's FILE or --as-is.")
    store = WorkspaceFiles(locate(settings.workspace)).store
    check_not_served(store.parent, home=home())
    source = None if file is None else Path(os.path.abspath(file.expanduser()))  # noqa: PTH100
    if source is not None and not yes:
        _confirm(store, source, care.would_drop(store, source))
    done = care.restore(store, source)
    if settings.as_json:
        print_json(
            {
                "file": str(store),
                "from": source and str(source),
                "old": done.old and str(done.old),
                "dropped": _dropped_json(done.dropped) if source else None,
            }
        )
        return
    click.echo(f"{store} is accepted as it is" if source is None else f"restored {store}")
    for line in _dropped_lines(done.dropped, "was dropped", "were dropped"):
        click.echo(line)
    if done.old is not None:
        click.echo(f"the old one is kept in {done.old}")
        if done.dropped:
            settings.note(
                f"to go back: rayjobs db restore {done.old}. `rayjobs prune` removes files that "
                "only the old one names"
            )


@db.command(
    epilog="\b\nExamples:\n"
    "  rayjobs db move postgresql://ada@db.example.org/rayjobs\n"
    "  rayjobs db move --to-file\n"
)
@click.argument("url", metavar="[URL]", required=False)
@click.option("--to-file", "to_file", is_flag=True, help="Move the records back into a file.")
@json_option
@common_options
@click.pass_obj
def move(settings: Settings, url: str | None, to_file: bool) -> None:
    """Move the records of a workspace into PostgreSQL, or back into a file.

    Every row is copied and verified before the workspace uses the copy. The old store is kept.
    Stop its targets first (`rayjobs target stop`); stored files stay in the workspace's folder. If
    the command is killed, repeat it.
    """
    from rayjobs.core.errors import UsageError
    from rayjobs.core.paths import home
    from rayjobs.store import moving
    from rayjobs.store.postgres_address import with_schema
    from rayjobs.target.unfinished import check_not_served
    from rayjobs.workspace import folder

    if (url is None) != to_file:
        raise click.UsageError("give either the URL of a PostgreSQL database or --to-file.")
    files = folder.WorkspaceFiles(folder.locate(settings.workspace).resolve())
    address = folder.store_address(files.root)
    if url is not None:
        if address is not None:
            raise UsageError(
                f"the store of {files.root} is in PostgreSQL already ({address}); move it back "
                f"with --to-file first"
            )
        path = _store(settings)
        check_not_served(files.root, home=home())
        owner = str(folder.id_of(files.root))
        new = with_schema(url, f"workspace_{owner}")
        switch = functools.partial(folder.keep_records_in, files.root, new)
        done = moving.to_postgres(path, new, workspace=owner, switch=switch)
    else:
        if address is None:
            raise UsageError(f"the store of {files.root} is in a file already: {files.store}")
        check_not_served(files.root, home=home())
        new = str(files.store)
        switch = functools.partial(folder.keep_records_in, files.root, None)
        done = moving.to_file(address, files.store, switch=switch)
    if settings.as_json:
        print_json({"store": new, "rows": done.rows, "tables": done.tables, "old": done.old})
        return
    click.echo(f"the store is now {new}: {counted(done.rows, 'row')}, each compared with its copy")
    settings.note(f"the old one is kept: {done.old}")


def _confirm(store: Path, source: Path, found: Dropped) -> None:
    """Show what a restore drops, and ask. Raises click.UsageError, click.Abort."""
    lines = _dropped_lines(found, "is dropped", "are dropped")
    if not lines:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        listed = "\n".join(lines)
        raise click.UsageError(
            f"{source} is older than {store}. If you restore it:\n{listed}\n"
            f"Nothing was replaced. To continue: rayjobs db restore --yes {source}"
        )
    head = f"{source} is older than {store}. If you restore it:"
    click.echo("\n".join([head, *lines]), err=True)
    click.confirm("Restore it? The old store is kept.", abort=True, err=True)


def _dropped_lines(found: Dropped, one: str, many: str) -> list[str]:
    """Return what a restore drops, a line for each kind of record."""
    from rayjobs.store.dropped import MEMBER

    lines = []
    for what, some in found.records.items():
        number = len(some)
        name = _MEMBERS if what == MEMBER and number != 1 else None
        shown = f"{number:,} {name}" if name else counted(number, what)
        lines.append(f"  {shown} {verb(number, one, many)}: {_named(some)}")
    if found.again:
        number = len(found.again)
        each = [(job.id, f"{job.name}, {job.state}") for job in found.again]
        lines.append(
            f"  {counted(number, 'job')} {verb(number, 'is', 'are')} unfinished again and "
            f"{verb(number, 'runs', 'run')} again: {_named(each)}"
        )
    return lines


_MEMBERS = "members or trials"


def _named(some: Sequence[tuple[str, str]]) -> str:
    """Return the names of records, and the short ids of jobs."""
    names = [
        one_line(name if key == name else f"{name} ({key.rpartition('_')[2]})")
        for key, name in some[:NAMED_AT_MOST]
    ]
    more = len(some) - NAMED_AT_MOST
    return ", ".join(names) + (f" and {more:,} more" if more > 0 else "")


def _dropped_json(found: Dropped) -> dict[str, Any] | None:
    if not found.is_known:
        return None
    return {
        "records": {
            what: [{"id": key, "name": name} for key, name in some]
            for what, some in found.records.items()
        },
        "again": [{"id": one.id, "name": one.name, "state": one.state} for one in found.again],
    }


def _store(settings: Settings) -> Path:
    """Return the store's file without opening it, which would upgrade it.

    Raises:
        NotFoundError: there is no store.
        UsageError: it is not a file.
    """
    from rayjobs.core.errors import NotFoundError, UsageError
    from rayjobs.store.witness import Witness
    from rayjobs.workspace.folder import ENVIRONMENT, WorkspaceFiles, locate, store_address

    files = WorkspaceFiles(locate(settings.workspace))
    if (address := store_address(files.root)) is not None:
        raise UsageError(
            f"the store of {files.root} is in PostgreSQL ({address}): `rayjobs workspace check` "
            f"checks it, pg_dump and pg_restore copy it (with --schema), and a newer rayjobs "
            f"upgrades it when it opens it"
        )
    if not files.store.exists():
        witness = Witness(files.store)
        note = witness.read()
        if note is not None and note.expected:
            witness.refuse_deleted()
        raise NotFoundError(
            f"there is no store in {files.root}; submit a job there first, or name another "
            f"workspace with --workspace or {ENVIRONMENT}"
        )
    return files.store


def _print(settings: Settings, report: Report) -> int:
    if settings.as_json:
        print_json(
            {
                "file": str(report.path),
                "version": report.version,
                "bytes": report.bytes,
                "is_whole": report.is_whole,
                "file_system": report.file_system,
                "problems": report.problems,
                "warnings": report.warnings,
            }
        )
    else:
        click.echo(f"{report.path}: version {report.version}, {size_text(report.bytes)}")
        for sentence in report.problems:
            click.echo(settings.style("FAIL", "red") + f"  {sentence}")
        for sentence in report.warnings:
            click.echo(settings.style("WARN", "yellow") + f"  {sentence}")
        if report.is_whole:
            click.echo(settings.style("OK", "green") + "    SQLite reports no errors")
    return Exit.FAILED if report.problems else Exit.DONE
