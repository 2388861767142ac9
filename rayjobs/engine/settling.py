"""Asks nodes what became of attempts, and has what is left of them ended, for sure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rayjobs.engine.attempt.ending import AGENT_PAUSE_S
from rayjobs.engine.attempt_nodes import NodeOfAttempt
from rayjobs.protocol.agent import AgentLostError
from rayjobs.protocol.calls import SETTLE, Settle
from rayjobs.protocol.settled import Found, Settled

if TYPE_CHECKING:
    from rayjobs.engine.engine import Engine

log = logging.getLogger(__name__)


async def prove(engine: Engine, nodes: Iterable[NodeOfAttempt], *, restarted: bool = False) -> bool:
    """End what is left of hosts, and return whether nothing is, for sure."""
    settled = [await settle(engine, replace(node), end=True, restarted=restarted) for node in nodes]
    return all(one.proven for one in settled)


async def settle(
    engine: Engine,
    node: NodeOfAttempt,
    *,
    end: bool,
    restarted: bool = False,
    waits: bool = False,
) -> Settled:
    """Ask the node what became of an attempt.

    State ``unknown``: its agents die, or cannot be reached; or it is gone for good, and the lease
    of its host is not over yet.

    Args:
        end: End what lives.
        waits: Wait, with `end`, for the end of a lease: never in the engine's own turn.
    """
    leases = engine.parts.leases
    for _ in range(3):
        try:
            node_id = await leases.living_node(node, restarted=restarted)
            if node_id is None:
                node.is_lost = True
                if not end:
                    return Settled(Found.GONE)
                if waits or not node.on.lease_s:
                    return Settled(Found.GONE, proven=await leases.wait_over(node))
                is_over = leases.is_over(node)
                return Settled(Found.GONE if is_over else Found.UNKNOWN, proven=is_over)
            node.node_id = node_id
            agent = await engine.cluster.agent(node_id)
            return await agent.call(SETTLE, Settle(node.on, end))
        except AgentLostError as error:
            log.warning("settling %s: %s", node.on.job, error)
    return Settled(Found.UNKNOWN)


async def until_known(
    engine: Engine, node: NodeOfAttempt, *, end: bool, restarted: bool = False
) -> Settled:
    """Settle, however long nobody answers: what is not known to have ended is not begun again."""
    while True:
        found = await settle(engine, node, end=end, restarted=restarted, waits=True)
        if found.state is not Found.UNKNOWN:
            return found
        await asyncio.sleep(AGENT_PAUSE_S)


def living_node(engine: Engine, node_id: str) -> str | None:
    """Return the node, or one that sees the same processes; None when there is none."""
    alive = [node.node_id for node in engine.nodes]
    if node_id in alive:
        return node_id
    # All nodes of a local target stand on this machine.
    return alive[0] if engine.shares_machine and alive else None
