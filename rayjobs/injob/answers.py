"""Answers that attempt hosts and warm interpreters share."""

from __future__ import annotations

from typing import Optional

from rayjobs.injob.identity import Identity, OfProcess
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class Answer(Message):
    """Base of all answers; by itself it means success or a refusal.

    Attributes:
        error: Why the request was refused, as a sentence; empty: it was accepted.
    """

    ok: bool = True
    error: str = ""


def refusal(error: str) -> Answer:
    """Return the answer to a request that cannot be carried out."""
    return Answer(False, error)


@dataclass(frozen=True)
class StartAnswer(OfProcess, Answer):
    """The result of starting a host or a warm interpreter: its process, or why there is none.

    Attributes:
        pid: Pid of the started process, with `start_time` and `boot_id`; None: none was started.
        cold: Why a warm interpreter may not fork this attempt; None: it may.
        held: Another warm interpreter owns the socket.
    """

    pid: Optional[int] = None
    start_time: int = 0
    boot_id: str = ""
    cold: Optional[str] = None
    held: bool = False

    @staticmethod
    def refused(error: str, *, held: bool = False) -> StartAnswer:
        """Return the answer with the reason why no process was started."""
        return StartAnswer(False, error, held=held)

    @staticmethod
    def of(started: Identity) -> StartAnswer:
        """Return the answer that names a process."""
        return StartAnswer(**started.to_json())
