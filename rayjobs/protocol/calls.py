"""The calls to a node's agent: one request message and one answer message each."""

from __future__ import annotations

from typing import Generic, TypeVar

from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.outcomes import EndCause
from rayjobs.injob.rank_stack import RankStack
from rayjobs.injob.session_steps import SessionReply, SessionStep
from rayjobs.protocol.attempts import AttemptOnNode, Launched, LaunchRequest
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.nodes import Hello, Prepared
from rayjobs.protocol.settled import Settled

# Incremented when an agent of an earlier version would misread a changed call: nodes then get new
# agents.
PROTOCOL = 3

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Nothing(Message):
    """An empty message."""


@dataclass(frozen=True, slots=True)
class Port(Message):
    """A port that no other process uses."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Ask an attempt's host to end it.

    Attributes:
        grace_s: Seconds from SIGTERM to SIGKILL.
    """

    on: AttemptOnNode
    cause: EndCause
    grace_s: float


@dataclass(frozen=True, slots=True)
class Renew(Message):
    """Renew the lease of an attempt's host.

    Attributes:
        stamp: The stamp of the last answer; None: there was none.
    """

    on: AttemptOnNode
    stamp: float | None


@dataclass(frozen=True, slots=True)
class Renewed(Message):
    """The stamp for the next renewal; None: the host does not answer, or has ended."""

    stamp: float | None


@dataclass(frozen=True, slots=True)
class Silence(Message):
    """Seconds since any rank of a node showed a sign of life; None: not measured."""

    silent_s: float | None


@dataclass(frozen=True, slots=True)
class Stalled(Message):
    """Have a host dump its ranks' stacks and end the attempt as stalled."""

    on: AttemptOnNode
    reason: str


@dataclass(frozen=True, slots=True)
class Stacks(Message):
    """The stack of each rank of a node; None: no host answers."""

    ranks: tuple[RankStack, ...] | None


@dataclass(frozen=True, slots=True)
class SessionCall(Message):
    """A client's step in a session next to a rank of an attempt."""

    on: AttemptOnNode
    step: SessionStep


@dataclass(frozen=True, slots=True)
class Settle(Message):
    """Request the state of an attempt.

    Attributes:
        end: End the attempt first.
    """

    on: AttemptOnNode
    end: bool


@dataclass(frozen=True, slots=True)
class Cleaned(Message):
    """Whether no process of an attempt is left and its scratch has been removed."""

    proven: bool


@dataclass(frozen=True, slots=True)
class Uncleaned(Message):
    """The folder of an attempt that has no host, and no files left to store."""

    job: str
    attempt: int
    root: str


@dataclass(frozen=True, slots=True)
class UncleanedFolders(Message):
    """The folders of ended attempts that are left on a node."""

    folders: tuple[Uncleaned, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreProgress(Message):
    """The progress of a later store, as one line; empty: nothing is being stored."""

    line: str = ""


@dataclass(frozen=True, slots=True)
class CleanFolders(Message):
    """Remove folders that `UncleanedFolders` listed."""

    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CleanedFolders(Message):
    """How many folders were removed."""

    removed: int


@dataclass(frozen=True, slots=True)
class StartDaemon(Message):
    """Have an attempt's host start orted, which mpirun on another node requested.

    Attributes:
        socket: Where the host listens for requests of MPI.
        command: The command line of orted.
    """

    socket: str
    command: str


@dataclass(frozen=True, slots=True)
class DaemonStarted(Message):
    """Whether the host has started orted.

    Attributes:
        why_not: Why it has not, as a sentence; empty if it has.
    """

    is_started: bool
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Call(Generic[Asked, Answer]):
    """One kind of call: its name, and the classes of its request and its answer."""

    name: str
    asked: type[Asked]
    answer: type[Answer]


# Calls about the node.
HELLO = Call("hello", Nothing, Hello)
# The agent reserves the port until an attempt that uses it is launched.
FREE_PORT = Call("free_port", Nothing, Port)
# Calls about an attempt. PREPARE and LAUNCH raise PrepareError, with the failure class.
PREPARE = Call("prepare", LaunchRequest, Prepared)
LAUNCH = Call("launch", LaunchRequest, Launched)
# Returns at the attempt's end. It has the job's name, so that Ray's dashboard lists the job as
# running. After the agent was replaced, a second call continues from where the first one was.
FOLLOW = Call("follow", AttemptOnNode, ExitRecord)
STOP = Call("stop", Stop, Nothing)
RENEW = Call("renew", Renew, Renewed)
SILENCE = Call("silence", AttemptOnNode, Silence)
STALLED = Call("stalled", Stalled, Nothing)
STACKS = Call("stacks", AttemptOnNode, Stacks)
SESSION = Call("session", SessionCall, SessionReply)
COLLECT = Call("collect", AttemptOnNode, Collected)
# After the job's end: stores the outputs that could not be stored then.
STORE_LATE = Call("store_late", AttemptOnNode, Collected)
STORE_PROGRESS = Call("store_progress", AttemptOnNode, StoreProgress)
# Checks again what an exit record could not prove.
SETTLE = Call("settle", Settle, Settled)
CLEAN = Call("clean", AttemptOnNode, Cleaned)
# Find and remove the folders of ended attempts; agents of version 0.1.0 know the second as "sweep".
UNCLEANED = Call("uncleaned", Nothing, UncleanedFolders)
CLEAN_FOLDERS = Call("sweep", CleanFolders, CleanedFolders)
# From the agent of an attempt's first node to those of its other nodes.
START_DAEMON = Call("start_daemon", StartDaemon, DaemonStarted)
