"""Logs when a client waits for a server that does not answer, and when it retries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from rayjobs.core.text import duration_text

log = logging.getLogger("rayjobs.datastore")

NOTICE_S = 3.0
"""Seconds without a response after which the wait is reported."""
SLOWEST_BYTES_S = 1_000_000
"""Bytes of a body per second below which its transfer counts as a wait."""
LOOK_S = 0.25
IDLE_S = 5.0


class Patience:
    """Watches the requests of one client, from any thread, and reports waits and retries.

    Reports are warnings of the logger `rayjobs.datastore`; a program that sets up no logging sees
    them on standard error. Threads that wait for the same server report it once.
    """

    def __init__(self, where: str, *, attempts: int, connect_s: float, read_s: float) -> None:
        self._where = where
        self._server = where
        self._attempts = attempts
        self._connect_s = connect_s
        self._read_s = read_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pending: dict[int, float] = {}  # thread → the time at which its wait is reported
        self._watching = False
        self._is_reported = False
        self._retried: tuple[int, float] = (0, 0.0)  # the last reported attempt, and when

    @property
    def limit_s(self) -> float:
        """The maximum number of seconds that one request takes with all its attempts.

        botocore's standard mode pauses at most 1, 2, 4 … 20 s between attempts.
        """
        pauses = sum(min(2.0**number, 20.0) for number in range(self._attempts - 1))
        return self._attempts * (self._connect_s + self._read_s) + pauses

    def watch(self, client: Any) -> Any:
        """Watch the requests of the botocore client `client` from now on, and return it."""
        client.meta.events.register("before-send.s3", self._sent)
        client.meta.events.register_last("needs-retry.s3", self._answered)
        return client

    @contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """Watch this thread while it reads up to `size` bytes of a response's body."""
        self._begin(size)
        try:
            yield
        finally:
            self._end()

    def retries(self, attempt: int, reason: str) -> None:
        """Report that a request failed for `reason`, and that attempt `attempt` starts now."""
        now = time.monotonic()
        with self._lock:
            number, at = self._retried
            if number == attempt and now - at < NOTICE_S:  # another thread has just reported it
                return
            self._retried = (attempt, now)
        log.warning(
            "%s: %s; trying again, attempt %d of %d",
            *(self._server, reason, attempt, self._attempts),
        )

    # --- implementation ---

    def _sent(self, request: Any, **_: Any) -> None:
        host = urlsplit(request.url).netloc
        self._server = self._where if host in self._where else f"{self._where} at {host}"
        self._begin(int(request.headers.get("Content-Length") or 0))

    def _answered(
        self, response: Any = None, attempts: int = 1, caught_exception: Any = None, **_: Any
    ) -> None:
        self._end()
        status = 0 if response is None else response[0].status_code
        if caught_exception is None and status < 500 and status != 429:
            with self._lock:
                self._is_reported = False
            return
        if attempts < self._attempts:
            reason = (
                f"answers {status}" if caught_exception is None else self._why(caught_exception)
            )
            self.retries(attempts + 1, reason)

    def _why(self, error: Exception) -> str:
        from botocore.exceptions import (
            ConnectTimeoutError,
            EndpointConnectionError,
            ReadTimeoutError,
        )

        if isinstance(error, ReadTimeoutError):
            return f"no answer within {duration_text(self._read_s)}"
        if isinstance(error, ConnectTimeoutError):
            return f"no connection within {duration_text(self._connect_s)}"
        if isinstance(error, EndpointConnectionError):  # whose text is the URL of the object
            return "no connection is possible"
        return str(error).rstrip(".") or type(error).__name__

    def _begin(self, size: int) -> None:
        with self._changed:
            self._pending[threading.get_ident()] = (
                time.monotonic() + NOTICE_S + size / SLOWEST_BYTES_S
            )
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._look, name="patience", daemon=True).start()
            self._changed.notify()

    def _end(self) -> None:
        with self._lock:
            self._pending.pop(threading.get_ident(), None)

    def _look(self) -> None:
        """Report the first long wait; end when there has been no request for a while."""
        while True:
            with self._changed:
                if not self._pending and not self._changed.wait(IDLE_S) and not self._pending:
                    self._watching = False
                    return
                now = time.monotonic()
                is_late = any(due <= now for due in self._pending.values())
                report = is_late and not self._is_reported
                self._is_reported = self._is_reported or is_late
            if report:
                log.warning(
                    "waiting for %s: no answer for %s; gives up after %s at most",
                    *(self._server, duration_text(NOTICE_S), duration_text(self.limit_s)),
                )
            time.sleep(LOOK_S)
