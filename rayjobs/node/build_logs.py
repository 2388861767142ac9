"""What fetching and building said before an attempt, stored with its run."""

from __future__ import annotations

import logging

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.core.paths import BUILD_LOG, AttemptPaths
from rayjobs.jobs.records import StoredFile
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)


def store_build_log(workspaces: Workspaces, on: AttemptOnNode, paths: AttemptPaths) -> None:
    """Store what building said; an attempt that does not start is not collected. Blocks."""
    if not paths.build_log.is_file():
        return
    try:
        workspace = workspaces.of(on)
        blob = workspace.blobs.add_file(paths.build_log)
        file = StoredFile(
            name=f"node-{on.node}/{BUILD_LOG}" if on.node else BUILD_LOG,
            attempt=on.attempt,
            size=blob.size,
            digest=blob.digest,
            blob=blob.key,
            stored_at=SystemClock().now(),
        )
        workspace.store.publish_files(on.job, attempt=on.attempt, files=[file])
    except (StoreError, NotFoundError, OSError) as error:
        log.warning("the build log of %s is not stored: %s", on.job, error)
