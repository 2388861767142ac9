"""The data of a job: pins and checks it at submit, resolves it on nodes, reports what was used."""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import NotFoundError, Problem, UsageError
from rayjobs.core.text import did_you_mean
from rayjobs.data.arguments import SAVED
from rayjobs.data.events import InputChanged, InputProvided, OutputStored
from rayjobs.datastore.errors import (
    AccessDenied,
    CredentialNotSet,
    DataNotFound,
    DatastoreError,
    DatastoreUnavailable,
    InvalidReference,
)
from rayjobs.datastore.refs import check_dataset_name
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Input, JobSpec
from rayjobs.spec.sources import OUTPUT, output_of

if TYPE_CHECKING:
    from rayjobs.datastore.catalogue import Catalogue, DatastoreRecord
    from rayjobs.datastore.data_input import DataInput
    from rayjobs.store.base import Store
    from rayjobs.workspace.folder import OpenWorkspace

DATASET = "dataset:"
MOST_NAMES = 8
# Set by `resume_from`, not by an input.
_OTHERS = frozenset({"MODEL_LOCATION"})
_VARIABLE = re.compile(r"\$\{?AZUREML_DATAREFERENCE_(\w+)")


# -- at submit -----------------------------------------------------------------------------------


def pin(
    workspace: OpenWorkspace, spec: JobSpec, *, planned: Container[str] = ()
) -> tuple[JobSpec, list[Problem], list[str]]:
    """Return a spec that names exact versions, with what is wrong and what could not be checked.

    A path must exist. A dataset without a version gets the current newest one, so that a retry, or
    a job that waited for a week, reads the same files.

    Args:
        planned: Jobs that do not exist yet and may be named by ``output:JOB/NAME``.
    """
    problems = [*unknown_variables(spec), *_unknown_outputs(workspace, spec, planned)]
    warnings: list[str] = []
    if not spec.inputs and not spec.outputs:
        return spec, problems, warnings
    catalogue = workspace.catalogue
    pinned: dict[str, Input] = {}
    for name, one in spec.inputs.items():
        try:
            pinned[name] = one.model_copy(update={"source": _pinned(catalogue, one)})
        except CredentialNotSet as error:
            # A target without the credential is refused after this, so the advice to set it there
            # would be wrong here.
            pinned[name] = one
            warnings.append(
                f"the path of input {name} was not checked: this shell does not export "
                f"{error.variable}. The job takes it from the target."
            )
        except (AccessDenied, DatastoreUnavailable) as error:
            pinned[name] = one
            warnings.append(f"input {name} could not be checked from here: {error}")
        except DatastoreError as error:
            if isinstance(error, DataNotFound) and spec.depends_on:
                pinned[name] = one
                warnings.append(
                    f"input {name} is not there yet; a job that this one waits for must write "
                    f"it: {error}"
                )
                continue
            problems.append(_problem(f"inputs.{name}.source", error))
    for name, output in spec.outputs.items():
        try:
            catalogue.datastore(output.destination.partition("/")[0])
        except DatastoreError as error:
            problems.append(_problem(f"outputs.{name}.destination", error))
        try:
            if output.register_as is not None:
                check_dataset_name(output.register_as.name)
        except InvalidReference as error:
            problems.append(Problem(f"outputs.{name}.register_as.name", str(error)))
    if problems or pinned == dict(spec.inputs):
        return spec, problems, warnings
    return spec.model_copy(update={"inputs": pinned}), problems, warnings


def _problem(path: str, error: DatastoreError) -> Problem:
    return Problem(path, str(error), is_missing=isinstance(error, LookupError))


def _unknown_outputs(
    workspace: OpenWorkspace, spec: JobSpec, planned: Container[str]
) -> Iterator[Problem]:
    """Yield a problem for each input from an output that does not exist, or is not waited for."""
    waited_for = {one.job for one in spec.depends_on if one.when == "ok"}
    for name, one in spec.inputs.items():
        if not one.source.startswith(OUTPUT):
            continue
        path = f"inputs.{name}.source"
        try:
            job_id, output = output_of(one.source)
        except ValueError as error:
            yield Problem(path, f"{error}.", "Write output:JOB/NAME.")
            continue
        if job_id in planned:
            continue
        try:
            job = workspace.store.job(job_id)
        except NotFoundError:
            meant = _meant_job(workspace, job_id)
            yield Problem(path, f"there is no job {job_id!r}.", meant, is_missing=True)
            continue
        if output not in job.spec.outputs:
            names = ", ".join(job.spec.outputs) or "none"
            yield Problem(
                path,
                f"{job_id} has no output {output!r} (it has {names}).",
                did_you_mean(output, job.spec.outputs).strip(),
            )
        elif job.state is not JobState.COMPLETED and job_id not in waited_for:
            yield Problem(
                path,
                f"{job_id} is {job.state}, and this job does not wait for it.",
                f"Add --after {job_id} (in a job file: depends_on).",
            )


def _pinned(catalogue: Catalogue, one: Input) -> str:
    from rayjobs.datastore.catalogue import parse_version

    if one.source.startswith(SAVED):
        catalogue.manifest(one.source.removeprefix(SAVED))
        return one.source
    if one.source.startswith(OUTPUT):
        return one.source
    if one.source.startswith(DATASET):
        name, _, version = one.source.removeprefix(DATASET).partition(":")
        record = catalogue.dataset(name, parse_version(version or None))
        if record.kind != "file" and one.mode != "direct":
            raise InvalidReference(
                f"dataset {name!r} is a table and cannot be used in {one.mode} mode; use direct "
                f"mode and run.input_datasets, or register the files as a file dataset."
            )
        return f"{DATASET}{record.name}:{record.version}"
    if one.mode == "direct":
        raise InvalidReference(
            f"{one.source!r} is a path, not a dataset, and cannot be used in direct mode; use "
            f"mount or download, or name a dataset: dataset:NAME."
        )
    store, _, path = one.source.partition("/")
    _look_for(catalogue, store, path)
    return one.source


def _look_for(catalogue: Catalogue, store: str, path: str) -> None:
    """Raise DataNotFound, naming similar files, unless something exists at the path."""
    from rayjobs.datastore.backends import open_backend
    from rayjobs.datastore.refs import clean_path
    from rayjobs.datastore.sources import glob_pattern, has_glob

    path = clean_path(path)
    backend = open_backend(catalogue.datastore(store))
    local = backend.local_path(path)
    if local is not None and local.exists():
        return
    if local is None and (backend.stat(path) or next(iter(backend.walk(path)), None)):
        return
    if has_glob(path):
        fixed = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0]
        pattern = glob_pattern(path)
        if any(pattern.match(file.path) for file in backend.walk(fixed)):
            return
        path = fixed
    parent = posixpath.dirname(path)
    while parent and not backend.children(parent):
        parent = posixpath.dirname(parent)
    names = [posixpath.basename(child.path.rstrip("/")) for child in backend.children(parent)]
    meant = difflib.get_close_matches(posixpath.basename(path), names, n=3) or names
    shown = ", ".join(meant[:MOST_NAMES]) + (" …" if len(meant) > MOST_NAMES else "")
    raise DataNotFound(
        f"there is nothing at {path or '/'!r} in datastore {store!r} ({backend.where}); "
        + (f"{parent or '/'!r} has: {shown}." if names else "it is empty.")
        + f" `rayjobs data ls {store}` lists the files, `rayjobs data put` stores some."
    )


def _meant_job(workspace: OpenWorkspace, text: str) -> str:
    """Return what to write in place of a string that is not a job's id."""
    try:
        return f"Write its id: output:{workspace.store.find(text, newest=True).id}/NAME."
    except (NotFoundError, UsageError):
        return "Write output:ID/NAME; `rayjobs ls -a --json` lists the ids."


def unknown_variables(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem for each argument that names an input which the job does not have."""
    known = {*spec.inputs, *spec.outputs, *_OTHERS}
    for index, argument in enumerate(spec.arguments):
        for name in _VARIABLE.findall(argument):
            if name not in known:
                names = ", ".join([*spec.inputs, *spec.outputs]) or "none"
                meant = did_you_mean(name, [*spec.inputs, *spec.outputs])
                yield Problem(
                    f"arguments[{index}]",
                    f"{argument!r:.200} names the input {name!r}, which the job does not have "
                    f"(it has {names}).{meant}",
                    "Give the object itself, not its text, as an argument or in `inputs`; or "
                    "add --input.",
                )


# -- on the node -----------------------------------------------------------------------------------


def datastore_of_path(workspace: OpenWorkspace, source: str) -> tuple[DatastoreRecord, ...]:
    """Return the datastore of a path in a spec; empty for a dataset or a job's output.

    Raises:
        DatastoreError: it does not exist.
    """
    if source.startswith((SAVED, DATASET, OUTPUT)):
        return ()
    return (workspace.catalogue.datastore(source.partition("/")[0]),)


def datastores_of_dataset(workspace: OpenWorkspace, source: str) -> tuple[DatastoreRecord, ...]:
    """Return the datastores that a dataset's files are in, without contacting them.

    Raises:
        DatastoreError: there is no such dataset.
    """
    from rayjobs.datastore.catalogue import DatastoreRecord, parse_version

    catalogue = workspace.catalogue
    if source.startswith(SAVED):
        definition = catalogue.manifest(source.removeprefix(SAVED)).decode()
    else:
        name, _, version = source.removeprefix(DATASET).partition(":")
        definition = catalogue.dataset(name, parse_version(version or None)).definition
    records = (DatastoreRecord.from_json(one) for one in json.loads(definition)["records"])
    return tuple(catalogue.located(record) for record in records)


def resolve(
    workspace: OpenWorkspace,
    name: str,
    *,
    source: str,
    mode: str,
    path_on_compute: str | None = None,
) -> DataInput:
    """Return an input of a spec with its files listed.

    Raises:
        DatastoreError: it does not exist, or its storage cannot be read.
    """
    from rayjobs.datastore.catalogue import relocated
    from rayjobs.datastore.data_input import DataInput
    from rayjobs.datastore.inputs import resolve_input
    from rayjobs.datastore.refs import DataReference

    catalogue = workspace.catalogue
    if source.startswith(SAVED):
        values = json.loads(catalogue.manifest(source.removeprefix(SAVED)))
        saved = DataInput.from_json(values)
        return replace(
            saved,
            name=name,
            mode=mode,
            path_on_compute=path_on_compute,
            records=tuple(catalogue.located(record) for record in saved.records),
            definition=saved.definition and relocated(saved.definition, catalogue),
        )
    if source.startswith(OUTPUT):
        from rayjobs.data import made

        return made.with_name(
            made.input_of(workspace, *output_of(source)), name, mode, path_on_compute
        )
    if source.startswith(DATASET):
        return resolve_input(
            source, catalogue, name=name, mode=mode, path_on_compute=path_on_compute
        )
    store, _, path = source.partition("/")
    reference = DataReference(store, name, path)
    return resolve_input(
        reference, catalogue, name=name, mode=mode, path_on_compute=path_on_compute
    )


# -- afterwards ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputRead:
    """An input of a job, with what the last attempt that got it was given.

    Attributes:
        name: The input's name.
        source: The source, with its exact version.
        mode: mount, download or direct.
        provided: What a node reported of it; None: no node has provided it yet.
        attempt: The last attempt that was given it; None: none was.
        changed: A sentence, if its files changed while that attempt ran; otherwise empty.
    """

    name: str
    source: str
    mode: str
    provided: InputProvided | None = None
    attempt: int | None = None
    changed: str = ""

    @property
    def version(self) -> str:
        """The version as in `InputProvided`; empty if it is unknown."""
        return "" if self.provided is None else self.provided.version

    @property
    def dataset_id(self) -> str:
        """The id of the dataset's version; empty if it is unknown."""
        return "" if self.provided is None else self.provided.dataset_id

    def to_json(self) -> dict[str, Any]:
        """Return it as one JSON object; entries that are not known yet are left out."""
        provided: dict[str, Any] = {}
        if self.provided is not None:
            provided = {**self.provided.to_json(), "attempt": self.attempt}
        changed = {"changed": self.changed} if self.changed else {}
        return {**provided, "name": self.name, "source": self.source, "mode": self.mode, **changed}


def inputs_read(store: Store, job: Job) -> list[InputRead]:
    """Return a job's inputs, each with the version that an attempt was given last."""
    found = {name: InputRead(name, one.source, one.mode) for name, one in job.spec.inputs.items()}
    for event in store.events(job.id) if found else ():
        if (provided := InputProvided.of(event)) is not None:
            if (one := found.get(provided.name)) is not None:
                found[one.name] = InputRead(
                    one.name,
                    provided.source or one.source,
                    provided.mode or one.mode,
                    provided,
                    event.attempt,
                )
        elif (change := InputChanged.of(event)) is not None and change.name in found:
            found[change.name] = replace(found[change.name], changed=event.message)
    return [*found.values()]


def input_datasets(store: Store, job: Job) -> list[dict[str, Any]]:
    """Return `get_details()["inputDatasets"]`: Azure ML's keys, and what was read."""
    mechanisms = {"mount": "Mount", "download": "Download", "direct": "Direct"}
    return [
        {
            "dataset": {
                "id": one.dataset_id,
                "name": one.source.removeprefix(DATASET).rpartition(":")[0]
                if one.source.startswith(DATASET)
                else "",
                "version": one.version,
                "source": one.source,
            },
            "consumptionDetails": {
                "type": "RunInput" if one.source.startswith((DATASET, SAVED)) else "Reference",
                "inputName": one.name,
                "mechanism": mechanisms[one.mode],
            },
        }
        for one in inputs_read(store, job)
    ]


def output_datasets(store: Store, job: Job) -> list[dict[str, Any]]:
    """Return `get_details()["outputDatasets"]`: Azure ML's keys, and what was stored."""
    if not job.spec.outputs:
        return []
    events = (OutputStored.of(event) for event in store.events(job.id))
    stored = {one.name: one for one in events if one is not None}
    return [
        {
            "identifier": {"savedId": one.dataset_id},
            "outputType": "RunOutput",
            "outputDetails": {"outputName": name},
            "dataset": {
                "name": one.dataset,
                "version": "" if one.version is None else one.version,
                "source": f"{one.datastore}/{one.path}",
            },
        }
        for name, one in stored.items()
    ]
