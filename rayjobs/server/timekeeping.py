"""Keeps a timekeeper running for a workspace's schedules on the server's machine.

The timekeeper is a separate process, which dies with its machine or container. The target
cannot be relied on to restart it: it may be on another machine, or have nothing to do.
"""

from __future__ import annotations

import asyncio
import logging

from rayjobs.core.errors import RayjobsError
from rayjobs.core.paths import home
from rayjobs.server.workers import in_thread
from rayjobs.target import timekeeper
from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger("uvicorn.error")
EVERY_S = 60.0


def look(workspace: OpenWorkspace) -> None:
    """Start the timekeeper if the workspace has schedules and none runs here.

    Raises:
        StoreError: the store cannot be read.
        OSError: the home cannot be written.
    """
    at = home()
    if workspace.path in timekeeper.registered(at).values():
        timekeeper.mend(home=at)
    elif workspace.store.schedules():  # made through another server, or this home is new
        timekeeper.register(workspace.path, home=at)


async def keep(workspace: OpenWorkspace) -> None:
    """Call `look` at once, then every minute, until the task is canceled."""
    while True:
        try:
            await in_thread(look, workspace)
        except (RayjobsError, OSError) as error:
            log.warning("schedules: %s", error)
        await asyncio.sleep(EVERY_S)
