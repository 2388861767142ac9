"""What callers pass to a store: jobs to list, new jobs and sweeps, changes of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:  # importing pydantic would dominate the time of a listing
    from rayjobs.spec.model import JobSpec

# What a new sweep names as its driver: clients write it, and the sweeps actor imports it.
DRIVER = "rayjobs.tuning.driver_actor:start"


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Which jobs a listing returns, and in which order. A job must meet every condition.

    Attributes:
        states: The job is in one of these; None accepts every state.
        experiment: Its experiment.
        parent: The id of its array, sweep or pipeline run, or of the run that submitted it.
        target: Its target.
        tag: Name and value of one of its tags.
        members: Include members of arrays. Without them, an unfinished array counts as being in
            each state of its unfinished members, not in its own.
        trials: Include trials of sweeps.
        limit: The maximum number of jobs; None returns all.
        newest_first: By time of submission, newest first; otherwise oldest first.
        after: The serial of the job after which the list begins, in its order.
    """

    states: Sequence[JobState] | None = None
    experiment: str | None = None
    parent: str | None = None
    target: str | None = None
    tag: tuple[str, str] | None = None
    members: bool = True
    trials: bool = True
    limit: int | None = None
    newest_first: bool = True
    after: int | None = None


EVERY_JOB = JobFilter()


@dataclass(frozen=True)
class Page:
    """A part of a list after an item, independent of items added or removed meanwhile.

    Attributes:
        limit: The maximum number of items.
        after: The key of the item before the first one, in the list's order; None: the start.
    """

    limit: int
    after: tuple[Any, ...] | None = None


def part_of(page: Page | None, first: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """Return how many items to read (-1: all), and after which key; `first` precedes all keys."""
    if page is None:
        return -1, first
    return page.limit, first if page.after is None else page.after


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job, or an array, to be written.

    Attributes:
        spec: What to run.
        experiment: The experiment that it belongs to.
        snapshot: Digest of its code; None if it runs without a source directory.
        user: Who submits it.
        id: Its id; None lets the store make one.
        idempotency_key: A second submit with the same key returns the first one's job.
        parent: Its parent, such as the sweep of a trial or the run that submits it.
        kind: ``job``; other kinds are not started by a target.
        properties: Facts about the job, which can be added to but not changed.
        claim: Write the job only while this is the newest claim of `parent`
            (see `SweepStore.claim_sweep`).
        numbered: If the spec has no display name, give the job one that is unique in the store:
            the spec's name with the next number, such as ``train-3``.
    """

    spec: JobSpec
    experiment: str
    snapshot: str | None
    user: str
    id: str | None = None
    idempotency_key: str | None = None
    parent: str | None = None
    kind: str = "job"
    properties: Mapping[str, str] = field(default_factory=dict)
    claim: int | None = None
    numbered: bool = False


@dataclass(frozen=True, kw_only=True)
class JobChanges:
    """Changes of a job that do not need a new revision of its spec. None leaves a field as it is.

    Attributes:
        priority: The new priority.
        tags: Tags to set; a tag whose value is None is removed.
        properties: Properties to add.
        display_name: The name that people see.
        description: A text for people; an empty string removes it.
        hold: Why the job is to be held; not empty.
        release: Release the job; not together with `hold`.

    Raises:
        UsageError: `hold` is empty, or given together with `release`.
    """

    priority: int | None = None
    tags: Mapping[str, str | None] | None = None
    properties: Mapping[str, str] | None = None
    display_name: str | None = None
    description: str | None = None
    hold: str | None = None
    release: bool = False

    def __post_init__(self) -> None:
        if self.hold is not None and (self.release or not self.hold):
            raise UsageError("either hold a job for a reason, or release it")

    @property
    def is_about_hold(self) -> bool:
        """Whether the job is to be held or released."""
        return self.hold is not None or self.release


NO_CHANGES = JobChanges()


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """An interactive run to be written: one that a process logs into, and no target starts.

    Attributes:
        experiment: The experiment that it belongs to.
        name: Its name, for people; empty: ``run-N`` with the next number.
        user: Who starts it.
        writer: Its writer: `ProcessWriter.to_json` or `AttemptWriter.to_json`
            (`rayjobs.jobs.writers`). The run ends with its writer at the latest.
        id: Its id; None lets the store make one.
        parent: The run that it is a child of.
        snapshot: Digest of its code; None if none was taken.
        description: A text for people.
        tags: Its tags.
        properties: Facts about the run, which can be added to but not changed.
    """

    experiment: str
    name: str
    user: str
    writer: Mapping[str, Any]
    id: str | None = None
    parent: str | None = None
    snapshot: str | None = None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NewSweep:
    """A sweep to be written.

    Attributes:
        base: What each trial runs, before its parameters.
        definition: The sweep's own definition, plain JSON data.
        driver: ``module:function`` that starts a driver of the sweep on a target.
        experiment: The experiment that the sweep and its trials belong to.
        snapshot: Digest of the trials' code; None if they run without a source directory.
        user: Who submits it.
        name: The sweep's name, for people.
        tags: The sweep's tags.
        properties: Facts about the sweep, which can be added to but not changed.
        idempotency_key: A second submit with the same key returns the first one's sweep.
        id: Its id; None lets the store make one.
    """

    base: JobSpec
    definition: Mapping[str, Any]
    driver: str
    experiment: str
    snapshot: str | None
    user: str
    name: str = "sweep"
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewStep:
    """A step of a pipeline to be written.

    Attributes:
        number: From 0, in the order of the definition.
        name: Unique in its pipeline.
        job: Id of its job: other steps name it in their inputs and dependencies.
        spec: What it runs, including dependencies; for a sweep, what each trial runs.
        snapshot: Digest of its code; None if it runs without a source directory.
        after: Names of the steps that it waits for.
        reuse_key: Digest of `parts`; None: its results are never reused.
        parts: Everything that determines its results, by name.
        original: The completed job whose results it reuses; None: it reuses none.
        decision: Why it is reused or not.
        properties: Facts about the job, which can be added to but not changed.
        driver: For a sweep: ``module:function`` that starts its driver; None: it is a job.
        sweep: For a sweep: its definition.
    """

    number: int
    name: str
    job: str
    spec: JobSpec
    snapshot: str | None = None
    after: Sequence[str] = ()
    reuse_key: str | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    original: str | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    sweep: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class NewPipeline:
    """A pipeline run to be written, with all its steps.

    Attributes:
        name: The pipeline's name, for people and for the reuse of results.
        base: A spec that is never run: it holds target and priority.
        definition: The pipeline's own definition, plain JSON data.
        parameters: The values of this run.
        steps: At least one.
        experiment: The experiment that the run and its steps belong to.
        user: Who submits it.
        continues: Whether steps that do not depend on a failed step continue after the failure.
        published: Id of the published pipeline of this run; None: there is none.
        display_name: The displayed name; None: the name.
        tags: The run's tags.
        properties: Facts about the run, which can be added to but not changed.
        idempotency_key: A second submit with the same key returns the first one's run.
        id: Its id; None lets the store make one.
    """

    name: str
    base: JobSpec
    definition: Mapping[str, Any]
    parameters: Mapping[str, Any]
    steps: Sequence[NewStep]
    experiment: str
    user: str
    continues: bool = False
    published: str | None = None
    display_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    id: str | None = None
