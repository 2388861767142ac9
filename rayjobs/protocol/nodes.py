"""What an agent says of its node, and of what it has prepared there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rayjobs.injob.messages import Message


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
class Gpu(Message):
    """A GPU of a node, in the words of its driver; None: the driver does not say."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts(Message):
    """What an attempt runs on; None: not known, or it has none.

    Attributes:
        interpreter: Path of the ranks' interpreter.
        python: Its version.
        torch: Version of torch there; torch_built_for: the version of CUDA or ROCm, by name.
        packages: Digest of the list of its packages.
        system: Kernel and processor.
        memory_bytes: Of the machine.
        gpus: Those that the attempt was given.
        image: The image that its ranks run in, and image_digest: its digest.
        why: What could not be found out.
    """

    interpreter: str | None = None
    python: str | None = None
    implementation: str | None = None
    torch: str | None = None
    torch_built_for: Mapping[str, str] | None = None
    packages: str | None = None
    package_count: int | None = None
    machine: str | None = None
    system: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    image: str | None = None
    image_digest: str | None = None
    why: str | None = None

    def known(self) -> dict[str, object]:
        """Return what is known, as it is stored with the attempt."""
        return {name: one for name, one in self.to_json().items() if one is not None}


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
