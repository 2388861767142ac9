"""The exit codes of the command line, in one place."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from rayjobs.core.failures import FailureClass
from rayjobs.datastore import errors as data_errors
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1  # the job, or the operation, failed (or the job was canceled)
    USAGE = 2  # wrong usage, or an invalid spec
    NOT_FOUND = 3
    NEVER_FITS = 4  # requests more than the target can ever have
    UNREACHABLE = 5  # the store or the cluster cannot be reached
    TIME_LIMIT = 124  # the job reached its --max-duration, or the command its --timeout
    INTERRUPTED = 130  # Ctrl-C; detaches, and affects no job
    PIPE_CLOSED = 141  # the reader of our output stopped reading (128 + SIGPIPE, as everywhere)


def of_job(job: Job) -> Exit:
    """Return the exit code for the end of a finished job."""
    if job.state is JobState.COMPLETED:
        return Exit.DONE
    if job.failure is not None and job.failure.failure_class is FailureClass.TIME_LIMIT:
        return Exit.TIME_LIMIT
    return Exit.FAILED


def of_data_error(error: data_errors.DatastoreError) -> Exit:
    """Return the exit code for an error of data or its storage."""
    missing = (
        data_errors.DataNotFound,
        data_errors.DatasetNotFound,
        data_errors.DatastoreNotFound,
    )
    wrong = (
        data_errors.InvalidReference,
        data_errors.DatasetExists,
        data_errors.DatasetInUse,
        data_errors.DatastoreExists,
        data_errors.DatastoreUsedByJobs,
    )
    if isinstance(error, missing):
        return Exit.NOT_FOUND
    if isinstance(error, wrong):
        return Exit.USAGE
    if isinstance(error, (data_errors.DatastoreUnavailable, data_errors.AccessDenied)):
        return Exit.UNREACHABLE
    return Exit.FAILED
