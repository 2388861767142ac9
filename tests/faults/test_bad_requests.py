"""Every socket refuses requests that no rayjobs client sends, and keeps serving."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rayjobs.engine.wake_server import WakeServer
from rayjobs.injob import control, warm_loop
from rayjobs.injob.answers import Answer
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.lines import Asker, LineServer
from rayjobs.injob.messages import Message

BAD = {
    "deep list": b"[" * 100_000,
    "deep object": b'{"op":' * 100_000,
    "no object": b"[1]",
    "no text": b"\xff\xfe",
    "long number": b'{"op": "number", "value": ' + b"9" * 400 + b"}",
    "wrong kind": b'{"op": "number", "value": []}',
    "deep value": b'{"op": "text", "value": ' + b"[" * 900 + b"]" * 900 + b"}",
}


@dataclass(frozen=True)
class Value(Answer):
    value: object = None


def answer(request: Mapping[str, Any]) -> Value:
    if request["op"] == "number":
        return Value(value=float(request["value"]))
    return Value(value=str(request.get("value")))


def ask(path: Path, line: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(20.0)
        stream.connect(str(path))
        stream.sendall(line + b"\n")
        found = json.loads(stream.makefile("rb").readline())
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def turning(selector: selectors.BaseSelector) -> Iterator[list[BaseException]]:
    """Run an event loop on a thread; yield the errors that would have ended it."""
    done = threading.Event()
    errors: list[BaseException] = []

    def turn() -> None:
        while not done.is_set():
            for key, events in selector.select(0.02):
                try:
                    key.data(events)
                except BaseException as error:
                    errors.append(error)
                    return

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield errors
    finally:
        done.set()
        thread.join()
        assert errors == []


@pytest.mark.parametrize("bad", BAD)
def test_host_socket_refuses_bad_request_and_continues(short_path: Path, bad: str) -> None:
    path = short_path / "s"
    selector = selectors.DefaultSelector()
    server = control.ControlServer(control.listen(str(path)), selector, answer)
    with turning(selector):
        refused = ask(path, BAD[bad])
        assert bad == "deep value" or refused["ok"] is False
        assert ask(path, b'{"op": "number", "value": 1}') == {"ok": True, "error": "", "value": 1.0}
    server.close()


@pytest.mark.parametrize("bad", ["deep list", "deep object", "no object", "no text"])
def test_mpi_socket_refuses_bad_request_and_continues(short_path: Path, bad: str) -> None:
    selector = selectors.DefaultSelector()
    made: list[LineServer] = []

    def receive(asker: Asker, request: Mapping[str, Any]) -> None:
        made[0].answer(asker, answer(request))

    made.append(
        LineServer(str(short_path / "s"), selector, asked=receive, gone=lambda _asker: None)
    )
    with turning(selector):
        assert "cannot read the request" in ask(short_path / "s", BAD[bad])["error"]
        assert ask(short_path / "s", b'{"op": "number", "value": 1}')["value"] == 1.0
    made[0].close()


@pytest.mark.parametrize("bad", ["deep list", "deep object", "no object", "no text"])
def test_warm_interpreter_refuses_bad_request(bad: str) -> None:
    near, far = socket.socketpair()
    with near, far:
        sender = threading.Thread(target=near.sendall, args=(BAD[bad] + b"\n",))
        sender.start()
        with pytest.raises(ValueError, match=r"nested too deeply|one JSON object|utf-8|decode"):
            warm_loop._read_request(far)
        sender.join()


@pytest.mark.parametrize("bad", BAD)
def test_target_socket_refuses_bad_request_and_continues(short_path: Path, bad: str) -> None:
    async def reply(request: dict[str, object]) -> Message:
        return answer(request)

    async def scene() -> None:
        server = WakeServer(short_path / "s", reply)
        await server.start()
        refused = await asyncio.to_thread(ask, short_path / "s", BAD[bad])
        assert bad == "deep value" or refused["ok"] is False
        again = await asyncio.to_thread(ask, short_path / "s", b'{"op": "number", "value": 1}')
        assert again == {"ok": True, "error": "", "value": 1.0}
        await server.stop()

    asyncio.run(scene())
