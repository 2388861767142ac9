"""The calls that the engine makes of a node's agent: one message there, one message back."""

from __future__ import annotations

from typing import Generic, TypeVar

from rayjobs.injob.exitrecord import ExitRecord, RankStack
from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.outcomes import EndCause
from rayjobs.injob.sessionsteps import SessionReply, SessionStep
from rayjobs.protocol.attempts import AttemptOnNode, Launched, LaunchRequest
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.nodes import Hello, Prepared
from rayjobs.protocol.settled import Settled

# Raised by a change that an agent of an earlier rayjobs would misread: then nodes get new agents.
PROTOCOL = 2

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Nothing(Message):
    """A message that says nothing besides that it was sent."""


@dataclass(frozen=True, slots=True)
class Port(Message):
    """A port that no other process has."""

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
        stamp: Of the renewal before; None: there was none.
    """

    on: AttemptOnNode
    stamp: float | None


@dataclass(frozen=True, slots=True)
class Renewed(Message):
    """The stamp for the next renewal; None: the host does not answer, or has ended."""

    stamp: float | None


@dataclass(frozen=True, slots=True)
class Silence(Message):
    """For how many seconds no rank of a node was heard; None where this is not measured."""

    silent_s: float | None


@dataclass(frozen=True, slots=True)
class Stalled(Message):
    """Let a host dump its ranks' stacks and end the attempt as stalled."""

    on: AttemptOnNode
    reason: str


@dataclass(frozen=True, slots=True)
class Stacks(Message):
    """Where each rank of a node is; None: no host answers."""

    ranks: tuple[RankStack, ...] | None


@dataclass(frozen=True, slots=True)
class SessionCall(Message):
    """A client's step in a session at a rank of an attempt."""

    on: AttemptOnNode
    step: SessionStep


@dataclass(frozen=True, slots=True)
class Settle(Message):
    """Say what became of an attempt.

    Attributes:
        end: End first what lives of it.
    """

    on: AttemptOnNode
    end: bool


@dataclass(frozen=True, slots=True)
class Cleaned(Message):
    """Whether nothing of an attempt runs any more, and its scratch is removed."""

    proven: bool


@dataclass(frozen=True, slots=True)
class Uncleaned(Message):
    """A folder of an attempt of which nothing runs, and nothing is left to store."""

    job: str
    attempt: int
    root: str


@dataclass(frozen=True, slots=True)
class UncleanedFolders(Message):
    """What a death left on a node."""

    folders: tuple[Uncleaned, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreProgress(Message):
    """How far a later store is, as a line; empty: nothing is being stored."""

    line: str = ""


@dataclass(frozen=True, slots=True)
class Sweep(Message):
    """Remove folders that were named as uncleaned."""

    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swept(Message):
    """How many folders are gone."""

    removed: int


@dataclass(frozen=True, slots=True)
class Call(Generic[Asked, Answer]):
    """One kind of call: its name, and what goes there and comes back."""

    name: str
    asked: type[Asked]
    answer: type[Answer]


# Of the node.
HELLO = Call("hello", Nothing, Hello)
# Held until the launch of an attempt with it.
FREE_PORT = Call("free_port", Nothing, Port)
# Of an attempt. Raises PrepareError with its class.
PREPARE = Call("prepare", LaunchRequest, Prepared)
LAUNCH = Call("launch", LaunchRequest, Launched)
# To its end. Named for the job, so that Ray's dashboard lists it as running. A second call, after
# the agent was replaced, goes on where the first was.
FOLLOW = Call("follow", AttemptOnNode, ExitRecord)
STOP = Call("stop", Stop, Nothing)
RENEW = Call("renew", Renew, Renewed)
SILENCE = Call("silence", AttemptOnNode, Silence)
STALLED = Call("stalled", Stalled, Nothing)
STACKS = Call("stacks", AttemptOnNode, Stacks)
SESSION = Call("session", SessionCall, SessionReply)
COLLECT = Call("collect", AttemptOnNode, Collected)
# After the job's end, what of its outputs could not be stored then.
STORE_LATE = Call("store_late", AttemptOnNode, Collected)
STORE_PROGRESS = Call("store_progress", AttemptOnNode, StoreProgress)
# What an exit record could not prove is looked at again.
SETTLE = Call("settle", Settle, Settled)
CLEAN = Call("clean", AttemptOnNode, Cleaned)
# What deaths left.
UNCLEANED = Call("uncleaned", Nothing, UncleanedFolders)
SWEEP = Call("sweep", Sweep, Swept)
