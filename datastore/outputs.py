"""What a job writes: a folder that is stored in a datastore when the job ends, or that shows it.

Source: Azure ML SDK v1, `azureml.data.OutputFileDatasetConfig` and `DataReference.as_upload`.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rayjobs.core.text import counted, verb
from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.catalogue import DEFAULT_DATASTORE, DatastoreRecord
from rayjobs.datastore.errors import DataExists, InvalidReference
from rayjobs.datastore.kept import is_same
from rayjobs.datastore.progress import ProgressCallback
from rayjobs.datastore.refs import (
    DataPath,
    DataReference,
    check_dataset_name,
    check_mode,
    check_name,
    clean_path,
)
from rayjobs.datastore.sources import glob_pattern
from rayjobs.datastore.stores import Datastore
from rayjobs.datastore.transfer import Moved, Upload, files_below, for_each, upload

DEFAULT_DESTINATION = "dataset/{run-id}/{output-name}"
MODES = ("mount", "upload")
MOST_NAMED = 5
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class DataOutput:
    """A job's output: which datastore, which path there, and when it is stored.

    In mode `upload` the job gets an empty folder, whose files are stored when its script has ended
    well. In mode `mount` it sees the destination, and what it writes is there at once
    (`rayjobs.datastore.write_through`).
    """

    name: str
    record: DatastoreRecord
    path: str
    overwrite: bool = False
    source_globs: tuple[str, ...] = ()
    path_on_compute: str | None = None
    mode: str = "upload"

    def to_json(self) -> dict[str, Any]:
        """Return the output as a JSON object."""
        return {
            "name": self.name,
            "record": self.record.to_json(),
            "path": self.path,
            "overwrite": self.overwrite,
            "source_globs": list(self.source_globs),
            "path_on_compute": self.path_on_compute,
            "mode": self.mode,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataOutput:
        """Return the output that `to_json` wrote."""
        given = dict(values)
        given["record"] = DatastoreRecord.from_json(given["record"])
        given["source_globs"] = tuple(given["source_globs"])
        return cls(**given)

    @classmethod
    def of_reference(cls, reference: DataReference, record: DatastoreRecord) -> DataOutput:
        """Return the output that a reference in upload mode means.

        Raises:
            InvalidReference: the reference is in another mode.
        """
        if reference.mode != "upload":
            raise InvalidReference(
                f"{reference.data_reference_name!r} is in {reference.mode} mode; an output needs "
                "as_upload()."
            )
        return cls(
            reference.data_reference_name,
            record,
            reference.path_on_datastore or "",
            overwrite=reference.overwrite,
            path_on_compute=reference.path_on_compute,
        )


def prepare(output: DataOutput, into: Path) -> Path:
    """Make the empty folder that the job's files are written to, below `into`, and return it.

    Raises:
        InvalidReference: something is there already.
    """
    folder = into / output.name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidReference(
            f"output {output.name!r} should be written to {folder}, but that path exists already. "
            "It was not changed."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def show(
    output: DataOutput,
    folder: Path,
    *,
    working_directory: Path,
    may_replace: Callable[[Path], bool] = lambda _folder: False,
) -> Path:
    """Return where the job finds `folder`: a link to it at `path_on_compute`, if one is wanted.

    A link is what another attempt can tell from the files of a user, and replace.

    Args:
        folder: From `prepare`.
        working_directory: What a relative `path_on_compute` is relative to. An empty folder in it
            gives way; one elsewhere is a user's, and stays.
        may_replace: Whether a link to this folder, which exists, may be replaced. Links that lead
            nowhere always are: they were left by jobs that are gone.

    Raises:
        InvalidReference: something else is at `path_on_compute`.
    """
    if not output.path_on_compute:
        return folder
    wanted = working_directory / Path(output.path_on_compute).expanduser()
    if wanted.is_symlink():
        before = Path(os.path.realpath(wanted))
        if before == folder.resolve():
            return wanted
        if before.exists() and not may_replace(before):
            raise InvalidReference(
                f"output {output.name!r} should be written to {wanted}, but that is a link to "
                f"{before}, which is in use or not of a job. Choose another path_on_compute, or "
                "let the job that uses it end; nothing was touched."
            )
        wanted.unlink()
    elif os.path.lexists(wanted):
        is_private = wanted.resolve().is_relative_to(working_directory.resolve())
        if not (is_private and wanted.is_dir() and not any(wanted.iterdir())):
            raise InvalidReference(
                f"output {output.name!r} should be written to {wanted}, but that path "
                "exists already. It was not changed. Choose another path_on_compute, or "
                "move the path away."
            )
        wanted.rmdir()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to(folder)
    return wanted


def hide(shown: Path, folder: Path) -> None:
    """Take away the link that `show` has made, unless it leads elsewhere by now."""
    with contextlib.suppress(OSError):  # gone, or no link any more
        if shown != folder and shown.readlink() == folder:
            shown.unlink()


def store(output: DataOutput, folder: Path, *, progress: ProgressCallback | None = None) -> Moved:
    """Store what the job wrote to `folder`. Doing it again stores only what is missing.

    Without `overwrite` files that are stored already are kept, and must have these very bytes.

    Raises:
        DataExists: others are stored there; looked for first, so nothing was stored unless
            another job stored meanwhile.
        DatastoreError: a file could not be stored; `folder` still has everything.
    """
    files = files_below(folder)
    if output.source_globs:
        patterns = [glob_pattern(glob) for glob in output.source_globs]
        files = [
            file
            for file in files
            if any(pattern.match(file.relative_to(folder).as_posix()) for pattern in patterns)
        ]
    uploads = [
        Upload(file, f"{output.path}/{file.relative_to(folder).as_posix()}".lstrip("/"))
        for file in files
    ]
    backend = open_backend(output.record)
    known = set() if output.overwrite else _there_already(output, backend, uploads)
    moved = upload(backend, uploads, overwrite=output.overwrite, progress=progress)
    late = set(moved.kept) - known
    _there_already(output, backend, [item for item in uploads if item.path in late])
    return moved


def _there_already(output: DataOutput, backend: Backend, uploads: Sequence[Upload]) -> set[str]:
    """Return the paths of files that are stored already. Raises DataExists: one has other bytes."""
    same: set[str] = set()
    others: list[str] = []

    def look(item: Upload, _stop: threading.Event) -> None:
        before = backend.stat(item.path)
        if before is not None:
            if is_same(backend, before, item.source):
                same.add(item.path)
            else:
                others.append(item.path)

    for_each(uploads, look)
    if not others:
        return same
    named = ", ".join(sorted(others)[:MOST_NAMED]) + (" …" if len(others) > MOST_NAMED else "")
    raise DataExists(
        f"in datastore {output.record.name!r} {verb(len(others), 'is', 'are')} already "
        f"{named} with "
        f"other bytes ({counted(len(others), 'file')}), and overwriting was not asked "
        "for: what is stored there was kept. Store to a destination with {run-id}, or ask for it "
        "(as_upload(overwrite=True), in a job file overwrite: true)."
    )


@dataclass
class Origin:
    """What all copies of one output share: `as_upload` and the like return copies.

    Attributes:
        makers: The pipeline steps that write it; each step adds itself.
    """

    makers: list[Any] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
@with_absent("OutputFileDatasetConfig")
class OutputFileDatasetConfig:
    """An output as a job's argument: a folder the script writes to, stored at `destination`.

    `destination` is (datastore, path); in the path `{run-id}` and `{output-name}` are filled in.
    """

    name: str | None = None
    destination: Any = None
    source: str | None = None
    partition_format: str | None = None
    mode: str = "mount"
    overwrite: bool = False
    source_globs: tuple[str, ...] = ()
    register_as: tuple[str, str | None, tuple[tuple[str, str], ...]] | None = None
    origin: Origin = field(default_factory=Origin, repr=False)

    def __post_init__(self) -> None:
        if self.partition_format is not None:
            raise InvalidReference("partition_format is not supported.")
        check_mode(self.mode, allowed=MODES)
        # Of its own: a job may have several outputs without a name.
        name = self.name or f"output_{uuid.uuid4().hex[:8]}"
        object.__setattr__(self, "name", check_name(name, "output name"))
        for one in _FIELD.findall(self.path_template):
            if one not in ("run-id", "output-name"):
                raise InvalidReference(
                    f"destination {self.path_template!r} has the field {{{one}}}; only "
                    "{run-id} and {output-name} are filled in."
                )

    @property
    def datastore(self) -> Datastore | str:
        """The datastore, or its name."""
        if self.destination is None:
            return DEFAULT_DATASTORE
        store: Any = self.destination
        if isinstance(store, tuple):
            store = store[0]
        elif isinstance(store, DataPath | DataReference):
            store = store.datastore
        if isinstance(store, Datastore | str):
            return store
        raise InvalidReference(f"{self.destination!r} is not (datastore, path).")

    @property
    def path_template(self) -> str:
        """The path with its fields."""
        path: Any = None
        if isinstance(self.destination, tuple) and len(self.destination) == 2:
            path = self.destination[1]
        elif isinstance(self.destination, DataPath | DataReference):
            path = self.destination.path_on_datastore
        return clean_path(path) or DEFAULT_DESTINATION

    def path(self, run_id: str) -> str:
        """Return the path on the datastore for one run."""
        name = self.name or ""
        return self.path_template.replace("{run-id}", run_id).replace("{output-name}", name)

    @property
    def environment_variable(self) -> str:
        """The variable that holds the local path in the job."""
        return f"AZUREML_DATAREFERENCE_{self.name}"

    def __str__(self) -> str:
        return f"${self.environment_variable}"

    def as_mount(self, disable_metadata_cache: bool = False) -> OutputFileDatasetConfig:
        """Return this output in mount mode."""
        return replace(self, mode="mount")

    def as_upload(
        self, overwrite: bool = False, source_globs: Sequence[str] | str | None = None
    ) -> OutputFileDatasetConfig:
        """Return this output in upload mode; only files that match a glob are stored, if given."""
        globs = (source_globs,) if isinstance(source_globs, str) else tuple(source_globs or ())
        return replace(self, mode="upload", overwrite=overwrite, source_globs=globs)

    def as_input(self, name: str | None = None) -> OutputAsInput:
        """Return this output as what a later step of a pipeline reads.

        Raises:
            InvalidReference: an input cannot have this name.
        """
        return OutputAsInput(self, check_name(name or str(self.name), "input name"))

    def register_on_complete(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> OutputFileDatasetConfig:
        """Return this output, to be registered as dataset `name` when the job has completed.

        Raises:
            InvalidReference: a dataset cannot have this name.
        """
        check_dataset_name(name)
        return replace(self, register_as=(name, description, tuple(sorted((tags or {}).items()))))

    def output_for(self, run_id: str, record: DatastoreRecord) -> DataOutput:
        """Return the output of one run; `record` is that of `datastore`."""
        return DataOutput(
            self.name or "output",
            record,
            clean_path(self.path(run_id)),
            overwrite=self.overwrite,
            source_globs=self.source_globs,
            path_on_compute=self.source,
            mode=self.mode,
        )


@dataclass(frozen=True, eq=False)
class OutputAsInput:
    """An output of one step of a pipeline as the input of others, mounted or downloaded.

    Only the run of the pipeline knows where the files are: `OutputFileDatasetConfig.as_input`.
    """

    output: OutputFileDatasetConfig
    name: str
    mode: str = "mount"
    path_on_compute: str | None = None

    @property
    def environment_variable(self) -> str:
        """The variable that holds the local path in the job."""
        return f"AZUREML_DATAREFERENCE_{self.name}"

    def __str__(self) -> str:
        return f"${self.environment_variable}"

    def as_mount(self, path_on_compute: str | None = None) -> OutputAsInput:
        """Return this input mounted."""
        return replace(self, mode="mount", path_on_compute=path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> OutputAsInput:
        """Return this input downloaded: a private copy."""
        return replace(self, mode="download", path_on_compute=path_on_compute)

    def as_direct(self) -> OutputAsInput:
        """Return this input as files: what a step makes is not known as a dataset before it ran."""
        return self.as_mount()
