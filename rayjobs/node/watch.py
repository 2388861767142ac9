"""An agent's calls to a living attempt host: leases, silence, stacks."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TypeVar

from rayjobs.injob.answers import Answer
from rayjobs.injob.host_messages import HostRequest, HostStacks, HostState, LeaseAnswer
from rayjobs.injob.identity import Identity, identity_of, stat_of
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.rank_stack import RankStack
from rayjobs.launch import hostclient
from rayjobs.node.hosts import host_on
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)

# Dumping many ranks in turn takes time on a busy machine.
STACKS_S = 120.0

One = TypeVar("One", bound=Answer)


def raylet_of_worker() -> Identity | None:
    """Return the identity of the raylet whose child this Ray worker is; None if there is none."""
    parent = os.getppid()
    stat = stat_of(parent)
    identity = identity_of(parent)
    if stat is None or identity is None or stat.comm != "raylet":
        return None
    return identity


def with_raylet(plan: LaunchPlan) -> LaunchPlan:
    """Return a plan; if it has a lease, with this node's raylet, which its host must watch."""
    return replace(plan, raylet=raylet_of_worker()) if plan.lease_s else plan


async def renew(on: AttemptOnNode, stamp: float | None) -> float | None:
    """Renew the lease of an attempt's host; return the stamp for the next renewal."""
    answer = await _ask(on, HostRequest("lease", stamp=stamp), LeaseAnswer)
    return None if answer is None else answer.stamp


async def silent_s(on: AttemptOnNode) -> float | None:
    """Return for how many seconds the node's ranks have been silent; None: not measured."""
    answer = await _ask(on, HostRequest("lease"), LeaseAnswer)
    return None if answer is None else answer.silent_s


async def stalled(on: AttemptOnNode, *, reason: str) -> None:
    """Have the host dump its ranks' stacks and end the attempt as stalled. Idempotent."""
    await _ask(on, HostRequest("stalled", reason=reason), HostState, timeout_s=STACKS_S)


async def stacks(on: AttemptOnNode) -> tuple[RankStack, ...] | None:
    """Return the stack of each rank; None: no host answers."""
    answer = await _ask(on, HostRequest("stacks"), HostStacks, timeout_s=STACKS_S)
    return None if answer is None else answer.ranks


async def _ask(
    on: AttemptOnNode, request: HostRequest, kind: type[One], *, timeout_s: float = 10.0
) -> One | None:
    """Return the host's answer; None if it has ended, does not answer or does not know the call."""
    connection = host_on(on)
    if connection is None:
        return None
    try:
        answer = await connection.ask(request, kind, timeout_s=timeout_s)
    except (hostclient.HostGone, hostclient.HostUnreachable) as error:
        log.info("%s: %s", on.job, error)
        return None
    return answer if answer.ok else None
