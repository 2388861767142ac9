"""Ends interactive runs whose process has died, when the workspace is next opened."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rayjobs.core.errors import StoreError
from rayjobs.jobs.writers import ProcessWriter

if TYPE_CHECKING:
    from rayjobs.store.contract.runs import InteractiveStore

log = logging.getLogger(__name__)


def end_orphans(store: InteractiveStore) -> tuple[str, ...]:
    """End the runs whose process died without ending them; return their ids.

    A run whose parent has ended ends like its parent; any other run is Failed, with a reason. The
    recorded end is the time of this call. Runs whose process cannot be seen from here, because it
    is on another machine or in another PID namespace, are left alone.

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
        # The disk is full, or another process holds the lock. The caller does not depend on this
        # write, and the next caller retries.
        log.warning("ended runs cannot be recorded now: %s", error)
        return ()


def _reason(writer: ProcessWriter) -> str:
    if writer.is_of_earlier_boot:
        what = f"its machine, {writer.host}, was restarted"
    else:
        what = f"its process ({writer.pid} on {writer.host}) ended"
    return f"{what} without run.complete() or run.fail()"
