"""What an agent reports about its node, and about an attempt that it has prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.jobs.hosts import HostFacts


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """An agent's identity, and the facts about its node.

    Attributes:
        node_id: Ray's id of the node.
        address: Where other nodes reach it.
        root: The node's scratch folder.
        environment: The few variables of the node that ranks inherit.
        python: The agent's interpreter.
        injob_path: The folder from which ranks import `rayjobs`.
        rayjobs: The version of rayjobs that the agent has loaded.
        installed: The version of rayjobs on the node's disk; None: it is not installed there.
        clock_s: Seconds on the node's boot clock.
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
    """An attempt's folder, ready for the launch.

    Attributes:
        root: The folder.
        variables: The variables by which the script finds its inputs and outputs.
        python: The interpreter of the requested environment or image; None: the plan's own.
        facts: What the attempt runs on.
    """

    root: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    facts: HostFacts | None = None
