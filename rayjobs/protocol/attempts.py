"""Messages about an attempt on a node: what identifies it there, and the request to launch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rayjobs.injob.data_file import Registration
from rayjobs.injob.identity import Identity
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.plan import LaunchPlan, Relay


@dataclass(frozen=True, slots=True)
class AttemptOnNode(Message):
    """An attempt on one node, as every call about it describes it.

    Attributes:
        workspace: Path of the workspace's folder on the target actor's machine.
        target: Name of the compute target.
        node: Number of the node in the attempt.
        marker: Marks every process of the attempt on this node.
        root: The attempt's folder on the node.
        socket: Where its host listens.
        ranks: Numbers of its ranks on this node.
        address: Address at which other nodes reach this one.
        boot_id: Boot id of the target actor's machine.
        grace_s: Seconds from SIGTERM to SIGKILL.
        lease_s: Length of its host's lease; None: it has none.
        reads_secrets: It may need secrets of the target.
        relay: Only on the first of several nodes whose ranks MPI starts.
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
    """An input to fetch, as the spec names it (`rayjobs.spec.model.Input`)."""

    source: str
    mode: str = "mount"
    path_on_compute: str | None = None


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
    """How to access an image's registry (`rayjobs.spec.model.Registry`)."""

    address: str | None = None
    username: str | None = None
    password: SecretSource | None = None


@dataclass(frozen=True, slots=True)
class ContainerRequest(Message):
    """The image to run in, as the spec names it (`rayjobs.spec.model.Container`).

    Attributes:
        interpreter: Path of the Python in the image; None: the first one in its PATH.
        sources: If the image travels with the job: its name → the digest of its packed files.
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
    """The checkpoint from which an attempt continues.

    Attributes:
        run: On a retry, the job's own id: its newest checkpoint is used.
        path: The path that the spec names.
    """

    run: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest(Message):
    """The attempt that a node must prepare and launch.

    Attributes:
        snapshot: Digest of the snapshot; None: the job has none.
        environment: Packages to install; None: an existing interpreter is used.
        container: The image to run in; None: the node's own files.
        plan: The host's plan, to which the node adds the values that only the node knows.
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
