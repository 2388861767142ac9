"""The contract of attempts, and of the allocations that they run in.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from rayjobs.core.failures import Failure
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import (
    Allocation,
    Attempt,
    Job,
    ModelDraft,
    ModelRefusal,
)
from rayjobs.jobs.states import JobState


class AttemptStore(Protocol):
    """Attempts: the changes of a job's state, each conditional on the job's attempt."""

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
        """Record the hosts that run an attempt, and why they started without a warm interpreter.

        False if the attempt is over.
        """

    def record_exit(self, job_id: str, *, attempt: int, exits: Sequence[ExitRecord]) -> bool:
        """Keep exit records of an attempt, one per node. Idempotent.

        Records of other nodes stay. False if the attempt is over, unless it has these records.
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
            reason: One sentence, for people. For a job that was canceled on request, only what
                users should know in addition: the store adds who canceled it.
            failure: What went wrong.
            outcome: How the attempt ended; None takes the one that belongs to `state`.
            models: The models of a completed run, registered in the same transaction. Each gets
                its version as by `ModelStore.put_model` and an event ``model``. One that is
                refused, or whose files have changed, gets an event ``model_refused`` and a reason.
            also_requeued: Also end a job that was put back into the queue, as a cancel does.

        Raises:
            TransitionError: `state` is not final, or there is no such transition (only a job
                that is Finalizing can be Completed).
            ValueError: models were given with a state other than Completed.
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

        A queued job and an interactive run are Failed at once, a live job once its attempt has
        been ended.

        Raises:
            UsageError: it is a sweep, an array or a pipeline run, which ends like its jobs.
        """

    def attempts(self, job_id: str) -> list[Attempt]:
        """Return a job's attempts, oldest first."""

    def live(self, target: str) -> list[tuple[Job, Attempt]]:
        """Return a target's live jobs, each with its newest attempt."""


class AllocationStore(Protocol):
    """Allocations: the placement groups that a target has reserved.

    A change returns False, and changes nothing, if the allocation is not in the old state, or is
    held by another attempt.
    """

    def add_allocation(self, name: str, *, target: str, shape: Mapping[str, Any]) -> Allocation:
        """Record an allocation as CREATING, before its placement group is created.

        Raises:
            UsageError: the name was used before.
        """

    def place_allocation(
        self, name: str, *, nodes: Sequence[str], gpus: Sequence[Sequence[str]]
    ) -> bool:
        """Record the nodes and GPUs of a placement group: CREATING → IDLE."""

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
