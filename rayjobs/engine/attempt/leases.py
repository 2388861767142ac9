"""The target's side of leases: when an unreachable host has certainly ended."""

from __future__ import annotations

import asyncio
import logging

from rayjobs.core.clock import Clock
from rayjobs.core.errors import RayjobsError
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.protocol.agent import Agent, AgentLostError, Cluster
from rayjobs.protocol.calls import RENEW, Renew

log = logging.getLogger(__name__)

# A host survives three lost renewals in a row. A renewal counts from the answer to the one before,
# and a host ends its ranks after two thirds of a lease, that is, five ninths after the renewal: the
# fourth one after it is in time, and the fifth one is due at that end.
RENEWALS = 9
# A host checks its raylet every half second; if it has ended, the host gives its ranks two seconds,
# and then kills them. The rest is a margin for a busy machine.
RAYLET_GONE_S = 10.0
LOOK_S = 1.0


class Leases:
    """The leases granted to the hosts of a target's attempts, by their markers."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        *,
        lease_s: float | None,
        shares_machine: bool,
    ) -> None:
        """Grant leases of `lease_s` seconds, or none if all nodes are on one machine."""
        self.lease_s = None if shares_machine else lease_s
        self.shares_machine = shares_machine
        self._cluster = cluster
        self._clock = clock
        # A previous actor may have granted leases until now.
        self._began_s = clock.monotonic_s()
        self._granted_s: dict[str, float] = {}

    def grant(self, node: NodeOfAttempt) -> None:
        """Note, before the request, that the node's host may be launched or renewed now."""
        self._granted_s[node.on.marker] = self._clock.monotonic_s()

    def forget(self, node: NodeOfAttempt) -> None:
        """Forget the lease of a host that has ended."""
        self._granted_s.pop(node.on.marker, None)

    async def keep(self, agent: Agent, node: NodeOfAttempt) -> None:
        """Renew the lease of the node's host until this is canceled or the agent is lost."""
        lease_s = node.on.lease_s
        if not lease_s:
            return
        stamp: float | None = None
        while True:
            self.grant(node)
            try:
                answer = (await agent.call(RENEW, Renew(node.on, stamp))).stamp
            except AgentLostError:
                return  # the attempt's supervisor sees it too
            except RayjobsError as error:  # the next renewal may succeed
                log.warning("the lease of %s was not renewed: %s", node.on.job, error)
                answer = None
            except Exception:  # a bug must not end the renewals, and with them the attempt
                log.exception("the lease of %s was not renewed", node.on.job)
                answer = None
            fresh = stamp is None and answer is not None
            stamp = answer
            if not fresh:  # the first call only fetched the stamp that the next one renews with
                await asyncio.sleep(lease_s / RENEWALS)

    # -- nodes that are gone -------------------------------------------------------------------
    async def is_lost(self, node: NodeOfAttempt) -> bool:
        """Whether Ray has declared the node dead, which is permanent.

        Raises:
            RayjobsError: the cluster does not answer.
        """
        alive = {one.node_id for one in await self._cluster.nodes()}
        return node.node_id not in alive

    async def living_node(self, node: NodeOfAttempt, *, restarted: bool = False) -> str | None:
        """Return the node, or a living one that sees the same processes, or None.

        Args:
            restarted: The cluster was restarted since: its nodes have new ids, and one with the
                same address is on the same machine. (All nodes of `local` always are.)

        Raises:
            RayjobsError: the cluster does not answer.
        """
        nodes = await self._cluster.nodes()
        if any(one.node_id == node.node_id for one in nodes):
            return node.node_id
        address = node.on.address if restarted else None
        for one in nodes:
            if self.shares_machine or one.address == address:
                return one.node_id
        return None

    def is_over(self, node: NodeOfAttempt) -> bool:
        """Whether the lease of a lost node has ended, so that no process of the attempt runs."""
        lease_s = node.on.lease_s
        if not lease_s:
            return False
        return self._over_s(node, lease_s) <= self._clock.monotonic_s()

    def _over_s(self, node: NodeOfAttempt, lease_s: float) -> float:
        return self._granted_s.get(node.on.marker, self._began_s) + lease_s

    async def wait_over(self, node: NodeOfAttempt) -> bool:
        """Wait until no process of the attempt can still run on its lost node.

        That is when the lease has ended, or soon after the node's machine reports the end of its
        raylet; this then returns True. If the host had no lease, it returns False immediately.
        """
        lease_s = node.on.lease_s
        if not lease_s:
            return False
        over_s = self._over_s(node, lease_s)
        while (left_s := over_s - self._clock.monotonic_s()) > 0:
            if node.watches_raylet and await self._raylet_is_gone(node):
                over_s = min(over_s, self._clock.monotonic_s() + RAYLET_GONE_S)
                left_s = over_s - self._clock.monotonic_s()
                await asyncio.sleep(max(0.0, left_s))
                break
            await asyncio.sleep(min(left_s, LOOK_S))
        self.forget(node)
        return True

    async def _raylet_is_gone(self, node: NodeOfAttempt) -> bool:
        try:
            return await self._cluster.raylet_is_gone(node.node_id)
        except RayjobsError as error:
            log.info("cannot check the raylet of %s: %s", node.name, error)
            return False  # the lease ends in any case
