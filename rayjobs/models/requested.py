"""The models that an attempt's script requested: read on its node, and prepared at its end.

Nothing is stored between the two steps: the requests stay in the attempt's folder until the end of
its job is written, and the models are written with that end, in one transaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rayjobs.core.errors import (
    RayjobsError,
    StoreBusyError,
    StoreFullError,
    StoreUnreachableError,
)
from rayjobs.core.paths import AttemptPaths
from rayjobs.injob.metrics_file import MOST_RANK_FILES, json_object, read_all_lines
from rayjobs.injob.model_requests import MOST_MODELS, ModelRecord, name_of
from rayjobs.injob.record_files import UnusableFileError
from rayjobs.injob.uploads import clean_name
from rayjobs.jobs.records import Job, ModelDraft, ModelRefusal
from rayjobs.models import files as modelfiles
from rayjobs.models import lineage
from rayjobs.protocol.collected import RequestedModel
from rayjobs.results.left_out import LeftOut
from rayjobs.store.base import Store
from rayjobs.workspace.blobs import BlobStore

_RANK_FILE = re.compile(r"rank-([0-9]{1,9})\.jsonl")
MOST_BYTES = 64 * 1024**2  # read from one rank's file of requests
_DAMAGED = "its request is damaged"


def read(root: Path, node: int, left_out: list[LeftOut] | None = None) -> list[RequestedModel]:
    """Return the models that the ranks of a node requested, in order.

    Two requests of a rank for the same name and path become one, in which the later values count.
    The `file` of a request is its name in the run: files of a second node are in ``node-<k>/``.

    Args:
        left_out: Gets an entry for each file that is not read.

    Raises:
        OSError: a file of requests cannot be read.
    """
    found: list[RequestedModel] = []
    left_out = [] if left_out is None else left_out
    paths = AttemptPaths(Path(root))
    # The files are listed, not the planned ranks: a script may start its own ranks with torchrun.
    for rank in _ranks(paths.model_requests(0).parent):
        merged: dict[tuple[str, str], RequestedModel] = {}
        try:
            records = read_all_lines(str(paths.model_requests(rank)), json_object, MOST_BYTES)
        except UnusableFileError as error:
            left_out.append(LeftOut(f"models that rank {rank} registers: {error}"))
            continue
        for record in records:
            one = _checked(record)
            old = merged.get((one.name, one.path))
            merged[one.name, one.path] = one if old is None else _merged(old, one)
        for one in merged.values():
            file = f"node-{node}/{one.path}" if node else one.path
            found.append(replace(one, rank=rank, file=file))
    return found


def _ranks(folder: Path) -> list[int]:
    try:
        found = [_RANK_FILE.fullmatch(name) for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(one[1]) for one in found if one is not None)[:MOST_RANK_FILES]


def _checked(record: Mapping[str, object]) -> RequestedModel:
    """Return a request with only known fields; a script may have written the file itself."""
    try:
        one = ModelRecord.from_json(record)
        name, path = name_of(one.name), clean_name(one.path)
    except (TypeError, ValueError):
        shown = [f"{record.get(key)!s:.100}" for key in ("name", "path")]
        return RequestedModel(shown[0], shown[1], why=_DAMAGED)
    return RequestedModel(
        name,
        path,
        tags=one.tags,
        properties=one.properties,
        description=one.description,
        framework=one.framework,
        framework_version=one.framework_version,
        datasets=one.datasets,
        resources=one.resources,
    )


def _merged(old: RequestedModel, new: RequestedModel) -> RequestedModel:
    if old.why or new.why:
        return old if old.why else new
    return replace(
        new,
        tags={**old.tags, **new.tags},
        properties={**old.properties, **new.properties},
        description=old.description if new.description is None else new.description,
        framework=new.framework or old.framework,
        framework_version=new.framework_version or old.framework_version,
        datasets=(*(one for one in old.datasets if one not in new.datasets), *new.datasets),
        resources=new.resources or old.resources,
    )


def fold(requests: Iterable[RequestedModel]) -> list[RequestedModel]:
    """Return the requests of all nodes by rank; for one name and path, that of the lowest rank."""
    kept: dict[tuple[str, str], RequestedModel] = {}
    for one in sorted(requests, key=lambda one: one.rank):
        kept.setdefault((one.name, one.path), one)
    return list(kept.values())


def prepare(
    store: Store, blobs: BlobStore, run: str, requests: Iterable[RequestedModel]
) -> list[ModelDraft | ModelRefusal]:
    """Return the models for `Store.finish` to register with a run that is about to complete.

    A request that cannot become a model is refused with the reason; the run's other models, and
    its end, do not depend on it.

    Raises:
        StoreBusyError, StoreFullError, StoreUnreachableError: the store or the files cannot be read
            now; try again.
    """
    job = store.job(run)
    ready: list[ModelDraft | ModelRefusal] = []
    for number, one in enumerate(requests):
        why = one.why
        if not why and number >= MOST_MODELS:
            why = f"a script may register at most {MOST_MODELS} models, and this is one more"
        if not why:
            try:
                ready.append(_draft(store, blobs, job, one))
                continue
            except (StoreBusyError, StoreFullError, StoreUnreachableError):
                raise
            except RayjobsError as error:
                why = str(error)
        ready.append(ModelRefusal(name=one.name, path=one.path, why=why))
    return ready


def _draft(store: Store, blobs: BlobStore, job: Job, one: RequestedModel) -> ModelDraft:
    lineage.refuse_without(job, at_its_end=True)
    points = store.metrics(job.id)
    primary = lineage.primary_of(store, job, points, None)
    chosen = modelfiles.choose(store, blobs, job, one.file)
    origin = lineage.lineage_of(store, job, chosen, points, primary=primary)
    origin["data"] += [dataset.row() for dataset in dict.fromkeys(one.datasets)]
    if one.resources:
        origin["resources"] = one.resources
    return ModelDraft(
        name=one.name,
        path=chosen.path,
        digest=chosen.digest,
        files=chosen.files,
        sources=chosen.sources,
        lineage=origin,
        user=job.user,
        framework=one.framework,
        framework_version=one.framework_version,
        description=one.description,
        tags=one.tags,
        properties=one.properties,
    )
