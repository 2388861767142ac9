"""What a node has collected from an attempt into its workspace, and why the rest is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.model_requests import ModelDataset
from rayjobs.jobs.data_facts import DataFacts


@dataclass(frozen=True, slots=True)
class RequestedModel(Message):
    """A model that the script requested to be registered when its run completes.

    Attributes:
        path: The name by which the script requested the file or folder.
        rank: Number of the rank that made the request.
        file: Name of that file or folder in the run; below ``node-<k>/`` for a further node.
        why: Why it cannot be registered, as a clause; empty: no reason is known.
        datasets: Datasets for the lineage, in addition to the run's inputs.
        resources: Resources for a deployment, as text; only the lineage keeps them.
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
    datasets: tuple[ModelDataset, ...] = ()
    resources: str = ""


@dataclass(frozen=True, slots=True)
class Collected(Message):
    """The result of storing an attempt's last metrics and files.

    Attributes:
        tails: The end of each rank's output, by rank.
        problems: What could not be stored, as sentences; another call may store it.
        data: The facts about its data; None: the node could not determine them.
        models: The models that the script requested.
        stuck: Where the collection is stuck, as a clause; None: it is not.
        gave_up: Why the collection was given up; None: it was not.
        is_out_of_files: Whether the node could not open more files.
        outage: The problem, if a store or datastore does not answer at all; None: all answer.
    """

    tails: Mapping[int, bytes] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    data: DataFacts | None = None
    models: tuple[RequestedModel, ...] = ()
    stuck: str | None = None
    gave_up: str | None = None
    outage: str | None = None
    is_out_of_files: bool = False
