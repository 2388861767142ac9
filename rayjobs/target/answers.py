"""The answers of a target actor on its wake socket: one message per operation.

A server forwards them to its clients in a `ForwardedAnswer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from rayjobs.injob.answers import Answer
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.rank_stack import RankStack
from rayjobs.injob.session_steps import SessionReply


@dataclass(frozen=True)
class TargetAnswer(Answer):
    """Base of a target actor's answers; alone it answers "ping", "resume" and refused requests.

    Every field of an answer has a default: an earlier version, or a refusal, does not send it.

    Attributes:
        version: The actor's version of rayjobs.
        epoch: Random name of this life of the actor.
        pid: Pid of the actor's process; 0 if unknown.
        stopping: The target is being stopped, and therefore refuses the request.
    """

    READS_VERSION: ClassVar[int | None] = None

    version: str = ""
    epoch: str = ""
    pid: int = 0
    stopping: bool = False


@dataclass(frozen=True)
class WakeAnswer(TargetAnswer):
    """The answer to "wake".

    Attributes:
        served: Whether the actor serves the workspace of the request; None: the request has none.
    """

    served: bool | None = None


@dataclass(frozen=True)
class WaitingJob(Message):
    """Why a job waits.

    Attributes:
        reason: In one sentence.
        position: Position in line from 1; 0 if it is not in line; None if unknown.
        rule: Name of the rule that decided (`rayjobs.policy.Rule`).
    """

    reason: str = ""
    position: int | None = None
    rule: str = ""


@dataclass(frozen=True)
class ScalingJob(Message):
    """A job whose allocation waits for nodes of the cluster to start.

    Attributes:
        reason: Why it waits, in one sentence.
        up: How many of its nodes are up.
        nodes: How many it needs.
    """

    reason: str = ""
    up: int = 0
    nodes: int = 0


@dataclass(frozen=True)
class NodeStatus(Message):
    """A living node: its resources, and what is free of them.

    Attributes:
        memory: In bytes, like `free_memory`.
        node_type: Name of its node type in the cluster; empty if unknown.
    """

    node_id: str = ""
    address: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    memory: float = 0.0
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    free_memory: float = 0.0
    node_type: str = ""


@dataclass(frozen=True)
class AllocatedShape(Message):
    """The resources of an allocation (`rayjobs.policy.Shape`).

    Attributes:
        nodes: Number of bundles.
        cpus: Per bundle, like `gpus`.
        memory: Bytes per bundle.
        spread: 1 if each bundle needs its own node, otherwise 0.
        node_types: Types of nodes that it may use, by name; empty: any.
    """

    nodes: int = 1
    cpus: float = 0.0
    gpus: float = 0.0
    memory: float = 0.0
    spread: float = 0.0
    node_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class AllocationStatus(Message):
    """Resources that the target holds for a job, or for the next job of the same shape.

    Attributes:
        nodes: Id of the node of each bundle.
        gpus: Ids of the GPUs of each bundle.
        job: Key of the job that uses it; None: it is idle.
        draining: Processes of its last job may still run, so no other job starts in it.
    """

    name: str = ""
    shape: AllocatedShape = field(default_factory=AllocatedShape)
    nodes: tuple[str, ...] = ()
    gpus: tuple[tuple[str, ...], ...] = ()
    job: str | None = None
    draining: bool = False


@dataclass(frozen=True)
class StatusAnswer(TargetAnswer):
    """The answer to "status": what the target does. Keys of jobs are "WORKSPACE::ID".

    A new field that may name jobs or folders is hidden from users of a server until
    `rayjobs.server.own_view` shows it.

    Attributes:
        target: Name of the target.
        live: Keys of the jobs with a running attempt.
        waiting: The jobs that wait, by key, of those in the request.
        scaling: The jobs that wait for nodes to start, by key.
        workspaces: Folders of the workspaces that it serves.
        refused: Why it does not serve other workspaces, by their folders.
    """

    target: str = ""
    live: tuple[str, ...] = ()
    waiting: Mapping[str, WaitingJob] = field(default_factory=dict)
    scaling: Mapping[str, ScalingJob] = field(default_factory=dict)
    nodes: tuple[NodeStatus, ...] = ()
    allocations: tuple[AllocationStatus, ...] = ()
    workspaces: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FreeNode(Message):
    """What a node has free for a job that waits.

    Attributes:
        memory: In bytes, like `free_memory`.
    """

    node_id: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    memory: float = 0.0
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    free_memory: float = 0.0


@dataclass(frozen=True)
class JobDecision(Message):
    """The decision about a job that waits (`rayjobs.policy.Decision` describes the fields)."""

    key: str = ""
    rule: str = ""
    reason: str = ""
    position: int = 0
    ahead: tuple[str, ...] = ()
    free: tuple[FreeNode, ...] = ()
    nearest: str = ""
    estimate_s: float | None = None
    basis: str = ""
    is_guess: bool = False
    source: str = ""
    latest_s: float | None = None
    remedy: str = ""
    change: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExplainAnswer(TargetAnswer):
    """The answer to "explain".

    Attributes:
        decision: None: the job does not wait, or there is no decision yet.
    """

    decision: JobDecision | None = None


@dataclass(frozen=True)
class SeesAnswer(TargetAnswer):
    """The answer to "sees".

    Attributes:
        sees: Those of the named environment variables that are set in the actor's process.
    """

    sees: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvictAnswer(TargetAnswer):
    """The answer to "evict".

    Attributes:
        attempt: Number of the attempt that ends.
    """

    attempt: int = 0


@dataclass(frozen=True)
class NodeRankStack(RankStack):
    """Where a rank is.

    Attributes:
        node: Number of its node in the attempt.
    """

    node: int = 0

    @classmethod
    def of(cls, stack: RankStack, node: int) -> NodeRankStack:
        """Return the position of a rank that runs on this node of its attempt."""
        return cls(
            rank=stack.rank,
            state=stack.state,
            how=stack.how,
            where=stack.where,
            waits=stack.waits,
            text=stack.text,
            node=node,
        )


@dataclass(frozen=True)
class StacksAnswer(TargetAnswer):
    """The answer to "stacks".

    Attributes:
        attempt: Number of the attempt.
        ranks: Its ranks, by number.
    """

    attempt: int = 0
    ranks: tuple[NodeRankStack, ...] = ()


@dataclass(frozen=True)
class StoreAnswer(TargetAnswer):
    """The answer to "store".

    Attributes:
        done: False: it is still storing; send the request again.
        problems: A sentence for each file that could not be stored, once it is done.
        progress: A line for each node that stores files, until then.
    """

    done: bool = False
    problems: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()


def _no_reply() -> SessionReply:
    return SessionReply("the target sent no reply of the node")


@dataclass(frozen=True)
class SessionAnswer(TargetAnswer):
    """The answer to "session".

    Attributes:
        reply: The node's answer to the step.
    """

    reply: SessionReply = field(default_factory=_no_reply)


@dataclass(frozen=True)
class RetireAnswer(TargetAnswer):
    """The answer to "retire".

    Attributes:
        busy: Whether jobs or sweeps are unfinished; None if unknown.
        jobs: The unfinished jobs because of which it was refused.
        live: How many running jobs are not yet back in the queue.
        grace_s: The longest time in seconds that one of them takes to end.
    """

    busy: bool | None = None
    jobs: tuple[str, ...] = ()
    live: int = 0
    grace_s: float = 0.0


@dataclass(frozen=True)
class ForwardedAnswer(Message):
    """A server's answer to a request that it forwards to a target.

    Attributes:
        is_late: A process listens there and did not answer in time.
        answer: The target's answer, which the class of the operation in `ANSWERS` reads; None: no
            process listens there.
    """

    is_late: bool
    answer: object = field(
        metadata={
            "described_as": StatusAnswer
            | ExplainAnswer
            | EvictAnswer
            | StacksAnswer
            | StoreAnswer
            | SessionAnswer
            | TargetAnswer
            | None
        },
    )


# The answer to each operation of `TargetRequest`.
ANSWERS: Mapping[str, type[TargetAnswer]] = {
    "ping": TargetAnswer,
    "wake": WakeAnswer,
    "status": StatusAnswer,
    "explain": ExplainAnswer,
    "sees": SeesAnswer,
    "evict": EvictAnswer,
    "stacks": StacksAnswer,
    "store": StoreAnswer,
    "session": SessionAnswer,
    "retire": RetireAnswer,
    "resume": TargetAnswer,
}
