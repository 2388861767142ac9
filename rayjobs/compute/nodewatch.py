"""What an agent asks a living attempt host beside its end: leases, silence, stacks."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from rayjobs.compute.nodehosts import host_of_plan
from rayjobs.injob.identity import identity_of, stat_of
from rayjobs.launch import hostclient

log = logging.getLogger(__name__)

# Dumping many ranks one after another takes its time on a busy machine.
STACKS_S = 120.0


def raylet_of_worker() -> dict[str, Any] | None:
    """Return the identity of the raylet that this Ray worker is a child of; None if it is none."""
    parent = os.getppid()
    stat = stat_of(parent)
    identity = identity_of(parent)
    if stat is None or identity is None or stat.comm != "raylet":
        return None
    return identity.as_dict()


def with_raylet(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the order of a host with a lease with the process it is to watch on this node."""
    if not order["plan"].get("lease_s"):
        return dict(order)
    return {**order, "plan": {**order["plan"], "raylet": raylet_of_worker()}}


async def renew(order: Mapping[str, Any], stamp: float | None) -> float | None:
    """See `cluster.Agent.renew`."""
    answer = await _ask(order, {"op": "lease", "stamp": stamp})
    return None if answer is None else float(answer["stamp"])


async def silent_s(order: Mapping[str, Any]) -> float | None:
    """See `cluster.Agent.silent_s`."""
    answer = await _ask(order, {"op": "lease", "stamp": None})
    found = None if answer is None else answer.get("silent_s")
    return None if found is None else float(found)


async def stalled(order: Mapping[str, Any], *, reason: str) -> None:
    """See `cluster.Agent.stalled`."""
    await _ask(order, {"op": "stalled", "reason": reason}, timeout_s=STACKS_S)


async def stacks(order: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """See `cluster.Agent.stacks`."""
    answer = await _ask(order, {"op": "stacks"}, timeout_s=STACKS_S)
    return None if answer is None else list(answer["ranks"])


async def _ask(
    order: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float = 10.0
) -> dict[str, Any] | None:
    """Return the host's answer; None where it has ended, does not answer, or does not know."""
    connection = host_of_plan(order["plan"])
    if connection is None:
        return None
    try:
        answer = await connection.ask(request, timeout_s=timeout_s)
    except (hostclient.HostGone, hostclient.HostUnreachable) as error:
        log.info("%s: %s", order["plan"]["job"], error)
        return None
    return answer if answer.get("ok") else None
