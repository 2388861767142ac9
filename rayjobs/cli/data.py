"""`rayjobs data`: upload data to a datastore, download it, and register versions of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import ago_text, facts, local_time, print_json, table
from rayjobs.cli.params import pairs
from rayjobs.cli.reporting import say
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option, quiet_option
from rayjobs.core.errors import NotFoundError
from rayjobs.core.terminal import one_line
from rayjobs.core.text import counted, size_text
from rayjobs.data.pins import DATASET
from rayjobs.spec.sources import OUTPUT

if TYPE_CHECKING:
    from rayjobs.data.made import MadeOutput
    from rayjobs.datastore.catalogue import Catalogue, DatasetRecord
    from rayjobs.datastore.kept import Tally
    from rayjobs.datastore.progress import Progress, ProgressCallback
    from rayjobs.datastore.stores import Datastore
    from rayjobs.workspace.folder import OpenWorkspace

FILES_SHOWN = 20
TABLES = ("csv", "parquet", "json")
EPILOG = """\b
Examples:
  rayjobs data put digits/ workspaceblobstore/digits
  rayjobs data ls workspaceblobstore/digits
  rayjobs data register digits workspaceblobstore/digits
  rayjobs submit train.py --input data=dataset:digits -- --data-dir '$AZUREML_DATAREFERENCE_data'
  rayjobs data get dataset:digits:1 here/
  rayjobs data get output:train/model here/          an output of a job, as it was stored
"""
SILENT = quiet_option("No progress, no hints.")


@click.group(cls=CommandList, epilog=EPILOG)
def data() -> None:
    """Upload data to a datastore, download it, and register versions of it as datasets.

    Name data as DATASTORE/PATH, dataset:NAME[:VERSION], output:JOB/NAME, or, for the output of a
    pipeline's step, output:RUN/STEP/NAME.
    """


@data.command(epilog=EPILOG)
@click.argument("files", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path())
@click.argument("destination", metavar="DATASTORE/PATH")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@json_option
@SILENT
@common_options
@click.pass_obj
def put(settings: Settings, files: tuple[str, ...], destination: str, *, overwrite: bool) -> int:
    """Upload files or folders to a path of a datastore.

    Existing files are kept, so an interrupted upload can be repeated. If one of them differs from
    the local file, the command reports it and exits with 1; --overwrite replaces it. Broken links,
    links to a parent folder, sockets and pipes are skipped with a warning.
    """
    from rayjobs.datastore.kept import Tally
    from rayjobs.datastore.stores import Datastore
    from rayjobs.datastore.transfer import files_below, left_out_text

    paths = [Path(text).expanduser() for text in files]
    for path in paths:
        if not path.exists():
            raise NotFoundError(f"there is no file or folder {path}")
    with settings.open(create=True) as workspace:
        name, _, target = destination.partition("/")
        store = Datastore(workspace, name)
        watch = _Watch(settings)
        done = Tally()
        left_out: list[str] = []
        for path in paths:
            if path.is_dir():
                found = files_below(path, left_out)
                moved = store.put(found, path, target, overwrite, watch)
                done += moved.tally
        single = [path for path in paths if not path.is_dir()]
        if single:
            done += store.put(single, None, target, overwrite, watch).tally
    stored = f"{name}/{target.strip('/')}"
    if settings.as_json:
        counts = {"files": watch.files, "bytes": watch.bytes, **_counts(done, "stored")}
        print_json({"datastore": name, "path": target, **counts, "left_out": left_out})
    else:
        whole = f"stored {counted(watch.files, 'file')} ({size_text(watch.bytes)}) in {stored}"
        click.echo(_summary(done, "stored", stored, whole))
        if not done.differing:
            settings.note(f"use it: rayjobs submit … --input data={stored}")
    if left_out:  # even with -q: the datastore does not have everything
        say(f"warning: {left_out_text(left_out)}")
    return Exit.FAILED if done.differing else Exit.DONE


@data.command(epilog=EPILOG)
@click.argument("source", metavar="DATASTORE/PATH|dataset:NAME[:VERSION]|output:JOB/NAME")
@click.argument("folder", metavar="FOLDER", type=click.Path(file_okay=False))
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@json_option
@SILENT
@common_options
@click.pass_obj
def get(settings: Settings, source: str, folder: str, *, overwrite: bool) -> int:
    """Fetch data into a folder; each file appears once it is complete.

    Existing files are kept. If one of them differs from the file to fetch, the command reports it
    and exits with 1; --overwrite replaces it.
    """
    from rayjobs.datastore.datasets import FileDataset

    with settings.open() as workspace:
        dataset = _files_of(settings, workspace, source)
        if not isinstance(dataset, FileDataset):
            dataset = FileDataset(dataset.sources, dataset.records, dataset.manifest)
        watch = _Watch(settings)
        target = Path(folder).expanduser()
        done = dataset.fetch(target, overwrite=overwrite, progress=watch)
    size = dataset.manifest.total_bytes
    fetched = [str(target / entry.path) for entry in dataset.manifest]
    if settings.as_json:
        counts = {"files": fetched, "bytes": size, **_counts(done, "fetched")}
        print_json({"source": source, "folder": folder, **counts})
    else:
        whole = f"fetched {counted(len(fetched), 'file')} ({size_text(size)}) into {folder}"
        click.echo(_summary(done, "fetched", folder, whole))
    return Exit.FAILED if done.differing else Exit.DONE


def _summary(done: Tally, verb: str, stored: str, whole: str) -> str:
    """Return the summary of a transfer: `whole` if every file was actually transferred."""
    return f"{stored}: {done.sentence(verb, 'use --overwrite')}" if done.kept else whole


def _counts(done: Tally, verb: str) -> dict[str, int]:
    return {verb: done.moved, "kept": done.kept, "differing": done.differing}


@data.command(epilog=EPILOG)
@click.argument("reference", metavar="[DATASTORE/PATH|dataset:NAME|output:JOB/NAME]", default="")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, reference: str) -> None:
    """List datasets, the versions of a dataset, or the files of a datastore or a job's output."""
    from rayjobs.datastore.stores import Datastore

    with settings.open() as workspace:
        catalogue = workspace.catalogue
        reference = _reference(catalogue, reference)
        if reference.startswith(OUTPUT):
            files = _output_of(settings, workspace, reference).files
            _print_files(settings, [{"path": one.path, "size": one.size} for one in files])
        elif reference.startswith(DATASET):
            name = reference.removeprefix(DATASET).partition(":")[0]
            catalogue.dataset(name)  # its error lists the existing datasets
            _list_datasets(settings, catalogue, catalogue.dataset_versions(name))
        elif reference:
            store, _, path = reference.partition("/")
            _list_files(settings, Datastore(workspace, store), path)
        else:
            _list_datasets(settings, catalogue, catalogue.datasets())


def _list_datasets(settings: Settings, catalogue: Catalogue, records: list[DatasetRecord]) -> None:
    if settings.as_json:
        print_json([_as_json(catalogue, record) for record in records])
        return
    if not records:
        settings.note("no datasets; `rayjobs data register NAME DATASTORE/PATH` makes one")
        return
    rows = []
    for record in records:
        files = _manifest(catalogue, record)
        rows.append(
            (
                record.name,
                str(record.version),
                record.kind,
                str(len(files)),
                size_text(files.total_bytes),
                ago_text(record.created_at),
                record.description,
            )
        )
    header = ("NAME", "VERSION", "KIND", "FILES", "SIZE", "MADE", "DESCRIPTION")
    click.echo(table(rows, header, right=(1, 3, 4)))


def _list_files(settings: Settings, store: Datastore, path: str) -> None:
    from rayjobs.datastore.backends import StoredFile
    from rayjobs.datastore.errors import DataNotFound

    found = store.children(path)
    if not found:
        found = list(store.files(path))
    if not found and path.strip("/"):
        raise DataNotFound(
            f"there is nothing at {path!r} in datastore {store.name!r} ({store.backend.where})."
        )
    rows = [
        {"path": one.path.rstrip("/"), "size": one.size if isinstance(one, StoredFile) else None}
        for one in found
    ]
    _print_files(settings, rows)


def _print_files(settings: Settings, rows: list[dict[str, Any]]) -> None:
    """Print files, and folders, whose size is None."""
    if settings.as_json:
        print_json(rows)
        return
    shown = [
        (
            "" if row["size"] is None else size_text(float(str(row["size"]))),
            f"{row['path']}{'/' if row['size'] is None else ''}",
        )
        for row in rows
    ]
    click.echo(table(shown, ("SIZE", "PATH"), right=(0,)))


@data.command(epilog=EPILOG)
@click.argument("name", metavar="NAME")
@click.argument("sources", metavar="DATASTORE/PATH|URL...", nargs=-1, required=True)
@click.option("--table", "form", type=click.Choice(TABLES), help="A table in files of this format.")
@click.option("--description", metavar="TEXT", default="", help="A description for people.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A label; repeatable.")
@click.option("--new-version", is_flag=True, help="Register the next version of an existing name.")
@json_option
@SILENT
@common_options
@click.pass_obj
def register(
    settings: Settings,
    name: str,
    sources: tuple[str, ...],
    *,
    form: str | None,
    description: str,
    tags: tuple[str, ...],
    new_version: bool,
) -> None:
    """Register the files at paths (or globs), as they are now, as a version of a dataset.

    A version is a list of files with their digests. Each file of a folder is read once to compute
    its digest.
    """
    from rayjobs.datastore.errors import DatasetExists

    with settings.open(create=True) as workspace:
        catalogue = workspace.catalogue
        found = [_source(catalogue, text) for text in sources]
        before = {one.name: one.version for one in catalogue.datasets()}.get(name)
        try:
            dataset = _new(found, form).register(
                workspace,
                name,
                description,
                pairs(tags, option="--tag", example="season=2026"),
                create_new_version=new_version,
                progress=_Watch(settings),
            )
        except DatasetExists:
            raise DatasetExists(
                f"dataset {name!r} is registered already; give --new-version for its next version."
            ) from None  # its message is for Python
        if new_version:
            _note_same_files(settings, catalogue, catalogue.dataset_by_id(dataset.id))
        if settings.as_json:
            print_json(_as_json(catalogue, catalogue.dataset_by_id(dataset.id)))
            return
    size = size_text(dataset.manifest.total_bytes)
    has = "is unchanged:" if dataset.version == before else "has"
    files = counted(len(dataset.manifest), "file")
    click.echo(f"dataset {name}:{dataset.version} {has} {files} ({size})")
    mode = ":direct" if form else ""
    settings.note(f"use it: rayjobs submit … --input data=dataset:{name}{mode}")


def _note_same_files(settings: Settings, catalogue: Catalogue, made: DatasetRecord) -> None:
    """Print a note if a new version has the same files as an earlier one."""

    def contents(record: DatasetRecord) -> list[tuple[Any, ...]]:
        # A file that was only touched has the same digest but another etag.
        files = _manifest(catalogue, record)
        return [(one.path, one.size, one.digest or one.etag) for one in files]

    earlier = [one for one in catalogue.dataset_versions(made.name) if one.version != made.version]
    same = [one for one in earlier if one.manifest == made.manifest]
    # For other kinds, read the newest version only: a name may have hundreds, each a long list.
    if not same and earlier and contents(earlier[-1]) == contents(made):
        same = earlier[-1:]
    if same:
        settings.note(
            f"version {made.version} of {made.name!r} has the same files as "
            f"version {same[-1].version}"
        )


@data.command(
    epilog="\b\nExamples:\n  rayjobs data rm digits:2\n  rayjobs data rm digits:2 --force\n"
)
@click.argument("name", metavar="NAME:VERSION")
@click.option("--force", is_flag=True, help="Delete it even if the lineage of a model names it.")
@json_option
@common_options
@click.pass_obj
def rm(settings: Settings, name: str, force: bool) -> None:
    """Delete one version of a dataset from the registry; its files stay in their datastore.

    Refused while an unfinished job reads it, or (without --force) when a model was trained on it.
    Its version number is not reused.
    """
    from rayjobs.datastore.catalogue import parse_version

    title, _, text = name.removeprefix(DATASET).partition(":")
    with settings.open() as workspace:
        version = parse_version(text or None)
        if version is None:
            newest = workspace.catalogue.dataset(title).version
            raise click.UsageError(
                f"{name!r} names no version; the newest is {title}:{newest}. Write NAME:VERSION."
            )
        workspace.catalogue.dataset(title, version)
        models = workspace.catalogue.remove_dataset(title, version, force=force)
    if settings.as_json:
        print_json({"deleted": f"{title}:{version}", "models": list(models)})
        return
    click.echo(f"deleted {title}:{version}; its files stay where they are")
    if models:
        settings.note(f"these models were trained on it: {', '.join(models)}")


@data.command(epilog="\b\nExamples:\n  rayjobs data show digits\n  rayjobs data show digits:2\n")
@click.argument("name", metavar="NAME[:VERSION]")
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show a version of a dataset: its files, and where they are."""
    from rayjobs.datastore.catalogue import parse_version

    title, _, version = name.removeprefix(DATASET).partition(":")
    with settings.open() as workspace:
        catalogue = workspace.catalogue
        record = catalogue.dataset(title, parse_version(version or None))
        files = _manifest(catalogue, record)
        versions = [one.version for one in catalogue.dataset_versions(title)]
        if settings.as_json:
            listed = [
                {
                    "path": one.path,
                    "datastore": one.datastore,
                    "key": one.key,
                    "size": one.size,
                    "digest": one.digest,
                }
                for one in files
            ]
            print_json({**_as_json(catalogue, record), "versions": versions, "entries": listed})
            return
    click.echo(
        facts(
            [
                ("Dataset", f"{record.name}:{record.version} ({record.kind})"),
                ("Id", record.id),
                ("Description", record.description),
                ("Made", local_time(record.created_at)),
                ("Tags", ", ".join(f"{key}={value}" for key, value in record.tags.items())),
                ("Versions", ", ".join(str(number) for number in versions)),
                ("Files", f"{len(files)} ({size_text(files.total_bytes)})"),
                ("Manifest", record.manifest),
                ("Datastores", ", ".join(files.datastores)),
            ]
        )
    )
    for entry in files.files[:FILES_SHOWN]:
        click.echo(f"  {size_text(entry.size):>9}  {one_line(entry.path)}")
    if len(files) > FILES_SHOWN:
        click.echo(f"  … and {len(files) - FILES_SHOWN} more: --json lists them")


class _Watch:
    """Counts transferred files for the summary, and shows progress on stderr unless quiet."""

    def __init__(self, settings: Settings) -> None:
        from rayjobs.datastore.progress import ProgressLine

        self.files = 0
        self.bytes = 0
        self._line: ProgressCallback | None = None if settings.quiet else ProgressLine()

    def __call__(self, progress: Progress) -> None:
        if progress.finished:
            self.files += progress.done_files
            self.bytes += progress.done_bytes
        if self._line is not None:
            self._line(progress)


def _reference(catalogue: Catalogue, text: str) -> str:
    """Return `text`; a dataset's plain name gets the prefix, unless a datastore has that name."""
    name = text.partition(":")[0]
    if "/" in name or name in {one.name for one in catalogue.datastores()}:
        return text
    return f"{DATASET}{text}" if name in {one.name for one in catalogue.datasets()} else text


def _output_of(settings: Settings, workspace: OpenWorkspace, text: str) -> MadeOutput:
    """Return the output that ``output:JOB/NAME`` or ``output:RUN/STEP/NAME`` names.

    The name may be left out if the job has exactly one output.

    Raises:
        NotFoundError: there is no such job or step, or it has stored no such output.
        UsageError: the job's text is a prefix of several ids.
    """
    from rayjobs.data.made import outputs_made

    store = workspace.store
    job_text, *names = text.removeprefix(OUTPUT).split("/")
    job = newest_named(settings, store, job_text)
    if job.kind == "pipeline":
        steps = {row.name: row.job for row in store.steps(job.id)}
        if not names or names[0] not in steps:
            raise NotFoundError(
                f"{job.id} is a pipeline run: name a step's output, {OUTPUT}{job_text}/STEP/NAME; "
                f"its steps: {', '.join(steps)}"
            )
        job = store.job(steps[names.pop(0)])
    step = store.step_of(job.id)
    made_by = job.id if step is None or step.original is None else step.original
    found = outputs_made(store, workspace.catalogue, made_by)
    name = "/".join(names) or (next(iter(found)) if len(found) == 1 else "")
    if name not in found:
        has = f"it has stored: {', '.join(found)}" if found else "it has stored none"
        which = f"output {name!r}" if name else "exactly one output"
        raise NotFoundError(f"{job.id} ({job.state}) has not stored {which}; {has}")
    return found[name]


def _files_of(settings: Settings, workspace: OpenWorkspace, source: str) -> Any:
    from rayjobs.datastore.catalogue import parse_version
    from rayjobs.datastore.dataset_factory import Dataset, dataset_of
    from rayjobs.datastore.datasets import FileDataset

    if source.startswith(OUTPUT):
        found = _output_of(settings, workspace, source)
        return FileDataset((), {one.name: one for one in found.records}, found.files)
    catalogue = workspace.catalogue
    source = _reference(catalogue, source)
    if source.startswith(DATASET):
        name, _, version = source.removeprefix(DATASET).partition(":")
        return dataset_of(catalogue.dataset(name, parse_version(version or None)), catalogue)
    return Dataset.File.from_files(_source(catalogue, source))


def _source(catalogue: Catalogue, text: str) -> Any:
    """Return what a text names: a path in a datastore, a URL, or a file of this machine."""
    from rayjobs.datastore.stores import Datastore

    if "://" in text or text.startswith(("/", "./", "../", "~")):
        return text
    name, _, path = text.partition("/")
    return Datastore(catalogue, name), path


def _new(found: list[Any], form: str | None) -> Any:
    from rayjobs.datastore.dataset_factory import Dataset

    if form is None:
        return Dataset.File.from_files(found)
    if form == "csv":
        return Dataset.Tabular.from_delimited_files(found)
    if form == "parquet":
        return Dataset.Tabular.from_parquet_files(found)
    return Dataset.Tabular.from_json_lines_files(found)


def _manifest(catalogue: Catalogue, record: DatasetRecord) -> Any:
    from rayjobs.datastore.manifest import Manifest

    return Manifest.from_bytes(catalogue.manifest(record.manifest))


def _as_json(catalogue: Catalogue, record: DatasetRecord) -> dict[str, Any]:
    files = _manifest(catalogue, record)
    return {
        "name": record.name,
        "version": record.version,
        "id": record.id,
        "kind": record.kind,
        "description": record.description,
        "tags": dict(record.tags),
        "created_at": record.created_at,
        "manifest": record.manifest,
        "files": len(files),
        "bytes": files.total_bytes,
    }
