"""Messages of attempt hosts and warm interpreters: ``host.json``, requests and answers."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Dict, Mapping, Optional, Tuple

from rayjobs.injob import recordfiles
from rayjobs.injob.exitrecord import RankStack
from rayjobs.injob.identity import Identity
from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.outcomes import Outcome

NAME = "host.json"


@dataclass(frozen=True)
class HostFile(Message):
    """The process that is the host of an attempt on one node, and how it contains the ranks.

    Attributes:
        pid: The host's pid on the machine, also inside a PID namespace.
        start_time: When the process started, in clock ticks since the boot.
        boot_id: Of the machine.
        socket: Where it listens.
        marker: Marks every process of the attempt on this node.
        started_at: In seconds since 1970.
        cold: Why it was not forked by a warm interpreter; None: it was.
        tree: How the attempt's processes are contained.
        tree_refused: Why each better method was unavailable.
        cgroup: Folder of the attempt's cgroup v2; None without one.
        memory: How the memory limit is enforced.
        pids: How the limit of processes is enforced.
    """

    pid: int
    start_time: int
    boot_id: str
    socket: str
    job: str = ""
    attempt: int = 0
    node: int = 0
    marker: str = ""
    started_at: float = 0.0
    cold: Optional[str] = None
    tree: str = ""
    tree_refused: Tuple[str, ...] = ()
    cgroup: Optional[str] = None
    memory: str = ""
    pids: str = ""
    version: int = 1

    @property
    def identity(self) -> Identity:
        """The host's process."""
        return Identity(self.pid, self.start_time, self.boot_id)

    @staticmethod
    def read(root: str) -> Optional[HostFile]:
        """Return the file below an attempt's folder; None before it is written.

        Raises:
            MessageError: it is torn or of another kind.
            OSError: a link, FIFO, folder or device is in its place, or it cannot be read.
        """
        try:
            return HostFile.from_json(recordfiles.read_json(root, NAME))
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class HostRequest(Message):
    """A request on a host's control socket; each operation reads its own fields.

    Attributes:
        op: "status", "wait" (for the exit record), "cancel", "lease", "stacks", "stalled", "exec",
            "exec-state", "exec-signal" or "listens".
        reason: Why the attempt is canceled or counts as stalled, as a sentence.
        end_reason: Value of the `EndReason` of a cancel.
        grace_s: Seconds from SIGTERM to SIGKILL of a cancel; None: the plan's.
        stamp: The stamp of the last answer, to renew the lease; None only queries.
        session: Name of the session.
        rank: The rank that a new session's process is started next to.
        arguments: Program and arguments of a new session; none: a shell.
        files: Of a new session, the paths of its standard input, output and error.
        terminal: Kind of the terminal (``TERM``) that they are; empty: they are pipes.
        number: The signal for a session, or the port of the query.
    """

    op: str
    reason: str = ""
    end_reason: Optional[str] = None
    grace_s: Optional[float] = None
    stamp: Optional[float] = None
    session: str = ""
    rank: int = 0
    arguments: Tuple[str, ...] = ()
    files: Tuple[str, ...] = ()
    terminal: str = ""
    number: int = 0


@dataclass(frozen=True)
class Answer(Message):
    """Base of all answers; by itself it means success or a refusal.

    Attributes:
        error: Why the request was refused, as a sentence; empty: it was accepted.
    """

    ok: bool = True
    error: str = ""


def refusal(error: str) -> Answer:
    """Return the answer to a request that cannot be carried out."""
    return Answer(False, error)


@dataclass(frozen=True)
class HostState(Answer):
    """A host's answer to "cancel" and "stalled".

    Attributes:
        state: "starting", "running", "ending" or "ended".
    """

    state: str = ""


@dataclass(frozen=True)
class RankStatus(Message):
    """A rank as its host sees it.

    Attributes:
        start_time: When its process started, in clock ticks since the boot.
        exit_code: None while it runs, or if a signal ended it.
        signal: The signal that ended it.
    """

    rank: int
    pid: int
    start_time: int = 0
    alive: bool = True
    exit_code: Optional[int] = None
    signal: Optional[int] = None


@dataclass(frozen=True)
class HostStatus(Answer):
    """A host's answer to "status".

    Attributes:
        state: "starting", "running", "ending" or "ended".
        log_bytes: Size of each rank's log.
        deadline_in_s: Seconds until the time limit; None: there is none.
        outcome: The outcome, once the attempt is ending or has ended.
    """

    state: str = ""
    ranks: Tuple[RankStatus, ...] = ()
    log_bytes: Mapping[int, int] = field(default_factory=dict)
    deadline_in_s: Optional[float] = None
    outcome: Optional[Outcome] = None


@dataclass(frozen=True)
class LeaseAnswer(Answer):
    """A host's answer to "lease".

    Attributes:
        stamp: The stamp to send with the next renewal.
        silent_s: Seconds since a rank printed or logged anything; None: not measured.
    """

    stamp: Optional[float] = None
    silent_s: Optional[float] = None


@dataclass(frozen=True)
class StacksAnswer(Answer):
    """A host's answer to "stacks": where each live rank is."""

    ranks: Tuple[RankStack, ...] = ()


@dataclass(frozen=True)
class SessionAnswer(Answer):
    """A host's answer to "exec" and "exec-state".

    Attributes:
        exit_code: Of a process that has ended; 128 and the signal's number if one ended it.
    """

    ended: bool = False
    exit_code: Optional[int] = None


@dataclass(frozen=True)
class PortAnswer(Answer):
    """A host's answer to "listens": where processes of the attempt listen at a port."""

    addresses: Tuple[str, ...] = ()


@dataclass(frozen=True)
class WarmStatus(Answer):
    """A warm interpreter's answer to "ping": its process and its imports.

    Attributes:
        preloaded: Modules that it has imported.
        not_preloaded: Why the others could not be imported.
        import_s: Seconds that the imports took.
        threads: Number of its threads.
    """

    pid: int = 0
    start_time: int = 0
    boot_id: str = ""
    preloaded: Tuple[str, ...] = ()
    not_preloaded: Mapping[str, str] = field(default_factory=dict)
    import_s: float = 0.0
    threads: int = 0

    @property
    def identity(self) -> Identity:
        """The interpreter's process."""
        return Identity(self.pid, self.start_time, self.boot_id)


@dataclass(frozen=True)
class StartAnswer(Answer):
    """The result of starting a host or a warm interpreter: its process, or why there is none.

    Attributes:
        pid: Pid of the started process, with `start_time` and `boot_id`; None: none was started.
        cold: Why a warm interpreter may not fork this attempt; None: it may.
        held: Another warm interpreter owns the socket.
    """

    pid: Optional[int] = None
    start_time: int = 0
    boot_id: str = ""
    cold: Optional[str] = None
    held: bool = False

    @property
    def identity(self) -> Identity:
        """The process that was started.

        Raises:
            ValueError: no process was started.
        """
        if self.pid is None:
            raise ValueError("the answer names no process")
        return Identity(self.pid, self.start_time, self.boot_id)

    @staticmethod
    def refused(error: str, *, held: bool = False) -> StartAnswer:
        """Return the answer with the reason why no process was started."""
        return StartAnswer(False, error, held=held)

    @staticmethod
    def of(started: Identity) -> StartAnswer:
        """Return the answer that names a process."""
        return StartAnswer(pid=started.pid, start_time=started.start_time, boot_id=started.boot_id)


@dataclass(frozen=True)
class WarmRequest(Message):
    """A request to a warm interpreter; each operation reads its own fields.

    Attributes:
        op: "ping", "fork" or "stop".
        plan: Path of the launch plan of a fork.
        secrets: Variables of a fork that are never written to a file.
        is_user: A ping comes from an agent that uses the interpreter.
        raylet: Ray's process on that agent's node. The interpreter ends soon after the last such
            process. None: it stays until it is idle or stopped.
    """

    op: str
    plan: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)
    is_user: bool = False
    raylet: Optional[Identity] = None

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` of version 0.1.0, which named a raylet only in pings of users."""
        return {"is_user": "raylet" in values, **values}

    def to_json(self) -> Dict[str, Any]:
        """Return its JSON; to an interpreter of version 0.1.0 an agent is a user by its raylet."""
        values = super().to_json()
        if not self.is_user:
            del values["raylet"]
        return values
