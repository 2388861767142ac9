"""Sends requests to a target actor over its wake socket, as JSON lines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rayjobs.core.paths import short_socket
from rayjobs.core.text import duration_text
from rayjobs.injob import record_files
from rayjobs.injob.answers import Answer
from rayjobs.injob.messages import Message, MessageError
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace import server_choice

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

SOCKET_KIND = "target"
MOST_ANSWER = 64 << 20

Kind = TypeVar("Kind", bound=Answer)


def socket_of(name: str, home: Path) -> Path:
    """Return the wake socket of the target called `name`."""
    return short_socket(SOCKET_KIND, name, of=home, create=False)


def ask(path: Path, request: Message, kind: type[Kind], *, timeout_s: float = 5.0) -> Kind | None:
    """Send one request; return the answer, or None if no process listens there.

    Args:
        request: To a target or a warm interpreter.
        kind: The class of the answer: of a target, that of the operation in `answers.ANSWERS`. An
            answer that this version cannot read counts as a refusal.

    Raises:
        TimeoutError: A process listens and does not answer in time.
    """
    values = request.to_json()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(json.dumps(values).encode() + b"\n")
            answer = _line(connection)
        except TimeoutError:
            raise TimeoutError(
                f"{path} took the request {values.get('op')!r} and did not answer within "
                f"{duration_text(timeout_s)}"
            ) from None
        except OSError:
            return None  # no socket, or its owner is gone
    return _read(answer, kind)


async def ask_async(
    path: Path, request: Message, kind: type[Kind], *, timeout_s: float
) -> Kind | None:
    """Like `ask`, but without blocking a thread."""
    import asyncio  # here, since every command imports this module

    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(str(path), limit=MOST_ANSWER)
            writer.write(json.dumps(request.to_json()).encode() + b"\n")
            await writer.drain()
            answer = await reader.readline()
    except TimeoutError:
        raise
    except (OSError, ValueError):
        return None
    finally:
        if writer is not None:
            writer.close()
    return _read(answer, kind)


def ask_target(
    name: str,
    home: Path,
    request: TargetRequest,
    kind: type[Kind],
    *,
    timeout_s: float = 5.0,
    server: Connection | None = None,
) -> Kind | None:
    """Send a request to the target called `name`, through the server if there is one; see `ask`.

    Args:
        server: The connection to use, for a thread that has one of its own.
    """
    server = server or server_choice.active()
    if server is None:
        return ask(socket_of(name, home), request, kind, timeout_s=timeout_s)
    from rayjobs.target.answers import ForwardedAnswer

    path = f"/v1/targets/{name}/ask"
    found = server.ask("POST", path, ForwardedAnswer, body=request, repeats=True)
    if found.is_late:
        raise TimeoutError(f"target {name!r} did not answer the server in time")
    return None if found.answer is None else _answer_of(found.answer, kind)


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections at `path`; says nothing about its health."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5.0)
        try:
            connection.connect(str(path))
        except TimeoutError:
            return True  # its backlog is full: a process is there
        except OSError:
            return False
    return True


def _read(line: bytes, kind: type[Kind]) -> Kind | None:
    """Return the answer in one line; None: its sender ended while it answered."""
    try:
        values = record_files.parse_json(line)
    except ValueError:
        return None
    return _answer_of(values, kind)


def _answer_of(values: object, kind: type[Kind]) -> Kind:
    try:
        return kind.from_json(values)
    except MessageError as error:
        return kind(False, f"the answer cannot be read: {error}")


def _line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            break
        received += part
    return bytes(received)
