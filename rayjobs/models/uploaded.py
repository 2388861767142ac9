"""Models registered from local files, with the user and the path that they came from.

Such a model has no run. Its lineage names the user, the machine, the path and the digests instead.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rayjobs.core.clock import SystemClock, to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.text import counted
from rayjobs.core.version import __version__
from rayjobs.datastore.errors import DatastoreError
from rayjobs.datastore.transfer import files_below
from rayjobs.jobs.records import ModelFile, ModelVersion
from rayjobs.models import companions
from rayjobs.models.facts import NO_FACTS, ModelFacts, draft_of
from rayjobs.models.files import digest_of
from rayjobs.models.lineage import VERSION
from rayjobs.workspace.blobs import Blob
from rayjobs.workspace.folder import OpenWorkspace

UPLOADED = "uploaded"
"""The key in a lineage without a run: ``{"by", "from", "host", "at"}``."""

DERIVED = "derived_from"
"""The key for the model from which this one was converted: ``{"model", "digest"}``."""


def put(
    workspace: OpenWorkspace,
    *,
    name: str,
    path: str | Path,
    user: str,
    child_paths: Sequence[str] | None = None,
    data: Iterable[Mapping[str, Any]] = (),
    facts: ModelFacts = NO_FACTS,
    derived_from: ModelVersion | None = None,
) -> ModelVersion:
    """Store a file or folder on this machine, and register it as the next version of a model.

    The bytes are copied into the workspace. The same files under the same name are one version:
    registering them again returns it, with the new tags added and the aliases moved.

    Args:
        child_paths: The files and folders in a folder that belong to the model; None: all.
        data: Its training data, as rows of a lineage's ``data``.
        derived_from: The model from which this one was converted; it gets that model's run and
            lineage.

    Raises:
        NotFoundError: there is nothing at `path`, or at one of `child_paths`.
        UsageError: the folder has no files, or `child_paths` was given with a file.
        StoreError: a file cannot be stored.
    """
    source = Path(path).expanduser().absolute()
    chosen = _files_of(source, child_paths)
    stored: list[Blob] = []
    for found in workspace.blobs.add_files(list(chosen.values())):
        if isinstance(found, Exception):
            raise found
        stored.append(found)
    files = tuple(
        ModelFile(name=inside, size=blob.size, digest=blob.digest, blob=blob.key)
        for inside, blob in zip(chosen, stored, strict=True)
    )
    upload = {
        "by": user,
        "from": str(source),
        "host": socket.gethostname(),
        "at": to_text(SystemClock().now()),
    }
    origin: Mapping[str, Any] = {UPLOADED: upload, "data": [dict(one) for one in data]}
    run = None
    if derived_from is not None:
        title = f"{derived_from.name}:{derived_from.version}"
        known = {"model": title, "digest": derived_from.digest}
        origin = {**derived_from.lineage, DERIVED: known, "left_out": []}
        run = derived_from.run or None
    lineage = {
        **origin,
        "version": VERSION,
        "rayjobs": __version__,
        "path": source.name,
        "files": {one.name: one.digest for one in files},
    }
    draft = draft_of(
        facts,
        name=name,
        path=source.name,
        digest=digest_of(files),
        files=files,
        lineage=lineage,
        user=user,
    )
    kept, _ = workspace.store.put_model(run, draft)
    return kept


def _files_of(source: Path, child_paths: Sequence[str] | None) -> dict[str, Path]:
    """Return the files of a future model, by their names in it."""
    if source.is_file():
        if child_paths:
            raise UsageError(f"{source} is a file; child_paths can only choose files in a folder")
        companion = companions.name_of(source.name)
        files = [source] if companion is None else [source, source.with_name(companion)]
        return {one.name: one for one in files if one.is_file()}
    if not source.is_dir():
        raise NotFoundError(
            f"there is no file or folder {source}. Give a path on this machine, or `run=` with a "
            f"path of that run's files"
        )
    left_out: list[str] = []
    try:
        below = files_below(source, left_out)
    except DatastoreError as error:
        raise UsageError(f"{source} cannot be registered: {error}") from error
    if left_out:
        raise UsageError(
            f"{source} has {counted(len(left_out), 'item')} that cannot be stored, such as "
            f"{left_out[0]}; remove it, or choose files with child_paths. Nothing was registered"
        )
    names = {path.relative_to(source).as_posix(): path for path in below}
    if child_paths is not None:
        names = dict(_children(names, source, child_paths))
    if not names:
        raise UsageError(f"{source} has no files; nothing was registered")
    return names


def _children(
    names: Mapping[str, Path], source: Path, child_paths: Sequence[str]
) -> Iterable[tuple[str, Path]]:
    wanted = [child_paths] if isinstance(child_paths, str) else child_paths
    for child in wanted:
        clean = PurePosixPath(str(child)).as_posix().strip("/")
        found = [
            (name, path)
            for name, path in names.items()
            if name == clean or name.startswith(f"{clean}/")
        ]
        if not found:
            raise NotFoundError(
                f"{source} has no {child!r}, which child_paths names; nothing was registered"
            )
        yield from found


def sentence(lineage: Mapping[str, Any]) -> str:
    """Return where a model without a run comes from: ``uploaded by USER from PATH on HOST``."""
    facts = lineage[UPLOADED]
    return f"uploaded by {facts['by']} from {facts['from']} on {facts['host']}"
