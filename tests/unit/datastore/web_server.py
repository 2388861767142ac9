"""A web server for tests: serves files by path, with set faults, and records all requests."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebServer:
    """Serves `files`; each fault in `faults` is the answer to one request, in order."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.requests: list[tuple[str, int]] = []
        self.release = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self, status: int, body: bytes = b"", length: int | None = None) -> None:
                server.requests.append((self.path, status))
                self.send_response(status)
                if status == 200:
                    self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
                if status != 304:
                    self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                fault = server.faults.pop(0) if server.faults else ""
                body = server.files.get(self.path)
                if fault == "hang":
                    server.release.wait(60)
                elif fault == "cut":
                    assert body is not None
                    self.answer(200, body[: len(body) // 2], len(body))
                    self.close_connection = True
                elif fault:
                    self.answer(int(fault))
                elif body is None:
                    self.answer(404)
                elif self.headers["If-None-Match"] == f'"{hashlib.sha256(body).hexdigest()}"':
                    self.answer(304)
                else:
                    self.answer(200, body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self._http.server_address[1]}"

    def statuses(self, path: str) -> list[int]:
        """Return the responses to requests for a path, in order."""
        return [status for requested, status in self.requests if requested == path]

    @contextmanager
    def running(self) -> Iterator[WebServer]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.release.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()
