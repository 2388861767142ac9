"""What an agent says of its node, and of what it has prepared there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.jobs.hosts import HostFacts


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """Who an agent is, and what its node has.

    Attributes:
        node_id: Ray's id of the node.
        address: Where other nodes reach it.
        root: The node's scratch folder.
        environment: The few variables of the node that ranks inherit.
        python: The agent's interpreter.
        injob_path: The folder from which ranks import `rayjobs`.
        rayjobs: Its version, as the agent has loaded it.
        installed: Its version, as it is on the node's disk; None: not installed there.
        clock_s: The node's boot clock.
    """

    node_id: str
    address: str
    root: str
    environment: Mapping[str, str]
    python: str
    injob_path: str
    rayjobs: str
    installed: str | None = None
    pid: int = 0
    clock_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """An attempt's folder that is ready.

    Attributes:
        root: The folder.
        variables: By which the script finds its inputs and outputs.
        python: The interpreter of an environment that was asked for by its packages.
        facts: What the attempt runs on.
    """

    root: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    facts: HostFacts | None = None
