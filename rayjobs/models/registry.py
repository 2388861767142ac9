"""The model registry: versions of files, each with the run and the data that it comes from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.core.ids import token
from rayjobs.core.users import user_name
from rayjobs.jobs.records import ModelVersion
from rayjobs.models import companions, lineage, uploaded
from rayjobs.models import files as modelfiles
from rayjobs.models.facts import NO_FACTS, ModelFacts, RunChoice, draft_of
from rayjobs.models.names import check_alias, check_name, version_of
from rayjobs.results import checkpoints
from rayjobs.store.base import Store
from rayjobs.workspace.blobs import BlobStore
from rayjobs.workspace.folder import OpenWorkspace


def register(
    opened: OpenWorkspace,
    *,
    name: str,
    run: str,
    path: str | None = None,
    facts: ModelFacts = NO_FACTS,
    choice: RunChoice | None = None,
) -> ModelVersion:
    """Register a completed run's file or folder as the next version of a model.

    A repeated registration of the same files of the same run returns the same version, with the
    tags added and the aliases moved. Nothing is copied: the model refers to the run's stored files.

    Args:
        run: The run's id, a unique prefix of it, or its name.
        path: The run's file or folder; None means the model's name.
        choice: The metric by which the run was chosen, for the lineage.

    Raises:
        NotFoundError: there is no such run or file.
        UsageError: the run has not completed, the metric is not finite, a file is incomplete, or
            the lineage is unknown.
    """
    check_name(name)
    for alias in facts.aliases:
        check_alias(alias)
    store = opened.store
    job = lineage.find_run(store, run)
    lineage.refuse_without(job)
    points = store.metrics(job.id)
    metric, value = (choice.metric, choice.value) if choice is not None else (None, None)
    primary = lineage.primary_of(store, job, points, metric, value)
    chosen = modelfiles.choose(store, opened.blobs, job, path or name)
    draft = draft_of(
        facts,
        name=name,
        path=chosen.path,
        digest=chosen.digest,
        files=chosen.files,
        sources=chosen.sources,
        lineage=lineage.lineage_of(
            store,
            job,
            chosen,
            points,
            primary=primary,
            configuration=choice.configuration if choice is not None else None,
            sweep=choice.sweep if choice is not None else None,
        ),
        # The driver of a sweep runs as the target's user, not as the user who submitted the sweep.
        user=job.user if choice is not None and choice.sweep is not None else user_name(),
    )
    registered, _ = store.put_model(job.id, draft)
    return registered


def register_path(
    opened: OpenWorkspace,
    *,
    name: str,
    path: str | Path,
    facts: ModelFacts = NO_FACTS,
    **options: Any,
) -> ModelVersion:
    """Register a file or folder on this machine as the next version of a model.

    Args:
        options: Further arguments of `rayjobs.models.uploaded.put`.

    Raises:
        NotFoundError: there is nothing at `path`.
        UsageError: the name is not valid, or the folder has no files.
        StoreError: a file cannot be stored.
    """
    for alias in facts.aliases:
        check_alias(alias)
    return uploaded.put(
        opened, name=check_name(name), path=path, user=user_name(), facts=facts, **options
    )


def find(store: Store, text: str) -> ModelVersion:
    """Return the version that ``NAME``, ``NAME:VERSION`` or ``NAME@ALIAS`` names.

    Raises:
        NotFoundError: there is no such model, version or alias.
        UsageError: the version is not a number.
    """
    name, at, alias = text.partition("@")
    if at:
        return store.model(name, alias=alias)
    name, colon, version = text.partition(":")
    number = version_of(version) if colon and version != "latest" else None
    return store.model(name, version=number)


def download(
    blobs: BlobStore, model: ModelVersion, target_dir: str | Path = ".", *, exist_ok: bool = False
) -> Path:
    """Write a version's file, or its folder, below `target_dir`; return the path.

    All files are checked against their digests before any of them appears. With `exist_ok`, the
    model's files replace files of the same name; other files in the folder stay.

    Raises:
        UsageError: the file or folder already exists, and `exist_ok` is off.
        StoreError: a stored file is damaged; nothing was written.
    """
    target = Path(target_dir) / PurePosixPath(model.path).name
    files = model.files
    is_file = companions.main_of(one.name for one in files) == target.name
    wanted = [target.with_name(one.name) for one in files] if is_file else [target]
    there = [one for one in wanted if one.exists()]
    if there and not exist_ok:
        raise UsageError(
            f"{there[0]} exists; give another folder, or replace the model's files there "
            f"(--force, exist_ok=True)"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_file and len(files) == 1:
        blobs.get_to(files[0].blob, target, digest=files[0].digest)
        return target
    rows = {one.name: (one.blob, one.digest) for one in files}
    if not is_file and not target.exists():
        checkpoints.write_to(blobs, rows, target)
        return target
    if not is_file and not target.is_dir():
        raise UsageError(f"{target} is a file, and the model is a folder; name another folder")
    fresh = target.with_name(f".{target.name}.{os.getpid()}-{token(4)}")
    try:
        checkpoints.write_to(blobs, rows, fresh)
        folder = target.parent if is_file else target
        for one in sorted(path for path in fresh.rglob("*") if not path.is_dir()):
            path_there = folder / one.relative_to(fresh)
            path_there.parent.mkdir(parents=True, exist_ok=True)
            one.replace(path_there)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target
