"""JSON lines over Unix sockets, for the warm interpreter's and the host's requests."""

from __future__ import annotations

import json
import os
import selectors
import socket
from typing import Callable, Dict, Optional

from rayjobs.injob import record_files
from rayjobs.injob.answers import refusal
from rayjobs.injob.messages import Message

MAX_LINE_BYTES = 4 * 1024 * 1024
# Errors that code raises when a request has values of the wrong kind, size or depth.
BAD_REQUEST = (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError)


def listen(path: str) -> socket.socket:
    """A listening socket at `path`, mode 0600; replaces whatever was there.

    Raises:
        OSError: the path is too long, or its folder cannot be written.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # the usual case
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def encode(message: Message) -> bytes:
    """Return a message as one line of the protocol."""
    return json.dumps(message.to_json()).encode() + b"\n"


def parse_request(line: bytes) -> Dict[str, object]:
    """Return the JSON object in one line of the protocol, to be read by `Message.from_json`.

    Raises:
        ValueError: it is not one JSON object, or is nested deeper than can be read.
    """
    request = record_files.parse_json(line)
    if not isinstance(request, dict):
        raise ValueError("a request is one JSON object")
    return request


class Connection:
    """One client: the bytes received from it, and those still to send."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.received = b""
        self.to_send = b""
        self.is_waiting = False  # for the exit record

    @property
    def events(self) -> int:
        """The events to wait for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.to_send else 0)


class ControlServer:
    """Serves any number of clients in an event loop; never blocks or raises because of one."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        answer: Callable[[Dict[str, object]], Optional[Message]],
    ) -> None:
        """Serve `listener`; None from `answer` defers the answer to the attempt's end."""
        self._listener = listener
        self._selector = selector
        self._answer = answer
        self._connections: dict[int, Connection] = {}
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _: int) -> None:
        try:
            stream, _address = self._listener.accept()
        except OSError:
            return  # the client is gone, or there are too many; it will try again
        stream.setblocking(False)
        connection = Connection(stream)
        self._connections[stream.fileno()] = connection
        self._selector.register(
            stream, selectors.EVENT_READ, lambda events: self._serve(connection, events)
        )

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                data = connection.stream.recv(65536)
                if not data:
                    self._drop(connection)
                    return
                connection.received += data
                self._answer_lines(connection)
            self._send(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _answer_lines(self, connection: Connection) -> None:
        while b"\n" in connection.received:
            line, _, connection.received = connection.received.partition(b"\n")
            answer: Optional[Message]
            try:
                answer = self._answer(parse_request(line))
            except BAD_REQUEST as error:
                answer = refusal(f"cannot read the request: {error}")
            if answer is None:
                connection.is_waiting = True
            else:
                connection.to_send += encode(answer)
        if len(connection.received) > MAX_LINE_BYTES:
            raise OSError("the request is too long")

    def _send(self, connection: Connection) -> None:
        if connection.to_send:
            sent = connection.stream.send(connection.to_send)
            connection.to_send = connection.to_send[sent:]
        self._selector.modify(
            connection.stream,
            connection.events,
            lambda events: self._serve(connection, events),
        )

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection.stream.fileno(), None)
        self._selector.unregister(connection.stream)
        connection.stream.close()

    def answer_waiters(self, record: Message) -> int:
        """Send `record` to every waiting client; return their number."""
        line, count = encode(record), 0
        for connection in list(self._connections.values()):
            if connection.is_waiting:
                connection.is_waiting = False
                connection.to_send += line
                count += 1
                try:
                    self._send(connection)
                except BlockingIOError:
                    continue
                except OSError:
                    self._drop(connection)
        return count

    @property
    def has_unsent(self) -> bool:
        """Whether an answer is still unsent."""
        return any(connection.to_send for connection in self._connections.values())

    def abandon(self) -> None:
        """Close everything in a forked process, without affecting the parent."""
        # Unregistering would change the epoll set, which both processes share.
        for connection in self._connections.values():
            connection.stream.close()
        self._listener.close()
        self._selector.close()

    def close(self) -> None:
        """Close every connection and the listener."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
