"""The rendezvous server of Horovod's Gloo ranks: a small key-value store over HTTP.

As a program, it serves the listening socket that is its standard input. Horovod's launcher contains
such a server; here the first node's attempt host starts one for the job.

Source: the protocol of `horovod.runner.http.http_server` 0.28 (GET, PUT and DELETE of
``/scope/key``; 404 for keys that do not exist yet).
"""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict

_values: Dict[str, bytes] = {}
_lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """One request of a rank."""

    def do_GET(self) -> None:
        """Send a value, or 404 if there is none yet."""
        with _lock:
            value = _values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        """Store a value."""
        value = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with _lock:
            _values[self.path] = value
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        """Accept that a rank is done with a scope, but keep it: other ranks may need it."""
        self._answer(200, b"")

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a waiting rank sends many requests a second."""


def serve(listener: socket.socket) -> None:
    """Serve the ranks until this process is ended."""
    address = listener.getsockname()
    server = ThreadingHTTPServer(address[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
    sys.exit(0)
