"""How an attempt ended on a node: the exit record, and the outcome that is saved before it."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import field
from typing import Any, Mapping, Optional, Protocol, Tuple

from rayjobs.injob import record_files
from rayjobs.injob.files import write_atomic
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, MessageError
from rayjobs.injob.outcomes import EndReason, Outcome, reason_of_sentence
from rayjobs.injob.rank_stack import RankStack

NAME = "exit.json"
# How the attempt ended, known before all of its processes are proven dead.
OUTCOME = "outcome.json"
_RESERVE = ".reserve"
_RESERVE_BYTES = 64 * 1024


@dataclass(frozen=True)
class RankExit(Message):
    """How one rank ended.

    Attributes:
        pid: Its process's pid; None if an earlier version did not record it.
        start_time: Its process's start, in clock ticks since boot.
        exit_code: None if a signal ended it, or it has not ended.
        signal: Number of the signal that ended it.
        started_at: In seconds since 1970; None, or 0 by earlier versions: it was never released.
        ended_at: In seconds since 1970.
        out_of_memory: The attempt's own memory limit ended it.
        log_bytes: Size of its log.
        log_dropped: Bytes that the log's cap removed.
    """

    rank: int
    pid: Optional[int] = None
    start_time: Optional[int] = None
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    max_rss_bytes: Optional[int] = None
    out_of_memory: bool = False
    log_bytes: int = 0
    log_dropped: int = 0


@dataclass(frozen=True)
class Remaining(Message):
    """A process that could not be ended."""

    pid: int
    start_time: int
    comm: str


@dataclass(frozen=True)
class Leftovers(Message):
    """Processes that outlived an attempt's ranks.

    Attributes:
        killed: Processes that were ended after the ranks.
        proven_dead: It is certain that no process of the attempt is left.
        remaining: Processes that could not be ended.
    """

    killed: int = 0
    proven_dead: bool = True
    remaining: Tuple[Remaining, ...] = ()


@dataclass(frozen=True)
class MemoryUse(Message):
    """The attempt's memory limit on the node, what enforced it, and the peak use."""

    limit_bytes: Optional[int] = None
    how: str = "none"
    peak_bytes: Optional[int] = None


@dataclass(frozen=True)
class PidsLimit(Message):
    """The attempt's limit of processes and threads on the node, and what enforced it."""

    limit: Optional[int] = None
    how: str = "none"


@dataclass(frozen=True)
class GpuUse(Message):
    """Samples of one GPU; None where it was not measured.

    Attributes:
        use: In percent.
        memory: In bytes.
    """

    use: Tuple[Optional[float], ...] = ()
    memory: Tuple[Optional[float], ...] = ()


@dataclass(frozen=True)
class UsageRecord(Message):
    """An attempt's resource use on a node, in columns of equal length, oldest sample first.

    Attributes:
        began_at: In seconds since 1970.
        every_s: Seconds between two samples at the end; it doubles as the run gets longer.
        peak_bytes: Peak memory; None: not measured.
        memory_how: ``cgroup``, or ``proportional``: shared pages are divided among their users.
        cpu_s: CPU time of all processes, in seconds.
        cost_s: CPU time that sampling took.
        t: Seconds since `began_at`.
        cpu: Busy cores.
        memory: In bytes.
        gpus: By the driver's number.
        node: Number of the node in the attempt.
    """

    began_at: float = 0.0
    every_s: float = 0.0
    peak_bytes: Optional[int] = None
    memory_how: str = ""
    cpu_s: float = 0.0
    cost_s: float = 0.0
    t: Tuple[float, ...] = ()
    cpu: Tuple[float, ...] = ()
    memory: Tuple[float, ...] = ()
    gpus: Mapping[str, GpuUse] = field(default_factory=dict)
    node: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all columns have the same length, as in every record that a host wrote."""
        sizes = {len(self.t), len(self.cpu), len(self.memory)}
        for gpu in self.gpus.values():
            sizes |= {len(gpu.use), len(gpu.memory)}
        return len(sizes) == 1


class OneNode(Protocol):
    """The fields that all messages about an attempt on one node share."""

    @property
    def job(self) -> str:
        """Id of the job."""

    @property
    def attempt(self) -> int:
        """Number of the attempt."""

    @property
    def node(self) -> int:
        """Number of the node in the attempt."""

    @property
    def marker(self) -> str:
        """Marks every process of the attempt on this node."""


@dataclass(frozen=True)
class ExitRecord(Message):
    """How an attempt ended on one node. One constructor for each kind of record.

    Attributes:
        started_at: In seconds since 1970; None if no host survived to report it.
        duration_s: Seconds since its ranks were released.
        reason: A sentence for people.
        disk_full: Whether the disk of the attempt's files was full when a rank failed.
        out_of_files: Whether the host could not open more files, so that it failed.
        end_reason: Why its end was requested; None: it was not.
        is_consequence: Whether an event on another node caused the end.
        first_failed_rank: The rank that caused the end; None: no rank did.
        tree: What contained its processes; ``lost``: unknown.
        pids: None if no host survived to report it.
        cold: Why its ranks did not come from a warm interpreter; None when they did.
        usage: Samples of CPU, memory and GPUs; None: there are none.
        stacks: Where its ranks were, if it had stalled.
        boot_id: Of the machine, in a record that a node wrote in place of a killed host.
    """

    job: str
    attempt: int
    node: int
    marker: str
    outcome: Outcome
    reason: str = ""
    end_reason: Optional[EndReason] = None
    is_consequence: bool = False
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    duration_s: Optional[float] = None
    ranks: Tuple[RankExit, ...] = ()
    first_failed_rank: Optional[int] = None
    leftovers: Leftovers = Leftovers()
    tree: str = "lost"
    memory: MemoryUse = MemoryUse()
    pids: Optional[PidsLimit] = None
    cold: Optional[str] = None
    usage: Optional[UsageRecord] = None
    stacks: Tuple[RankStack, ...] = ()
    boot_id: Optional[str] = None
    disk_full: bool = False
    out_of_files: bool = False
    version: int = 1

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set what an earlier version recorded only in the sentence: end_reason and disk_full."""
        sentence = str(values.get("reason") or "")
        found = {"disk_full": "ENOSPC" in sentence, **values}
        if values.get("outcome") == Outcome.CANCELED:
            found.setdefault("end_reason", reason_of_sentence(sentence))
        return found

    @classmethod
    def of_lost_host(
        cls,
        on: OneNode,
        *,
        boot_id: str,
        leftovers: Leftovers,
        usage: Optional[UsageRecord],
    ) -> ExitRecord:
        """Return the record that stands in for the one that a killed host did not write."""
        return cls(
            on.job,
            on.attempt,
            on.node,
            on.marker,
            Outcome.HOST_ERROR,
            reason="the attempt host was killed and left no exit record",
            boot_id=boot_id,
            leftovers=leftovers,
            usage=usage,
        )

    @classmethod
    def of_stopped_host(
        cls, on: OneNode, *, outcome: Outcome, reason: str, end_reason: Optional[EndReason] = None
    ) -> ExitRecord:
        """Return the record of an attempt that its node ends in place of a stopped host."""
        return cls(on.job, on.attempt, on.node, on.marker, outcome, reason, end_reason)

    @classmethod
    def of_lost_node(cls, on: OneNode, *, name: str) -> ExitRecord:
        """Return the record for a host that was lost with its node `name`."""
        reason = f"{name} was lost, and its attempt host ended when its lease expired"
        return cls(on.job, on.attempt, on.node, on.marker, Outcome.NODE_LOST, reason)


def make_reserve(root: str) -> None:
    """Reserve disk space for the exit record, in case the disk fills up."""
    try:
        with open(os.path.join(root, _RESERVE), "wb") as file:
            # Not zeros: a compressing file system would reserve no space for them.
            file.write(os.urandom(_RESERVE_BYTES))
    except OSError:
        return  # already full: the record is then written without a reserve


def write_file(path: str, values: Mapping[str, Any]) -> None:
    """Write a JSON file atomically and durably.

    Raises:
        OSError: the disk is full or broken; an older file of that name is untouched.
    """
    write_atomic(path, json.dumps(values) + "\n", durable=True, mode=0o600)


def write(root: str, record: ExitRecord) -> None:
    """Write the exit record; on a full disk, into the reserved space.

    Raises:
        OSError: even the reserved space did not suffice.
    """
    path = os.path.join(root, NAME)
    values = record.to_json()
    try:
        write_file(path, values)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        release_reserve(root)
        write_file(path, values)
    release_reserve(root)


def write_outcome(root: str, record: ExitRecord) -> None:
    """Save how the attempt ended, in case its host dies before it writes the exit record.

    An existing file stays: the first report is the right one. A full disk is ignored.
    """
    path = os.path.join(root, OUTCOME)
    try:
        if not os.path.lexists(path):
            write_file(path, record.to_json())
    except OSError:
        return  # the exit record has its own reserve; this file only covers its absence


def has_outcome(root: str, marker: str) -> bool:
    """Whether `write_outcome` saved the end of the attempt `marker`."""
    return bool(_outcome_values(root, marker))


def with_outcome(root: str, lost: ExitRecord) -> Optional[ExitRecord]:
    """Return the record `lost` of a killed host, completed with what `write_outcome` saved.

    None if nothing was saved. An earlier version saved only outcome and reason.
    """
    values = _outcome_values(root, lost.marker)
    if not values:
        return None
    kept = {name: one for name, one in values.items() if one is not None}
    try:
        return ExitRecord.from_json(
            {**lost.to_json(), **kept, "leftovers": lost.leftovers.to_json()}
        )
    except MessageError:
        return None


def _outcome_values(root: str, marker: str) -> Mapping[str, Any]:
    try:
        values = record_files.read_json(root, OUTCOME)
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or values.get("marker") != marker:
        return {}
    return ExitRecord.upgraded(values) if isinstance(values.get("outcome"), str) else {}


def release_reserve(root: str) -> None:
    """Free the reserved space."""
    _remove(os.path.join(root, _RESERVE))


def read(root: str) -> Optional[ExitRecord]:
    """Return the exit record in an attempt's folder, or None while there is none.

    Raises:
        ValueError: the file exists but is not a record; rayjobs never writes a partial one.
        OSError: a link, FIFO, folder or device is in its place, or it cannot be read.
    """
    try:
        values = record_files.read_json(root, NAME)
    except FileNotFoundError:
        return None
    try:
        return ExitRecord.from_json(values)
    except MessageError as error:
        raise ValueError(f"{os.path.join(root, NAME)} is not an exit record: {error}") from error


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # it does not exist
