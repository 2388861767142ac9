"""The contract of jobs, and of arrays of jobs.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from rayjobs.jobs.records import (
    Job,
    JobLine,
)
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import (
    EVERY_JOB,
    NO_CHANGES,
    JobChanges,
    JobFilter,
    NewJob,
)

if TYPE_CHECKING:  # importing pydantic would dominate the time of a listing
    from rayjobs.spec.model import JobSpec


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
            UsageError: neither the job nor any member of the array is still queued; whatever
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

        A trial that has ended counts with its sweep's verdict, not its job's state. A parent
        without children has an empty mapping.
        """

    def judged_trials(self, sweep_id: str) -> Mapping[str, tuple[JobState, str]]:
        """Return the verdict and reason of trials whose verdict differs from the job's state.

        Such a trial failed because its completed job never reported the sweep's metric.
        """
