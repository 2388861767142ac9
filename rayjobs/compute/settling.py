"""Asks nodes what became of attempts, and has what is left of them ended, for sure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.compute.board import Served
from rayjobs.compute.cluster import AgentLostError
from rayjobs.compute.driveends import AGENT_PAUSE_S
from rayjobs.injob.identity import boot_id
from rayjobs.records import Job

if TYPE_CHECKING:
    from rayjobs.compute.engine import Engine

log = logging.getLogger(__name__)


async def prove(
    engine: Engine, orders: Iterable[Mapping[str, Any]], *, restarted: bool = False
) -> bool:
    """End what is left of hosts, and return whether nothing is, for sure."""
    settled = [await settle(engine, dict(order), end=True, restarted=restarted) for order in orders]
    return all(one["proven"] for one in settled)


async def settle(
    engine: Engine,
    order: dict[str, Any],
    *,
    end: bool,
    restarted: bool = False,
    waits: bool = False,
) -> dict[str, Any]:
    """Ask the node what became of an attempt.

    State ``unknown``: its agents die, or cannot be reached; or it is gone for good, and the lease
    of its host is not over yet.

    Args:
        end: End what lives.
        waits: Wait, with `end`, for the end of a lease: never in the engine's own turn.
    """
    gone = {"state": "gone", "proven": False, "ended_now": False}
    leases = engine.parts.leases
    for _ in range(3):
        try:
            node_id = await leases.living_node(order, restarted=restarted)
            if node_id is None:
                order["is_lost"] = True
                if not end:
                    return gone
                if waits or not order["plan"].get("lease_s"):
                    return {**gone, "proven": await leases.wait_over(order)}
                is_over = leases.is_over(order)
                return {**gone, "proven": is_over, "state": "gone" if is_over else "unknown"}
            order["node_id"] = node_id
            agent = await engine.cluster.agent(node_id)
            return {"ended_now": False, **await agent.settle(order, end=end)}
        except AgentLostError as error:
            log.warning("settling %s: %s", order["plan"]["job"], error)
    return {**gone, "state": "unknown"}


async def until_known(
    engine: Engine, order: dict[str, Any], *, end: bool, restarted: bool = False
) -> dict[str, Any]:
    """Settle, however long nobody answers: what is not known to have ended is not begun again."""
    while True:
        found = await settle(engine, order, end=end, restarted=restarted, waits=True)
        if found["state"] != "unknown":
            return found
        await asyncio.sleep(AGENT_PAUSE_S)


def living_node(engine: Engine, node_id: str) -> str | None:
    """Return the node, or one that sees the same processes; None when there is none."""
    alive = [node.node_id for node in engine.nodes]
    if node_id in alive:
        return node_id
    # All nodes of a local target stand on this machine.
    return alive[0] if engine.shares_machine and alive else None


def order_of(served: Served, target: str, job: Job, host: Any) -> dict[str, Any]:
    """Return an agent's order for a host that was launched earlier, from its record."""
    return {
        "workspace": served.path,
        "target": target,
        "node_id": host["node_id"],
        "address": host.get("address"),
        "boot_id": boot_id(),
        "snapshot": job.snapshot,
        "secrets": {},
        "plan": {
            "job": job.id,
            "attempt": host.get("attempt", job.attempt),
            "node": host["node"],
            "node_count": job.spec.distribution.nodes,
            "root": host["root"],
            "socket": host["socket"],
            "marker": host["marker"],
            "ranks": [
                {"rank": host["node"] * job.spec.distribution.processes_per_node + local}
                for local in range(job.spec.distribution.processes_per_node)
            ],
            "grace_s": job.spec.grace_s,
            "max_duration_s": job.spec.max_duration_s,
            "stall_timeout_s": job.spec.stall_timeout_s,
            "lease_s": host.get("lease_s"),
            "watches_raylet": bool(host.get("watches_raylet")),
        },
    }
