"""A stand-in for the target actor's wake socket: gives the answers of a test, without Ray."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextlib.contextmanager
def answering(path: Path, answer: Answer) -> Iterator[list[dict[str, Any]]]:
    """Listen at `path` during the block; yields the requests that arrived."""
    requests: list[dict[str, Any]] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                request = json.loads(line)
                requests.append(request)
                self.wfile.write(json.dumps(answer(request)).encode() + b"\n")

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield requests
        finally:
            server.shutdown()
            thread.join()
            path.unlink(missing_ok=True)
