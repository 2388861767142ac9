"""Places and groups that nobody can use, or that belong to no job: they are given up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rayjobs.records import AllocationState

if TYPE_CHECKING:
    from rayjobs.compute.engine import Engine

log = logging.getLogger(__name__)


async def release_idle_on_dead_nodes(engine: Engine) -> None:
    """Give up places that nobody can use: Ray moves a dead node's bundles who knows where."""
    alive = {node.node_id for node in await engine.cluster.nodes()}
    for held in engine.allocations.all:
        if held.job is None and not held.draining and not alive.issuperset(held.nodes):
            log.info("%s had a node that is gone: released", held.name)
            await engine.allocations.release(held)


async def release_rows_of_nobody(engine: Engine) -> None:
    """Release places that the actor before this one recorded after this one had looked.

    It may have been at it while this one claimed the workspace; it has no job on them yet.
    """
    for served in engine.board.served:
        if engine.recovered.get(served.path) is not served:
            continue
        rows = await served.ask(served.store.allocations, engine.target)
        claim = await served.ask(served.store.target_epoch, engine.target)
        if claim is not None and claim[1] != engine.epoch:
            continue  # this one is the actor before
        # In this order: a place of this one is known before its row is written.
        known = {held.name for held in engine.allocations.all}
        for row in rows:
            if row.state is AllocationState.CREATING and row.name not in known:
                log.info("the place %s belongs to no job: released", row.name)
                await engine.cluster.remove_group(row.name)
                await served.ask(served.store.release_allocation, row.name)


async def remove_groups_of_nobody(engine: Engine) -> None:
    """Remove groups that no allocation names: made while their job was canceled, or forgotten.

    Only while every workspace is taken over: one that cannot be opened now may own groups.
    """
    if not engine.board.is_complete or any(
        engine.recovered.get(served.path) is not served for served in engine.board.served
    ):
        return
    # In this order: an allocation is known before its group is made.
    groups = await engine.cluster.group_names(f"rj-{engine.target}-")
    known = {held.name for held in engine.allocations.all}
    for name in groups:
        if name not in known:
            log.info("group %s belongs to no job: removed", name)
            await engine.cluster.remove_group(name)
