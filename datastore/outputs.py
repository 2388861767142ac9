"""A job's outputs: folders that are stored in a datastore at the end, or that show the datastore.

Source: Azure ML SDK v1, `azureml.data.OutputFileDatasetConfig` and `DataReference.as_upload`.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from pathlib import Path
from typing import Any

from rayjobs.core.text import counted
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
from rayjobs.injob.lazy_dataclass import dataclass

DEFAULT_DESTINATION = "dataset/{run-id}/{output-name}"
MODES = ("mount", "upload")
MOST_NAMED = 5
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class DataOutput:
    """A job's output: its datastore, its path there, and when it is stored.

    In mode `upload` the job gets an empty folder, whose files are stored after its script has
    succeeded. In mode `mount` it sees the destination, and its writes appear there while it
    runs: at once if the datastore is a folder, otherwise by `rayjobs.datastore.write_through`.
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
        """Return the output of a reference in upload mode.

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
    """Create the empty folder below `into` for the job's files, and return it.

    Raises:
        InvalidReference: the path already exists.
    """
    folder = into / output.name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidReference(
            f"output {output.name!r} should be written to {folder}, but that path already exists. "
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
    """Return where the job finds `folder`: at a link in `path_on_compute`, if one is requested.

    Another attempt can distinguish a link from a user's files, and replace it.

    Args:
        folder: From `prepare`.
        working_directory: The base of a relative `path_on_compute`. An empty folder in it
            is replaced; an empty folder elsewhere belongs to the user, and stays.
        may_replace: Whether a link to this existing folder may be replaced. Broken links always
            are: jobs that no longer exist left them.

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
                f"{before}, which is in use, or does not belong to a job. Choose another "
                "path_on_compute, or let the job that uses it end; nothing was changed."
            )
        wanted.unlink()
    elif os.path.lexists(wanted):
        is_private = wanted.resolve().is_relative_to(working_directory.resolve())
        if not (is_private and wanted.is_dir() and not any(wanted.iterdir())):
            raise InvalidReference(
                f"output {output.name!r} should be written to {wanted}, but that path already "
                "exists. It was not changed. Choose another path_on_compute, or rename what is "
                "there."
            )
        wanted.rmdir()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to(folder)
    return wanted


def hide(shown: Path, folder: Path) -> None:
    """Remove the link that `show` made, unless it now leads elsewhere."""
    with contextlib.suppress(OSError):  # gone, or no longer a link
        if shown != folder and shown.readlink() == folder:
            shown.unlink()


def store(output: DataOutput, folder: Path, *, progress: ProgressCallback | None = None) -> Moved:
    """Store what the job wrote to `folder`. A repeated call stores only what is missing.

    Without `overwrite`, files that are already stored are kept, and must have the same bytes.

    Raises:
        DataExists: different files are stored there. This is checked first, so nothing was stored
            unless another job stored files meanwhile.
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
    """Return the paths of files that are already stored. Raises DataExists: one has other bytes."""
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
        f"datastore {output.record.name!r} already has {counted(len(others), 'file')} with other "
        f"bytes: {named}. Overwriting was not requested, so the stored files were kept. Store to a "
        "destination with {run-id}, or request overwriting: with :overwrite after the path on the "
        "command line, overwrite: true in a job file, as_upload(overwrite=True) in Python."
    )


@dataclass
class Origin:
    """The shared part of all copies of one output: `as_upload` and the like return copies.

    Attributes:
        makers: The pipeline steps that write it; each step adds itself.
    """

    makers: list[Any] = field(default_factory=list)


_UNNAMED = count(1)


@dataclass(frozen=True, eq=False)
@with_absent("OutputFileDatasetConfig")
class OutputFileDatasetConfig:
    """An output as a job's argument: a folder the script writes to, stored at `destination`.

    `destination` is (datastore, path); the path may contain `{run-id}` and `{output-name}`.
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
        # Each unnamed output gets its own name, since a job may have several. The name is the same
        # in each run of a program; otherwise, steps that write the output would never be reused.
        name = self.name or f"output_{next(_UNNAMED):08d}"
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
        """Return this output in upload mode; if a glob is given, only matching files are stored."""
        globs = (source_globs,) if isinstance(source_globs, str) else tuple(source_globs or ())
        return replace(self, mode="upload", overwrite=overwrite, source_globs=globs)

    def as_input(self, name: str | None = None) -> OutputAsInput:
        """Return this output as the input of a later pipeline step.

        Raises:
            InvalidReference: an input cannot have this name.
        """
        return OutputAsInput(self, check_name(name or str(self.name), "input name"))

    def register_on_complete(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> OutputFileDatasetConfig:
        """Return this output, to be registered as dataset `name` once the job has completed.

        Raises:
            InvalidReference: a dataset cannot have this name.
        """
        check_dataset_name(name)
        return replace(self, register_as=(name, description, tuple(sorted((tags or {}).items()))))

    def output_for(self, run_id: str, record: DatastoreRecord) -> DataOutput:
        """Return the output of one run; `record` describes `datastore`."""
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
    """An output of one pipeline step as an input of others, mounted or downloaded.

    `OutputFileDatasetConfig.as_input` makes it. Only the pipeline's run knows where the files are.
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
        """Return this input as files: a step's output is not a dataset before the step has run."""
        return self.as_mount()
