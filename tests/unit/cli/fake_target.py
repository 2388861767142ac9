"""Answers in place of a target's actor, in the test's own process."""

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
    """Listen in place of the target `local`, and give one answer to every request (None: none).

    Args:
        explains: Answers to questions about one job, in order; the last one is repeated.
    """
    left = list(explains)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        runtime_dir(home())
        place = socket_of("local", home())
        place.unlink(missing_ok=True)  # of an earlier one in the same test
        listening.bind(str(place))
        listening.listen(16)
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # the test is over
                held.append(connection)
                if answer is not None:
                    asked = json.loads(connection.makefile("rb").readline())
                    given = answer
                    if left and asked["op"] == "explain":
                        given = left.pop(0) if len(left) > 1 else left[0]
                    connection.sendall(json.dumps(given).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(150)
            for connection in held:
                connection.close()
    assert not thread.is_alive()
