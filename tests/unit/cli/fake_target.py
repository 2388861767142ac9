"""A substitute for a target actor that answers requests in the test's own process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rayjobs.core.paths import home, runtime_dir
from rayjobs.target.wake_client import socket_of


@contextmanager
def target(answer: dict[str, Any] | None, *explains: dict[str, Any]) -> Iterator[None]:
    """Listen as the target `local`, and send `answer` to every request; None sends no answer.

    Args:
        explains: Answers to `explain` requests, in order; the last one is repeated.
    """
    left = list(explains)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        runtime_dir(home())
        place = socket_of("local", home())
        place.unlink(missing_ok=True)  # left by an earlier call in the same test
        listener.bind(str(place))
        listener.listen(16)
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the socket was closed at the end of the test
                connections.append(connection)
                if answer is not None:
                    request = json.loads(connection.makefile("rb").readline())
                    given = answer
                    if left and request["op"] == "explain":
                        given = left.pop(0) if len(left) > 1 else left[0]
                    connection.sendall(json.dumps(given).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(150)
            for connection in connections:
                connection.close()
    assert not thread.is_alive()
