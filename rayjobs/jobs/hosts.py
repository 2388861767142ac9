"""The stored records of an attempt's hosts (path, process, platform), and platforms as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayjobs.core.text import counted, size_text
from rayjobs.injob.identity import MaybeOfProcess
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True, slots=True)
class Gpu(Message):
    """A GPU of a node as its driver reports it; None: not reported."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts(Message):
    """What an attempt runs on; None: unknown or absent.

    Attributes:
        interpreter: Path of the ranks' interpreter.
        python: Its version.
        torch: Version of torch there.
        torch_built_for: The version of CUDA (``cuda``) or ROCm (``hip``) that it was built for.
        packages: Digest of the list of its packages.
        system: Kernel and processor.
        memory_bytes: The machine's memory.
        gpus: The attempt's GPUs.
        image: The image that its ranks run in, and image_digest: its digest.
        why: What could not be determined.
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
        """Return the known facts in their stored form."""
        return {name: one for name, one in self.to_json().items() if one is not None}


@dataclass(frozen=True, slots=True)
class HostRecord(MaybeOfProcess, Message):
    """The stored record of an attempt's host on one node.

    Attributes:
        node: Number of the node in the attempt.
        node_id: Ray's id of the node.
        root: The attempt's folder there.
        socket: Where the host listens.
        marker: Marks every process of the attempt on this node.
        address: Where other nodes reach the node.
        lease_s: The host's lease; None: it has none.
        facts: What it runs on; None: unknown.
        pid: The host's pid; None: not launched yet. The same holds for the start time and boot id.
        cold: Why its ranks did not start from a warm interpreter; None: they did.
        watches_raylet: Whether it ends its ranks when Ray's process on the node ends.
    """

    node: int = 0
    node_id: str = ""
    root: str = ""
    socket: str = ""
    marker: str = ""
    address: str | None = None
    lease_s: float | None = None
    facts: HostFacts | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    cold: str | None = None
    watches_raylet: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return its JSON without unknown facts."""
        values = super(HostRecord, self).to_json()  # noqa: UP008 - slots replace the class
        values["facts"] = None if self.facts is None else self.facts.known()
        if self.pid is None:
            for name in ("pid", "start_time", "boot_id", "cold", "watches_raylet"):
                del values[name]
        return values


def described(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return one line on the interpreter and one on the machine, for users."""
    runs = (
        [f"{facts.get('implementation', 'Python')} {facts['python']}"] if "python" in facts else []
    )
    if facts.get("torch"):
        built = facts.get("torch_built_for") or {}
        with_cuda = f" (CUDA {built['cuda']})" if built.get("cuda") else ""
        runs.append(f"torch {facts['torch']}{with_cuda}")
    if facts.get("image"):
        digest = facts.get("image_digest")
        runs.append(f"image {facts['image']}" + (f" ({digest[:19]}…)" if digest else ""))
    if facts.get("package_count"):
        runs.append(counted(int(facts["package_count"]), "package"))
    if facts.get("why"):
        runs.append(str(facts["why"]))
    machine = [str(facts["machine"])] if facts.get("machine") else []
    if facts.get("cpu"):
        memory = f", {size_text(facts['memory_bytes'])}" if facts.get("memory_bytes") else ""
        machine.append(f"{facts['cpus']} × {facts['cpu']}{memory}")
    names: dict[str, int] = {}
    for gpu in facts.get("gpus") or ():
        names[gpu["name"]] = names.get(gpu["name"], 0) + 1
    machine += [f"{count} × {name}" for name, count in names.items()]
    for gpu in (facts.get("gpus") or ())[:1]:
        machine.append(f"driver {gpu['driver']} (CUDA {gpu['driver_cuda']})")
    return ", ".join(runs), ", ".join(machine)
