"""The requests that a target actor accepts on its wake socket."""

from __future__ import annotations

from typing import ClassVar

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.session_steps import SessionStep


@dataclass(frozen=True)
class TargetRequest(Message):
    """A request on a target's wake socket; each operation reads its own fields.

    Attributes:
        op: "ping", "wake", "status", "explain", "sees", "evict", "stacks", "store", "session",
            "retire" or "resume".
        workspace: Folder of the workspace to serve, or of the job.
        client: Version of the client's rayjobs.
        force: A retire puts running jobs back into the queue.
        names: Environment variables; the actor returns the names of those that it has.
        keys: Jobs whose reasons for waiting to return; None: all.
        key: The job whose decision to return.
        after_turn: Return the decision of a turn that begins after the request.
        job: Id of the job of an "evict", "stacks", "store" or "session".
        notice_s: Seconds that an evicted job gets; None: it is killed immediately.
        step: The step of a "session" at a rank of the job.
    """

    op: str
    workspace: str | None = None
    client: str = ""
    force: bool = False
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    key: str = ""
    after_turn: bool = False
    job: str = ""
    notice_s: float | None = None
    step: SessionStep | None = None

    # Clients of an earlier version send their rayjobs version as ``version``.
    READS_VERSION: ClassVar[int | None] = None
