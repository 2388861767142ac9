"""From exit records and log tails to one outcome and the failure that people are told."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rayjobs import tracebacks
from rayjobs.failures import Failure, FailureClass, signal_name
from rayjobs.injob import stacks
from rayjobs.units import memory_text

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
# What a collective says when another rank has left it: a consequence, not a cause. A script's own
# connections break with the same words, but not in a collective.
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
_SIGNALS = {
    signals.SIGKILL: "killed from outside, or by the kernel when the machine ran out of memory",
    signals.SIGSEGV: "invalid memory access in native code",
    signals.SIGABRT: "native code aborted, or an assertion failed",
    signals.SIGBUS: "often shared memory (/dev/shm) that is full",
    signals.SIGILL: "native code was built for another processor",
    signals.SIGFPE: "native code divided by zero",
    signals.SIGTERM: "asked to end from outside",
    signals.SIGINT: "interrupted",
    signals.SIGPIPE: "wrote to a pipe that nobody reads",
    signals.SIGXCPU: "used up its CPU time limit",
    signals.SIGXFSZ: "wrote a file larger than allowed",
}
# Ends that native code brings about by itself.
_CRASHES = (signals.SIGSEGV, signals.SIGABRT, signals.SIGBUS, signals.SIGILL, signals.SIGFPE)
# What a script fails with that waits for somebody to type, and what to do instead.
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
# Of a group that has stalled, how many ranks' places are kept with the failure.
STALLED_LINES = 16
# Ends of a host whose node its target could not reach any more (group, injob.lease).
NODE_LOST = ("node_lost", "lease_lost")
# How the reason begins that an attempt's hosts record when it gives way to others.
PREEMPTED_PREFIX = "preempted: "
# The reason that hosts record which are ended because nobody can follow them where they are.
PLACE_LOST = "its place was lost"


class _Words(dict[int, tracebacks.Said]):
    """What each rank's log says about its end, read where it is asked for."""

    def __init__(self, tails: Mapping[int, bytes]) -> None:
        super().__init__()
        self._tails = tails

    def __missing__(self, rank: int) -> tracebacks.Said:
        self[rank] = tracebacks.find(self._tails.get(rank, b""))
        return self[rank]


def diagnose(
    exits: Sequence[Mapping[str, Any]],
    tails: Mapping[int, bytes],
    *,
    data: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, Failure | None]:
    """Return an attempt's outcome and, unless it completed or was canceled, its root cause.

    Args:
        exits: Exit records, one per node (docs/architecture.md).
        tails: The end of each rank's log, by rank.
        data: Of each node, what is known of its inputs (``compute.nodedata.NodeData.facts``).
    """
    bad = [record for record in exits if record.get("outcome") != "completed"]
    if exits and not bad:
        return "completed", None
    if not bad:
        return "host_error", Failure(
            FailureClass.SYSTEM, "the attempt left no exit record: its end is unknown"
        )
    words = _Words(tails)
    record = min(bad, key=lambda one: _blame_order(one, words))
    lost = next((one for one in bad if one.get("outcome") in NODE_LOST), None)
    if lost is not None and _is_of_a_lost_node(record, words):
        return "node_lost", Failure(FailureClass.NODE_LOST, str(lost.get("reason") or "node lost"))
    outcome = str(record.get("outcome"))
    if outcome == "canceled":
        reason = str(record.get("reason") or "")
        if reason.startswith(PREEMPTED_PREFIX):
            return "preempted", Failure(FailureClass.PREEMPTED, reason)
        if reason == PLACE_LOST:  # whoever ended it may have died before it could say so
            return "node_lost", Failure(FailureClass.NODE_LOST, f"{reason}; it was ended first")
        return outcome, None
    rank = _own_failure(record, words)
    number = None if rank is None else int(rank["rank"])
    said = words[number] if number is not None else None
    if outcome == "stalled":
        return outcome, _stalled(record, bad)
    if outcome == "time_limit":
        number = _any_rank(record) if number is None else number
        lines = words[-1 if number is None else number].lines[-3:]
        reason = str(record.get("reason") or "the attempt reached its time limit")
        return outcome, Failure(
            FailureClass.TIME_LIMIT, f"{reason}; raise --max-duration", rank=None, lines=lines
        )
    if outcome == "out_of_memory":
        return outcome, _failure(
            FailureClass.OUT_OF_MEMORY, _memory_message(record, number), rank, said
        )
    if outcome != "failed":
        reason = str(record.get("reason") or "the attempt host failed")
        return outcome, _failure(FailureClass.SYSTEM, reason, rank, None)
    if rank is None:
        reason = str(record.get("reason") or "the attempt failed, and no rank is named")
        return outcome, Failure(FailureClass.USER, reason)
    assert said is not None
    if _lost_peer(said):
        record, rank, said = _who_was_leaving(bad, words) or (record, rank, said)
    failure_class = _class_of(record, rank, said)
    if failure_class is FailureClass.USER:
        cause = _data_cause(said, tails.get(int(rank["rank"]), b""), data)
        if cause:
            message = f"{cause} ({_message(record, rank, said)})"
            troubles = [one for node in data for one in node["troubles"]]
            is_outage = any(one.get("is_outage") for one in troubles)
            failure = _failure(FailureClass.DATA, message, rank, said)
            # Where a storage was away as well, it may have been for that.
            is_permanent = not is_outage and any(one.get("is_permanent") for one in troubles)
            return outcome, replace(failure, is_outage=is_outage, is_permanent=is_permanent)
        message = _message(record, rank, said) + _refused_write(said, data)
        return outcome, _failure(failure_class, message, rank, said)
    return outcome, _failure(failure_class, _message(record, rank, said), rank, said)


def _failure(
    failure_class: FailureClass,
    message: str,
    rank: Mapping[str, Any] | None,
    said: tracebacks.Said | None,
) -> Failure:
    return Failure(
        failure_class,
        message,
        rank=None if rank is None else int(rank["rank"]),
        exit_code=None if rank is None else rank.get("exit_code"),
        signal=None if rank is None else rank.get("signal"),
        lines=() if said is None else said.lines,
    )


def _blame_order(record: Mapping[str, Any], words: _Words) -> tuple[bool, bool, bool, float]:
    """Return what sorts nodes by blame: one that failed by itself, then the earliest.

    Clocks of two machines need not agree: times decide only where nothing else does. A cancel
    that one node was given because another failed must not hide that failure, nor must an end
    that MPI brought to all nodes, nor what a rank elsewhere suffered from it.
    """
    outcome = record.get("outcome")
    rank = _own_failure(record, words)
    left = outcome == "failed" and rank is not None and _lost_peer(words[int(rank["rank"])])
    ended = None if rank is None else rank.get("ended_at")
    at = ended if ended is not None else record.get("ended_at")
    return outcome == "canceled", bool(record.get("is_consequence")), left, float(at or 0.0)


def _own_failure(record: Mapping[str, Any], words: _Words) -> Mapping[str, Any] | None:
    """Return the rank that a node's end began with.

    Of those found dead together, one that was not left by another; who ended later may have been
    asked to.
    """
    first = _first_rank(record)
    if first is None or record.get("outcome") != "failed":
        return first
    ended_at = first.get("ended_at")
    at_once = [one for one in _failed_ranks(record) if one.get("ended_at") == ended_at]
    own = (one for one in (first, *at_once) if not _lost_peer(words[int(one["rank"])]))
    return next(own, first)


def _failed_ranks(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    ranks = record.get("ranks") or ()
    return [one for one in ranks if one.get("ended_at") is not None and one.get("exit_code") != 0]


def _first_rank(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = record.get("first_failed_rank")
    ranks = record.get("ranks") or ()
    for rank in ranks:
        if wanted is not None and rank.get("rank") == wanted:
            return dict(rank)
    if record.get("outcome") != "failed":
        return None
    failed = [rank for rank in ranks if rank.get("exit_code") != 0]
    return min(failed, key=lambda rank: rank.get("ended_at") or 0.0) if failed else None


def _lost_peer(said: tracebacks.Said) -> bool:
    told = (said.error, *said.lines)
    if any(name in line for name in _LEFT for line in told):
        return True
    broken = [line for line in told if any(text in line for text in _BROKEN)]
    # An older torch says no more than these words, but raises them itself.
    in_collective = _COLLECTIVES_FILE.search(said.raised_in) is not None
    return any(in_collective or _COLLECTIVE.search(line) for line in broken)


def _who_was_leaving(
    bad: Sequence[Mapping[str, Any]], words: _Words
) -> tuple[Mapping[str, Any], Mapping[str, Any], tracebacks.Said] | None:
    """Return the rank that all failed ones were left by, with its record and its words.

    A failing rank closes its connections before it has ended, so that another one may fail by
    that, and end, before it. Only the traceback that it ended with tells: one that it went on
    after was none of its end, which it was asked for.
    """
    found = []
    for record in bad:
        for rank in _failed_ranks(record):
            said = words[int(rank["rank"])]
            if said.ends_log and not _lost_peer(said):
                ended = rank.get("signal") in (signals.SIGTERM, signals.SIGKILL)
                found.append((record, {**rank, "was_leaving": ended}, said))
    return min(found, key=lambda one: (one[1]["ended_at"], one[1]["rank"]), default=None)


def _is_of_a_lost_node(record: Mapping[str, Any], words: _Words) -> bool:
    """Whether an end is that of a lost node, or what a rank elsewhere suffers from it."""
    rank = _own_failure(record, words)
    if rank is None:
        return True
    said = words[int(rank["rank"])]
    # Gloo, NCCL and MPI may also abort without a word when a peer is gone, and a script's own
    # connections to it break like theirs.
    is_broken = any(text in line for text in _BROKEN for line in (said.error, *said.lines))
    return _lost_peer(said) or is_broken or not said.is_traceback


def _stalled(record: Mapping[str, Any], bad: Sequence[Mapping[str, Any]]) -> Failure:
    """Return the failure of an attempt that said nothing any more, with the rank to look at."""
    reason = str(record.get("reason") or "the attempt has stalled")
    found = [one for node in bad for one in node.get("stacks") or ()]
    odd, how = stacks.odd_ones(found)
    name = stacks.named(odd, how)
    if odd and name not in reason:
        reason += f"; {name}"
    places = tuple(f"rank {one['rank']}: {one['where']}" for one in found if one["where"])
    rank = odd[0] if len(odd) == 1 else None
    kept = "; the stacks of all ranks are in logs/stacks/" if found else ""
    return Failure(FailureClass.STALLED, reason + kept, rank=rank, lines=places[:STALLED_LINES])


def _any_rank(record: Mapping[str, Any]) -> int | None:
    ranks = record.get("ranks") or ()
    return int(ranks[0]["rank"]) if ranks else None


def _class_of(
    record: Mapping[str, Any], rank: Mapping[str, Any], said: tracebacks.Said
) -> FailureClass:
    if rank.get("out_of_memory"):
        return FailureClass.OUT_OF_MEMORY
    if any(text in said.error for text in _FULL):
        return FailureClass.STORAGE
    # On a full disk the traceback itself may be missing from the log.
    if "ENOSPC" in str(record.get("reason")) and not said.is_traceback:
        return FailureClass.STORAGE
    if any(text in said.error for text in _NO_MEMORY):
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.USER


def _data_cause(
    said: tracebacks.Said, tail: bytes, data: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return why an attempt failed for its data; None if it did not, as far as is known.

    A script that reads from a mount sees an I/O error and no cause: the mount's process knows it.
    Trouble alone says nothing: it may have passed, and the script failed for another reason.
    """
    text = tail.decode("utf-8", "replace")
    for node in data:
        for trouble in node["troubles"]:
            # Native code that maps a file dies of SIGBUS, without a word.
            if not said.is_traceback or any(mark in text for mark in _UNREADABLE):
                return f"input {trouble['name']!r} could not be read: {trouble['message']}"
    if any(mark in said.error for mark in _UNREADABLE):
        for node in data:
            if node["mounted"] or any(path in text for path in node["paths"]):
                names = ", ".join(node["mounted"]) or "its inputs"
                return f"an input could not be read ({names})"
    return None


def _refused_write(said: tracebacks.Said, data: Sequence[Mapping[str, Any]]) -> str:
    """Return what to do about an attempt to write to an input, if that ended the script."""
    if not any(mark in said.error for mark in _READ_ONLY):
        return ""
    for node in data:
        for name, paths in node.get("read_only", {}).items():
            if any(path in said.error for path in paths):
                return (
                    f"; input {name!r} is read-only for the job. Write to an output, or use the "
                    f"mode download for private copies that the script may change"
                )
    return ""


def _message(record: Mapping[str, Any], rank: Mapping[str, Any], said: tracebacks.Said) -> str:
    who = f"rank {rank['rank']}"
    number, code = rank.get("signal"), rank.get("exit_code")
    if rank.get("was_leaving"):
        what = f"{who} failed (and was ended while it was leaving)"
    elif number is not None:
        meaning = _SIGNALS.get(number)
        how = "crashed with" if number in _CRASHES else "was ended by"
        what = f"{who} {how} {signal_name(number)}"
        what += f" ({meaning})" if meaning else ""
        what += f" at {said.at}" if said.is_crash and said.at else ""
    else:
        what = f"{who} exited with code {code}"
        if isinstance(code, int) and 128 < code < 128 + 65 and not said.is_traceback:
            what += f" (a shell also says so of a process ended by {signal_name(code - 128)})"
        elif code in _CODES:
            what += f" ({_CODES[code]})"
    if said.error and (said.is_traceback or number is None):
        what += f": {said.error}"
        what += f" ({said.at})" if said.at else ""
    elif number is None and code == 1 and said.lines:
        what += f"; its last line: {said.lines[-1].strip()}"  # sys.exit("text") says it there
    elif not said.lines:
        what += "; it printed nothing"
    if said.error in _TYPING:
        what += f"; {_TYPING[said.error]}"
    if "ENOSPC" in str(record.get("reason")) and "No space" not in what:
        what += "; the disk that holds the attempt's files is full"
    return what


def _memory_message(record: Mapping[str, Any], number: int | None) -> str:
    reason = str(record.get("reason") or "")
    memory = record.get("memory") or {}
    peak = memory.get("peak_bytes")
    if not reason:
        limit = memory.get("limit_bytes")
        who = "a process of the attempt" if number is None else f"rank {number}"
        reason = f"{who} was killed: out of memory"
        reason += f" under the limit of {memory_text(limit)}" if limit else ""
    return reason + (f" (peak {memory_text(peak)})" if peak else "")
