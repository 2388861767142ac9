"""Stores the output of fetches and builds before an attempt with its run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.core.paths import BUILD_LOG, AttemptPaths
from rayjobs.jobs.records import StoredFile
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)

# Each time, the whole log is stored again.
FIRST_PAUSE_S = 2.0
LAST_PAUSE_S = 30.0


def store_build_log(workspaces: Workspaces, on: AttemptOnNode, paths: AttemptPaths) -> None:
    """Store the build output: an attempt that does not start is not collected. Blocks."""
    if paths.build_log.is_file():
        name = f"node-{on.node}/{BUILD_LOG}" if on.node else BUILD_LOG
        store_file(workspaces, on, paths.build_log, name)


def store_file(workspaces: Workspaces, on: AttemptOnNode, path: Path, name: str) -> None:
    """Store a file of an attempt that has not started yet. Blocks."""
    try:
        workspace = workspaces.of(on)
        blob = workspace.blobs.add_file(path)
        file = StoredFile(
            name=name,
            attempt=on.attempt,
            size=blob.size,
            digest=blob.digest,
            blob=blob.key,
            stored_at=SystemClock().now(),
        )
        workspace.store.publish_files(on.job, attempt=on.attempt, files=[file])
    except (StoreError, NotFoundError, OSError) as error:
        log.warning("%s of %s is not stored: %s", name, on.job, error)


async def stream_build_log(
    workspaces: Workspaces, on: AttemptOnNode, paths: AttemptPaths, done: asyncio.Event
) -> None:
    """Store the output of a running build at growing intervals, until `done`."""
    pause_s, size = FIRST_PAUSE_S, 0
    while not done.is_set():
        try:
            async with asyncio.timeout(pause_s):
                await done.wait()
        except TimeoutError:
            now = paths.build_log.stat().st_size if paths.build_log.exists() else 0
            if now != size:
                size = now
                await asyncio.to_thread(store_build_log, workspaces, on, paths)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
