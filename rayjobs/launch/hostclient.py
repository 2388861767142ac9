"""Talks to attempt hosts: ask, cancel, wait, read the exit record. Starting is in `hoststart`.

WarmError        a warm interpreter or a starting host refused or died
HostUnreachable  a host is alive but does not answer: its attempt need *not* have failed
HostGone         a host is dead; the caller must read its exit record or prove its processes dead
"""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
from typing import TypeVar

from rayjobs.core.errors import TargetError
from rayjobs.core.text import duration_text
from rayjobs.injob import control, exit_record, record_files
from rayjobs.injob.answers import Answer
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.host_messages import NAME as HOST_FILE
from rayjobs.injob.host_messages import HostFile, HostRequest, HostState, HostStatus
from rayjobs.injob.identity import Identity, identity_of, is_alive
from rayjobs.injob.messages import MessageError
from rayjobs.injob.outcomes import CANCELED, EndCause
from rayjobs.launch.hoststart import (
    DEFAULT_PRELOAD,
    LINE_LIMIT,
    RETRY_S,
    ForkAnswer,
    WarmError,
    WarmInterpreter,
    ask,
    ensure_warm,
    fork,
    ping_warm,
    runtime_environment,
    start_cold,
    stop_warm,
)

__all__ = [
    "DEFAULT_PRELOAD",
    "ForkAnswer",
    "HostConnection",
    "HostGone",
    "HostUnreachable",
    "Identity",
    "WarmError",
    "WarmInterpreter",
    "ensure_warm",
    "fork",
    "is_alive",
    "ping_warm",
    "read_exit_record",
    "runtime_environment",
    "start_cold",
    "stop_warm",
]

One = TypeVar("One", bound=Answer)

_PEER = struct.Struct("iII")  # struct ucred of Linux: pid, user, group


class HostUnreachable(TargetError):
    """The host is alive but does not answer."""


class HostGone(TargetError):
    """The host is dead."""


def read_exit_record(root: str) -> ExitRecord | None:
    """Return the exit record in an attempt's directory, or None if it does not exist yet.

    Raises:
        ValueError: the file exists but is not a record.
    """
    return exit_record.read(root)


class HostConnection:
    """Sends requests to one attempt host, each over a new connection: either side may restart."""

    def __init__(self, socket: str, root: str, identity: Identity) -> None:
        """Talk to the host `identity`, at `socket`, whose attempt directory is `root`."""
        self.socket = socket
        self.root = root
        self.identity = identity

    @staticmethod
    def of(root: str) -> HostConnection | None:
        """Return the connection to the host that wrote `root`/host.json; None before that.

        Raises:
            ValueError: the file is incomplete or not a host file.
            OSError: the path is a link, FIFO, folder or device, or cannot be read.
        """
        try:
            host = HostFile.read(root)
        except MessageError as error:
            raise ValueError(f"{root}/{HOST_FILE} names no host: {error}") from error
        return None if host is None else HostConnection(host.socket, root, host.identity)

    @staticmethod
    def listening_at(socket: str, root: str) -> HostConnection | None:
        """Return the connection to the host that listens at `socket`; None if no host does.

        The kernel names the process, even a stopped one, so this needs no file below `root`.

        Raises:
            OSError: no more files can be opened.
        """
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as stream:
            stream.setblocking(False)  # connect() succeeds or fails immediately
            try:
                stream.connect(socket)
            except OSError:
                return None
            peer = stream.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _PEER.size)
        pid, _user, _group = _PEER.unpack(peer)
        identity = identity_of(pid) if pid > 0 else None
        return None if identity is None else HostConnection(socket, root, identity)

    async def status(self, *, timeout_s: float = 10.0) -> HostStatus:
        """Return the host's report on its ranks.

        Raises:
            HostGone: the host is dead.
            HostUnreachable: it is alive but does not answer in time.
        """
        return await self.ask(HostRequest("status"), HostStatus, timeout_s=timeout_s)

    async def cancel(
        self,
        cause: EndCause = CANCELED,
        *,
        grace_s: float | None = None,
        timeout_s: float = 10.0,
    ) -> bool:
        """Ask the host to end its attempt; False when it has ended already. Idempotent.

        Raises:
            HostGone: the host is dead and left no exit record.
            HostUnreachable: it is alive but does not answer in time.
        """
        # A host of an earlier version reads only the sentence.
        request = HostRequest(
            "cancel", reason=cause.sentence, end_reason=cause.reason, grace_s=grace_s
        )
        try:
            answer = await self.ask(request, HostState, timeout_s=timeout_s)
        except HostGone:
            if self._record() is None:
                raise
            return False
        return answer.state != "ended"

    async def wait(self, *, timeout_s: float | None = None) -> ExitRecord:
        """Return the exit record once the attempt has ended; reconnects as often as needed.

        Raises:
            HostGone: the host is dead and left no exit record.
            TimeoutError: the attempt has not ended within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                # In this order: a host that ends between the two checks has written its record.
                was_alive = is_alive(self.identity)
                record = self._record()
                if record is not None:
                    return record
                if not was_alive:
                    raise self._gone()
                answer = await self._wait_once()
                if answer is not None:
                    return answer
                await asyncio.sleep(RETRY_S)

    async def _wait_once(self) -> ExitRecord | None:
        """Wait for the record on one connection; return None if the connection breaks."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket, limit=LINE_LIMIT)
        except OSError:
            return None
        try:
            writer.write(control.encode(HostRequest("wait")))
            line = await reader.readline()
            answer = record_files.parse_json(line) if line.endswith(b"\n") else None
            return None if answer is None else ExitRecord.from_json(answer)
        except (OSError, ValueError):
            return None
        finally:
            writer.close()

    async def ask(self, request: HostRequest, kind: type[One], *, timeout_s: float = 10.0) -> One:
        """Return the host's answer, of class `kind`; it may be a refusal.

        Raises:
            HostGone: the host is dead.
            HostUnreachable: it is alive but does not answer in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                left_s = max(deadline - loop.time(), 0.05)
                return await ask(self.socket, request, kind, timeout_s=left_s)
            except (OSError, ValueError, TimeoutError) as error:
                if not is_alive(self.identity):
                    raise self._gone() from error
                if loop.time() >= deadline:
                    raise HostUnreachable(
                        f"the attempt host (pid {self.identity.pid}) is running, but did not "
                        f"answer within {duration_text(timeout_s)}: {error!r}. Its attempt keeps "
                        "running; try again.",
                    ) from error
            await asyncio.sleep(RETRY_S)

    def _record(self) -> ExitRecord | None:
        """Return the exit record; None until the host has written it, or if a script damaged it."""
        try:
            return read_exit_record(self.root)
        except (OSError, ValueError):
            return None

    def _gone(self) -> HostGone:
        return HostGone(
            f"the attempt host (pid {self.identity.pid}) is dead. Read {self.root}/exit.json; "
            "without one, end its leftovers before you start anything else there."
        )
