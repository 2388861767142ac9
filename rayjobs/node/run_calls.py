"""Handles the calls of an attempt's script: read its workspace, write its runs, register.

Each call is checked first: the token belongs to the attempt, and the attempt is the job's newest
one and has not ended. A script may change its own run and the runs below it. A step of a pipeline
may log to the pipeline's run, tag it, add files to it, and cancel it.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from rayjobs import snapshots
from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, RayjobsError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.files import write_atomic
from rayjobs.core.paths import AttemptPaths
from rayjobs.datastore.catalogue import Catalogue
from rayjobs.datastore.errors import DatastoreError
from rayjobs.injob import run_calls
from rayjobs.injob.azureml.exceptions import UserErrorException
from rayjobs.injob.metrics_file import METRIC_KINDS, stored_value
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.record_files import parse_json
from rayjobs.injob.run_calls import (
    Request,
    RunAnswer,
    RunCall,
    RunDetails,
    RunRecord,
    Value,
    WorkspaceRecord,
)
from rayjobs.injob.uploads import clean_name
from rayjobs.jobs.records import INTERACTIVE, Job, MetricPoint, StoredFile
from rayjobs.jobs.run_filter import RunFilter, type_of
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import AttemptWriter
from rayjobs.protocol import values
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.results.details import details_of
from rayjobs.results.logs import Logs, is_log, real_name
from rayjobs.results.metrics import lowest_rank
from rayjobs.snapshots.unpack import require_digest
from rayjobs.snapshots.zipped import write_zip
from rayjobs.store.base import Store
from rayjobs.store.pipelines import KIND as PIPELINE
from rayjobs.store.requests import JobChanges, JobFilter, NewJob, NewRun
from rayjobs.workspace.blobs import Blob
from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

Record = TypeVar("Record", bound=RunRecord)
Read = TypeVar("Read")

PARTS: Mapping[str, type] = {"store": Store, "catalogue": Catalogue}

READS: Mapping[str, frozenset[str]] = {
    "store": frozenset(
        ("job", "find", "jobs", "job_lines", "jobs_of", "job_states", "job_arguments", "counts")
    )
    | {"revision", "member", "member_counts", "attempts", "events", "metrics", "last_metrics"}
    | {"metric_names", "files", "sweep", "sweeps", "trials", "model", "models", "meta"}
    | {"program_setting", "program_settings", "newest_lock"}
    | {"meta_under", "environment", "environments"},
    "catalogue": frozenset(
        ("datastore", "datastores", "default_datastore", "manifest", "dataset", "dataset_by_id")
    )
    | {"datasets", "dataset_versions"},
}
# Registration, for any run.
REGISTERS: Mapping[str, frozenset[str]] = {
    "store": frozenset(("put_model", "update_model", "set_model_alias", "put_environment")),
    "catalogue": frozenset(("add_datastore", "put_manifest", "add_dataset", "set_dataset_tags")),
}
# For child runs that the script logs to; the first argument is the run.
OF_CHILDREN = frozenset(("add_metrics", "publish_files", "end_run", "set_run_snapshot"))
# For the job's own run or runs below it; `RunCalls._checked` restricts each.
OF_OWN = frozenset(("update", "start_run", "submit", "request_cancel"))


class AttemptEndedError(RayjobsError):
    """The attempt has ended, or the token belongs to another one."""


def token_of(root: Path) -> str:
    """Return the token of the attempt with this folder; the first call creates it."""
    path = root / run_calls.TOKEN_FILE
    if not path.exists():  # otherwise another agent has already launched it
        write_atomic(path, secrets.token_urlsafe(32), mode=0o600)
    return path.read_text(encoding="ascii")


class RunCalls:
    """Answers the calls of one attempt's script. Thread-safe."""

    def __init__(self, on: AttemptOnNode, open_workspace: Callable[[], OpenWorkspace]) -> None:
        """Serve an attempt in the workspace that `open_workspace` returns."""
        self._on = on
        self._open = open_workspace
        self._root = Path(on.root)
        self._exchange = self._root / run_calls.EXCHANGE
        self._methods = dict(
            (
                self._answering(run_calls.Details, self._details),
                self._answering(run_calls.Children, self._children),
                self._answering(run_calls.Start, self._start),
                self._answering(run_calls.End, self._end),
                self._answering(run_calls.Log, self._log),
                self._answering(run_calls.Change, self._change),
                self._answering(run_calls.Metrics, self._metrics),
                self._answering(run_calls.Files, self._files),
                self._answering(run_calls.Fetch, self._fetch),
                self._answering(run_calls.Keep, self._keep),
                self._answering(run_calls.Snapshot, self._snapshot),
                self._answering(run_calls.Records, self._records),
                self._answering(run_calls.FetchModel, self._fetch_model),
                self._answering(run_calls.FetchDataset, self._fetch_dataset),
                self._answering(run_calls.Method, self._method),
                self._answering(run_calls.KeepBlob, self._keep_blob),
                self._answering(run_calls.FetchBlob, self._fetch_blob),
                self._answering(run_calls.HasBlob, self._has_blob),
            )
        )

    @staticmethod
    def _answering(
        kind: type[Request[Value]], work: Callable[[Any], Value]
    ) -> tuple[str, Callable[[object], object]]:
        return kind.NAME, lambda request: work(_readable(lambda: kind.from_json(request)))

    def answer(self, line: bytes) -> RunAnswer:
        """Execute the call on one line; returns errors that a call may have as answers. Blocks."""
        try:
            call = _readable(lambda: RunCall.from_json(parse_json(line)))
            self._require(call.token)
            method = self._methods.get(call.name)
            if method is None:
                raise UsageError(
                    f"this node's rayjobs does not know the call {call.name!r}; the job uses "
                    f"another version of rayjobs"
                )
            return RunAnswer(method(call.asked))
        except (RayjobsError, DatastoreError) as error:
            return RunAnswer(None, str(error), type(error).__name__)
        except UserErrorException as error:
            return RunAnswer(None, str(error), "UsageError")
        except OSError as error:
            return RunAnswer(None, f"the call failed: {error}", "StoreError")

    # -- rights --------------------------------------------------------------------------------
    def _require(self, token: str) -> None:
        """Refuse any other token, and the token of an attempt that has ended."""
        try:
            known = (self._root / run_calls.TOKEN_FILE).read_text(encoding="ascii")
        except OSError:
            known = ""
        on = self._on
        job = self._open().store.job(on.job)
        if not known or not hmac.compare_digest(known.encode(), token.encode()):
            raise AttemptEndedError(f"this is not the token of attempt {on.attempt} of {on.job}")
        if job.attempt != on.attempt or not job.state.is_live:
            raise AttemptEndedError(
                f"attempt {on.attempt} of {on.job} has ended: its token is no longer valid"
            )

    def _own(self, run: str, *, child: bool = False) -> Job:
        """Return a run that the script may change: its own (not with `child`) or a run below it."""
        store = self._open().store
        job = found = store.job(run)
        if found.kind == PIPELINE and self._is_step_of(found.id):
            return found
        while job.id != self._on.job and job.parent is not None:
            job = store.job(job.parent)
        # fault 113: own runs only
        if job.id != self._on.job:
            raise UsageError(
                f"{run} is not a run of this job; a script can change only its own run and child "
                f"runs"
            )
        if child and found.kind != INTERACTIVE:
            raise UsageError(f"{run} is not a child run that this script logs into")
        return found

    def _is_step_of(self, pipeline: str) -> bool:
        """Whether this job is a step of a pipeline's run, or a trial of such a step."""
        store = self._open().store
        job = store.job(self._on.job)
        while job.parent is not None and job.parent != pipeline:
            job = store.job(job.parent)
        return job.parent == pipeline

    # -- runs ----------------------------------------------------------------------------------
    def _details(self, request: run_calls.Details) -> RunDetails:
        opened = self._open()
        job = opened.store.job(request.run)
        return _record_of(RunDetails, job, details=details_of(opened, job))

    def _children(self, request: run_calls.Children) -> tuple[RunRecord, ...]:
        opened = self._open()
        wanted = RunFilter.of(
            request.kind, dict(request.tags), dict(request.properties), request.status
        )
        found, parents = [], [request.run]
        while parents:
            for job in opened.store.jobs(JobFilter(parent=parents.pop(0))):
                if wanted.accepts(job):
                    found.append(_record_of(RunRecord, job))
                if request.recursive:
                    parents.append(job.id)
        return tuple(found)

    def _start(self, request: run_calls.Start) -> RunRecord:
        parent = self._own(request.parent)
        new = NewRun(
            experiment=parent.experiment,
            name=request.name,
            user=parent.user,
            writer=self._writer(),
            id=request.id,
            parent=parent.id,
            snapshot=parent.snapshot,
            tags=dict(request.tags),
        )
        return _record_of(RunRecord, self._open().store.start_run(new)[0])

    def _writer(self) -> Mapping[str, Any]:
        return AttemptWriter(job=self._on.job, attempt=self._on.attempt).to_json()

    def _end(self, request: run_calls.End) -> str:
        found = self._own(request.run, child=True)
        store = self._open().store
        outcome = _readable(lambda: Outcome(request.outcome))
        if found.kind == PIPELINE:
            if outcome is not Outcome.CANCELED:
                raise UsageError("a pipeline run ends with its last step; cancel() ends it earlier")
            store.request_cancel(found.id, by=f"its step {self._on.job}")
            return str(JobState.CANCELED)
        failure = None
        if outcome is Outcome.FAILED:
            failure = Failure(FailureClass.USER, request.message, lines=request.lines)
        store.end_run(request.run, outcome=outcome, reason=request.message, failure=failure)
        return str(store.job(request.run).state)

    def _log(self, request: run_calls.Log) -> int:
        job = self._own(request.run, child=True)
        points = [
            MetricPoint(
                attempt=job.attempt,
                rank=0,
                sequence=one.sequence,
                name=one.name,
                value=stored_value(one.kind, one.value),
                step=one.step,
                at=datetime.fromtimestamp(one.at_s, UTC),
            )
            for one in request.points
            if one.kind in METRIC_KINDS
        ]
        return self._open().store.add_metrics(job.id, points)

    def _change(self, request: run_calls.Change) -> RunRecord:
        job = self._own(request.run)
        changes = JobChanges(
            tags=dict(request.tags),
            properties=dict(request.properties),
            display_name=request.display_name,
            description=request.description,
        )
        return _record_of(RunRecord, self._open().store.update(job.id, changes))

    def _metrics(self, request: run_calls.Metrics) -> tuple[tuple[str, object], ...]:
        points = lowest_rank(self._open().store.metrics(request.run, name=request.name))
        return tuple((point.name, point.value) for point in points)

    # -- files ---------------------------------------------------------------------------------
    def _new(self) -> Path:
        self._exchange.mkdir(mode=0o700, exist_ok=True)
        return self._exchange / secrets.token_hex(16)

    def _given(self, name: str) -> Path:
        path = self._exchange / Path(name).name
        if path.is_symlink() or not path.is_file():
            raise UsageError(f"the exchange folder has no file {name!r}")
        return path

    def _files(self, request: run_calls.Files) -> tuple[str, ...]:
        opened = self._open()
        names = {one.name for one in opened.store.files(request.run)}
        return tuple(sorted(names | set(Logs(opened, request.run).names())))

    def _fetch(self, request: run_calls.Fetch) -> str:
        opened = self._open()
        stored = {one.name: one for one in opened.store.files(request.run)}
        one = stored.get(request.name) or stored.get(real_name(request.name))
        target = self._new()
        if one is not None:
            opened.blobs.get_to(one.blob, target, digest=one.digest)
        elif is_log(request.name):
            with target.open("wb") as file:
                for part in Logs(opened, request.run).chunks(request.name):
                    file.write(part)
        else:
            known = ", ".join(sorted(stored)[:20]) or "none"
            raise NotFoundError(f"run {request.run} has no file {request.name!r}; it has: {known}")
        return target.name

    def _keep(self, request: run_calls.Keep) -> tuple[str, ...]:
        job = self._own(request.run, child=True)
        opened = self._open()
        names = [clean_name(name) for name in request.names]
        if len(names) != len(request.files):
            raise UsageError(
                f"{len(names)} names for {len(request.files)} files; give one name per file"
            )
        known = {one.name: one.digest for one in opened.store.files(job.id)}
        now = SystemClock().now()
        files = []
        for name, given in zip(names, request.files, strict=True):
            blob = opened.blobs.add_file(self._given(given))
            if known.get(name, blob.digest) != blob.digest:
                raise UsageError(
                    f"run {job.id} already has a file {name!r}, and uploads are never replaced; "
                    f"choose another name"
                )
            files.append(
                StoredFile(
                    name=name,
                    attempt=job.attempt,
                    size=blob.size,
                    digest=blob.digest,
                    blob=blob.key,
                    stored_at=now,
                )
            )
        if not opened.store.publish_files(job.id, attempt=job.attempt, files=files):
            raise UsageError(f"run {job.id} has ended, so it accepts no more files")
        for given in request.files:
            self._given(given).unlink()
        return tuple(names)

    def _snapshot(self, request: run_calls.Snapshot) -> str:
        opened = self._open()
        digest = request.snapshot or opened.store.job(request.run).snapshot
        if digest is None:
            raise NotFoundError(f"run {request.run} has no snapshot")
        target = self._new().with_suffix(".zip")
        key = snapshots.blob_key(digest)
        write_zip(
            digest,
            target,
            cache=AttemptPaths(self._root).tmp / "snapshots",
            fetch=lambda: opened.blobs.open(key),
        )
        return target.name

    # -- the workspace -------------------------------------------------------------------------
    def _records(self, request: run_calls.Records) -> tuple[WorkspaceRecord, ...]:
        opened = self._open()
        if request.of == "datastores":
            return tuple(
                WorkspaceRecord(one.name, kind=one.kind) for one in opened.catalogue.datastores()
            )
        if request.of == "datasets":
            return tuple(
                WorkspaceRecord(one.name, kind=one.kind, version=one.version, id=one.id)
                for one in opened.catalogue.datasets()
            )
        if request.of == "models":
            return tuple(
                WorkspaceRecord(one.name, version=one.version, run=one.run, tags=one.tags)
                for one in opened.store.models(latest=True)
            )
        if request.of == "experiments":
            found = {job.experiment for job in opened.store.job_lines()}
            return tuple(WorkspaceRecord(name) for name in sorted(found))
        raise UsageError(f"a workspace has no {request.of!r}")

    def _fetch_model(self, request: run_calls.FetchModel) -> str:
        opened = self._open()
        model = opened.store.model(request.name, version=request.version)
        folder = self._new()
        for one in model.files:
            target = folder.joinpath(*clean_name(one.name).split("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            opened.blobs.get_to(one.blob, target, digest=one.digest)
        return folder.name

    def _fetch_dataset(self, request: run_calls.FetchDataset) -> str:
        from rayjobs.datastore import Dataset, FileDataset

        catalogue = self._open().catalogue
        if request.id is not None:
            dataset = Dataset.get_by_id(catalogue, request.id)
        else:
            version = "latest" if request.version is None else request.version
            dataset = Dataset.get_by_name(catalogue, request.name, version)
        if not isinstance(dataset, FileDataset):
            raise UsageError(
                f"dataset {request.name or request.id!r} is a table, which only rayjobs in the "
                f"job's own environment can read; add rayjobs to it"
            )
        folder = self._new()
        folder.mkdir()
        dataset.download(str(folder))
        return folder.name

    def _method(self, request: run_calls.Method) -> object:
        part, method = request.part, request.method
        if method not in READS.get(part, frozenset()) | REGISTERS.get(part, frozenset()) and not (
            part == "store" and method in OF_CHILDREN | OF_OWN
        ):
            raise UsageError(
                f"a script may not call {part}.{method}: it can only read its workspace, log to "
                f"its own run and register; for anything else, use a handle outside the job"
            )
        given = _readable(lambda: _bound(PARTS[part], request))
        args: Sequence[Any] = given.args[1:]  # without `self`
        if part == "store":
            args = self._checked(method, args)
        opened = self._open()
        target = opened.catalogue if part == "catalogue" else opened.store
        return values.encode(getattr(target, method)(*args, **given.kwargs))

    def _checked(self, method: str, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of a call that changes runs, after a check of its rights."""
        if method in OF_CHILDREN:
            found = self._own(args[0], child=True)
            if found.kind == PIPELINE and method in ("end_run", "set_run_snapshot"):
                raise UsageError(f"a step may not call store.{method} for its pipeline run")
        elif method == "request_cancel":
            if self._own(args[0]).id == self._on.job:
                raise UsageError("a run cannot cancel itself; leave the script with sys.exit()")
        elif method == "update":
            self._own(args[0])
            if args[1].priority is not None or args[1].is_about_hold:
                raise UsageError("a script may not change the place of its job in the queue")
        elif method in ("start_run", "submit"):
            new: NewRun | NewJob = args[0]
            if new.parent is None:
                raise UsageError(
                    "a script submits below its own run: run.submit_child(config), "
                    "run.child_run(name)"
                )
            self._own(new.parent)
            if isinstance(new, NewRun):
                return [replace(new, writer=self._writer())]
            return [replace(new, claim=None, kind="job")]
        return args

    def _keep_blob(self, request: run_calls.KeepBlob) -> object:
        blobs = self._open().blobs
        path = self._given(request.file)
        if request.key is None:
            blob = blobs.add_file(path, digest=request.digest)
        elif request.key.startswith("snapshots/"):
            blob = self._keep_snapshot(path, request.key, request.digest)
        else:
            raise UsageError(f"a script may not write the blob {request.key!r}")
        path.unlink(missing_ok=True)
        return values.encode(blob)

    def _keep_snapshot(self, path: Path, key: str, digest: str | None) -> Blob:
        """Store an archive under its snapshot's key; this never replaces an existing one.

        Other jobs run the code with the same key, so the content must match the key.
        """
        value = key.rpartition("/")[2].removesuffix(".tar.zst")
        if key != snapshots.blob_key(f"sha256:{value}"):
            raise UsageError(f"{key!r} is not the key of a snapshot")
        require_digest(path, f"sha256:{value}")
        blobs = self._open().blobs
        if not blobs.exists(key):
            return blobs.put_file(path, key, digest=digest)
        found = hashlib.sha256()
        with blobs.open(key) as stored:
            while data := stored.read(1 << 20):
                found.update(data)
        return Blob(key, blobs.size(key), f"sha256:{found.hexdigest()}")

    def _fetch_blob(self, request: run_calls.FetchBlob) -> tuple[str, object]:
        target = self._new()
        blob = self._open().blobs.get_to(request.key, target, digest=request.digest)
        return target.name, values.encode(blob)

    def _has_blob(self, request: run_calls.HasBlob) -> int | None:
        blobs = self._open().blobs
        return blobs.size(request.key) if blobs.exists(request.key) else None


def _readable(read: Callable[[], Read]) -> Read:
    """Return what `read` returns; it only reads the call, so its errors are the script's.

    Raises:
        UsageError: the call cannot be read.
    """
    try:
        return read()
    except (TypeError, ValueError) as error:
        raise UsageError(f"the call cannot be read: {error}") from error


def _bound(part: type, request: run_calls.Method) -> inspect.BoundArguments:
    """Return the arguments of a method's call; those given by name are in their position."""
    args = cast(Sequence[Any], values.decode(request.args))
    kwargs = cast(Mapping[str, Any], values.decode(request.kwargs))
    return inspect.signature(getattr(part, request.method)).bind(None, *args, **kwargs)


def _record_of(kind: type[Record], job: Job, **kwargs: Any) -> Record:
    return kind(
        id=job.id,
        name=job.display_name or job.name,
        number=job.serial,
        type=type_of(job.kind),
        kind=job.kind,
        experiment=job.experiment,
        parent=job.parent,
        status=str(job.state),
        reason=job.reason,
        description=job.description,
        tags=dict(job.tags),
        properties=dict(job.properties),
        snapshot=job.snapshot,
        **kwargs,
    )
