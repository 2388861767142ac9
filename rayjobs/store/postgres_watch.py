"""A thread that listens to a store in PostgreSQL, and records that its target is alive."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rayjobs.jobs.serving import BEAT_S

log = logging.getLogger(__name__)

CHANNEL = "rayjobs"  # of the notifications for all schemas of a database
LONGEST_PAUSE_S = 5.0
# Written without the writers' lock and without a new change token: only the claimant changes this
# row, and no process has to reread the store for it.
BEAT = """
UPDATE meta SET value = %(before)s || CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS TEXT) || '}'
WHERE key = %(key)s AND value LIKE %(mine)s
"""


class Watch:
    """Wakes a target for notifications until it is stopped; reopens a lost connection.

    Args:
        connect: Returns a new connection (`postgres.Connection`).
        payload: The payload of the relevant notifications.
        key: The key of the signs of life, which are written only while the value under it belongs
            to `epoch`.
        wake: Called from the thread: for a notification, and after each new connection, since
            notifications are lost without one.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        where: str,
        *,
        payload: str,
        key: str,
        epoch: str,
        wake: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._where = where
        self._payload = payload
        self._beat = {
            "key": key,
            "before": json.dumps({"epoch": epoch})[:-1] + ', "at": ',
            "mine": f'%"{epoch}"%',
        }
        self._wake = wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; return immediately."""
        self._thread.start()

    def stop(self) -> None:
        """End; later notifications wake no target."""
        self._stopped.set()

    def _run(self) -> None:
        import psycopg

        pause_s = 0.1
        while not self._stopped.is_set():
            try:
                connection = self._connect().plain
                try:
                    connection.execute(f"LISTEN {CHANNEL}".encode())
                    self._wake()
                    pause_s = 0.1
                    self._listen(connection)
                finally:
                    connection.close()
            except psycopg.Error as error:
                if self._stopped.is_set():  # fault 164: a lost connection
                    return
                log.info("%s: wake-ups are not received: %s", self._where, error)
                self._stopped.wait(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _listen(self, connection: Any) -> None:
        due_s = 0.0
        while not self._stopped.is_set():
            if time.monotonic() >= due_s:
                connection.execute(BEAT, self._beat)
                due_s = time.monotonic() + BEAT_S
            for found in connection.notifies(timeout=BEAT_S / 3, stop_after=1):
                if found.payload == self._payload:
                    self._wake()
