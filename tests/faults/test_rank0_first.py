"""Rank 0 starts first: ranks that connect before it listens lose half a second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.injob import master_port
from tests.conformance.hosts import Attempt, warm

__all__ = ["warm"]

pytestmark = pytest.mark.timeout(600)

MEETS = """
import os, socket, sys, time
place = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    time.sleep(0.3)
    meeting = socket.socket()
    meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    meeting.bind(place)
    meeting.listen()
    for _ in range(2):
        meeting.accept()
else:
    socket.create_connection(place, timeout=60)  # refused if nothing listens
"""


@pytest.fixture
def port() -> Iterator[int]:
    held, number = master_port.reserve()
    yield number
    os.close(held)


def attempt_at(folder: Path, port: int, script: str, most_s: float) -> Attempt:
    return Attempt.make(
        folder,
        script,
        ranks=3,
        master_port=port,
        env={"MASTER_PORT": str(port)},
        extras={"kind": "head-start", "port": port, "most_s": most_s},
    )


@pytest.mark.parametrize("is_warm", [True, False])
def test_other_ranks_start_when_rank_zero_listens(
    short_path: Path, port: int, warm: str, is_warm: bool
) -> None:
    """Off switch: start all ranks at once."""
    attempt = attempt_at(short_path, port, MEETS, 300.0)
    record = (attempt.start(warm) if is_warm else attempt.start_cold()).wait()
    logs = [attempt.log(rank).decode() for rank in range(3)]
    assert record["outcome"] == "completed", (record, logs)


def test_ranks_start_if_rank_zero_never_listens(short_path: Path, port: int, warm: str) -> None:
    record = attempt_at(short_path, port, "print('ran')", 0.1).start(warm).wait()
    assert record["outcome"] == "completed"
    assert [one["exit_code"] for one in record["ranks"]] == [0, 0, 0]


def test_failing_rank_zero_ends_the_waiting_ranks(short_path: Path, port: int, warm: str) -> None:
    script = "import os, sys\nsys.exit(3 if os.environ['RANK'] == '0' else 0)"
    record = attempt_at(short_path, port, script, 300.0).start(warm).wait()
    assert record["outcome"] == "failed"
    assert record["first_failed_rank"] == 0
    assert record["leftovers"]["proven_dead"]
