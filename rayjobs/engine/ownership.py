"""Whose a target's attempts are: a newer actor's, a removed workspace's, or nobody's."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rayjobs.core.errors import StoreError
from rayjobs.engine.board import Served
from rayjobs.engine.recovery import end_and_requeue
from rayjobs.jobs.records import Attempt, Job

if TYPE_CHECKING:
    from rayjobs.engine.engine import Engine

log = logging.getLogger(__name__)


async def look_for_successor(engine: Engine) -> bool:
    """Stop for good when a newer actor has claimed a workspace: two must never act."""
    if engine.epoch is None:
        return False
    for served in engine.board.served:
        try:
            claim = await served.ask(served.store.target_epoch, engine.target)
        except StoreError:
            continue  # what cannot be read cannot be acted upon either
        if claim is None or claim[1] == engine.epoch:
            continue
        log.error("another actor of %s serves %s: this one stops", engine.target, served.path)
        await asyncio.gather(*engine.attempts.cancel(), return_exceptions=True)
        engine.is_superseded = True
        engine.stop()
        return True
    return False


def forsake_removed(engine: Engine) -> None:
    """End the attempts of workspaces that were removed, or replaced by new ones."""
    served = {id(one) for one in engine.board.served}
    for supervisor in engine.attempts.supervisors:
        record = supervisor.record
        if id(record.served) not in served and not record.is_workspace_gone:
            log.warning("the workspace of %s is gone: it is ended", record.job.id)
            supervisor.leave_removed_workspace()


async def take_up_ownerless(engine: Engine, live: list[tuple[Served, Job, Attempt]]) -> None:
    """Queue jobs again whose attempt was let go: its store could not be written then.

    Seen in two rounds: what a supervisor wrote last may be newer than the first look.
    """
    seen = set()
    for served, job, attempt in live:
        key = served.key(job.id)
        if key in engine.attempts or engine.recovered.get(served.path) is not served:
            continue
        if (key, attempt.number) in engine.ownerless:
            await end_and_requeue(engine, served, job, attempt, why="its target lost it")
        else:
            seen.add((key, attempt.number))
    engine.ownerless = seen
