"""The states of a job and the allowed transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class JobState(StrEnum):
    """Where a job is. A state is a fact; a request ("please cancel") is a field."""

    QUEUED = "Queued"  # waits for an allocation
    PROVISIONING = "Provisioning"  # the policy has chosen it; its allocation is being made
    PREPARING = "Preparing"  # its nodes unpack the snapshot and fetch the inputs
    RUNNING = "Running"  # its attempt host has been started
    FINALIZING = "Finalizing"  # its ranks have ended; files are being stored
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"

    # A member equals its text, and the text's own hash is four times as fast as that of Enum.
    __hash__ = str.__hash__

    @property
    def is_final(self) -> bool:
        """Whether the job's state is final."""
        return self in FINAL

    @property
    def is_live(self) -> bool:
        """Whether an attempt of the job holds (or is about to hold) an allocation."""
        return self in LIVE


S = JobState

FINAL = frozenset({S.COMPLETED, S.FAILED, S.CANCELED})
LIVE = frozenset({S.PROVISIONING, S.PREPARING, S.RUNNING, S.FINALIZING})

# Back to Queued from any live state: retry, preemption, lost node, or not started.
NEXT: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        S.QUEUED: frozenset({S.PROVISIONING, S.CANCELED, S.FAILED}),
        S.PROVISIONING: frozenset({S.PREPARING, S.QUEUED, S.CANCELED, S.FAILED}),
        S.PREPARING: frozenset({S.RUNNING, S.QUEUED, S.CANCELED, S.FAILED}),
        S.RUNNING: frozenset({S.FINALIZING, S.QUEUED, S.CANCELED, S.FAILED}),
        S.FINALIZING: frozenset({S.COMPLETED, S.FAILED, S.CANCELED, S.QUEUED}),
        S.COMPLETED: frozenset(),
        S.FAILED: frozenset(),
        S.CANCELED: frozenset(),
    }
)


def may_move(old: JobState, new: JobState) -> bool:
    """Return whether a job may change from state `old` to `new`."""
    return new in NEXT[old]
