"""Outcomes of attempts and reasons for ending them, as records and messages use them."""

from __future__ import annotations

from enum import Enum
from typing import Optional

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


class Outcome(str, Enum):
    """How an attempt ended. `rayjobs.jobs.outcomes` defines the consequences.

    Like StrEnum, which Python 3.8 lacks.
    """

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    # Decided by an attempt host, or by its node in its place.
    COMPLETED = "completed"
    FAILED = "failed"  # a rank ended with a non-zero exit code, or by a signal
    CANCELED = "canceled"  # its end was requested: `EndReason` says why
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    STALLED = "stalled"
    NOT_STARTABLE = "not_startable"  # a rank's program cannot be started, by any attempt
    HOST_ERROR = "host_error"  # the host could not carry it out, or was killed
    LEASE_LOST = "lease_lost"  # its target could not renew the host's lease
    # Decided by the target.
    NODE_LOST = "node_lost"
    CLUSTER_LOST = "cluster_lost"  # the whole Ray cluster was restarted
    PREEMPTED = "preempted"
    PUT_BACK = "put_back"  # it had not started
    NOT_PLACED = "not_placed"
    NOT_GROWN = "not_grown"  # the nodes that it waited for did not start
    NOT_PREPARED = "not_prepared"
    AGENT_LOST = "agent_lost"
    OUT_OF_FILES = "out_of_files"  # one of our processes reached its limit of open files
    NOT_STORED = "not_stored"  # the script succeeded, but its files could not be stored
    DEPENDENCY = "dependency"  # a job that it waited for failed
    SYSTEM = "system"  # an internal error


class EndReason(str, Enum):
    """Why the end of an attempt is requested from its hosts."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    CANCELED = "canceled"  # by its user
    PREEMPTED = "preempted"  # another job needs its resources, or the target's user requested it
    UNFOLLOWED = "place_lost"  # its target cannot follow it any longer
    NODE_ENDED = "node_ended"  # another node of the attempt has ended, or was lost


# The sentences in records; an earlier version recorded only similar ones.
_SENTENCES = {
    EndReason.CANCELED: "canceled",
    EndReason.PREEMPTED: "preempted: {}",
    EndReason.UNFOLLOWED: "its target could no longer follow it",
    EndReason.NODE_ENDED: "{}",
}


@dataclass(frozen=True)
class EndCause(Message):
    """Why the end of an attempt is requested, with a sentence for users.

    Attributes:
        detail: Who needs the resources, or what happened to the other node; empty if the reason
            suffices.
    """

    reason: EndReason
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The sentence in the records."""
        return _SENTENCES[self.reason].format(self.detail)


CANCELED = EndCause(EndReason.CANCELED)


def reason_of_sentence(sentence: str) -> EndReason:
    """Return the reason for the sentence in an earlier version's record."""
    if sentence == "its place was lost":
        return EndReason.UNFOLLOWED
    if sentence.startswith(_SENTENCES[EndReason.PREEMPTED].format("")):
        return EndReason.PREEMPTED
    return EndReason.CANCELED


def end_reason(value: Optional[object], sentence: str) -> EndReason:
    """Return the reason in a request or record; an earlier version has only a sentence."""
    try:
        return EndReason(value)
    except ValueError:
        return reason_of_sentence(sentence)
