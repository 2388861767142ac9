"""What a node has brought of an attempt into its workspace, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rayjobs.injob.messages import Message
from rayjobs.jobs.data_facts import DataFacts


@dataclass(frozen=True, slots=True)
class Collected(Message):
    """What became of an attempt's last metrics and files.

    Attributes:
        tails: The end of what each rank printed, by rank.
        problems: Sentences: what could not be stored, and may be if it is asked for again.
        data: None: the node could not tell.
        models: What the script asked to have registered (`rayjobs.models.requested.read`).
        stuck: Where the collection stands still, as a clause; None: it does not.
        gave_up: Why it was given up; None: it was not.
    """

    tails: Mapping[int, bytes] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    data: DataFacts | None = None
    models: tuple[Mapping[str, object], ...] = ()
    stuck: str | None = None
    gave_up: str | None = None
