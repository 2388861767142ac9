"""The contract of every store: one protocol per concept, composed into `Store`.

**Truth.** A store holds the records of one workspace. What it does not contain has not happened.

**Transactions.** Each method blocks and is one transaction: it makes all its changes or none.
Methods that say *durably* return after fsync. Other changes survive the death of every process, but
not necessarily a power failure.

**Threads and processes.** All methods are thread-safe. Several processes may have the same
store open.

**Ownership.** A job's newest attempt owns its record. Methods that take an `attempt` change the
job only if that is its newest attempt, in the same statement; otherwise they change nothing and
return False (or None). The same holds for the newest claim of a sweep, and for the last target
actor that claimed a target. A caller that gets False is late and must stop.

**Values.** Arguments and results are frozen records or JSON data. A record is a copy: it does not
follow later changes, and changing a mapping in it does not change the store.

**Errors.** Every method may raise these; methods list only what they raise in addition:
    StoreBusyError: another process kept the lock for longer than the busy timeout.
    StoreFullError: the disk is full; nothing was changed.
    StoreVersionError: the store's schema is newer than this code.
    StoreError: the store cannot be read or written.
    NotFoundError: there is no job (sweep, model) with the given id. Methods that take several
        ids leave unknown ones out instead.

A function should take the narrowest of these protocols that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from rayjobs.core.failures import Failure
from rayjobs.injob.exitrecord import ExitRecord
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.queue_records import Durations, Mark, Prediction, QueueRow, Usage, Waits
from rayjobs.jobs.records import (
    Allocation,
    Attempt,
    Event,
    Job,
    JobLine,
    MetricPoint,
    ModelDraft,
    ModelRefusal,
    ModelVersion,
    StoredFile,
)
from rayjobs.jobs.serving import Claimant, Serving, StoreFacts
from rayjobs.jobs.states import JobState
from rayjobs.store.environment_contract import EnvironmentStore
from rayjobs.store.interactive_base import InteractiveStore
from rayjobs.store.parents import PipelineStore, SweepStore
from rayjobs.store.requests import (
    EVERY_JOB,
    NO_CHANGES,
    JobChanges,
    JobFilter,
    NewJob,
    Page,
)
from rayjobs.store.settings_contract import SettingsStore

if TYPE_CHECKING:  # importing pydantic would dominate the time of a listing
    from rayjobs.datastore.catalogue import Catalogue
    from rayjobs.spec.model import JobSpec
    from rayjobs.store.pruning import PruneView


class JobStore(Protocol):
    """Jobs: submit, find and change them."""

    def submit(self, new: NewJob) -> tuple[Job, bool]:
        """Write one job durably, in state Queued; return it and whether it is new.

        If its idempotency key is known, the job of the first call is returned unchanged, and the
        flag is False.

        Raises:
            UsageError: the key was used for another spec or snapshot; the id is taken; the spec
                is an array's; a dataset version that the job reads was deleted; its parent is a
                pipeline run.
            TakenOverError: `new.claim` is not the newest claim of its parent, or the parent has
                ended. This is checked in the same transaction.
        """

    def job(self, job_id: str) -> Job:
        """Return a job."""

    def find(self, text: str, *, kind: str | None = None, newest: bool = False) -> Job:
        """Return the job whose id is `text`, or begins with it, or whose random tail does.

        A name that only one job has is also accepted, and ``ARRAY[3]`` for a member. The name of an
        array or sweep means that array or sweep, not its members or trials. Of several arrays,
        ``ARRAY[3]`` takes the one displayed under this name, else the one with such a member.

        Args:
            text: An id, a prefix of one, or a name.
            kind: Look only among jobs of this kind, such as ``sweep``. A full id is always found.
            newest: If several jobs have exactly this name, take the one submitted last.

        Raises:
            NotFoundError: no job matches; the message has similar names.
            UsageError: several match; the message lists them, and `matches` has their ids.
        """

    def jobs(self, which: JobFilter = EVERY_JOB) -> list[Job]:
        """Return the jobs that match, with their specs."""

    def job_lines(self, which: JobFilter = EVERY_JOB) -> list[JobLine]:
        """Return the jobs that match, without their specs, for long lists."""

    def jobs_of(self, serials: Iterable[int]) -> list[Job]:
        """Return the jobs with these serials that exist, in order."""

    def job_states(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """Return the states of the given jobs that exist, by id.

        An array whose members have not started yet is Queued.
        """

    def job_arguments(self, serials: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """Return the arguments in the specs of these jobs, by serial; each takes some 20 µs."""

    def counts(self) -> dict[JobState, int]:
        """Return the number of jobs in each state; states without jobs are left out."""

    def update(self, job_id: str, changes: JobChanges) -> Job:
        """Change priority, tags, properties or name; hold or release the job.

        The priority of an array is also set on its unfinished members.

        Raises:
            UsageError: the priority of a job that has ended; a property that already has another
                value; whatever `hold` and `release` refuse.
        """

    def revise(self, read: Job, spec: JobSpec, changes: JobChanges = NO_CHANGES) -> Job | None:
        """Replace the spec of a queued job durably; an event keeps the previous revision.

        The job keeps its position in the queue, its snapshot and its id. Its tags become those of
        the spec, and so does its priority unless it is an array. For an array, all queued members
        that still have the array's spec are revised.

        Args:
            read: The job that `spec` was derived from.
            spec: The new spec.
            changes: Applied after the revision as by `update`, in the same transaction.

        Returns:
            The changed job. None, and nothing changes, if the job's spec, priority or tags are
            no longer those of `read`.

        Raises:
            UsageError: neither the job nor any member of the array is queued any more; whatever
                `update` refuses.
        """

    def revision(self, job_id: str) -> int:
        """Return the number of the job's current spec, from 1."""

    def hold(self, job_id: str, *, reason: str) -> Job:
        """Keep a job from starting until it is released; a live attempt continues.

        For an array, all unfinished members are held.

        Raises:
            UsageError: the job has ended.
        """

    def release(self, job_id: str) -> Job:
        """Let a held job (for an array, all members) start again.

        Raises:
            UsageError: the job has ended.
        """


class ArrayStore(Protocol):
    """Job arrays: many jobs of one spec under a parent that runs nothing itself."""

    def submit_array(self, new: NewJob) -> tuple[Job, bool]:
        """Write an array and all its members durably; return the array and whether it is new.

        The array is a job of kind ``array``. It is Running from the start, no target starts it,
        and it ends with its last member: Failed if a member failed, else Canceled if a member was
        canceled, else Completed. Its members are Queued jobs with the array as parent. The array's
        properties are also those of its members. A known idempotency key is treated as in `submit`.

        Raises:
            UsageError: as `JobStore.submit`, or the spec is not an array's.
        """

    def member(self, array_id: str, index: int) -> Job:
        """Return a member of an array.

        Raises:
            NotFoundError: there is no such array, or no such index in it.
        """

    def member_counts(self, parents: Iterable[str]) -> dict[str, Mapping[JobState, int]]:
        """Return how many children of each parent are in each state.

        A trial that has ended counts with its sweep's verdict, not its job's state. Parents without
        children are left out.
        """

    def judged_trials(self, sweep_id: str) -> Mapping[str, tuple[JobState, str]]:
        """Return the verdict and reason of trials whose verdict differs from the job's state.

        Such a trial failed because its completed job never reported the sweep's metric.
        """


class AttemptStore(Protocol):
    """Attempts: how a job moves from state to state, each time on condition of its attempt."""

    def start(
        self,
        job_id: str,
        *,
        attempt: int,
        allocation: str,
        epoch: str | None = None,
        changed_at: datetime | None = None,
    ) -> Attempt | None:
        """Start a queued job: Queued → Provisioning, with the next attempt number.

        One conditional statement, so that two target actors never start the same attempt. None if
        the job is no longer Queued, has another attempt number, is held, or has a cancel request.

        Args:
            job_id: The job.
            attempt: The attempt number that the job had when it was read.
            allocation: Name of the allocation that the attempt uses.
            epoch: Start it only if this is the last epoch that claimed the job's target (see
                `TargetStore.claim_target`); None starts it for any caller.
            changed_at: Start it only if the job has not changed since; its spec may have been
                revised.
        """

    def move(
        self, job_id: str, *, attempt: int, old: JobState, new: JobState, reason: str = ""
    ) -> bool:
        """Move a live job from `old` to `new`, if it is still in `old` with this attempt.

        Raises:
            TransitionError: there is no such transition: `finish` leads to final states, `requeue`
                to Queued.
        """

    def set_reason(self, job_id: str, *, attempt: int, reason: str) -> bool:
        """Record why a live job is in its state; False if the attempt is over."""

    def set_hosts(
        self,
        job_id: str,
        *,
        attempt: int,
        hosts: Sequence[HostRecord],
        cold_reason: str | None = None,
    ) -> bool:
        """Record the hosts that run an attempt, and why they started without a warm interpreter."""

    def record_exit(self, job_id: str, *, attempt: int, exits: Sequence[ExitRecord]) -> bool:
        """Keep exit records of an attempt, one per node. Idempotent.

        Records of other nodes stay.
        """

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
        also_requeued: bool = False,
    ) -> bool:
        """Write the one final state of a job durably, and end its attempt.

        False if the job has ended, has a newer attempt, or was queued again by another actor.

        Args:
            job_id: The job.
            attempt: Its newest attempt.
            state: The final state.
            reason: One sentence, for people.
            failure: What went wrong.
            outcome: How the attempt ended; None takes the one that belongs to `state`.
            models: The models of a completed run, registered in the same transaction. Each gets
                its version as by `ModelStore.put_model` and an event ``model``. One that is
                refused, or whose files have changed, gets an event ``model_refused`` and a reason.
            also_requeued: Also end a job that was put back into the queue, as a cancel does.

        Raises:
            TransitionError: `state` is not final, or there is no such transition (only a job
                that is Finalizing can be Completed).
            ValueError: models with another state than Completed.
        """

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
        """Return a live job to its old position in the queue durably, and end its attempt.

        A job with a cancel request becomes Canceled instead. False if the job is not live or has
        a newer attempt.

        Args:
            job_id: The job.
            attempt: Its newest attempt.
            reason: One sentence, for people.
            outcome: How the attempt ended.
            failure: What went wrong.
            not_before: The earliest time of the next attempt.
            hold: Why the job stays queued until a user releases it; None does not hold it.
            if_without_hosts: Do nothing and return False if hosts of the attempt are recorded.
                `set_hosts` is refused afterwards.
        """

    def request_cancel(self, job_id: str, *, by: str = "") -> JobState:
        """Request a job's end durably, and return its state. Idempotent.

        A queued job is Canceled at once. A live job keeps its state and gets the request. A job
        that has ended does not change. For an array, all members get the request.
        """

    def request_fail(self, job_id: str, *, by: str = "", failure: Failure) -> JobState:
        """Request a job's end as Failed durably, and return its state; see `request_cancel`.

        A queued job is Failed at once, a live one when its attempt has been ended.

        Raises:
            UsageError: it is a sweep or an array, which ends like its jobs.
        """

    def attempts(self, job_id: str) -> list[Attempt]:
        """Return a job's attempts, oldest first."""

    def live(self, target: str) -> list[tuple[Job, Attempt]]:
        """Return a target's live jobs, each with its newest attempt."""


class AllocationStore(Protocol):
    """Allocations: the placement groups that a target has reserved."""

    def add_allocation(self, name: str, *, target: str, shape: Mapping[str, float]) -> Allocation:
        """Record an allocation as CREATING, before its placement group is created."""

    def place_allocation(
        self, name: str, *, nodes: Sequence[str], gpus: Sequence[Sequence[str]]
    ) -> bool:
        """Record on which nodes and GPUs a placement group is: CREATING → IDLE."""

    def hold_allocation(self, name: str, *, job: str, attempt: int) -> bool:
        """Give an idle allocation to an attempt: IDLE → HELD, in one conditional statement."""

    def free_allocation(self, name: str, *, job: str, attempt: int, proven: bool) -> bool:
        """Take an allocation back from an attempt: HELD → IDLE.

        HELD → DRAINING unless the attempt's ranks are `proven` dead.
        """

    def release_allocation(self, name: str) -> bool:
        """Record that the placement group was removed: any state but RELEASED → RELEASED."""

    def allocations(self, target: str, *, released: bool = False) -> list[Allocation]:
        """Return a target's allocations, oldest first; with `released`, released ones too."""


class RunStore(Protocol):
    """The results of a run: its history, its metrics and its files."""

    def add_event(
        self,
        job_id: str,
        kind: str,
        message: str,
        *,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event to a job's history. State changes add their own."""

    def events(self, job_id: str, *, after: int = 0, page: Page | None = None) -> list[Event]:
        """Return a job's events with a serial above `after`, oldest first."""

    def history(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events of all jobs with a serial above `after`, oldest first.

        An event that is written later has a higher serial than all events that were read before.
        """

    def add_metrics(self, job_id: str, points: Sequence[MetricPoint]) -> int:
        """Store a batch of points; return how many were new. Repeated keys are ignored.

        Points that arrive after a newer attempt has started are kept, but `metrics` never shows
        them.
        """

    def metrics(
        self,
        job_id: str,
        *,
        name: str | None = None,
        all_attempts: bool = False,
        page: Page | None = None,
    ) -> list[MetricPoint]:
        """Return points in the order in which they were logged (attempt, rank, sequence).

        Unless `all_attempts`, points that a newer attempt replaces are left out: of points with a
        step, those from the newer attempt's first step of that name on; of points without one,
        all, once a newer attempt that started from the beginning has logged something or has
        completed the job.
        """

    def last_metrics(self, names: Iterable[str]) -> dict[int, dict[str, Any]]:
        """Return the newest value of each of these metrics, by the job's serial, then by name.

        The value is from the newest attempt that logged the name, and from its lowest rank. The
        cost does not depend on the number of points. Values are as in `MetricPoint.value`.
        """

    def metric_names(self, *, most: int = 1000) -> list[str]:
        """Return the names of at most `most` metrics that jobs have logged, in order."""

    def publish_files(self, job_id: str, *, attempt: int, files: Sequence[StoredFile]) -> bool:
        """Make files visible, unless the job has ended or has a newer attempt.

        A file of the same name is replaced (a newer attempt's file, a longer log). A log of an
        earlier attempt stays, as ``azureml-logs/attempt-<n>/…``.
        """

    def drop_files(self, job_id: str, *, attempt: int, names: Sequence[str]) -> bool:
        """Hide files that `attempt` published, on the conditions of `publish_files`.

        Files of other attempts stay, even under the same names. The next prune frees the bytes.
        """

    def files(self, job_id: str, *, page: Page | None = None) -> list[StoredFile]:
        """Return a run's visible files, by name."""


class QueueStore(Protocol):
    """The queue: the target actor's reads in each turn, and statistics of the past."""

    def change(self) -> tuple[int, int]:
        """Return a token that changes with every commit of any process. This is cheap.

        Data that is read after this call is at least as new as the token. A token is never used
        again, so data that was read under it is current as long as it stays the same.
        """

    def queue_marks(self, target: str) -> list[Mark]:
        """Return a mark of each job (kind ``job``) that is queued on a target."""

    def correct_submitted(self, jobs: Mapping[str, datetime]) -> None:
        """Correct the submission times of jobs whose client's clock was wrong; record an event."""

    def checkpoint_times(self, jobs: Iterable[str]) -> dict[str, datetime]:
        """Return when the newest checkpoint of each job was stored; jobs without are left out."""

    def durations(
        self, entries: Iterable[tuple[str, str]], *, most: int = 100
    ) -> dict[tuple[str, str], Durations]:
        """Return how long the `most` newest completed jobs of each (experiment, entry) ran.

        An attempt that continued from a checkpoint counts together with the attempts before it.
        Entries without completed jobs are left out. The cost does not depend on the number of
        jobs.
        """

    def usual_durations(self, target: str) -> dict[tuple[str, str], Durations]:
        """Return `durations` for the entries of a target's unfinished jobs.

        An entry without completed jobs in its experiment gets those of any experiment
        (`Durations.is_of_any`).
        """

    def earlier_runs(self, jobs: Iterable[str]) -> dict[str, float]:
        """Return for how many seconds earlier attempts of each job ran.

        These are the attempts that the job's own times do not cover: `started_at` is that of the
        last attempt, and None while the job is queued again. Jobs without such attempts are left
        out.
        """

    def unseen_ends(self, jobs: Iterable[str]) -> frozenset[str]:
        """Return the jobs with an attempt whose end was not observed.

        Its node or its cluster was lost, so the recorded end is the time of the discovery.
        """

    def note_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Store the first and the newest predicted start of each waiting job.

        Jobs that have started before are ignored.
        """

    def queue_history(
        self,
        *,
        since: datetime | None = None,
        target: str | None = None,
        page: Page | None = None,
    ) -> list[QueueRow]:
        """Return how the jobs submitted at or after `since` waited, by serial."""

    def waits(self, *, since: datetime, now: datetime, most: int) -> Waits:
        """Return the waits of the `most` newest jobs submitted since then, and who waits."""

    def usage(
        self,
        *,
        since: datetime | None = None,
        target: str | None = None,
        page: Page | None = None,
    ) -> list[Usage]:
        """Return the resources of the attempts that ended at or after `since` or are still running.

        The result is ordered by the job's serial and the attempt.
        """


class ModelStore(Protocol):
    """Models: versions of files that completed runs produced, and aliases for versions."""

    def put_model(self, run: str | None, draft: ModelDraft) -> tuple[ModelVersion, bool]:
        """Write the next version of a model durably; return it and whether it is new.

        A model without a run (None) has run "" and attempt 0; `draft.lineage` describes its origin.
        The run must have completed and must still have the files `draft.sources` with these
        digests; this is checked in the same transaction. If a version with the same run, path and
        digest exists, it is returned: tags are added to it, and aliases moved to it.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the run has not completed, or its files have changed.
        """

    def model(
        self, name: str, *, version: int | None = None, alias: str | None = None
    ) -> ModelVersion:
        """Return a version of a model: by alias, else by number, else the newest."""

    def models(
        self, *, name: str | None = None, run: str | None = None, latest: bool = False
    ) -> list[ModelVersion]:
        """Return versions by name, the newest of each first; with `latest`, only the newest."""

    def update_model(
        self,
        name: str,
        version: int,
        *,
        tags: Mapping[str, str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        data: Sequence[Mapping[str, Any]] = (),
    ) -> ModelVersion:
        """Change tags (None removes one) and description; add properties, and rows of data.

        Args:
            data: Added to ``data`` of the lineage, unless the same row is there.

        Raises:
            UsageError: a property already has another value.
        """

    def set_model_alias(self, name: str, alias: str, version: int | None) -> None:
        """Make an alias point to a version durably; None removes the alias.

        Raises:
            NotFoundError: there is no such version, or no such alias to remove.
        """

    def delete_model(self, name: str, version: int, *, force: bool = False) -> tuple[str, ...]:
        """Remove a version durably; its number is never used again.

        Returns:
            The aliases that pointed to it, which are removed too.

        Raises:
            UsageError: an alias points to it, without `force`.
        """


class DataStore(Protocol):
    """The catalogue of data."""

    @property
    def catalogue(self) -> Catalogue:
        """The records of datastores and datasets; raises the errors of `datastore.errors`."""


class PruneStore(Protocol):
    """Removal of data that is no longer needed."""

    def prune_view(self) -> PruneView:
        """Return which records refer to which stored files, as one state of the store."""

    def prune_files(self, jobs: Sequence[str], *, how: str = "") -> frozenset[str]:
        """Remove the files of finished jobs from the store; return those jobs.

        Keeps jobs that an unfinished job resumes from or waits for.

        Args:
            how: Who removes them with which command, for the jobs' histories.
        """

    def prune_records(self, jobs: Sequence[str], *, how: str = "") -> frozenset[str]:
        """Remove finished jobs with all that belongs to them; return those jobs.

        Keeps jobs that an unfinished job or a model refers to. One line of each removed job stays,
        so that a look-up by name can report the removal.

        Args:
            how: Who removes them with which command.
        """


class TargetStore(Protocol):
    """Claims of targets: which target actor serves a store."""

    def claim_target(self, target: str, *, epoch: str, claimant: Claimant | None = None) -> int:
        """Record that the target actor `epoch` serves this store; return the number of the claim.

        Numbers grow. After its claim, an actor reads everything that earlier actors have started.

        Raises:
            ServedElsewhereError: several machines use the store, and the target belongs to a home
                other than the `claimant`'s.
        """

    def target_epoch(self, target: str) -> tuple[int, str] | None:
        """Return the number and epoch of the last claim of a target."""

    def serving(self, target: str) -> Serving | None:
        """Return the home to which a target belongs, if several machines use the store."""

    def take_over(self, target: str, claimant: Claimant) -> Serving | None:
        """Assign a target to another home from now on; return the previous claim.

        Raises:
            UsageError: an actor serves it now, or only one machine uses the store.
        """

    def wake_target(self, target: str) -> None:
        """Wake the actor that watches the store, on any machine; no effect for a SQLite file."""

    def watch_wakes(self, target: str, *, epoch: str, wake: Callable[[], None]) -> None:
        """Call `wake` from a thread for each `wake_target`, and write signs of life until `close`.

        It is also called after a lost connection. A SQLite file is not watched.
        """


class Store(
    JobStore,
    ArrayStore,
    AttemptStore,
    InteractiveStore,
    AllocationStore,
    RunStore,
    QueueStore,
    SweepStore,
    PipelineStore,
    ModelStore,
    EnvironmentStore,
    SettingsStore,
    DataStore,
    PruneStore,
    TargetStore,
    Protocol,
):
    """All records of one workspace. The module's docstring is the contract."""

    def facts(self) -> StoreFacts:
        """Return facts about the store's server or library."""

    def close(self) -> None:
        """Release the connections. The store must not be used afterwards."""
