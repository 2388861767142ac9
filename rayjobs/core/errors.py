"""The errors of rayjobs that users meet; some packages define further subclasses.

RayjobsError
├── SpecError            the spec is wrong (all problems at once)            exit code 2
├── UsageError           the call or command is wrong                        exit code 2
│   └── MissingPackageError  an extra of rayjobs is not installed
├── NotFoundError        no such job, file, metric, target                   exit code 3
├── CannotBePlacedError  can never fit on the target                         exit code 4
├── UnreachableError     store, target or cluster cannot be reached          exit code 5
│   ├── StoreError       the store cannot be read or written
│   │   ├── StoreUnreachableError  its server does not answer
│   │   ├── StoreLostError    it was deleted, or lacks records
│   │   ├── DamagedError      stored bytes are missing or differ
│   │   ├── StoreBusyError    another process holds its lock
│   │   ├── StoreFullError    its disk is full
│   │   │   └── StorageFullError  the disk of its files (blobs) is full
│   │   ├── StoreVersionError a newer rayjobs wrote it, or it is too old for an upgrade
│   │   └── UnreadableSpecError the stored spec of a job cannot be read
│   └── TargetError      a compute target cannot be started or reached
│       └── ServedElsewhereError  it belongs to another machine
├── TransitionError      a job's state does not allow the change
│   └── TakenOverError   another driver has claimed the sweep, or it has ended
├── SnapshotError        the source cannot be packed, or a snapshot is torn  exit code 2
├── PrepareError         a node could not prepare an attempt (carries a failure class)
└── JobFailedError       a job failed                                       exit code 1

Each also inherits from an Azure ML v1 exception, so that a program's ``except UserErrorException``
still catches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rayjobs.core.failures import FailureClass
from rayjobs.core.text import counted
from rayjobs.injob.azureml.exceptions import (
    ActivityFailedException,
    AzureMLException,
    ExperimentExecutionException,
    ServiceException,
    SnapshotException,
    UserErrorException,
)
from rayjobs.injob.lazy_dataclass import dataclass


class RayjobsError(AzureMLException):
    """Base of all errors of rayjobs; `exit_code` is what the command line exits with."""

    exit_code = 1

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message)
        self.message = message
        self.values = values
        for name, value in values.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray carries errors between processes: keyword values must survive pickling.
        return _rebuild, (type(self), self.message, self.values)


def _rebuild(kind: type[RayjobsError], message: str, values: dict[str, Any]) -> RayjobsError:
    return kind(message, **values)


@dataclass(frozen=True)
class Problem:
    """One problem of a spec.

    Attributes:
        path: The field, such as ``resources.gpus``; empty for the whole spec.
        message: What is wrong, including the value.
        remedy: What to write instead.
        is_missing: It names a thing that does not exist: a file, target, job, dataset or datastore.
        is_unknown_key: The field does not exist, for example because its key is misspelt.
    """

    path: str
    message: str
    remedy: str = ""
    is_missing: bool = False
    is_unknown_key: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Problem:
        """Return the problem that another process sent; entries of a later version are dropped."""
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name in values})

    def __str__(self) -> str:
        at = f"{self.path}: " if self.path else ""
        return f"{at}{self.message}" + (f" {self.remedy}" if self.remedy else "")


class SpecError(RayjobsError, UserErrorException):
    """A spec is wrong; `problems` lists everything at once.

    If all problems name things that do not exist, the exit code is that of `NotFoundError`.

    Attributes:
        headline: The message without the list of problems.
        problems: All problems that were found.
    """

    exit_code = 2

    def __init__(self, message: str = "", *, problems: Sequence[Problem] = ()) -> None:
        listed = tuple(problems)
        text = message or (f"the job's spec has {counted(len(listed), 'problem')}")
        super().__init__(_with_list(text, listed), problems=listed)
        self.headline = text
        self.problems = listed
        if listed and all(problem.is_missing for problem in listed):
            self.exit_code = NotFoundError.exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_spec_error, (self.headline, self.problems)


def _rebuild_spec_error(message: str, problems: tuple[Problem, ...]) -> SpecError:
    return SpecError(message, problems=problems)


def _with_list(headline: str, problems: Sequence[Problem]) -> str:
    lines = [f"  - {problem}" for problem in problems]
    return "\n".join([f"{headline}:", *lines]) if lines else headline


class UsageError(RayjobsError, UserErrorException):
    """The call or the command line is wrong."""

    exit_code = 2


class MissingPackageError(UsageError, ImportError):
    """A package that an extra of rayjobs provides is not installed."""


class NotFoundError(RayjobsError, UserErrorException):
    """A named thing does not exist."""

    exit_code = 3


class CannotBePlacedError(RayjobsError, ExperimentExecutionException):
    """The job asks for more than the target can ever have.

    Attributes:
        headline: The message without the list of problems.
        problems: What the target can never hold; empty if the headline says it.
    """

    exit_code = 4

    def __init__(self, message: str, *, problems: Sequence[Problem] = ()) -> None:
        self.headline = message
        self.problems = tuple(problems)
        super().__init__(_with_list(message, self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.headline, {"problems": self.problems})


class UnreachableError(RayjobsError, ServiceException):
    """A store, target or cluster cannot be reached."""

    exit_code = 5


class StoreError(UnreachableError):
    """The store cannot be read or written."""


class StoreUnreachableError(StoreError):
    """The server of the records or of the files does not answer; a later call may succeed."""


class StoreLostError(StoreError):
    """The store was deleted, or lacks records that it had."""


class DamagedError(StoreError):
    """Bytes are missing, or they are not those whose digest was announced or recorded."""


class StoreBusyError(StoreError):
    """Another process holds the store's lock."""


class StoreFullError(StoreError):
    """The disk of the store is full."""


class StorageFullError(StoreFullError):
    """The disk of a workspace's files (blobs) is full."""


class UnreadableSpecError(StoreError):
    """The stored spec is not readable, or was written by a later version."""


class StoreVersionError(StoreError):
    """The store was written by a rayjobs that is newer, or too old for an upgrade."""


class TargetError(UnreachableError):
    """A compute target cannot be started or reached."""


class ServedElsewhereError(TargetError):
    """Another machine has the workspace's target, or had it last."""


class TransitionError(RayjobsError):
    """The job's state does not allow the change, or has changed since the caller read it."""


class TakenOverError(TransitionError):
    """Another driver has claimed the sweep, or it has ended: this driver must stop."""


class SnapshotError(RayjobsError, SnapshotException):
    """A source directory cannot be packed, or a stored snapshot is not whole."""

    exit_code = 2


class PrepareError(RayjobsError):
    """A node could not prepare an attempt; `failure_class` is the kind of fault.

    `lines` are the lines of a log that matter, oldest first. `is_outage`: the job's storage does
    not answer. `is_permanent`: another attempt would fail in the same way. `is_out_of_files`: the
    node's agent could not open more files (see `Failure`).
    """

    def __init__(
        self,
        message: str,
        *,
        failure_class: FailureClass = FailureClass.SYSTEM,
        lines: Sequence[str] = (),
        is_outage: bool = False,
        is_permanent: bool = False,
        is_out_of_files: bool = False,
    ) -> None:
        super().__init__(
            message,
            failure_class=failure_class,
            lines=tuple(lines),
            is_outage=is_outage,
            is_permanent=is_permanent,
            is_out_of_files=is_out_of_files,
        )
        self.failure_class = failure_class
        self.lines = tuple(lines)
        self.is_outage = is_outage
        self.is_permanent = is_permanent
        self.is_out_of_files = is_out_of_files


class JobFailedError(RayjobsError, ActivityFailedException):
    """A job failed (raised by ``wait_for_completion``)."""
