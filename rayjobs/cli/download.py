"""`rayjobs download`: fetch a job's stored files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rayjobs.cli.fetching import chosen_files, destinations, fetch
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.cli.unknown_names import require_single_job
from rayjobs.core.terminal import one_line
from rayjobs.core.text import counted, size_text
from rayjobs.results.gone import why_gone

EPILOG = """\b
Examples:
  rayjobs download 1f3c                         all, below a folder with the job's id
  rayjobs download 1f3c outputs/model.pt        one file, here
  rayjobs download 1f3c outputs/ -o results     a folder
  rayjobs download 1f3c outputs/model.pt -o -   to stdout
"""


@click.command(epilog=EPILOG)
@job_argument
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-o", "--output", metavar="PATH", help="Destination; - writes one file to stdout.")
@click.option("--force", is_flag=True, help="Replace files whose content differs.")
@quiet_option("No progress.")
@json_option
@common_options
@click.pass_obj
def download(
    settings: Settings, job: str, names: tuple[str, ...], output: str | None, force: bool
) -> None:
    """Fetch a job's stored files. NAME is a file, a folder or a pattern (default: all files).

    Each file appears only once it is complete and its digest is checked. Existing files are not
    fetched again. Later snapshots leave out the folder made here, which is named after the job.
    """
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        all_files = workspace.store.files(found.id)
        if not all_files:
            require_single_job(workspace.store, found, "download", what="files")
        gone = "" if all_files else why_gone(workspace.store, found)
        stored = chosen_files(found.id, all_files, names, gone=gone)
        if output == "-":
            if len(stored) != 1:
                raise click.UsageError(f"-o - writes one file; {len(stored)} are chosen.")
            with workspace.blobs.open(stored[0].blob) as stream:
                while data := stream.read(1 << 20):
                    sys.stdout.buffer.write(data)
            return
        targets = destinations(found.id, stored, names, output)
        if output is None and any(len(path.parts) > 1 for path in targets.values()):
            _mark(Path(found.id))
        written, present = fetch(settings, workspace.blobs, stored, targets, force=force)
    if settings.as_json:
        print_json({"job": found.id, "files": {name: str(path) for name, path in targets.items()}})
        return
    for path in targets.values():
        click.echo(one_line(str(path)))
    size = size_text(sum(one.size for one in stored))
    if not stored:
        why = f": {gone}" if gone else "" if found.state.is_final else " yet"
        settings.note(f"{found.id} has no files{why}")
    elif written:
        settings.note(f"fetched {counted(written, 'file')}, {size} in all")
    if present:
        settings.note(f"{counted(present, 'file')} already there")


def _mark(folder: Path) -> None:
    """Mark a local folder that receives a job's files, so that later snapshots leave it out."""
    from rayjobs.snapshots.own_records import DOWNLOAD_MARK

    folder.mkdir(exist_ok=True)
    (folder / DOWNLOAD_MARK).touch()
