"""One-line JSON requests over a Unix socket, each answered when its answer is known."""

from __future__ import annotations

import selectors
import socket
from typing import Callable, Dict

from rayjobs.injob.answers import Answer, refusal
from rayjobs.injob.control import MAX_LINE_BYTES, encode, listen, parse_request

_SEND_S = 5.0


class Asker:
    """One client and its one request; `is_gone` once it has closed its side."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.received = b""
        self.was_asked = False
        self.is_gone = False
        self.was_answered = False


class LineServer:
    """Serves clients that send one request and wait, in an event loop."""

    def __init__(
        self,
        path: str,
        selector: selectors.BaseSelector,
        *,
        asked: Callable[[Asker, Dict[str, object]], None],
        gone: Callable[[Asker], None],
    ) -> None:
        """Listen at `path`.

        Args:
            asked: called with each request; raises MessageError for one that it refuses.
            gone: called when a client disconnects before its answer.

        Raises:
            OSError: the socket cannot be made.
        """
        self._selector = selector
        self._asked = asked
        self._gone = gone
        self._askers: set[Asker] = set()
        self._listener = listen(path)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _: int) -> None:
        try:
            stream, _address = self._listener.accept()
        except OSError:
            return  # the client has gone
        stream.setblocking(False)
        asker = Asker(stream)
        self._askers.add(asker)
        self._selector.register(stream, selectors.EVENT_READ, lambda _: self._read(asker))

    def _read(self, asker: Asker) -> None:
        try:
            data = asker.stream.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(asker)
            if asker.was_asked and not asker.was_answered:
                self._gone(asker)
            return
        if asker.was_asked:
            return  # one request per client
        asker.received += data
        if len(asker.received) > MAX_LINE_BYTES:
            self.answer(asker, refusal("the request is too long"))
        elif asker.received.endswith(b"\n"):
            asker.was_asked = True
            try:
                self._asked(asker, parse_request(asker.received))
            except ValueError as error:
                self.answer(asker, refusal(f"cannot read the request: {error}"))

    def answer(self, asker: Asker, answer: Answer) -> None:
        """Answer a request; does nothing if the client has left."""
        if asker.was_answered or asker.is_gone:
            return
        asker.was_answered = True
        try:
            asker.stream.settimeout(_SEND_S)  # a few bytes: they fit the socket's buffer
            asker.stream.sendall(encode(answer))
            asker.stream.setblocking(False)
        except OSError:
            self._forget(asker)

    def _forget(self, asker: Asker) -> None:
        if not asker.is_gone:
            asker.is_gone = True
            self._askers.discard(asker)
            self._selector.unregister(asker.stream)
            asker.stream.close()

    def abandon(self) -> None:
        """Close everything in a forked process, without affecting the parent."""
        for asker in self._askers:
            asker.stream.close()
        self._listener.close()

    def close(self) -> None:
        """Close every connection and the listener."""
        for asker in list(self._askers):
            self._forget(asker)
        self._selector.unregister(self._listener)
        self._listener.close()
