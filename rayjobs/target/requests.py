"""What a target actor is asked over its wake socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class TargetRequest(Message):
    """A request on a target's wake socket; each operation reads its own fields.

    Attributes:
        op: "ping", "wake", "status", "explain", "sees", "evict", "stacks", "retire" or "resume".
        workspace: Folder of the workspace to serve, or of the job.
        client: Version of the client's rayjobs.
        force: A retire puts running jobs back into the queue.
        names: Environment variables that the actor is asked for.
        keys: Jobs whose state is wanted; None: of all.
        key: The job whose decision is wanted.
        job: Id of the job to evict, or whose stacks are wanted.
        notice_s: Seconds that an evicted job is given; None: it is killed at once.
    """

    op: str
    workspace: str | None = None
    client: str = ""
    force: bool = False
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    key: str = ""
    job: str = ""
    notice_s: float | None = None

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Return the request; see `Message.from_json`.

        Clients of an earlier version send that of their rayjobs as ``version``, which is dropped.
        """
        if isinstance(values, Mapping):
            values = {name: value for name, value in values.items() if name != "version"}
        return super().from_json(values)
