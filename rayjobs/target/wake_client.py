"""Sends requests to a target actor over its wake socket, as JSON lines."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.paths import short_socket
from rayjobs.core.text import duration_text
from rayjobs.injob import recordfiles
from rayjobs.injob.messages import Message
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace import server_choice

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

SOCKET_KIND = "target"
MOST_ANSWER = 64 << 20


def socket_of(name: str, home: Path) -> Path:
    """Return the wake socket of the target called `name`."""
    return short_socket(SOCKET_KIND, name, of=home, create=False)


def ask(
    path: Path, request: Message | Mapping[str, Any], *, timeout_s: float = 5.0
) -> dict[str, Any] | None:
    """Send one request; return the answer, or None if no process listens there.

    Args:
        request: To a target or a warm interpreter, or the JSON that another server understands.

    Raises:
        TimeoutError: A process listens and does not answer in time.
    """
    values = request.to_json() if isinstance(request, Message) else request
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
    try:
        decoded = recordfiles.parse_json(answer)
    except ValueError:
        return None  # it ended while it answered
    return decoded if isinstance(decoded, dict) else None


async def ask_async(path: Path, request: Message, *, timeout_s: float) -> dict[str, Any] | None:
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
    try:
        decoded = recordfiles.parse_json(answer)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None


def ask_target(
    name: str,
    home: Path,
    request: TargetRequest,
    *,
    timeout_s: float = 5.0,
    server: Connection | None = None,
) -> dict[str, Any] | None:
    """Send a request to the target called `name`, through the server if there is one; see `ask`.

    Args:
        server: The connection to use, for a thread that has one of its own.
    """
    server = server or server_choice.active()
    if server is None:
        return ask(socket_of(name, home), request, timeout_s=timeout_s)
    found = server.json("POST", f"/v1/targets/{name}/ask", body=request.to_json(), repeats=True)
    if found["is_late"]:
        raise TimeoutError(f"target {name!r} did not answer the server in time")
    answer = found["answer"]
    return answer if isinstance(answer, dict) else None


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


def _line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            break
        received += part
    return bytes(received)
