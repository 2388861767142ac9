"""What happened: frozen records of jobs, attempts, allocations, events, metrics and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from rayjobs.core.failures import Failure
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:  # importing pydantic would dominate the time of a listing
    from rayjobs.injob.exit_record import ExitRecord
    from rayjobs.jobs.hosts import HostRecord
    from rayjobs.spec.model import JobSpec


# The kind of a job to which a process outside the queue logs; no target starts it.
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
        reason: Why the job is in its state, for users.
        cancel_requested_at: When a user requested its end; a request, not a state.
        cancellation: What its reason says as values, if it was canceled on a request; else None.
        priority: The current one; it may have changed since the spec was written.
        display_name: The name for users instead of the spec's; unlike the spec, it may change.
        kind: "job"; "sweep", "array" and others for parents that run nothing themselves;
            "interactive" for a run to which a process outside the queue logs.
        parent: Id of the run that it belongs to, such as a sweep, an array or a pipeline run.
        array_index: Its index in its array; None if it is not a member.
        placed_at: When it first got an allocation; for an array, when its first member did; for a
            sweep that is a step of a pipeline, when the steps before it had ended.
        held: Why it is held in the queue until a user releases it; None: not held.
        description: The users' description.
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
    cancellation: Cancellation | None = None

    @property
    def name(self) -> str:
        """The spec's name."""
        return self.spec.name

    @property
    def group_limit(self) -> int | None:
        """How many members of its array may run at a time; None: no limit."""
        if self.array_index is None or self.spec.array is None:
            return None
        return self.spec.array.limit


class JobLine(NamedTuple):  # a frozen dataclass takes five times as long to make
    """A job for lists, without its spec: parsing the spec takes most of the time of a read.

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
    cancellation: Cancellation | None


def name_of(job: Job | JobLine) -> str:
    """Return the job's name for display; that of an array's member includes its index."""
    name = job.display_name or job.name
    return name if job.array_index is None else f"{name}[{job.array_index}]"


class AllocationState(StrEnum):
    """The state of an allocation."""

    CREATING = "creating"  # recorded; the placement group may or may not exist yet
    HELD = "held"  # an attempt has it
    IDLE = "idle"  # free for reuse
    DRAINING = "draining"  # its ranks are not proven dead: never reused
    RELEASED = "released"  # removed; kept as a record


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A placement group with its own row.

    Attributes:
        name: ``rj-<target>-<random>``; recorded before the group is created.
        shape: ``{"nodes": n, "cpus": per bundle, "gpus": per bundle, "memory": bytes per bundle,
            "spread": 1.0}``: each bundle needs its own node (0.0: no). ``"node_types"`` lists the
            types of nodes that it may use; without it, it may use any. Equal shapes may be reused.
        nodes: Ray node ids, one per bundle, once known.
        gpus: GPU ids per bundle, once known.
    """

    name: str
    target: str
    shape: Mapping[str, Any]
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
        hosts: The attempt host of each node, as soon as its path is known.
        exits: The exit records, one per node that has ended.
        outcome: An `Outcome`; for an array or a sweep, which has no execution, its final state.
        cold_reason: Why its ranks did not start from a warm interpreter; None: they did.
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
    """One line of a job's history.

    Attributes:
        message: What happened, for people.
        data: Plain JSON. Code reads it only as an `EventData` of its kind (`rayjobs.jobs.events`).
    """

    serial: int
    job: str
    at: datetime
    kind: str
    message: str
    attempt: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """A record logged by a rank.

    Attributes:
        sequence: Number of the record in its rank's file, from 0; (attempt, rank, sequence)
            is the key, so a batch may be sent twice.
        value: A number, or JSON data for lists, rows, tables and images.
        step: The script's own step; None if it gave none.
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
    """A file of a run. Writing its row publishes it: before that, users do not see the file.

    Attributes:
        name: Its name for users: ``outputs/model.pt``, ``azureml-logs/70_driver_log.txt``.
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
    """A sweep: its row in the queue and its other data.

    Attributes:
        job: Of kind "sweep". Its `spec` is the base job; its `attempt` is the number of the
            current driver, the fencing token of everything that a driver writes.
        spec: The sweep's own definition as plain data.
        driver: ``module:function`` that starts its driver on a target.
    """

    job: Job
    spec: Mapping[str, Any]
    driver: str


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One stored row of a sweep's trial table.

    Attributes:
        number: From 0.
        job: Id of its job; None before its submit.
        state: A name that the sweep's driver knows.
        reports: The primary metric's values, oldest first, including NaN and infinities.
        reason: Why it was stopped or failed, for people; otherwise empty.
        cause: The same as a name that the sweep's driver knows; None while there is nothing to
            explain.
        detail: The reason without the trial's number; may be empty.
        judged: How many of the reports the early termination policy has judged.
        stop_requested: Whether its end was decided; the job may still be ending.
        metric_names: All names that its job logged, known after its end.
    """

    number: int
    parameters: Mapping[str, Any]
    state: str
    job: str | None = None
    reports: tuple[float, ...] = ()
    reason: str = ""
    cause: str | None = None
    detail: str = ""
    judged: int = 0
    stop_requested: bool = False
    metric_names: tuple[str, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline run: its row in the queue and its other data.

    Attributes:
        job: Of kind "pipeline". Its `spec` runs nothing.
        spec: The pipeline's own definition as plain data.
        parameters: The values that this run was submitted with.
        continues: Whether steps that do not depend on a failed step continue.
        published: Id of the published pipeline of this run, or None.
    """

    job: Job
    spec: Mapping[str, Any]
    parameters: Mapping[str, Any]
    continues: bool = False
    published: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """A stored step of a pipeline run.

    Attributes:
        pipeline: Id of the pipeline run.
        number: From 0, in the order of the definition.
        name: Unique in its pipeline.
        job: Id of its job. A reused step's job is Completed and has no attempt.
        after: Names of the steps that it waits for.
        reuse_key: Digest of `parts`; None: its results are never reused.
        parts: Everything that determines its results, by name.
        original: The job whose results it reuses; None: it ran.
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
        name: For users; a name refers to its newest active pipeline.
        version: The author's version.
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
    """A schedule of a published pipeline: at certain times, or when stored files change.

    Attributes:
        id: Names it in every workspace.
        name: For people.
        description: For people.
        pipeline: Id of the published pipeline; None: an endpoint's default.
        endpoint: Id of the endpoint; None: a pipeline is named.
        experiment: The experiment of its runs.
        parameters: Values of parameters for each run.
        continues: Whether runs continue after a failure; None: the pipeline's own setting.
        recurrence: The times, see `rayjobs.pipelines.recurrence`; None: files are watched.
        watched: Datastore, path, interval in minutes and parameter; None: it has a recurrence.
        seen: Path → mark of each watched file at the last check.
        is_active: Whether it is active.
        next_at: When it is next due; None: never.
        last_run: The newest run that it started.
        note: One sentence about its last due time, for people; empty: nothing notable.
        failed_start: Why the run that is still due could not be started; empty: nothing prevented
            it.
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
    failed_start: str = ""
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
        is_default: Whether the endpoint runs this version by default.
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
    """The state of a sweep's child, and what it logged since the last read.

    Attributes:
        points: New points of the requested metric, only from the newest attempt.
        cursor: Where the next read starts: ``{"attempt": n, "ranks": {rank: sequence}}``.
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
    """A future version of a model, without its number; see `ModelVersion`.

    Attributes:
        sources: The checked rows of the run's files.
        user: Who registers it.
        description: None keeps that of an existing version.
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
    """A requested model that cannot be registered.

    Attributes:
        why: A sentence without the full stop.
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
        version: From 1; a number is never reused, even after deletions.
        run: The run that made it; "" if a user uploaded it.
        attempt: The run's attempt at its completion; 0 without a run.
        path: The run's file or folder that it was made from, e.g. ``outputs/model.pt``.
        digest: The digest of its files' names and digests.
        lineage: Its lineage, as plain data (docs/guides/models.md).
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
        """Its total size."""
        return sum(one.size for one in self.files)
