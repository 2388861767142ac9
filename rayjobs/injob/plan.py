"""The launch plan of one attempt on one node, as stored in plan.json."""

from __future__ import annotations

import json
import os
import re
from dataclasses import field
from typing import Any, Dict, Mapping, Optional, Tuple

from rayjobs.injob import interfaces, record_files
from rayjobs.injob.identity import Identity
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, MessageError
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.injob.views import Views

NAME = "plan.json"
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)
SUPPORTED_VERSION = 1
# Extra work of a host.
MPI = "mpi"
HOROVOD_GLOO = "horovod-gloo"
RANK_ZERO_FIRST = "head-start"


class PlanError(ValueError):
    """The plan cannot be carried out; the message says why."""


@dataclass(frozen=True)
class RankPlan(Message):
    """One process of the attempt on this node.

    Attributes:
        rank: Its number in the whole attempt.
        local_rank: Its number on this node.
        env: Variables of this rank only.
    """

    rank: int
    local_rank: int
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer(Message):
    """Another node of an MPI attempt, for the first node's agent.

    Attributes:
        node: Its number in the attempt.
        node_id: Its id in Ray.
        socket: Socket of its host for orted requests.
    """

    node: int
    node_id: str
    socket: str


@dataclass(frozen=True)
class Relay(Message):
    """What mpirun on the first node needs from the agents.

    Attributes:
        socket: Socket of the first node's host, which reports the nodes that mpirun requests.
    """

    socket: str
    peers: Tuple[Peer, ...]


@dataclass(frozen=True)
class ExtrasPlan(Message):
    """Extra work of a host for one backend; each kind reads its own fields.

    Attributes:
        kind: ``mpi``, ``horovod-gloo`` or ``head-start``.
        port: The rendezvous port on the first node; None on other nodes.
        most_s: Maximum seconds that the other ranks wait for rank 0.
        on_cpu: Horovod communicates on the CPU.
        socket: Where the host answers the MPI stubs.
        nodes: Names of the job's nodes, as mpirun uses them.
        shares_machine: An earlier node of the attempt is on the same machine.
        command: mpirun's command line, only on the first node.
        peers: The other nodes, only on the first node.
    """

    kind: str
    port: Optional[int] = None
    most_s: float = 0.0
    on_cpu: bool = False
    socket: str = ""
    nodes: Tuple[str, ...] = ()
    shares_machine: bool = False
    command: Optional[Tuple[str, ...]] = None
    peers: Tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Bind(Message):
    """A file or folder of the node that a container sees.

    Attributes:
        source: Its path on the node.
        target: Its path in the container.
        read_only: The container cannot change it.
        replaces: It replaces the image's file or folder there, even a link.
        of_job: The job requested it: if it cannot be mounted, the job is at fault.
    """

    source: str
    target: str
    read_only: bool = False
    replaces: bool = False
    of_job: bool = False


@dataclass(frozen=True)
class MemoryFolder(Message):
    """A memory file system of a container; without `size_bytes`, up to half of the memory."""

    target: str
    size_bytes: Optional[int] = None


@dataclass(frozen=True)
class Link(Message):
    """A symbolic link in a container; `target` is its text."""

    path: str
    target: str


@dataclass(frozen=True)
class Limit(Message):
    """A resource limit of each process, as for `setrlimit`; -1 is unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class ContainerPlan(Message):
    """The image that an attempt's processes run in, on one node.

    Attributes:
        image: The unpacked root file system.
        scratch: A folder of the attempt for written files and mount points.
        is_private: No other attempt uses `image`, so it is written to directly.
        shm_bytes: Size of /dev/shm; None: the node's own, and its System V memory.
        binds: Mounted in this order, later ones on top.
        devices: Device files of the node.
        links: Made after all mounts.
        limits: Of each rank.
    """

    image: str
    scratch: str
    is_private: bool = False
    shm_bytes: Optional[int] = None
    binds: Tuple[Bind, ...] = ()
    memory_folders: Tuple[MemoryFolder, ...] = ()
    devices: Tuple[str, ...] = ()
    links: Tuple[Link, ...] = ()
    limits: Tuple[Limit, ...] = ()


@dataclass(frozen=True)
class LaunchPlan(Message):
    """The instructions of an attempt host; plan.json in the attempt's folder.

    Attributes:
        node: Number of the node in the attempt.
        marker: Marks every process of the attempt on this node, unique for all time.
        root: The attempt's folder on the node.
        socket: Where the host listens.
        kind: ``script`` or ``command``.
        argv: The script, below the working directory, and its arguments.
        command: A line for the shell.
        python: The interpreter of the ranks.
        cold: Why the ranks must not come from a warm interpreter; None: they may.
        env: Variables of all ranks.
        grace_s: Seconds from SIGTERM to SIGKILL.
        max_duration_s: The attempt's time limit, in seconds.
        memory_bytes: Limit of all ranks of the node together.
        pids_max: Limit of processes and threads of all ranks of the node together.
        log_cap_bytes: Cap of each rank's log; beyond it the middle is removed.
        threads: Number of threads of each rank's numeric libraries.
        injob_path: The folder from which ranks import `rayjobs`.
        master_port: The rendezvous port, reserved by the first node's host.
        address: Address of this node for the others, if ranks communicate.
        lease_s: Length of a host's lease in seconds: the host ends its ranks after two thirds of it
            without a renewal; the target assumes their end after all of it. None: no lease.
        lease_since_s: Start of the lease, on the node's boot clock; None: the host's start.
        raylet: Ray's process on the node, if there is a lease: once it ends, so do the ranks.
        stall_timeout_s: Seconds without any sign of life from a rank after which the attempt ends.
        extras: The host's extra work; None: none.
        umask: Of the ranks and of what they start.
        soft_files: The ranks' soft limit of open files; None: their host's.
        containment: How the attempt's processes may be contained, see `tree.LEVELS`.
        views: How the inputs are mounted; None: directly.
        container: The image that the ranks, mpirun and orted run in; None: the node's own files.
    """

    job: str
    attempt: int
    marker: str
    root: str
    socket: str
    kind: str
    python: str
    env: Mapping[str, str]
    ranks: Tuple[RankPlan, ...]
    injob_path: str
    node: int = 0
    node_count: int = 1
    argv: Tuple[str, ...] = ()
    command: Optional[str] = None
    cold: Optional[str] = None
    grace_s: float = 10.0
    max_duration_s: Optional[float] = None
    memory_bytes: Optional[int] = None
    pids_max: Optional[int] = None
    log_cap_bytes: Optional[int] = None
    threads: Optional[int] = None
    master_port: Optional[int] = None
    address: Optional[str] = None
    lease_s: Optional[float] = None
    lease_since_s: Optional[float] = None
    raylet: Optional[Identity] = None
    stall_timeout_s: Optional[float] = None
    extras: Optional[ExtrasPlan] = None
    umask: int = 0o022
    soft_files: Optional[int] = None
    containment: Tuple[str, ...] = ("cgroup", "scan")
    views: Optional[Views] = None
    container: Optional[ContainerPlan] = None
    version: int = SUPPORTED_VERSION

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Drop the None values of an earlier version; read what it named or numbered differently.

        It named the containment `hold`, and its ranks were not numbered.
        """
        known = {name: one for name, one in values.items() if one is not None}
        if "hold" in known:
            known.setdefault("containment", known.pop("hold"))
        ranks = known.get("ranks")
        if isinstance(ranks, (list, tuple)) and all(isinstance(one, Mapping) for one in ranks):
            known["ranks"] = [{"local_rank": at, **one} for at, one in enumerate(ranks)]
        return known

    def to_json(self) -> Dict[str, Any]:
        """Return its JSON, with the containment also as `hold`, as hosts of version 0.1.0 read it.

        A warm interpreter of that version may start the host.
        """
        values = super().to_json()
        values["hold"] = values["containment"]
        return values

    @staticmethod
    def read(root: str) -> Optional[LaunchPlan]:
        """Return the plan below an attempt's folder; None before it is written.

        The host checks more, see `load`.

        Raises:
            MessageError: it is torn, of another kind or of a later version.
            OSError: a link, FIFO, folder or device is in its place, or it cannot be read.
        """
        return record_files.read_message(root, NAME, LaunchPlan)

    @property
    def relay(self) -> Optional[Relay]:
        """What mpirun needs from the agents, on the first of several nodes; None: nothing."""
        found = self.extras
        return Relay(found.socket, found.peers) if found and found.peers else None

    @property
    def is_mpi(self) -> bool:
        """Whether MPI starts the ranks."""
        return self.extras is not None and self.extras.kind == MPI

    @property
    def work(self) -> str:
        """The working directory of the ranks."""
        return os.path.join(self.root, "work")

    @property
    def script(self) -> str:
        """The script's absolute path (kind "script")."""
        return os.path.join(self.work, self.argv[0])

    def log_of(self, rank: int) -> str:
        """The file with the output of a rank."""
        return os.path.join(self.root, "log", f"driver_{rank}.log")

    def stacks_of(self, rank: int) -> str:
        """The file to which a rank writes its stacks on request."""
        return os.path.join(self.root, f"stacks-{rank}.txt")

    def rank_env(self, rank: RankPlan, secrets: Mapping[str, str]) -> dict[str, str]:
        """The complete environment of a rank."""
        env = {**self.env, **rank.env, **secrets}
        env[MARKER_VARIABLE] = self.marker  # so that programs that the rank starts are found too
        env["PWD"] = self.work
        env.setdefault("TMPDIR", os.path.join(self.root, "tmp"))
        for name, value in interfaces.variables(self.address).items():
            env.setdefault(name, value)
        if self.threads is not None:
            env.setdefault("OMP_NUM_THREADS", str(self.threads))
        return env


def expand(argument: str, env: Mapping[str, str]) -> str:
    """`argument` with `$NAME` and `${NAME}` replaced; a name that `env` lacks stays as written."""

    def value(match: re.Match[str]) -> str:
        return env.get(match.group(1) or match.group(2), match.group(0))

    return _REFERENCE.sub(value, argument)


def load(path: str) -> LaunchPlan:
    """Read a plan.

    Raises:
        PlanError: the file cannot be read, is not a plan, or is of another version.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}") from error
    return parse(values)


def parse(values: object) -> LaunchPlan:
    """Build a plan from its JSON object.

    Raises:
        PlanError: a field is missing or has the wrong form, or the plan is of another version.
    """
    if not isinstance(values, dict) or values.get("version") != SUPPORTED_VERSION:
        raise PlanError(
            f"the plan has version {values.get('version') if isinstance(values, dict) else None!r};"
            f" this host reads version {SUPPORTED_VERSION}. Use the same rayjobs on every node."
        )
    try:
        plan = LaunchPlan.from_json(values)
    except MessageError as error:
        raise PlanError(f"the plan is incomplete or malformed: {error}") from error
    _check(plan)
    return plan


def _check(plan: LaunchPlan) -> None:
    if plan.kind == "script" and not plan.argv:
        raise PlanError("the plan is of kind script, but argv is empty; name the script in argv[0]")
    if plan.kind == "command" and not plan.command:
        raise PlanError("the plan is of kind command, but command is empty")
    if plan.kind not in ("script", "command"):
        raise PlanError(f"the plan's kind is {plan.kind!r}; it must be script or command")
    if not set(plan.containment) <= {"cgroup", "namespace", "scan"}:
        raise PlanError(
            f"the plan's containment is {plan.containment!r}; its levels are cgroup, namespace, "
            "scan"
        )
    if plan.container is not None and plan.containment != ("namespace",):
        raise PlanError("the plan has a container, whose processes only a namespace can contain")
    if not 0 <= plan.umask <= 0o777:
        raise PlanError(f"the plan's umask is {plan.umask}; it must be 0 to 511 (octal 777)")
    if not plan.ranks:
        raise PlanError("the plan has no ranks")
    if not plan.marker or len(plan.marker.split()) != 1:
        raise PlanError(f"the plan's marker {plan.marker!r} must be one word")
    if len(os.fsencode(plan.socket)) > 107:
        raise PlanError(f"the socket path {plan.socket} is longer than the 107 bytes Unix allows")
