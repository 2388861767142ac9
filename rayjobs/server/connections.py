"""Limits how long a connection waits: the head of a request must arrive in time."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0
REST_S = 5.0  # for the rest of a refused body: afterwards its sender reads the answer


class BoundedProtocol(H11Protocol):
    """Closes a connection whose next request does not arrive in time, even if its bytes trickle in.

    Uvicorn's keep-alive time limits idle connections after an answer; `bodies.bytes_of` limits how
    long a body may take.
    """

    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer immediately, since the client may never send a byte."""
        # An answer is two writes, head and body. On a reused connection, the body would wait 40 ms
        # for the client's delayed ACK. asyncio sets the option only on sockets that were made with
        # a protocol number; `socket.create_server` makes them without one.
        taken = transport.get_extra_info("socket")
        if taken.family in (socket.AF_INET, socket.AF_INET6):
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._end_in(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """Start the timer at a head's first byte; later bytes do not reset it."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._end_in(HEAD_S)
        elif not self._is_refused():
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Allow a short time for the rest of a refused body."""
        super().on_response_complete()
        if self._is_refused():
            self._end_in(REST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _is_refused(self) -> bool:
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.SEND_BODY

    def _end_in(self, seconds: float) -> None:
        if self._ending is None:
            self._ending = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
