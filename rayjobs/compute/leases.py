"""The target's side of leases: when a host that cannot be reached has ended by its own clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from rayjobs.clock import Clock
from rayjobs.compute.cluster import Agent, AgentLostError, Cluster
from rayjobs.errors import RayjobsError

log = logging.getLogger(__name__)

# A renewal may be lost five times in a row before a host ends its ranks.
RENEWALS = 9
# A host whose raylet has ended notices within its turn of half a second, gives its ranks two
# seconds, and kills what is left. The rest is for a busy machine.
RAYLET_GONE_S = 10.0
LOOK_S = 1.0


class Leases:
    """What was granted to the hosts of a target's attempts, by their markers."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        *,
        lease_s: float | None,
        shares_machine: bool,
    ) -> None:
        """Grant leases of `lease_s` seconds, or none where all nodes are on one machine."""
        self.lease_s = None if shares_machine else lease_s
        self.shares_machine = shares_machine
        self._cluster = cluster
        self._clock = clock
        # An actor before this one may have granted until now.
        self._began_s = clock.monotonic_s()
        self._granted_s: dict[str, float] = {}

    def grant(self, order: Mapping[str, Any]) -> None:
        """Note, before it is asked, that the order's host may be launched or prolonged now."""
        self._granted_s[str(order["plan"]["marker"])] = self._clock.monotonic_s()

    def forget(self, order: Mapping[str, Any]) -> None:
        """Drop what was granted to a host that has ended."""
        self._granted_s.pop(str(order["plan"]["marker"]), None)

    async def keep(self, agent: Agent, order: Mapping[str, Any]) -> None:
        """Renew the lease of the order's host until this is cancelled, or the agent is lost."""
        lease_s = order["plan"].get("lease_s")
        if not lease_s:
            return
        stamp: float | None = None
        while True:
            self.grant(order)
            try:
                answer = await agent.renew(order, stamp)
            except AgentLostError:
                return  # who follows the attempt hears of it too
            except RayjobsError as error:
                log.info("the lease of %s was not renewed: %s", order["plan"]["job"], error)
                answer = None
            fresh = stamp is None and answer is not None
            stamp = answer
            if not fresh:  # the first answer only brought a stamp
                await asyncio.sleep(lease_s / RENEWALS)

    # -- nodes that are gone -------------------------------------------------------------------
    async def is_lost(self, order: Mapping[str, Any]) -> bool:
        """Whether Ray has declared the order's node dead, which is for ever.

        Raises:
            RayjobsError: the cluster cannot be asked.
        """
        alive = {node.node_id for node in await self._cluster.nodes()}
        return order["node_id"] not in alive

    async def living_node(self, order: Mapping[str, Any], *, restarted: bool = False) -> str | None:
        """Return the order's node, or a living one that sees the same processes; None without.

        Args:
            restarted: The cluster was started again since: its nodes have new ids, and one with
                the same address stands on the same machine. All nodes of `local` do anyway.

        Raises:
            RayjobsError: the cluster cannot be asked.
        """
        nodes = await self._cluster.nodes()
        if any(node.node_id == order["node_id"] for node in nodes):
            return str(order["node_id"])
        address = order.get("address") if restarted else None
        for node in nodes:
            if self.shares_machine or node.address == address:
                return node.node_id
        return None

    def is_over(self, order: Mapping[str, Any]) -> bool:
        """Whether nothing of the order's attempt can run on its lost node any more; see below."""
        lease_s = order["plan"].get("lease_s")
        return bool(lease_s) and self._over_s(order, lease_s) <= self._clock.monotonic_s()

    def _over_s(self, order: Mapping[str, Any], lease_s: float) -> float:
        return self._granted_s.get(str(order["plan"]["marker"]), self._began_s) + lease_s

    async def wait_over(self, order: Mapping[str, Any]) -> bool:
        """Return once nothing of the order's attempt can run on its lost node any more.

        That is when the lease is over, or, if the node's machine says that its raylet has ended,
        soon after. False, at once, where the host was granted no lease: then nobody knows.
        """
        lease_s = order["plan"].get("lease_s")
        if not lease_s:
            return False
        over_s = self._over_s(order, lease_s)
        while (left_s := over_s - self._clock.monotonic_s()) > 0:
            if order["plan"].get("watches_raylet") and await self._cluster.raylet_is_gone(
                str(order["node_id"])
            ):
                over_s = min(over_s, self._clock.monotonic_s() + RAYLET_GONE_S)
                left_s = over_s - self._clock.monotonic_s()
                await asyncio.sleep(max(0.0, left_s))
                break
            await asyncio.sleep(min(left_s, LOOK_S))
        self.forget(order)
        return True
