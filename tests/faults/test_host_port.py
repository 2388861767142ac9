"""The rendezvous port of ranks: the attempt host holds it as long as the attempt runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rayjobs.injob import master_port
from tests.conformance.hosts import Attempt, warm

__all__ = ["warm"]

pytestmark = pytest.mark.timeout(600)  # some wait for several ends, each with a long deadline

LISTENS = """
import os, socket, time
meeting = socket.socket()
meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
meeting.bind(("", int(os.environ["MASTER_PORT"])))
meeting.listen()
print("listens", flush=True)
time.sleep(600)
"""


def attempt_at(folder: Path, port: int) -> Attempt:
    return Attempt.make(folder, LISTENS, master_port=port, env={"MASTER_PORT": str(port)})


@pytest.mark.parametrize("is_warm", [True, False])
def test_rank_zero_listens_on_the_held_port(short_path: Path, warm: str, is_warm: bool) -> None:
    """Off switch: bind without SO_REUSEADDR; or leave the descriptor open in the ranks."""
    chosen, port = master_port.reserve()
    attempt = attempt_at(short_path, port)
    attempt.start(warm) if is_warm else attempt.start_cold()
    os.close(chosen)  # as the agent does, once the host has started
    attempt.printed("listens")
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("", port))
    rank = attempt.status()["ranks"][0]["pid"]
    sockets = [
        target
        for one in Path(f"/proc/{rank}/fd").iterdir()
        if (target := str(one.readlink())).startswith("socket:")
    ]
    assert len(sockets) == 1, sockets  # its own descriptors only, not those of the host
    attempt.cancel(grace_s=0.0)
    assert attempt.wait()["outcome"] == "canceled"


def test_taken_port_is_a_system_failure(short_path: Path, warm: str) -> None:
    """Off switch: ignore the error of `master_port.reserve`."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        record = attempt_at(short_path, port).start(warm).wait()
    assert record["outcome"] == "host_error"
    assert f"the port {port}" in record["reason"]
    assert record["ranks"] == []


def test_held_port_is_never_assigned_as_a_free_port() -> None:
    held = [master_port.reserve() for _ in range(30)]
    try:
        assert len({port for _, port in held}) == len(held)
    finally:
        for descriptor, _ in held:
            os.close(descriptor)
