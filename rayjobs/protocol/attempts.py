"""What the engine tells an agent of an attempt on its node, and what it asks it to launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.identity import Identity
from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.plan import LaunchPlan, Relay


@dataclass(frozen=True, slots=True)
class AttemptOnNode(Message):
    """An attempt on one node: what every call about it says.

    Attributes:
        workspace: Path of the workspace's folder on the target actor's machine.
        target: Name of the compute target.
        node: Number of the node in the attempt.
        marker: Marks every process of the attempt on this node.
        root: The attempt's folder on the node.
        socket: Where its host listens.
        ranks: Numbers of its ranks on this node.
        address: Where other nodes reach this one.
        boot_id: Of the target actor's machine.
        grace_s: Seconds from SIGTERM to SIGKILL.
        lease_s: Of its host; None: it has none.
        reads_secrets: Something of it may read a secret of the target.
        relay: Of the first node, where MPI starts the ranks of several.
    """

    workspace: str
    target: str
    job: str
    attempt: int
    node: int
    marker: str
    root: str
    socket: str
    node_count: int = 1
    ranks: tuple[int, ...] = ()
    address: str | None = None
    boot_id: str | None = None
    grace_s: float = 0.0
    max_duration_s: float | None = None
    stall_timeout_s: float | None = None
    lease_s: float | None = None
    reads_secrets: bool = False
    relay: Relay | None = None

    @property
    def name(self) -> str:
        """Its name on Ray's dashboard."""
        return f"{self.job} a{self.attempt}"


@dataclass(frozen=True, slots=True)
class InputRequest(Message):
    """An input to bring, as the spec names it (`rayjobs.spec.model.Input`)."""

    source: str
    mode: str = "mount"
    path_on_compute: str | None = None


@dataclass(frozen=True, slots=True)
class Registration(Message):
    """How a stored output becomes (a version of) a dataset."""

    name: str
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputRequest(Message):
    """An output to store at the end, as the spec names it (`rayjobs.spec.model.Output`)."""

    destination: str
    mode: str = "upload"
    overwrite: bool = False
    path_on_compute: str | None = None
    source_globs: tuple[str, ...] = ()
    register_as: Registration | None = None
    is_folder: bool = True


@dataclass(frozen=True, slots=True)
class SecretSource(Message):
    """Where the node reads a secret: a variable of the target, or a file."""

    env: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class PackagesRequest(Message):
    """The packages of an environment to build on the node (`rayjobs.spec.model.Packages`)."""

    name: str | None = None
    pip: tuple[str, ...] = ()
    python: str | None = None
    constraints: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    conda_command: str | None = None
    link_scripts: bool = False
    base: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegistryRequest(Message):
    """How an image's registry is asked (`rayjobs.spec.model.Registry`)."""

    address: str | None = None
    username: str | None = None
    password: SecretSource | None = None


@dataclass(frozen=True, slots=True)
class ContainerRequest(Message):
    """The image to run in, as the spec names it (`rayjobs.spec.model.Container`).

    Attributes:
        interpreter: Path of the Python in the image; None: the first that its PATH leads to.
        sources: The image, if it travels with the job → digest of what was packed of it.
    """

    image: str | None = None
    dockerfile: str | None = None
    shm_mib: float | None = None
    registry: RegistryRequest | None = None
    arguments: tuple[str, ...] = ()
    interpreter: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resume(Message):
    """What an attempt goes on from.

    Attributes:
        run: The job's own id on a retry: its newest checkpoint counts.
        path: What the spec names.
    """

    run: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest(Message):
    """What a node prepares and launches.

    Attributes:
        snapshot: Digest of the snapshot; None: the job has none.
        environment: None: an interpreter that is there already.
        container: None: the node's own files.
        plan: Of the attempt's host. The node adds what it alone knows before it writes it down.
    """

    on: AttemptOnNode
    plan: LaunchPlan
    snapshot: str | None = None
    environment: PackagesRequest | None = None
    container: ContainerRequest | None = None
    inputs: Mapping[str, InputRequest] = field(default_factory=dict)
    outputs: Mapping[str, OutputRequest] = field(default_factory=dict)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class Launched(Message):
    """A host that was started.

    Attributes:
        cold: Why its ranks do not come from a warm interpreter; None: they do.
        watches_raylet: It ends its ranks when Ray's process on the node ends.
    """

    host: Identity
    cold: str | None = None
    watches_raylet: bool = False
