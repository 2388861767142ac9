"""Requests of mpirun, orted and the agents on a host's MPI socket, and its answers.

The stubs (`mpi_stub`) read and write this JSON without these classes: they start once per rank, in
the image's own Python, and do not import rayjobs.
"""

from __future__ import annotations

from dataclasses import field
from typing import Mapping, Optional

from rayjobs.injob.answers import Answer
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class MpiRequest(Message):
    """A request on a host's MPI socket; each operation reads its own fields.

    Attributes:
        op: "rank" (a stub: fork this rank), "remote" (a stub: start a command on another node),
            "relay" (an agent: which commands do other nodes need?), "relayed" (an agent: they
            were started) or "daemon" (an agent, on another node: start this command).
        env: Variables that give a rank its identity in MPI.
        node: Name of the node of a "remote".
        command: Command line of a "remote" or "daemon".
        errors: By number of each node that could not start its command: why, as a sentence.
    """

    op: str
    env: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    command: str = ""
    errors: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RankEnd(Answer):
    """The answer to "rank", once the rank has ended.

    Attributes:
        exit_code: None if a signal ended it.
        signal: The signal that ended it.
    """

    exit_code: Optional[int] = None
    signal: Optional[int] = None


@dataclass(frozen=True)
class Relayed(Answer):
    """The answer to "relay", once mpirun has requested all other nodes.

    Attributes:
        commands: By node number: the command line.
        over: The commands were already started.
    """

    commands: Mapping[int, str] = field(default_factory=dict)
    over: bool = False
