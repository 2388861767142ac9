"""Stores the results of an ended sweep: its metrics, and files of its best trial."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import NotFoundError
from rayjobs.core.text import counted
from rayjobs.data import made
from rayjobs.data.events import OutputStored
from rayjobs.datastore.backends import open_backend
from rayjobs.jobs.records import Job
from rayjobs.results import metrics
from rayjobs.tuning.spec import BEST, SweepSpec
from rayjobs.tuning.trials import TrialRecord

if TYPE_CHECKING:
    from rayjobs.datastore.backends import StoredFile
    from rayjobs.workspace.folder import OpenWorkspace


def store_results(
    workspace: OpenWorkspace,
    sweep: Job,
    spec: SweepSpec,
    trials: Iterable[TrialRecord],
    best: TrialRecord | None,
) -> None:
    """Store the results of a sweep, and pin them as its outputs. Repeatable.

    The outputs of its base job are those of the best trial.

    Raises:
        DatastoreError: a result cannot be stored.
        NotFoundError: the best trial has no such file.
    """
    for name, result in spec.results.items():
        store, _, template = result.destination.partition("/")
        path = template.replace("{run-id}", sweep.id).replace("{output-name}", name)
        record = workspace.catalogue.datastore(store)
        backend = open_backend(record)
        with tempfile.TemporaryDirectory(prefix="results-") as folder:
            files: list[StoredFile] = []
            for below, file in _files(workspace, result.what, trials, best, Path(folder)):
                files.append(backend.put(file, f"{path}/{below}".rstrip("/")))
        _pin(workspace, sweep, name, made.manifest_of(record, path, files), store, path)
    if best is None or best.job_id is None:
        return
    for name, one in made.outputs_made(workspace.store, workspace.catalogue, best.job_id).items():
        if name not in spec.results:
            _pin(workspace, sweep, name, one.files, one.datastore, one.path)


def _pin(
    workspace: OpenWorkspace, sweep: Job, name: str, files: Any, datastore: str, path: str
) -> None:
    record = workspace.catalogue.datastore(datastore)
    pinned = made.pin(workspace.catalogue, name, record, path, files)
    text = f"output {name}: {counted(len(files), 'file')} in {datastore}/{path}"
    workspace.store.add_event(
        sweep.id, OutputStored.KIND, text, attempt=sweep.attempt, data=pinned.to_json()
    )


def _files(
    workspace: OpenWorkspace,
    what: str,
    trials: Iterable[TrialRecord],
    best: TrialRecord | None,
    folder: Path,
) -> list[tuple[str, Path]]:
    """Return local files with their paths below the destination; "" is the destination itself."""
    if not what.startswith(BEST):
        file = folder / "metrics"
        file.write_text(json.dumps(metrics_by_run(workspace, trials)))
        return [("", file)]
    wanted = what.removeprefix(BEST).strip("/")
    if best is None or best.job_id is None:
        raise NotFoundError(f"the sweep has no best trial, so its {wanted} cannot be stored")
    found = []
    for number, one in enumerate(workspace.store.files(best.job_id)):
        if one.name != wanted and not one.name.startswith(f"{wanted}/"):
            continue
        file = folder / str(number)
        with workspace.blobs.open(one.blob) as stream, file.open("wb") as copy:
            while piece := stream.read(1 << 20):
                copy.write(piece)
        found.append((one.name.removeprefix(wanted).strip("/"), file))
    if not found:
        raise NotFoundError(
            f"the best trial {best.job_id} has no file {wanted!r}; `rayjobs files {best.job_id}` "
            f"lists its files"
        )
    return found


def metrics_by_run(
    workspace: OpenWorkspace, trials: Iterable[TrialRecord]
) -> Mapping[str, Mapping[str, list[Any]]]:
    """Return the logged metrics of each trial: run id → metric → values.

    Source: the file that Azure ML's HyperDriveStep writes to `metrics_output`.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for trial in trials:
        if trial.job_id is None:
            continue
        values = metrics.values_by_name(workspace.store.metrics(trial.job_id))
        found[trial.job_id] = {
            name: one if isinstance(one, list) else [one] for name, one in values.items()
        }
    return found
