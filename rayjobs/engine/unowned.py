"""Idle places that nobody can use, and groups that belong to no place: they are given up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayjobs.engine.board import Served
    from rayjobs.engine.engine import Engine

log = logging.getLogger(__name__)


async def release_idle_on_dead_nodes(engine: Engine) -> None:
    """Give up places that nobody can use: Ray moves a dead node's bundles who knows where."""
    alive = {node.node_id for node in await engine.cluster.nodes()}
    for held in engine.allocations.all:
        if held.job is None and not held.draining and not alive.issuperset(held.nodes):
            log.info("%s had a node that is gone: released", held.name)
            await engine.allocations.release(held)


async def is_replaced(engine: Engine, served: Served) -> bool:
    """Whether another actor has claimed the workspace last. Raises StoreError."""
    claim = await served.ask(served.store.target_epoch, engine.target)
    return claim is not None and claim[1] != engine.epoch


async def remove_groups_of_nobody(engine: Engine) -> None:
    """Remove groups that no allocation names: made while their job was canceled, or forgotten.

    Only while every workspace is taken over: one that cannot be opened now may own groups. And
    only by the actor that claimed them last: the groups of the next actor are unknown to this one.
    """
    if not engine.board.is_complete or any(
        engine.recovered.get(served.path) is not served for served in engine.board.served
    ):
        return
    # In this order: an allocation is known before its group is made.
    groups = await engine.cluster.group_names(f"rj-{engine.target}-")
    known = {held.name for held in engine.allocations.all}
    # Asked after the list: the next actor claims before it makes a group or takes one over.
    for served in engine.board.served:
        if await is_replaced(engine, served):
            return
    for name in groups:
        if name not in known:
            log.info("group %s belongs to no job: removed", name)
            await engine.cluster.remove_group(name)
