"""What a node has brought of an attempt into its workspace, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.jobs.data_facts import DataFacts


@dataclass(frozen=True, slots=True)
class RequestedModel(Message):
    """A model that the script asked to have registered once its run completes.

    Attributes:
        path: Name that the script gave the file or folder.
        rank: Number of the rank that asked.
        file: The run's name of that file or folder; another node's are below ``node-<k>/``.
        why: Why it cannot be registered, as a clause; empty: nothing is known against it.
    """

    name: str
    path: str
    rank: int = 0
    file: str = ""
    why: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    framework: str = ""
    framework_version: str = ""


@dataclass(frozen=True, slots=True)
class Collected(Message):
    """What became of an attempt's last metrics and files.

    Attributes:
        tails: The end of what each rank printed, by rank.
        problems: Sentences: what could not be stored, and may be if it is asked for again.
        data: None: the node could not tell.
        models: What the script asked to have registered.
        stuck: Where the collection stands still, as a clause; None: it does not.
        gave_up: Why it was given up; None: it was not.
        outage: The problem of a storage that does not answer at all; None: there is none.
    """

    tails: Mapping[int, bytes] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    data: DataFacts | None = None
    models: tuple[RequestedModel, ...] = ()
    stuck: str | None = None
    gave_up: str | None = None
    outage: str | None = None
