"""What a node knows of an attempt's inputs that tells whether it failed for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rayjobs.injob.messages import Message


@dataclass(frozen=True, slots=True)
class Trouble(Message):
    """What went wrong while an input was read.

    Attributes:
        name: Of the input.
        is_outage: Its storage did not answer.
        is_permanent: It would go wrong again.
    """

    name: str
    message: str
    is_outage: bool = False
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class DataFacts(Message):
    """What tells whether an attempt failed for its data.

    Attributes:
        mounted: Names of inputs that were mounted.
        paths: Where all inputs appeared.
        read_only: By the name of an input, the paths under which it could not be written to.
        refused: Sentences: outputs that would have replaced other files, and were not stored.
    """

    mounted: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    read_only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    refused: tuple[str, ...] = ()
