"""Faults of `exec` and `port`: process lifetimes, reachable ports, lost responses (no Ray)."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from rayjobs.injob import session_steps as steps
from rayjobs.injob.session_steps import SessionEvent, SessionReply, SessionStep
from rayjobs.node.sessions import Sessions
from rayjobs.protocol.attempts import AttemptOnNode
from tests.conformance.hosts import Attempt, until
from tests.support.containers import image, in_image, needs_containers

__all__ = ["image"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]
Answer = TypeVar("Answer")

WAITS = """
import os, time
open("here", "w").write("of the rank")
print("ready", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.02)
"""


def on_node(attempt: Attempt) -> AttemptOnNode:
    plan = attempt.plan
    return AttemptOnNode(
        workspace="/w",
        target="local",
        job=plan["job"],
        attempt=1,
        node=0,
        marker=plan["marker"],
        root=plan["root"],
        socket=plan["socket"],
        ranks=(0,),
    )


def play(
    attempt: Attempt,
    scene: Callable[[Callable[..., Awaitable[SessionReply]]], Awaitable[Answer]],
    silent_s: float = 60.0,
) -> Answer:
    """Run one scene of a client: it sends steps of one session to the attempt's node."""

    async def run() -> Answer:
        sessions, name = Sessions(silent_s), secrets.token_hex(16)

        async def ask(op: str, **more: object) -> SessionReply:
            step = SessionStep(op, str(more.pop("session", name)), **more)  # type: ignore[arg-type]
            return await sessions.step(on_node(attempt), step)

        return await scene(ask)

    return asyncio.run(run())


async def all_of(ask: Callable[..., Awaitable[SessionReply]]) -> list[SessionEvent]:
    found: list[SessionEvent] = []
    while True:
        reply = await ask(steps.READ, at=len(found), wait_s=5.0)
        assert not reply.error
        found += reply.events
        if found and found[-1].stream == 0:
            return found


def printed(events: list[SessionEvent], stream: int = 1) -> bytes:
    return b"".join(base64.b64decode(one.data) for one in events if one.stream == stream)


def stop(attempt: Attempt) -> None:
    (attempt.root / "work" / "stop").touch()
    assert attempt.wait()["outcome"] == "completed"


@needs_containers
@pytest.mark.parametrize("terminal", ["", "xterm"])
def test_session_runs_in_the_container_of_the_rank(
    short_path: Path, image: Path, terminal: str
) -> None:
    attempt = in_image(Attempt.make(short_path, WAITS), image).start_cold()
    attempt.printed("ready")
    code = "import os; print(open('/etc/os-release').read(), open('here').read(), os.getpid() > 1)"

    async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> list[SessionEvent]:
        begun = await ask(
            steps.EXEC, arguments=("/usr/local/bin/python", "-c", code), terminal=terminal
        )
        assert not begun.error
        return await all_of(ask)

    events = play(attempt, scene)
    assert b"made by a test" in printed(events) and b"of the rank True" in printed(events)
    assert events[-1].exit_code == 0
    stop(attempt)


def test_a_session_that_ignores_signals_ends_with_the_ranks(short_path: Path) -> None:
    attempt = Attempt.make(short_path, WAITS).start_cold()
    attempt.printed("ready")

    async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> SessionEvent:
        await ask(steps.EXEC, arguments=("sh", "-c", "trap '' TERM HUP INT; echo on; sleep 1000"))
        while not (await ask(steps.READ, wait_s=5.0)).events:
            pass
        (attempt.root / "work" / "stop").touch()
        return (await all_of(ask))[-1]

    end = play(attempt, scene)
    assert end.exit_code == 128 + signal.SIGKILL
    record = attempt.wait()
    assert record["outcome"] == "completed"
    assert attempt.members() == []


def test_process_of_a_silent_client_is_ended(short_path: Path) -> None:
    attempt = Attempt.make(short_path, WAITS).start_cold()
    attempt.printed("ready")

    async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> str:
        await ask(steps.EXEC, arguments=("sleep", "1000"))
        assert "sleep" in {stat.comm for stat in attempt.members()}
        for _ in range(2000):
            if "sleep" not in {stat.comm for stat in attempt.members()}:
                break
            await asyncio.sleep(0.02)
        return (await ask(steps.READ)).error

    assert "this session does not exist" in play(attempt, scene, silent_s=0.4)
    assert "sleep" not in {stat.comm for stat in attempt.members()}
    stop(attempt)


def test_requests_with_lost_responses_are_repeated_safely(short_path: Path) -> None:
    attempt = Attempt.make(short_path, WAITS).start_cold()
    attempt.printed("ready")

    async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> list[SessionEvent]:
        for _ in range(2):
            assert not (await ask(steps.EXEC, arguments=("cat",))).error
        first = base64.b64encode(b"one ").decode()
        for _ in range(2):
            assert (await ask(steps.WRITE, at=0, data=first)).at == 4
        both = base64.b64encode(b"one two").decode()  # sent again with what came after it
        assert (await ask(steps.WRITE, at=0, data=both)).at == 7
        for _ in range(2):
            await ask(steps.WRITE, at=7, is_last=True)
        await ask(steps.READ, wait_s=5.0)
        return await all_of(ask)

    events = play(attempt, scene)
    assert printed(events) == b"one two"
    assert events[-1].exit_code == 0
    assert len([one for one in attempt.members() if one.comm == "cat"]) == 0
    stop(attempt)


def test_a_port_of_another_program_is_refused(short_path: Path) -> None:
    attempt = Attempt.make(short_path, WAITS).start_cold()
    attempt.printed("ready")
    with socket.create_server(("127.0.0.1", 0)) as foreign:

        async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> str:
            return (await ask(steps.PORT, number=foreign.getsockname()[1])).error

        assert "no process of the job listens" in play(attempt, scene)
    stop(attempt)


def test_unread_process_waits_and_loses_no_output(short_path: Path) -> None:
    attempt = Attempt.make(short_path, WAITS).start_cold()
    attempt.printed("ready")
    size = 8 << 20

    async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> tuple[bool, int]:
        await ask(steps.EXEC, arguments=("head", "-c", str(size), "/dev/zero"))
        await asyncio.sleep(0.5)
        waits = any(stat.comm == "head" for stat in attempt.members())
        return waits, len(printed(await all_of(ask)))

    assert play(attempt, scene) == (True, size)
    stop(attempt)


def test_a_host_that_dies_ends_the_session(short_path: Path) -> None:
    attempt = Attempt.make(short_path, WAITS).start_cold()
    attempt.printed("ready")
    identity = attempt.identity
    assert identity is not None

    async def scene(ask: Callable[..., Awaitable[SessionReply]]) -> SessionEvent:
        await ask(steps.EXEC, arguments=("sleep", "1000"))
        os.kill(identity.pid, signal.SIGKILL)
        return (await all_of(ask))[-1]

    assert play(attempt, scene).exit_code == 128 + signal.SIGKILL
    until(lambda: not [one for one in attempt.members() if one.comm == "sleep"], "its process ends")
