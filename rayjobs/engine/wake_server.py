"""The target actor's end of the wake socket: one JSON object per line, mode 0600."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from rayjobs.injob import control
from rayjobs.injob.answers import refusal
from rayjobs.injob.messages import Message

log = logging.getLogger(__name__)

Answer = Callable[[dict[str, object]], Awaitable[Message]]
LINE_LIMIT = 1 << 20


class WakeServer:
    """Answers clients of this machine."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path = path
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Listen. This replaces the socket of a dead actor atomically, so it is never missing."""
        fresh = self.path.with_name(f".{os.getpid()}-{self.path.name}")
        fresh.unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, path=str(fresh), limit=LINE_LIMIT
            )
        finally:
            os.umask(old)
        self._inode = fresh.stat().st_ino
        fresh.replace(self.path)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        try:
            # By now a newer actor may listen there.
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            return

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                reply: Message
                try:
                    reply = await self._answer(control.parse_request(line))
                except control.BAD_REQUEST as error:
                    reply = refusal(f"{type(error).__name__}: {error}")
                writer.write(control.encode(reply))
                await writer.drain()
        except (ConnectionError, asyncio.LimitOverrunError, ValueError) as error:
            log.info("a client of the wake socket disconnected: %s", error)
        finally:
            writer.close()
