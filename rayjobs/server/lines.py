"""The server's own log on stderr: a line for each request, and one for each change.

uvicorn's own access log would cost a tenth of the time of a small request, and does not name the
user.
"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from typing import TextIO
from urllib.parse import quote

from starlette.requests import Request

USER = "rayjobs.user"  # key in a request's scope, once the user is known


class Lines:
    """Writes lines. Thread-safe.

    Args:
        file: None writes nothing.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        """Write `text` as one line; a log that cannot be written does not stop requests."""
        if self._file is None:
            return
        with self._lock:
            try:
                self._file.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z {text}\n")
                self._file.flush()
            except (OSError, ValueError):
                pass

    def request(self, request: Request, status: int, seconds: float) -> None:
        """Write a request: client, user, verb, path, status, and the time to its first byte in ms.

        The query is left out. The path is written as sent, percent-encoded, so that clients cannot
        forge lines.
        """
        if self._file is None:
            return
        scope = request.scope
        raw = scope.get("raw_path")
        path = raw.decode("ascii", "backslashreplace") if raw else quote(scope["path"])
        client = scope["client"][0] if scope.get("client") else "-"
        user = scope.get(USER, "-")
        self.add(f"{client} {user} {scope['method']} {path} {status} {1000 * seconds:.1f}ms")


def on_stderr() -> Lines:
    """Return lines on this process's stderr."""
    return Lines(sys.stderr)
