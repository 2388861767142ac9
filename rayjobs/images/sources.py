"""Turns the images or model that a user names into the source of a job's input."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError
from rayjobs.core.text import counted, did_you_mean
from rayjobs.datastore.catalogue import DEFAULT_DATASTORE
from rayjobs.datastore.stores import Datastore
from rayjobs.datastore.transfer import files_below
from rayjobs.jobs.records import ModelVersion
from rayjobs.workspace.folder import OpenWorkspace

KINDS = ("dataset:", "output:", "saved:")


def source_of(workspace: OpenWorkspace, text: str, say: Callable[[str], None]) -> str:
    """Return the source that a text names, after storing a local folder or file.

    Local data is stored only once, under the digest of its files' names, sizes and times.

    Raises:
        NotFoundError: it is neither a local path nor data of the workspace.
    """
    path = Path(text).expanduser()
    if not path.exists():
        if text.startswith(KINDS):
            return text
        name, slash, _ = text.partition("/")
        known = {one.name for one in workspace.catalogue.datastores()}
        if slash and name in known:  # the submit checks the rest
            return text
        there = [os.fspath(one) for one in path.parent.glob("*")] if path.parent.is_dir() else []
        raise NotFoundError(
            f"there is no folder {text!r}.{did_you_mean(os.fspath(path), there)} "
            f"Give a folder, DATASTORE/PATH (datastores: {', '.join(sorted(known))}), dataset:NAME "
            f"or output:JOB/NAME"
        )
    return _stored(workspace, path, say)


def registered_model(workspace: OpenWorkspace, text: str) -> ModelVersion | None:
    """Return the registered model that a text (NAME[:VERSION]) names; None if it is a path.

    A folder without a model does not hide a registered model of the same name: the folder often
    contains the model's images.

    Raises:
        NotFoundError: there is no such model.
    """
    path = Path(text).expanduser()
    if text.startswith(KINDS) or "/" in text or (path / "model.json").exists():
        return None
    from rayjobs.models import registry

    try:
        return registry.find(workspace.store, text)
    except NotFoundError:
        if path.exists():
            return None
        raise


def source_of_model(
    workspace: OpenWorkspace, model: ModelVersion, say: Callable[[str], None]
) -> str:
    """Return the source of a registered model, after storing its files once for jobs to read."""
    from rayjobs.models import registry

    with tempfile.TemporaryDirectory() as folder:
        found = registry.download(workspace.blobs, model, folder)
        title, digest = f"{model.name}:{model.version}", model.digest.rpartition(":")[2]
        return _stored(workspace, _model_folder(found), say, title=title, digest=digest)


def _model_folder(folder: Path) -> Path:
    found = sorted(folder.rglob("model.json"))
    return found[0].parent if found else folder


def _stored(
    workspace: OpenWorkspace,
    path: Path,
    say: Callable[[str], None],
    *,
    title: str | None = None,
    digest: str | None = None,
) -> str:
    if path.is_dir():
        found, base = files_below(path, []), path
    else:
        found, base = [path], path.parent
    target = f"images/{(digest or _digest_of(found, base))[:32]}"
    store: Any = Datastore(workspace, DEFAULT_DATASTORE)
    store.put(found, base, target, False, None)
    say(f"{title or os.fspath(path)}: {counted(len(found), 'file')} in {store.name}/{target}")
    return f"{store.name}/{target}"


def _digest_of(files: Sequence[Path], base: Path) -> str:
    digest = hashlib.sha256()
    for one in files:
        facts = one.stat()
        digest.update(f"{one.relative_to(base)}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()
