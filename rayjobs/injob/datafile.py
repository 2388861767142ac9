"""The content of ``data.json``: an attempt's inputs, outputs and its node's holds on them."""

from __future__ import annotations

from dataclasses import field
from typing import Mapping, Optional, Tuple

from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message

NAME = "data.json"


@dataclass(frozen=True)
class AttemptInput(Message):
    """One input.

    Attributes:
        path: Where the script finds it.
        mode: The mode that the job requested.
        how: How the node provided it.
        definition: File with the dataset itself, in direct mode; else None.
    """

    path: str
    mode: str = ""
    how: str = ""
    definition: Optional[str] = None


@dataclass(frozen=True)
class AttemptOutput(Message):
    """One output.

    Attributes:
        path: Where the script finds it.
        output: The `DataOutput` of `rayjobs.datastore`, as JSON.
        folder: Where the files are; None: at `path`.
        register_as: The `Registration` as a dataset, as JSON; None: it is not registered.
    """

    path: str
    output: Mapping[str, object]
    folder: Optional[str] = None
    register_as: Optional[Mapping[str, object]] = None


@dataclass(frozen=True)
class DataFile(Message):
    """The data of one attempt on one node.

    Attributes:
        inputs: By name.
        outputs: By name.
        held: The `Materialised` of each input, as JSON, so that any agent can release it.
        stored: Names of the stored outputs.
        refused: By output name, a sentence about why it is never stored.
    """

    job: str = ""
    attempt: int = 0
    node: int = 0
    inputs: Mapping[str, AttemptInput] = field(default_factory=dict)
    outputs: Mapping[str, AttemptOutput] = field(default_factory=dict)
    held: Tuple[Mapping[str, object], ...] = ()
    stored: Tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
