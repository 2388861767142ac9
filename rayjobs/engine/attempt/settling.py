"""Asks an attempt's nodes for its state, and ends what still runs there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rayjobs.core.errors import RayjobsError
from rayjobs.engine.attempt.leases import Leases
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.protocol.agent import (
    AgentFaultError,
    AgentLostError,
    Cluster,
    ClusterUnreachableError,
)
from rayjobs.protocol.calls import SETTLE, Settle
from rayjobs.protocol.settled import Found, Settled

log = logging.getLogger(__name__)

PAUSE_S = 0.5
# How long one node may delay a caller that does not wait for an answer.
ANSWER_S = 30.0
# After this time without an answer, the job's history says so.
REPORT_S = 10.0
# How long an agent may answer with errors until it counts as unable to answer.
FAULT_S = 60.0


@dataclass(frozen=True)
class _Unknown:
    """Why a state is unknown; `is_fault`: the agent answers, but only with errors."""

    why: str
    is_fault: bool = False


class Settling:
    """Determines the state of attempts: a job that may still run must not start again."""

    def __init__(self, cluster: Cluster, leases: Leases) -> None:
        """Ask the agents of `cluster`; `leases` says when a host on a lost node has ended."""
        self._cluster = cluster
        self._leases = leases

    async def ask(
        self, node: NodeOfAttempt, *, end: bool, restarted: bool = False, waits: bool = False
    ) -> Settled:
        """Ask the node for the state of an attempt; with `end`, for its final state.

        The state is ``unknown`` if the node does not answer, for whatever reason, or, with `end`,
        if the node is permanently gone and the lease of its host has not ended yet.

        Args:
            end: End the living processes.
            restarted: The cluster was restarted since the attempt's start.
            waits: Wait for the answer as long as it takes and, with `end`, for the end of a lease.
                Never use it in the engine's turn.
        """
        try:
            async with asyncio.timeout(None if waits else ANSWER_S):
                found = await self._ask(node, end=end, restarted=restarted, waits=waits)
        except TimeoutError:
            log.warning("settling %s: %s does not answer", node.on.job, node.name)
            return Settled(Found.UNKNOWN)
        return found if isinstance(found, Settled) else Settled(Found.UNKNOWN)

    async def until_known(
        self,
        node: NodeOfAttempt,
        *,
        end: bool,
        restarted: bool = False,
        report: Callable[[str], Awaitable[None]] | None = None,
    ) -> Settled:
        """Ask until the state is known.

        It stays unknown only if the agent answers with errors, and nothing else, for `FAULT_S`
        seconds, and the host has no lease that ends it.

        Args:
            report: Called once with the reason if this takes long.
        """
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        faults_since_s: float | None = None
        while True:
            found = await self._ask(node, end=end, restarted=restarted, waits=True)
            if isinstance(found, Settled):
                return found
            now_s = loop.time()
            if report is not None and now_s - since_s >= REPORT_S:
                await report(found.why)
                report = None
            if not found.is_fault:
                faults_since_s = None
            elif faults_since_s is None:
                faults_since_s = now_s
            if faults_since_s is not None and now_s - faults_since_s >= FAULT_S:
                if not node.on.lease_s:
                    return Settled(Found.UNKNOWN)
                if self._leases.is_over(node):
                    return Settled(Found.GONE, proven=True)
            await asyncio.sleep(PAUSE_S)

    async def _ask(
        self, node: NodeOfAttempt, *, end: bool, restarted: bool, waits: bool
    ) -> Settled | _Unknown:
        why = ""
        for _ in range(3):
            try:
                node_id = await self._leases.living_node(node, restarted=restarted)
                if node_id is None:
                    node.is_lost = True
                    return await self._of_lost(node, end=end, waits=waits)
                node.node_id = node_id
                agent = await self._cluster.agent(node_id)
                return await agent.call(SETTLE, Settle(node.on, end))
            except AgentLostError as error:  # the next agent may know
                why = str(error)
                log.warning("settling %s: %s", node.on.job, error)
            except RayjobsError as error:
                log.warning("settling %s: %s", node.on.job, error)
                is_away = isinstance(error, ClusterUnreachableError)
                is_short = isinstance(error, AgentFaultError) and error.is_out_of_files
                return _Unknown(str(error), is_fault=not is_away and not is_short)
            except Exception as error:  # a bug says nothing about the processes
                log.exception("settling %s", node.on.job)
                return _Unknown(f"{type(error).__name__}: {error}", is_fault=True)
        return _Unknown(why)

    async def _of_lost(self, node: NodeOfAttempt, *, end: bool, waits: bool) -> Settled | _Unknown:
        """Return the state of an attempt on a permanently lost node."""
        if not end:
            return Settled(Found.GONE)
        if waits or not node.on.lease_s:
            return Settled(Found.GONE, proven=await self._leases.wait_over(node))
        if self._leases.is_over(node):
            return Settled(Found.GONE, proven=True)
        return _Unknown(f"{node.name} is lost, and the lease of its host has not ended yet")
