"""Where one rank is: the part of a dump of its stacks that records and answers contain."""

from __future__ import annotations

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class RankStack(Message):
    """Where a rank is, or was when its attempt stalled (`stacks.Dump`).

    Attributes:
        state: State of its process, as Linux's single letter.
        how: How that was found.
        where: Its innermost frame outside libraries; empty if unknown.
        waits: It is inside a library call that waits for other ranks.
        text: The whole dump if requested; records do not contain it.
    """

    rank: int
    state: str
    how: str
    where: str
    waits: bool
    text: str = ""
