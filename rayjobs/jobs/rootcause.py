"""Derives an attempt's outcome and root cause from its exit records and log tails."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rayjobs.core.failures import Failure, FailureClass, signal_name
from rayjobs.core.text import size_text
from rayjobs.injob import stacks
from rayjobs.injob.exit_record import ExitRecord, RankExit
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import EndReason, Outcome
from rayjobs.jobs import tracebacks
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.jobs.outcomes import ENDS, LOST_WITH_NODE
from rayjobs.jobs.outcomes import failure_class as failure_class_of

_FULL = ("No space left on device", "[Errno 28]", "Disk quota exceeded", "[Errno 122]")
_NO_MEMORY = (
    "MemoryError",
    "OutOfMemoryError",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
)
_UNREADABLE = (
    "Input/output error",
    "[Errno 5]",
    "Transport endpoint is not connected",
    "[Errno 107]",
)
_READ_ONLY = ("Read-only file system", "[Errno 30]")
# The errors of a collective that another rank has left: a consequence, not a cause. A script's own
# connections break with the same messages, but not in a collective.
_LEFT = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "The client socket has",  # c10d, before it had exceptions of its own
    "ncclRemoteError",
    "HorovodInternalError",
    "MPI_ERR_PROC_FAILED",
)
_BROKEN = ("Connection closed by", "Connection reset by", "Broken pipe", "Connection refused")
_COLLECTIVE = re.compile(
    r"\bgloo|nccl|c10d|torch\.distributed|TCPStore|ProcessGroup|SocketImpl|horovod|mpi4py"
    r"|\bMPI_|btl_tcp",
    re.IGNORECASE,
)
_COLLECTIVES_FILE = re.compile(r"-packages/(?:torch/distributed|horovod|mpi4py)/")
_SIGNALS: Mapping[int, str] = {
    signals.SIGKILL: "killed from outside, or by the kernel when the machine ran out of memory",
    signals.SIGSEGV: "invalid memory access in native code",
    signals.SIGABRT: "native code aborted, or an assertion failed",
    signals.SIGBUS: "often shared memory (/dev/shm) that is full",
    signals.SIGILL: "native code was built for another processor",
    signals.SIGFPE: "native code divided by zero",
    signals.SIGTERM: "another process requested its end",
    signals.SIGINT: "interrupted",
    signals.SIGPIPE: "wrote to a pipe whose reader had closed it",
    signals.SIGXCPU: "used up its CPU time limit",
    signals.SIGXFSZ: "wrote a file larger than allowed",
}
# Ends that native code causes itself.
_CRASHES = (signals.SIGSEGV, signals.SIGABRT, signals.SIGBUS, signals.SIGILL, signals.SIGFPE)
# The errors of a script that waits for keyboard input, with the remedy.
_TYPING = {
    "bdb.BdbQuit": "breakpoint() cannot stop here: a job has no terminal. Debug the script outside "
    "a job (`python SCRIPT`), or see where a running job is with `rayjobs stacks JOB`",
    "EOFError: EOF when reading a line": "input() has nothing to read: a job has no terminal. Pass "
    "the value as an argument of the script (after `--`), or as a file",
}
_CODES = {
    124: "the code of `timeout` when the time is over",
    126: "the shell's code for a command that cannot be executed",
    127: "the shell's code for a command that was not found",
}
# How many ranks of a stalled group are listed in its failure, each with its place in the code.
STALLED_LINES = 16


@dataclass(frozen=True)
class _Blamed:
    """The rank that made an attempt fail, with its node's record and the end of its log.

    Attributes:
        was_leaving: Whether it had failed, and was killed from outside while it exited.
    """

    record: ExitRecord
    rank: RankExit
    log_end: tracebacks.LogEnd
    was_leaving: bool = False


class _Words(dict[int, tracebacks.LogEnd]):
    """What each rank's log says about its end, read on demand."""

    def __init__(self, tails: Mapping[int, bytes]) -> None:
        super().__init__()
        self._tails = tails

    def __missing__(self, rank: int) -> tracebacks.LogEnd:
        self[rank] = tracebacks.find(self._tails.get(rank, b""))
        return self[rank]


def diagnose(
    exits: Sequence[ExitRecord],
    tails: Mapping[int, bytes],
    *,
    data: Sequence[DataFacts] = (),
    has_only_its_packages: bool = False,
    brings_programs: bool = False,
) -> tuple[Outcome, Failure | None]:
    """Return an attempt's outcome and, unless it completed or was canceled, its root cause.

    Args:
        exits: Exit records, one per node.
        tails: The end of each rank's log, by rank.
        data: Per node, the facts about its inputs.
        has_only_its_packages: Whether the job's environment has only the packages that the job
            requested, without the target's.
        brings_programs: Whether its programs are those of the job's own image or environment.
    """
    bad = [record for record in exits if record.outcome is not Outcome.COMPLETED]
    if exits and not bad:
        return Outcome.COMPLETED, None
    if not bad:
        return Outcome.HOST_ERROR, Failure(
            FailureClass.SYSTEM, "the attempt left no exit record: its end is unknown"
        )
    words = _Words(tails)
    record = min(bad, key=lambda one: _blame_order(one, words))
    lost = next((one for one in bad if one.outcome in LOST_WITH_NODE), None)
    if lost is not None and _is_of_a_lost_node(record, words):
        return Outcome.NODE_LOST, Failure(FailureClass.NODE_LOST, lost.reason or "node lost")
    if record.outcome is Outcome.CANCELED:
        return _of_request(record)
    rank = _own_failure(record, words)
    if record.outcome is Outcome.FAILED and rank is not None:
        blamed = _Blamed(record, rank, words[rank.rank])
        if _lost_peer(blamed.log_end):
            blamed = _who_was_leaving(bad, words) or blamed
        tail = tails.get(blamed.rank.rank, b"")
        failure = _of_script(blamed, tail, data, has_only_its_packages=has_only_its_packages)
    elif record.outcome is Outcome.STALLED:
        failure = _stalled(record, bad)
    else:
        failure = _of_attempt(record, rank, words, brings_programs=brings_programs)
    return record.outcome, failure


def _of_request(record: ExitRecord) -> tuple[Outcome, Failure | None]:
    """Return the outcome of an attempt whose end was requested, and its failure if it is one."""
    end = ENDS[record.end_reason or EndReason.CANCELED]
    if end.failure_class is None:
        return end.outcome, None
    # The target actor that ended the host may have died before it recorded the loss.
    is_lost = record.end_reason is EndReason.UNFOLLOWED
    more = "; its remaining processes were ended first" if is_lost else ""
    return end.outcome, Failure(end.failure_class, f"{record.reason}{more}")


def _of_attempt(
    record: ExitRecord, rank: RankExit | None, words: _Words, *, brings_programs: bool
) -> Failure:
    """Return the failure of an attempt whose script did not fail by itself."""
    outcome = record.outcome
    number = None if rank is None else rank.rank
    if outcome is Outcome.TIME_LIMIT:
        number = _any_rank(record) if number is None else number
        lines = words[-1 if number is None else number].lines[-3:]
        reason = record.reason or "the attempt reached its time limit"
        return Failure(
            failure_class_of(outcome), f"{reason}; raise --max-duration", rank=None, lines=lines
        )
    if outcome is Outcome.OUT_OF_MEMORY:
        log_end = None if number is None else words[number]
        return _failure(failure_class_of(outcome), _memory_message(record, number), rank, log_end)
    if outcome is Outcome.NOT_STARTABLE:
        # Without a rank, the cause is a volume of the job's container, not a program.
        is_program = brings_programs and rank is not None
        whose = FailureClass.ENVIRONMENT if is_program else FailureClass.USER
        return replace(_failure(whose, record.reason, rank, None), is_permanent=True)
    if outcome is Outcome.FAILED:
        reason = record.reason or "the attempt failed, and no rank is named"
        return Failure(FailureClass.USER, reason)
    reason = record.reason or "the attempt host failed"
    failure = _failure(FailureClass.SYSTEM, reason, rank, None)
    return replace(failure, is_out_of_files=record.out_of_files)


def _of_script(
    blamed: _Blamed, tail: bytes, data: Sequence[DataFacts], *, has_only_its_packages: bool
) -> Failure:
    """Return the failure of an attempt that failed because of one rank's script.

    Args:
        tail: The end of that rank's log.
        data: Per node, the facts about its inputs.
        has_only_its_packages: See `diagnose`.
    """
    rank, log_end = blamed.rank, blamed.log_end
    failure_class = _class_of(blamed.record, rank, log_end)
    message = _message(blamed)
    if failure_class is not FailureClass.USER:
        return _failure(failure_class, message, rank, log_end)
    if cause := _data_cause(log_end, tail, data):
        troubles = [one for node in data for one in node.troubles]
        is_outage = any(one.is_outage for one in troubles)
        failure = _failure(FailureClass.DATA, f"{cause} ({message})", rank, log_end)
        # If storage also failed to answer, that may have been the cause.
        is_permanent = not is_outage and any(one.is_permanent for one in troubles)
        return replace(failure, is_outage=is_outage, is_permanent=is_permanent)
    message += _refused_write(log_end, data)
    if has_only_its_packages:
        message += _missing_package(log_end)
    return _failure(failure_class, message, rank, log_end)


def _failure(
    failure_class: FailureClass,
    message: str,
    rank: RankExit | None,
    log_end: tracebacks.LogEnd | None,
) -> Failure:
    return Failure(
        failure_class,
        message,
        rank=None if rank is None else rank.rank,
        exit_code=None if rank is None else rank.exit_code,
        signal=None if rank is None else rank.signal,
        lines=() if log_end is None else log_end.lines,
    )


def _blame_order(record: ExitRecord, words: _Words) -> tuple[bool, bool, bool, float]:
    """Return the sort key of nodes by blame: those that failed by themselves, then the earliest.

    Clocks of two machines may differ: times decide only if nothing else does. A cancel on one node
    because of another's failure must not hide that failure. The same holds for an end that MPI
    caused on all nodes, and for a rank that failed because it lost a peer.
    """
    outcome = record.outcome
    rank = _own_failure(record, words)
    left = outcome is Outcome.FAILED and rank is not None and _lost_peer(words[rank.rank])
    ended = None if rank is None else rank.ended_at
    at = ended if ended is not None else record.ended_at
    end = record.end_reason
    follows = record.is_consequence or (end is not None and ENDS[end].is_consequence)
    return outcome is Outcome.CANCELED, follows, left, at or 0.0


def _own_failure(record: ExitRecord, words: _Words) -> RankExit | None:
    """Return the rank with which a node's end began.

    If several ranks were found dead together, this is one that did not lose a peer. Ranks that
    ended later may have received a stop request.
    """
    first = _first_rank(record)
    if first is None or record.outcome is not Outcome.FAILED:
        return first
    at_once = [one for one in _failed_ranks(record) if one.ended_at == first.ended_at]
    own = (one for one in (first, *at_once) if not _lost_peer(words[one.rank]))
    return next(own, first)


def _failed_ranks(record: ExitRecord) -> list[RankExit]:
    return [one for one in record.ranks if one.ended_at is not None and one.exit_code != 0]


def _first_rank(record: ExitRecord) -> RankExit | None:
    wanted = record.first_failed_rank
    for rank in record.ranks:
        if wanted is not None and rank.rank == wanted:
            return rank
    if record.outcome is not Outcome.FAILED:
        return None
    failed = [rank for rank in record.ranks if rank.exit_code != 0]
    return min(failed, key=lambda rank: rank.ended_at or 0.0) if failed else None


def _lost_peer(log_end: tracebacks.LogEnd) -> bool:
    texts = (log_end.error, *log_end.lines)
    if any(name in line for name in _LEFT for line in texts):
        return True
    broken = [line for line in texts if any(text in line for text in _BROKEN)]
    # An older torch prints only these words, but raises them itself.
    in_collective = _COLLECTIVES_FILE.search(log_end.raised_in) is not None
    return any(in_collective or _COLLECTIVE.search(line) for line in broken)


def _who_was_leaving(bad: Sequence[ExitRecord], words: _Words) -> _Blamed | None:
    """Return the rank whose exit made the other ranks fail, with its record and log.

    A failing rank closes its connections before it exits, so another rank may fail because of that
    and exit first. The failing rank is the one whose log ends with its traceback: a rank whose log
    continues after a traceback has survived it.
    """
    found = []
    for record in bad:
        for rank in _failed_ranks(record):
            log_end = words[rank.rank]
            if log_end.ends_log and not _lost_peer(log_end):
                ended = rank.signal in (signals.SIGTERM, signals.SIGKILL)
                found.append(_Blamed(record, rank, log_end, was_leaving=ended))
    return min(found, key=lambda one: (one.rank.ended_at or 0.0, one.rank.rank), default=None)


def _is_of_a_lost_node(record: ExitRecord, words: _Words) -> bool:
    """Whether an end is that of a lost node, or its consequence for a rank elsewhere."""
    rank = _own_failure(record, words)
    if rank is None:
        return True
    log_end = words[rank.rank]
    # Gloo, NCCL and MPI may also abort without a message when a peer is gone, and a script's own
    # connections to it break in the same way.
    is_broken = any(text in line for text in _BROKEN for line in (log_end.error, *log_end.lines))
    return _lost_peer(log_end) or is_broken or not log_end.is_traceback


def _stalled(record: ExitRecord, bad: Sequence[ExitRecord]) -> Failure:
    """Return the failure of a stalled attempt, with the rank to look at."""
    reason = record.reason or "the attempt has stalled"
    found = [one for node in bad for one in node.stacks]
    odd, how = stacks.odd_ones(found)
    name = stacks.named(odd, how)
    if odd and name not in reason:
        reason += f"; {name}"
    positions = tuple(f"rank {one.rank}: {one.where}" for one in found if one.where)
    rank = odd[0] if len(odd) == 1 else None
    kept = "; the stacks of all ranks are in logs/stacks/" if found else ""
    return Failure(FailureClass.STALLED, reason + kept, rank=rank, lines=positions[:STALLED_LINES])


def _any_rank(record: ExitRecord) -> int | None:
    return record.ranks[0].rank if record.ranks else None


def _class_of(record: ExitRecord, rank: RankExit, log_end: tracebacks.LogEnd) -> FailureClass:
    if rank.out_of_memory:
        return FailureClass.OUT_OF_MEMORY
    if any(text in log_end.error for text in _FULL):
        return FailureClass.STORAGE
    # On a full disk the traceback itself may be missing from the log.
    if record.disk_full and not log_end.is_traceback:
        return FailureClass.STORAGE
    if any(text in log_end.error for text in _NO_MEMORY):
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.USER


def _data_cause(log_end: tracebacks.LogEnd, tail: bytes, data: Sequence[DataFacts]) -> str | None:
    """Return why an attempt failed because of its data; None if nothing indicates that.

    A script that reads from a mount sees an I/O error without a cause, which only the mount's
    process knows. An error of the mount alone proves nothing: it may have been transient, and the
    script may have failed for another reason.
    """
    text = tail.decode("utf-8", "replace")
    for node in data:
        for trouble in node.troubles:
            # Native code that maps a file dies of SIGBUS without a message.
            if not log_end.is_traceback or any(mark in text for mark in _UNREADABLE):
                return f"input {trouble.name!r} could not be read: {trouble.message}"
    if any(mark in log_end.error for mark in _UNREADABLE):
        for node in data:
            if node.mounted or any(path in text for path in node.paths):
                names = ", ".join(node.mounted) or "its inputs"
                return f"an input could not be read ({names})"
    return None


def _missing_package(log_end: tracebacks.LogEnd) -> str:
    """Return how to get a package that the job's environment lacks, if that ended the script."""
    if not log_end.error.startswith("ModuleNotFoundError: No module named "):
        return ""
    return (
        "; the job's environment has only the packages that the job requested. Add the missing "
        "one, or add yours to the target's own packages: by --pip without --env, or by `base: "
        "target` in a job file's environment"
    )


def _refused_write(log_end: tracebacks.LogEnd, data: Sequence[DataFacts]) -> str:
    """Return the remedy for a write to a read-only input, if that ended the script."""
    if not any(mark in log_end.error for mark in _READ_ONLY):
        return ""
    for node in data:
        for name, paths in node.read_only.items():
            if any(path in log_end.error for path in paths):
                return (
                    f"; the files of input {name!r} are read-only for the job. Write to an output, "
                    f"or to the private copies that the mode download puts at the input's path"
                )
    return ""


def _message(blamed: _Blamed) -> str:
    record, rank, log_end = blamed.record, blamed.rank, blamed.log_end
    who = f"rank {rank.rank}"
    number, code = rank.signal, rank.exit_code
    if blamed.was_leaving:
        what = f"{who} failed (and was killed while it was exiting)"
    elif number is not None:
        meaning = _SIGNALS.get(number)
        how = "crashed with" if number in _CRASHES else "was ended by"
        what = f"{who} {how} {signal_name(number)}"
        what += f" ({meaning})" if meaning else ""
        what += f" at {log_end.at}" if log_end.is_crash and log_end.at else ""
    else:
        what = f"{who} exited with code {code}"
        if isinstance(code, int) and 128 < code < 128 + 65 and not log_end.is_traceback:
            what += f" (a shell also reports {signal_name(code - 128)} with this code)"
        elif code in _CODES:
            what += f" ({_CODES[code]})"
    if log_end.error and (log_end.is_traceback or number is None):
        what += f": {log_end.error}"
        what += f" ({log_end.at})" if log_end.at else ""
    elif number is None and code == 1 and log_end.lines:
        what += f"; its last line: {log_end.lines[-1].strip()}"  # the text of sys.exit("text")
    elif not log_end.lines:
        what += "; it printed nothing"
    if log_end.error in _TYPING:
        what += f"; {_TYPING[log_end.error]}"
    if record.disk_full and "No space" not in what:
        what += "; the disk that holds the attempt's files is full"
    return what


def _memory_message(record: ExitRecord, number: int | None) -> str:
    reason = record.reason
    peak = record.memory.peak_bytes
    if not reason:
        limit = record.memory.limit_bytes
        who = "a process of the attempt" if number is None else f"rank {number}"
        reason = f"{who} was killed: out of memory"
        reason += f" under the limit of {size_text(limit)}" if limit else ""
    return reason + (f" (peak {size_text(peak)})" if peak else "")
