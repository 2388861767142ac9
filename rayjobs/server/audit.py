"""The record of every change made over HTTP: who, when, what.

Rows are written to the store in batches, shortly after their requests: an audit must not cost each
submit its own transaction. The server's log has them immediately.
"""

from __future__ import annotations

import json
import logging
import threading
from datetime import UTC, datetime
from typing import Any

from rayjobs.core.clock import to_text
from rayjobs.core.errors import RayjobsError
from rayjobs.core.ids import token
from rayjobs.server.lines import Lines
from rayjobs.store.base import Store
from rayjobs.workspace.users import HTTP_AUDIT

log = logging.getLogger("uvicorn.error")
EVERY_S = 0.5
MOST_WAITING = 100_000
MOST_TOGETHER = 1000


class Audit:
    """Records changes. Thread-safe."""

    def __init__(self, store: Store, lines: Lines) -> None:
        self._store = store
        self._lines = lines
        self._rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._writing: threading.Thread | None = None
        self._closing = threading.Event()

    def add(
        self, *, user: str, token_id: str, what: str, status: int, client: str, named: str = ""
    ) -> None:
        """Record a change or its refusal; `named` is the changed object."""
        row = {
            "at": to_text(datetime.now(UTC)),
            "by": user,
            "token": token_id,
            "change": what,
            "object": named,
            "status": status,
            "client": client,
        }
        self._lines.add(f"audit {json.dumps(row)}")
        with self._lock:
            # More rows than this mean that the store is unavailable; the log still has them.
            if len(self._rows) < MOST_WAITING:
                self._rows.append(row)
            if self._writing is None:
                self._writing = threading.Thread(target=self._write, name="audit")
                self._writing.start()

    def close(self) -> None:
        """Write the pending rows before the server ends; a failed write is not retried."""
        self._closing.set()
        with self._lock:
            writing = self._writing
        if writing is not None:
            writing.join()

    def _write(self) -> None:
        """Write the pending rows until there are none."""
        pause_s = EVERY_S
        while True:
            is_last = self._closing.wait(pause_s)
            with self._lock:
                rows = self._rows[:MOST_TOGETHER]
                if not rows:
                    self._writing = None
                    return
            key = f"{HTTP_AUDIT}{rows[0]['at']}:{token(4)}"
            try:
                self._store.set_meta(key, json.dumps(rows))
            except RayjobsError as error:
                log.warning("the audit could not be written yet: %s", error)
                pause_s = min(30.0, 2 * pause_s)
                if is_last:
                    return  # the log has them
                continue
            pause_s = EVERY_S
            with self._lock:
                del self._rows[: len(rows)]
