"""A node keeps a limited number of warm interpreters; the least recently used one ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.injob.identity import identity_of, own_identity
from rayjobs.launch import hostclient
from rayjobs.node import warm_limits
from rayjobs.node.warm import NodeWarm
from tests.support.attempts import data_request

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def pythons(short_path: Path) -> list[str]:
    made = []
    for name in ("a", "b", "c"):
        command = [sys.executable, "-m", "venv", "--without-pip", str(short_path / name)]
        subprocess.run(command, check=True, timeout=120)
        made.append(str(short_path / name / "bin" / "python"))
    return made


@pytest.fixture
def warm(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeWarm]:
    monkeypatch.setenv("RAYJOBS_HOME", str(short_path / "h"))
    monkeypatch.setenv("RAYJOBS_PRELOAD", "json")
    monkeypatch.setenv("RAYJOBS_WARM_MOST", "2")
    root = short_path / "n"
    root.mkdir()
    made = NodeWarm(root, short_path / "warm.log")
    yield made
    for socket in list(made._uses):
        asyncio.run(hostclient.stop_warm(str(socket)))


def test_least_recently_used_interpreter_ends(
    warm: NodeWarm, pythons: list[str], short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_limits, "IN_USE_S", 0.0)
    plan = data_request(short_path / "n" / "a1").plan

    async def use(*which: int) -> None:
        for number in which:
            socket, why = await warm.ready(replace(plan, python=pythons[number]))
            assert socket is not None, why

    async def alive() -> list[bool]:
        sockets = [str(warm.socket_of(python)) for python in pythons]
        return [await hostclient.ping_warm(one) is not None for one in sockets]

    async def through() -> None:
        await use(0, 1, 0, 2)
        while await alive() != [True, False, True]:
            await asyncio.sleep(0.05)
        await use(1)  # it starts again
        assert (await alive())[1]

    asyncio.run(through())


def test_an_interpreter_that_answers_nonsense_fails_no_other_job(
    warm: NodeWarm, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_limits, "IN_USE_S", 0.0)
    identity = own_identity()
    odd, socket = short_path / "odd.sock", short_path / "good.sock"
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"?\n")
        await writer.drain()
        writer.close()

    async def use() -> None:
        async with await asyncio.start_unix_server(answer, str(odd)):
            for number in range(2):  # as many as the node keeps
                path = odd if number == 0 else short_path / "other.sock"
                warm._uses[path] = warm_limits.Use(path, identity, float(number))
            found = hostclient.WarmInterpreter(str(socket), identity, (), {}, 0.0)
            await warm._note_use(socket, found)

    asyncio.run(use())
    assert b'"stop"' in asked[0]
    assert odd not in warm._uses and socket in warm._uses


def test_interpreter_about_to_be_used_stays(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        identity = identity_of(process.pid)
        assert identity is not None
        uses = [warm_limits.Use(Path(str(at)), identity, float(at)) for at in range(3)]
        limits = warm_limits.Limits(most=1, bytes=2**40)
        assert limits.too_many(uses, 100.0) == uses[:2]
        assert limits.too_many(uses, warm_limits.IN_USE_S + 0.5) == uses[:1]
        # Memory counts as well: all of these together have more than a byte.
        assert warm_limits.Limits(most=9, bytes=1).too_many(uses, 100.0) == uses
    finally:
        process.kill()
        process.wait()
