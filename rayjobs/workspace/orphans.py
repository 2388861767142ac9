"""Ends interactive runs whose process has died, at the next opening of the workspace."""

from __future__ import annotations

import logging

from rayjobs.core.errors import StoreError
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.store.interactive_base import InteractiveStore

log = logging.getLogger(__name__)


def end_orphans(store: InteractiveStore) -> tuple[str, ...]:
    """End the runs whose process died without ending them; return their ids.

    A run whose parent has ended ends like its parent, any other is Failed, and its reason says
    why. The recorded time of the end is that of this call. A process that cannot be seen from
    here, on another machine or in another PID namespace, is not judged.

    Raises:
        StoreError: the store cannot be read.
    """
    reasons = {
        run: _reason(writer)
        for run, writer in store.run_writers()
        if isinstance(writer, ProcessWriter) and writer.is_gone
    }
    if not reasons:
        return ()
    try:
        return store.end_orphans(list(reasons), reasons=reasons)
    except StoreError as error:
        # The disk is full or another process holds the lock. The caller needs no write, and the
        # next caller retries.
        log.warning("ended runs cannot be recorded now: %s", error)
        return ()


def _reason(writer: ProcessWriter) -> str:
    if writer.is_of_earlier_boot:
        what = f"its machine, {writer.host}, was restarted"
    else:
        what = f"its process ({writer.pid} on {writer.host}) ended"
    return f"{what} without run.complete() or run.fail()"
