"""What every store promises.

A store is one workspace's truth. All methods block, are safe from threads, and are each one
transaction. What is conditional on an attempt's number is the *publish*: a call that comes
late (from an attempt that is no longer the job's newest) changes nothing and returns False.
Everything goes in and out as records or JSON data, so that the protocol can be carried by HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from rayjobs.core.failures import Failure
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import (
    Allocation,
    Attempt,
    Event,
    Job,
    JobLine,
    MetricPoint,
    ModelDraft,
    ModelRefusal,
    StoredFile,
)
from rayjobs.jobs.states import JobState
from rayjobs.store.queuebase import QueueStore
from rayjobs.store.sweepbase import SweepStore

if TYPE_CHECKING:  # pydantic's import is most of what a listing would take
    from rayjobs.datastore.catalogue import Catalogue
    from rayjobs.spec.model import JobSpec
    from rayjobs.store.pruning import PruneView


class Store(QueueStore, SweepStore, Protocol):
    """Records of one workspace.

    Raises (all methods):
        StoreBusyError: another process kept the lock for longer than the busy timeout.
        StoreFullError: the disk is full; nothing was changed.
        StoreVersionError: the store's schema is newer than this code.
    """

    # -- jobs ------------------------------------------------------------------------------
    def submit(
        self,
        spec: JobSpec,
        *,
        experiment: str,
        snapshot: str | None,
        user: str,
        idempotency_key: str | None = None,
        parent: str | None = None,
        kind: str = "job",
        job_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        claim: int | None = None,
        numbered: bool = False,
    ) -> tuple[Job, bool]:
        """Write one job durably (fsync) as Queued; return it and whether it is new.

        With `numbered`, a job whose spec has no display name gets one that no job of the store
        has: the spec's name with the next number, such as ``train-3``. Numbers only grow.

        With a key that exists, the job of the first call is returned unchanged and the flag
        is False; a different spec or snapshot under the same key raises UsageError.

        With `claim` (see `claim_sweep`), nothing is written unless it is the newest claim of
        `parent` and that has not ended, checked with the write as one; raises TakenOverError.
        """
        ...

    def job(self, job_id: str) -> Job:
        """Return a job. Raises NotFoundError."""
        ...

    def find(self, text: str, *, kind: str | None = None, newest: bool = False) -> Job:
        """Return the job whose id is, begins with, or has a random tail beginning with `text`.

        A name that only one job has is accepted too, and ``ARRAY[3]`` for a member. The name of
        an array or sweep means it, and none of its members or trials. Of several arrays,
        ``ARRAY[3]`` takes the one that is shown under this name, else the one with such a member.

        Args:
            kind: Look among jobs of this kind alone, such as ``sweep``; a whole id is found always.
            newest: Of several jobs with exactly this name, take the one submitted last.

        Raises:
            NotFoundError: there is none; the message has near names.
            UsageError: several match; the message lists them, and `matches` has their ids.
        """
        ...

    def jobs(
        self,
        *,
        states: Sequence[JobState] | None = None,
        experiment: str | None = None,
        parent: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> list[Job]:
        """Return jobs that match all that is given."""
        ...

    def job_rows(
        self,
        *,
        states: Sequence[JobState] | None = None,
        experiment: str | None = None,
        parent: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> list[Mapping[str, Any]]:
        """Return what `jobs` does as plain JSON data and without specs, for long lists.

        Keys are the job's fields but its spec, failure and properties, and `name` (the spec's);
        times are ISO text.
        """
        ...

    def job_lines(
        self,
        *,
        states: Sequence[JobState] | None = None,
        experiment: str | None = None,
        parent: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = True,
        members: bool = True,
        trials: bool = True,
    ) -> list[JobLine]:
        """Return what `jobs` does without specs.

        Args:
            members: Also members of arrays. Without them, an array that has not ended is in each
                state that one of its members is in that has not ended either.
            trials: Also trials of sweeps.
        """
        ...

    def job_arguments(self, serials: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        """Return the arguments of each of these jobs' specs (None: of all), by serial."""
        ...

    def counts(self) -> dict[JobState, int]:
        """Return how many jobs are in each state (states without jobs are left out)."""
        ...

    def start(
        self,
        job_id: str,
        *,
        attempt: int,
        allocation: str,
        epoch: str | None = None,
        changed_at: datetime | None = None,
    ) -> Attempt | None:
        """Start the job that the policy named: Queued → Provisioning, attempt + 1.

        One conditional statement on state Queued, the given (current) attempt number and no
        cancel request; None when the job is no longer so (two targets never start one job).

        Args:
            epoch: Only while this actor's claim of the job's target is the last one: what an
                actor reads after its claim is all that any other will ever have started. None:
                whoever asks.
            changed_at: Only if the job is as it was read: its spec may have been revised since.
        """
        ...

    def move(
        self, job_id: str, *, attempt: int, old: JobState, new: JobState, reason: str = ""
    ) -> bool:
        """Move a live job one step, if it still is in `old` with this attempt.

        Not for final states (`finish`) nor for Queued (`requeue`).
        """
        ...

    def set_reason(self, job_id: str, *, attempt: int, reason: str) -> bool:
        """Say of a live job why it stands where it does; False when the attempt is over."""
        ...

    def set_hosts(
        self,
        job_id: str,
        *,
        attempt: int,
        hosts: Sequence[Mapping[str, Any]],
        cold_reason: str | None = None,
    ) -> bool:
        """Record who runs an attempt (and why it is cold)."""
        ...

    def record_exit(self, job_id: str, *, attempt: int, exits: Sequence[Mapping[str, Any]]) -> bool:
        """Keep an attempt's exit records, one a node; those of other nodes stay. Idempotent."""
        ...

    def finish(
        self,
        job_id: str,
        *,
        attempt: int,
        state: JobState,
        reason: str = "",
        failure: Failure | None = None,
        outcome: Outcome | None = None,
        models: Sequence[ModelDraft | ModelRefusal] = (),
    ) -> bool:
        """Write the one final state durably (fsync); also ends the attempt's row.

        With Completed come its `models`, in the same transaction: each gets its version as by
        `put_model` and an event ``model``; one that is refused, or whose files are others by
        now, an event ``model_refused``, and the reason says so.

        False when the job is final already or has a newer attempt. From Queued (a cancel
        before any attempt, a failed parent) pass the current attempt number. Raises
        TransitionError where the table has no such step (Completed but from Finalizing).
        """
        ...

    def requeue(
        self,
        job_id: str,
        *,
        attempt: int,
        reason: str,
        outcome: Outcome,
        failure: Failure | None = None,
        not_before: datetime | None = None,
        hold: str | None = None,
        if_without_hosts: bool = False,
    ) -> bool:
        """Put a live job back to Queued at its old place; ends the attempt's row.

        With `hold` it stays there until somebody releases it. With `if_without_hosts` nothing is
        done once hosts of the attempt are recorded (see `set_hosts`), which is refused afterwards.
        A job whose cancel was requested before becomes Canceled instead (from the queue nobody
        would start it again). False when the job is not live, or has a newer attempt.
        """
        ...

    def request_cancel(self, job_id: str, *, by: str = "") -> JobState:
        """Ask for a job's end and return its state now.

        A Queued job is Canceled at once; a live one keeps its state and gets the request;
        a final one is left as it is. Of an array, all members are asked. Idempotent.
        """
        ...

    def update(
        self,
        job_id: str,
        *,
        priority: int | None = None,
        tags: Mapping[str, str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        display_name: str | None = None,
        hold: str | None = None,
        release: bool = False,
    ) -> Job:
        """Change what may change: priority, tags, properties; hold or release the job.

        An array's priority is that of its unfinished members. A tag of None is removed. `hold` and
        `release` do what those methods do.

        Raises:
            UsageError: the priority of a job that has ended; a property that has another value
                already (properties can only be added); what `hold` and `release` refuse.
        """
        ...

    def revise(
        self,
        read: Job,
        spec: JobSpec,
        *,
        priority: int | None = None,
        tags: Mapping[str, str | None] | None = None,
        display_name: str | None = None,
        hold: str | None = None,
        release: bool = False,
    ) -> Job | None:
        """Write a new revision of a queued job's spec durably, with an event that keeps the old.

        Its place, snapshot and id stay; its tags, and the priority of a job that is not an array,
        become those of the spec. Of an array, all queued members whose spec is the array's.
        Raises UsageError where nothing of it is queued any more.

        Args:
            read: The job that `spec` was made from.
            priority, tags, display_name, hold, release: Applied after the revision as by
                `update`, in the same transaction.

        Returns:
            The changed job; None, and nothing is changed, if the job's spec, priority or tags are
            not those of `read` any more.
        """
        ...

    def revision(self, job_id: str) -> int:
        """Return the number of the job's spec, from 1."""
        ...

    def hold(self, job_id: str, *, reason: str) -> Job:
        """Keep a job from being started until it is released; a live attempt goes on.

        Of an array, all unfinished members. Raises UsageError for what has ended.
        """
        ...

    def release(self, job_id: str) -> Job:
        """Let a held job (all members of an array) be started again. Raises as `hold` does."""
        ...

    # -- attempts and allocations ------------------------------------------------------------
    def attempts(self, job_id: str) -> list[Attempt]:
        """Return a job's attempts, oldest first."""
        ...

    def live(self, target: str) -> list[tuple[Job, Attempt]]:
        """Return the jobs of a target that are live, with their newest attempt."""
        ...

    def add_allocation(self, name: str, *, target: str, shape: Mapping[str, float]) -> Allocation:
        """Record an allocation as CREATING, before its group is created."""
        ...

    def place_allocation(
        self, name: str, *, nodes: Sequence[str], gpus: Sequence[Sequence[str]]
    ) -> bool:
        """Record where a created group is, CREATING → IDLE."""
        ...

    def hold_allocation(self, name: str, *, job: str, attempt: int) -> bool:
        """IDLE → HELD by one conditional update (this is also the hand-over)."""
        ...

    def free_allocation(self, name: str, *, job: str, attempt: int, proven: bool) -> bool:
        """HELD by this attempt → IDLE, or → DRAINING when its ranks are not proven dead."""
        ...

    def release_allocation(self, name: str) -> bool:
        """Any state but RELEASED → RELEASED (its group has been removed)."""
        ...

    def allocations(self, target: str, *, released: bool = False) -> list[Allocation]:
        """Return a target's allocations, oldest first; released ones only when asked."""
        ...

    # -- history, metrics, files -------------------------------------------------------------
    def add_event(
        self,
        job_id: str,
        kind: str,
        message: str,
        *,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a line to a job's history (state changes add their own)."""
        ...

    def events(self, job_id: str, *, after: int = 0) -> list[Event]:
        """Return a job's history after a serial, oldest first."""
        ...

    def add_metrics(self, job_id: str, points: Sequence[MetricPoint]) -> int:
        """Keep a batch; repeated keys are ignored. Returns how many were new.

        Points of an attempt that is older than the job's when they come are kept, but always
        hidden by `metrics`.
        """
        ...

    def metrics(
        self, job_id: str, *, name: str | None = None, all_attempts: bool = False
    ) -> list[MetricPoint]:
        """Return points in the order they were logged (attempt, rank, sequence).

        Unless `all_attempts`, points are left out that a newer attempt has made void. Of points
        with a step, it is those from the newer attempt's first step of that name on. Points
        without one are void once a newer attempt that started from the beginning has logged
        anything, or has completed the job.
        """
        ...

    def last_metrics(self, names: Iterable[str]) -> dict[int, dict[str, Any]]:
        """Return the newest value of each of these metrics, by the job's serial, then by name.

        Of the newest attempt that logged the name, its lowest rank. Quick whatever the number of
        points. Values are as in `MetricPoint.value`.
        """
        ...

    def metric_names(self, *, most: int = 1000) -> list[str]:
        """Return the names under which jobs of this workspace have logged metrics, in order."""
        ...

    def publish_files(self, job_id: str, *, attempt: int, files: Sequence[StoredFile]) -> bool:
        """Make files visible, if `attempt` is still the job's newest and the job is not final.

        A name that exists is replaced (a newer attempt's file, a longer log).
        """
        ...

    def drop_files(self, job_id: str, *, attempt: int, names: Sequence[str]) -> bool:
        """Take files that `attempt` published out of the job's, as `publish_files` guards it.

        Those of other attempts stay, whatever their name. The bytes go with the next prune.
        """
        ...

    def files(self, job_id: str) -> list[StoredFile]:
        """Return a run's visible files by name."""
        ...

    # -- data ------------------------------------------------------------------------------------
    @property
    def catalogue(self) -> Catalogue:
        """The records of datastores and datasets; raises the errors of `datastore.errors`."""
        ...

    # -- pruning ---------------------------------------------------------------------------------
    def prune_view(self) -> PruneView:
        """Return who refers to which stored files, as one state of the store."""
        ...

    def prune_files(self, jobs: Sequence[str]) -> frozenset[str]:
        """Take the files of finished jobs out; return those jobs.

        One that an unfinished job resumes from or waits for by now is left as it is.
        """
        ...

    def prune_records(self, jobs: Sequence[str]) -> frozenset[str]:
        """Take finished jobs out with all that belongs to them; return them.

        One that an unfinished job or a model refers to is left as it is.
        """
        ...

    # -- the store itself ----------------------------------------------------------------------
    def claim_target(self, target: str, *, epoch: str) -> int:
        """Note that a target actor serves this store now; returns its number, growing."""
        ...

    def target_epoch(self, target: str) -> tuple[int, str] | None:
        """Return the number and name of the actor that claimed the target last."""
        ...

    def meta(self, key: str) -> str | None:
        """Return a value of the store's own (workspace id, schema version, …)."""
        ...

    def set_meta(self, key: str, value: str) -> None:
        """Set a value of the store's own."""
        ...

    def close(self) -> None:
        """Release connections; the store may not be used afterwards."""
        ...
