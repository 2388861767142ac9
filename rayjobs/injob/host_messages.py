"""Messages of attempt hosts: ``host.json``, requests on a control socket, and their answers."""

from __future__ import annotations

from dataclasses import field
from typing import Mapping, Optional, Tuple

from rayjobs.injob import record_files
from rayjobs.injob.answers import Answer
from rayjobs.injob.identity import OfProcess
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.rank_stack import RankStack

NAME = "host.json"


@dataclass(frozen=True)
class HostFile(OfProcess, Message):
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

    @staticmethod
    def read(root: str) -> Optional[HostFile]:
        """Return the file below an attempt's folder; None before it is written.

        Raises:
            MessageError: it is torn or of another kind.
            OSError: a link, FIFO, folder or device is in its place, or it cannot be read.
        """
        return record_files.read_message(root, NAME, HostFile)


@dataclass(frozen=True)
class HostRequest(Message):
    """A request on a host's control socket; each operation reads its own fields.

    Attributes:
        op: "status", "wait" (for the exit record), "cancel", "lease", "stacks", "stalled", "exec",
            "exec-state", "exec-signal" or "listens".
        reason: Why the attempt is canceled or counts as stalled, as a sentence.
        end_reason: Value of the `EndReason` of a cancel.
        grace_s: Seconds from SIGTERM to SIGKILL of a cancel; None: the plan's.
        stamp: The stamp of the last answer, to renew the lease; None: only a query.
        session: Name of the session.
        rank: The rank that a new session's process is started next to.
        arguments: Program and arguments of a new session; none: a shell.
        files: Of a new session, the paths of its standard input, output and error.
        terminal: Kind of the terminal (``TERM``) that they are; empty: they are pipes.
        number: The signal for a session, or the port of "listens".
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
class HostStacks(Answer):
    """A host's answer to "stacks": where each live rank is."""

    ranks: Tuple[RankStack, ...] = ()


@dataclass(frozen=True)
class HostSession(Answer):
    """A host's answer to "exec" and "exec-state".

    Attributes:
        exit_code: Of a process that has ended; 128 plus the signal's number if a signal ended it.
    """

    ended: bool = False
    exit_code: Optional[int] = None


@dataclass(frozen=True)
class PortAnswer(Answer):
    """A host's answer to "listens": the addresses at which the attempt listens on a port."""

    addresses: Tuple[str, ...] = ()
