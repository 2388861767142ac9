"""A node's facts about an attempt's inputs, which show whether they caused its failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True, slots=True)
class Trouble(Message):
    """An error while an input was read.

    Attributes:
        name: The name of the input.
        is_outage: Whether its storage did not answer.
        is_permanent: Whether a retry would fail in the same way.
    """

    name: str
    message: str
    is_outage: bool = False
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class DataFacts(Message):
    """The facts that show whether an attempt failed because of its data.

    Attributes:
        mounted: Names of inputs that were mounted.
        paths: Where all inputs appeared.
        read_only: By the name of an input, the paths where it was read-only.
        refused: Sentences on outputs that were not stored, since they would have replaced other
            files.
    """

    mounted: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    read_only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    refused: tuple[str, ...] = ()
