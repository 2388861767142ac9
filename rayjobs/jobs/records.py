"""What happened: frozen records of jobs, attempts, allocations, events, metrics and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from rayjobs.core.failures import Failure
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:  # pydantic's import is most of what a listing would take
    from rayjobs.injob.exitrecord import ExitRecord
    from rayjobs.jobs.hosts import HostRecord
    from rayjobs.spec.model import JobSpec


# The kind of a job that a process outside of the queue logs into; no target starts it.
INTERACTIVE = "interactive"


def kind_text(kind: str) -> str:
    """Return a kind of job with its article, e.g. ``an array``."""
    if kind == INTERACTIVE:
        return "an interactive run"
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A spec with its place in the queue.

    Attributes:
        id: Job id and run id.
        serial: Order of submission within the workspace (FIFO).
        experiment: Name the job was submitted under.
        attempt: Number of the latest attempt; 0 before the first. The fencing token.
        reason: Why the job is in its state, for people.
        cancel_requested_at: When somebody asked for its end; a request, not a state.
        priority: The one in force; it may have been changed since the spec was written.
        display_name: What people see instead of the spec's name; may change, the spec does not.
        kind: "job"; "sweep", "array" and others for parents that run nothing themselves;
            "interactive" for a run that a process outside of the queue logs into.
        parent: Id of the sweep or array that it belongs to.
        array_index: Which member of its array it is; None for all that is none.
        placed_at: When it first got an allocation; of an array, its first member's.
        held: Why it is held back in the queue until somebody releases it; None when it is not.
        description: What people say about it.
    """

    id: str
    serial: int
    experiment: str
    spec: JobSpec
    state: JobState
    attempt: int = 0
    reason: str = ""
    priority: int = 0
    target: str = "local"
    user: str = ""
    kind: str = "job"
    parent: str | None = None
    snapshot: str | None = None
    display_name: str | None = None
    submitted_at: datetime
    changed_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    not_before: datetime | None = None
    cancel_requested_at: datetime | None = None
    failure: Failure | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    array_index: int | None = None
    placed_at: datetime | None = None
    held: str | None = None
    description: str = ""

    @property
    def name(self) -> str:
        """The spec's name."""
        return self.spec.name

    @property
    def group_limit(self) -> int | None:
        """How many of its array may run at a time; None: as many as fit."""
        if self.array_index is None or self.spec.array is None:
            return None
        return self.spec.array.limit


class JobLine(NamedTuple):  # a frozen dataclass takes five times as long to make
    """A job as lists show it: without its spec, which takes most of the time to read.

    Attributes are those of `Job`; `name` is the spec's.
    """

    id: str
    serial: int
    name: str
    experiment: str
    state: JobState
    attempt: int
    reason: str
    priority: int
    target: str
    user: str
    kind: str
    parent: str | None
    snapshot: str | None
    display_name: str | None
    submitted_at: datetime
    changed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cancel_requested_at: datetime | None
    failure: Failure | None
    tags: Mapping[str, str]
    properties: Mapping[str, str]
    array_index: int | None
    placed_at: datetime | None
    held: str | None


class AllocationState(StrEnum):
    """Where an allocation is."""

    CREATING = "creating"  # recorded; the placement group may or may not exist yet
    HELD = "held"  # an attempt has it
    IDLE = "idle"  # free to be handed on
    DRAINING = "draining"  # its ranks are not proven dead: never handed on
    RELEASED = "released"  # removed; kept as a record


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A placement group with its own row.

    Attributes:
        name: ``rj-<target>-<random>``; recorded before the group is created.
        shape: ``{"nodes": n, "cpus": per node, "gpus": per node, "memory": bytes per node}``;
            equal shapes may be handed on.
        nodes: Ray node ids, one per bundle, once known.
        gpus: GPU ids per bundle, once known.
    """

    name: str
    target: str
    shape: Mapping[str, float]
    state: AllocationState
    job: str | None = None
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    gpus: tuple[tuple[str, ...], ...] = ()
    changed_at: datetime


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One execution of a job.

    Attributes:
        hosts: The attempt host of each node, once it is known where it will be.
        exits: The exit records, one per node that has ended.
        outcome: An `Outcome`; of an array or a sweep, which has no execution, its final state.
        cold_reason: Why its ranks did not come from a warm interpreter; None when they did.
    """

    job: str
    number: int
    allocation: str | None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    hosts: tuple[HostRecord, ...] = ()
    exits: tuple[ExitRecord, ...] = ()
    cold_reason: str | None = None
    outcome: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of a job's history."""

    serial: int
    job: str
    at: datetime
    kind: str
    message: str
    attempt: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """One record that a rank logged.

    Attributes:
        sequence: Number of the record in its rank's file, from 0; (attempt, rank, sequence)
            is the key, so a batch may be sent twice.
        value: A number, or JSON data for lists, rows, tables and images.
        step: The script's own step; None where it gave none.
    """

    attempt: int
    rank: int
    sequence: int
    name: str
    value: Any
    step: int | None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of a run, visible once its row is (the publish).

    Attributes:
        name: As users know it: ``outputs/model.pt``, ``azureml-logs/70_driver_log.txt``.
        size: Bytes.
        digest: ``sha256:…`` of the bytes.
        blob: Key in the blob store.
    """

    name: str
    attempt: int
    size: int
    digest: str
    blob: str
    stored_at: datetime


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep: its row in the queue, and what is kept with it.

    Attributes:
        job: Of kind "sweep". Its `spec` is the base job; its `attempt` is the number of the
            driver that works on it, the fencing token of all that a driver writes.
        spec: The sweep's own definition as plain data.
        driver: ``module:function`` that starts its driver on a target.
    """

    job: Job
    spec: Mapping[str, Any]
    driver: str


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One row of a sweep's trial table, as it is stored.

    Attributes:
        number: From 0.
        job: Id of its job; None until that is submitted.
        state: A name that the sweep's driver knows.
        reports: The primary metric's values, oldest first; NaN and infinities among them.
        judged: How many of them the early termination policy has judged.
        stop_requested: Its end was decided; the job may still be ending.
        metric_names: All names that its job logged, known once it ended.
    """

    number: int
    parameters: Mapping[str, Any]
    state: str
    job: str | None = None
    reports: tuple[float, ...] = ()
    reason: str = ""
    judged: int = 0
    stop_requested: bool = False
    metric_names: tuple[str, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline run: its row in the queue, and what is kept with it.

    Attributes:
        job: Of kind "pipeline". Its `spec` runs nothing.
        spec: The pipeline's own definition as plain data.
        parameters: The values that this run was submitted with.
        continues: Whether steps that need nothing of a failed step run on after the failure.
        published: Id of the published pipeline that this is a run of; None: of none.
    """

    job: Job
    spec: Mapping[str, Any]
    parameters: Mapping[str, Any]
    continues: bool = False
    published: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """A step of a pipeline run, as it is stored.

    Attributes:
        pipeline: Id of the pipeline run.
        number: From 0, in the order of the definition.
        name: Unique in its pipeline.
        job: Id of its job. A reused step's job is Completed and has no attempt.
        after: Names of the steps that it waits for.
        reuse_key: Digest of `parts`; None: its results are never reused.
        parts: All that decides about its results, by name.
        original: The job whose results it reuses; None: it ran itself.
        decision: Why it was reused or not, see `rayjobs.pipelines.reuse`.
    """

    pipeline: str
    number: int
    name: str
    job: str
    after: tuple[str, ...] = ()
    reuse_key: str | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    original: str | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PublishedRecord:
    """A published pipeline.

    Attributes:
        id: Names it in every workspace.
        name: For people; the newest active one of a name is meant by it.
        version: What its author called it.
        description: For people.
        spec: The pipeline's definition, with the digests of its code.
        is_active: Whether it may be run.
        created_by: Who published it.
        created_at: When.
    """

    id: str
    name: str
    version: str | None
    description: str
    spec: Mapping[str, Any]
    is_active: bool
    created_by: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class ScheduleRecord:
    """A published pipeline that is run at times, or when stored files change.

    Attributes:
        id: Names it in every workspace.
        name: For people.
        description: For people.
        pipeline: Id of the published pipeline; None: an endpoint's default.
        endpoint: Id of the endpoint; None: a pipeline is named.
        experiment: What its runs belong to.
        parameters: Values of parameters for each run.
        continues: Whether runs go on after a failure; None: the pipeline's own setting.
        recurrence: The times, see `rayjobs.pipelines.recurrence`; None: files are watched.
        watched: Datastore, path, interval in minutes and parameter; None: it has times.
        seen: Path → mark of each watched file at the last look.
        is_active: Whether it runs anything.
        next_at: When it falls due next; None: never.
        last_run: The newest run that it started.
        note: What happened at the last time, one sentence; empty: nothing of note.
        created_by: Who made it.
        created_at: When.
    """

    id: str
    name: str
    description: str = ""
    pipeline: str | None = None
    endpoint: str | None = None
    experiment: str
    parameters: Mapping[str, Any]
    continues: bool | None = None
    recurrence: Mapping[str, Any] | None = None
    watched: Mapping[str, Any] | None = None
    seen: Mapping[str, str] | None = None
    is_active: bool = True
    next_at: datetime | None = None
    last_run: str | None = None
    note: str = ""
    created_by: str = ""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class EndpointVersion:
    """One version of a pipeline endpoint.

    Attributes:
        id: Of the endpoint.
        name: Of the endpoint.
        version: From 0.
        pipeline: Id of the published pipeline.
        description: Of this version.
        is_default: Whether the endpoint runs this version unless another one is named.
        is_active: Whether the endpoint may be run.
    """

    id: str
    name: str
    version: int
    pipeline: str
    description: str
    is_default: bool
    is_active: bool


@dataclass(frozen=True, kw_only=True)
class ChildNews:
    """How a child of a sweep stands, and what it logged since it was last looked at.

    Attributes:
        points: New points of the metric that was asked for, from the newest attempt alone.
        cursor: Where the next look begins: ``{"attempt": n, "ranks": {rank: sequence}}``.
    """

    job: str
    state: JobState
    attempt: int
    reason: str
    failure: Failure | None
    points: tuple[MetricPoint, ...]
    cursor: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model's version.

    Attributes:
        name: Below the model's folder: ``model.pt``, ``weights/part-0.bin``.
        size: Bytes.
        digest: ``sha256:…`` of the bytes.
        blob: Key in the blob store; the run's own file, which is stored once.
    """

    name: str
    size: int
    digest: str
    blob: str


@dataclass(frozen=True, kw_only=True)
class ModelDraft:
    """A version of a model to be, with all but its number; see `ModelVersion`.

    Attributes:
        sources: Rows of the run's files, as they were checked.
        user: Who registers it.
        description: None leaves that of a version that is there already.
    """

    name: str
    path: str
    digest: str
    files: tuple[ModelFile, ...]
    sources: tuple[StoredFile, ...]
    lineage: Mapping[str, Any]
    user: str = ""
    framework: str = ""
    framework_version: str = ""
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelRefusal:
    """A model that a script asked for, and that cannot be registered.

    Attributes:
        why: A sentence, without its end.
    """

    name: str
    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class EnvironmentVersion:
    """One version of a registered environment.

    Attributes:
        version: From 1.
        definition: JSON, as `rayjobs.api.environment` writes it.
        labels: Names that point to this version now.
    """

    name: str
    version: int
    definition: str
    created_by: str = ""
    created_at: datetime
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        version: From 1; a number is never given twice, whatever is deleted.
        run: The run that made it; "" for one that a user uploaded.
        attempt: Of the run, when it completed; 0 without a run.
        path: The run's file or folder that it was made of, e.g. ``outputs/model.pt``.
        digest: Of names and digests of its files.
        lineage: Where it comes from, as plain data (docs/guides/models.md).
        aliases: Names that point to this version now.
    """

    name: str
    version: int
    run: str
    attempt: int
    path: str
    digest: str
    files: tuple[ModelFile, ...]
    lineage: Mapping[str, Any]
    framework: str = ""
    framework_version: str = ""
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    created_by: str = ""
    created_at: datetime
    aliases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """All its bytes."""
        return sum(one.size for one in self.files)
