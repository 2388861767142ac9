"""Of many ended ranks, the one that caused the others to end is named."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from rayjobs.core.failures import FailureClass as F
from rayjobs.jobs.rootcause import diagnose
from tests.unit.jobs.test_rootcause import rank_record, record

RAISED = b"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    raise ValueError("bad batch")
ValueError: bad batch
"""
# As torch prints a traceback after the rendezvous of the ranks.
RAISED_IN_A_GROUP = b"".join(b"[rank1]: " + line for line in RAISED.splitlines(keepends=True))
LEFT = b"""Traceback (most recent call last):
  File "train.py", line 12, in <module>
    dist.barrier()
RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242
"""


def test_rank_that_left_the_others_is_named_even_if_it_ended_later() -> None:
    left = rank_record(0, exit_code=1, ended_at=2.0)
    leaving = rank_record(1, exit_code=None, signal=signal.SIGTERM, ended_at=2.4)
    stopped = rank_record(2, exit_code=None, signal=signal.SIGTERM, ended_at=2.1)
    _, failure = diagnose([record("failed", left, leaving, stopped)], {0: LEFT, 1: RAISED, 2: b""})
    assert failure is not None
    assert failure.rank == 1
    assert failure.message.startswith("rank 1 failed (and was killed while it was exiting): Value")
    assert failure.failure_class is F.USER


@pytest.mark.parametrize("raised", [RAISED, RAISED_IN_A_GROUP])
def test_rank_that_left_the_others_is_named_even_if_its_node_ended_later(
    raised: bytes,
) -> None:
    exits = [
        record("failed", rank_record(0, exit_code=1, ended_at=2.0), node=0),
        record("failed", rank_record(1, exit_code=1, ended_at=2.2), node=1),
    ]
    _, failure = diagnose(exits, {0: LEFT, 1: raised})
    assert failure is not None
    assert failure.message == "rank 1 exited with code 1: ValueError: bad batch (train.py:9)"


def test_of_two_ranks_found_dead_the_one_without_a_lost_peer_is_named() -> None:
    ranks = (rank_record(0, exit_code=1), rank_record(1, exit_code=7), rank_record(2, exit_code=1))
    _, failure = diagnose([record("failed", *ranks)], {0: LEFT, 1: b"", 2: LEFT})
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 7)


def test_unexplained_lost_peer_is_reported_unchanged() -> None:
    late = rank_record(1, exit_code=143, ended_at=2.5)  # ended on SIGTERM
    exits = [record("failed", rank_record(0, exit_code=1), late)]
    _, failure = diagnose(exits, {0: LEFT, 1: b"saved\n"})
    assert failure is not None
    assert failure.rank == 0
    assert "Connection closed by peer" in failure.message


RESET = b"""Traceback (most recent call last):
  File "train.py", line 3, in fetch
    urllib.request.urlopen(url).read()
  File "/usr/lib/python3.11/socket.py", line 706, in readinto
    return self._sock.recv_into(b)
ConnectionResetError: [Errno 104] Connection reset by peer
"""
HANDLED = b"ERROR:root:a bad batch is left out\n" + RAISED


@pytest.mark.parametrize("rest", [b"epoch 2\n", b"\r  0%|    |\r 50%|##  |"], ids=["line", "bar"])
@pytest.mark.parametrize("log", [RESET, LEFT], ids=["own connection", "lost peer"])
def test_a_handled_error_of_a_rank_that_was_ended_is_not_blamed(log: bytes, rest: bytes) -> None:
    failed = rank_record(0, exit_code=1, ended_at=2.0)
    ended = rank_record(1, exit_code=None, signal=signal.SIGTERM, ended_at=2.4)
    _, failure = diagnose([record("failed", failed, ended)], {0: log, 1: HANDLED + rest})
    assert failure is not None
    assert failure.rank == 0
    assert log.decode().splitlines()[-1] in failure.message


def test_connection_opened_by_the_script_is_not_a_lost_peer() -> None:
    """Not even if another rank, ended after it, has a log that ends with a traceback."""
    failed = rank_record(0, exit_code=1, ended_at=2.0)
    ended = rank_record(1, exit_code=None, signal=signal.SIGTERM, ended_at=2.4)
    _, failure = diagnose([record("failed", failed, ended)], {0: RESET, 1: RAISED})
    assert failure is not None
    assert failure.rank == 0 and "ConnectionResetError" in failure.message


WHILE_LEAVING = [
    b"[rank1]:[W1122 17:52:11.123456789 ProcessGroupNCCL.cpp:1250] Warning: not destroyed\n",
    b"/usr/lib/python3.11/resource_tracker.py:254: UserWarning: 2 leaked semaphores\n"
    b"  warnings.warn('leaked')\n",
    b"\nException ignored in: <function A.__del__ at 0x7f>\nTraceback (most recent call last):\n"
    b'  File "train.py", line 3, in __del__\nOSError: late\n',
]


@pytest.mark.parametrize(
    "log",
    [*(RAISED + rest for rest in WHILE_LEAVING), RAISED_IN_A_GROUP + b"[rank1]: of two lines\n"],
    ids=["c10d", "a warning", "an ignored exception", "a message of several lines"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_output_at_exit_does_not_hide_the_cause(log: bytes, number: int) -> None:
    left = rank_record(0, exit_code=1, ended_at=2.0)
    leaving = rank_record(1, exit_code=None, signal=number, ended_at=2.4)
    _, failure = diagnose([record("failed", left, leaving)], {0: LEFT, 1: log})
    assert failure is not None
    assert failure.message.startswith("rank 1 failed (and was killed while it was exiting): Value")


@pytest.mark.parametrize(
    ("cause", "log"),
    [
        (rank_record(0, exit_code=None, signal=signal.SIGSEGV, ended_at=100.0), b"epoch 1\n"),
        (rank_record(0, exit_code=7, ended_at=100.0), b""),
    ],
    ids=["a signal", "a code"],
)
def test_slow_clock_does_not_turn_a_consequence_into_the_cause(
    cause: dict[str, Any], log: bytes
) -> None:
    left = rank_record(1, exit_code=1, ended_at=98.3)
    ended = rank_record(2, exit_code=None, signal=signal.SIGTERM, ended_at=98.0)
    exits = [
        record("failed", cause, node=0),
        record("failed", left, node=1),
        record("canceled", ended, node=2),
    ]
    _, failure = diagnose(exits, {0: log, 1: LEFT, 2: RAISED})
    assert failure is not None
    assert (failure.rank, failure.signal) == (0, cause["signal"])


def test_a_node_out_of_memory_is_the_cause_although_its_clock_is_ahead() -> None:
    left = record("failed", rank_record(1, exit_code=1, ended_at=98.3), node=1)
    killed = rank_record(0, exit_code=None, signal=9, out_of_memory=True, ended_at=100.0)
    exits = [left, record("out_of_memory", killed, reason="rank 0 was killed", node=0)]
    outcome, failure = diagnose(exits, {0: b"", 1: LEFT})
    assert failure is not None
    assert (outcome, failure.rank) == ("out_of_memory", 0)


OLD_TORCH = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    dist.barrier()
  File "/env/lib/python3.9/site-packages/torch/distributed/distributed_c10d.py", line 9, in barrier
    work.wait()
RuntimeError: Connection reset by peer
"""


@pytest.mark.parametrize(
    "log",
    [
        OLD_TORCH,
        "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, "
        "unhandled system error\nLast error:\nsocketProgress: Connection closed by remote peer\n",
        "[E1122 TCPStore.cpp:106] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset "
        "by peer\n",
        "terminate called after throwing an instance of 'gloo::IoException'\n"
        "  what():  [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1\n",
        "horovod.common.exceptions.HorovodInternalError: [10.0.0.2]:1: Broken pipe\n",
        "[btl_tcp_frag.c:241:mca_btl_tcp_frag_recv] error: readv failed: Connection reset by "
        "peer (104)\n",
    ],
    ids=["old torch", "nccl", "store", "gloo's abort", "horovod", "open mpi"],
)
def test_lost_peer_messages_of_each_collective_are_known(log: str) -> None:
    exits = [
        record("failed", rank_record(0, exit_code=1, ended_at=98.0), node=0),
        record("failed", rank_record(1, exit_code=3, ended_at=99.0), node=1),
    ]
    _, failure = diagnose(exits, {0: log.encode(), 1: b"no batches left\n"})
    assert failure is not None
    assert failure.rank == 1
