"""The node agent: a detached Ray actor that speaks for one node while attempts are on it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rayjobs
from rayjobs.compute import nodewatch
from rayjobs.compute.actor import set_up_logging
from rayjobs.compute.node import Node
from rayjobs.compute.ports import HeldPorts
from rayjobs.launch.plan import inherited
from rayjobs.paths import TargetPaths

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 86400.0


def agent_name(target: str, node_id: str) -> str:
    """Return the name under which Ray knows a node's agent."""
    return f"rayjobs-agent-{target}-{node_id[:16]}"


class NodeAgent:
    """Carries a `Node` in a Ray actor. All methods are coroutines of one loop."""

    def __init__(self, target: str, home: str, node_id: str) -> None:
        os.environ["RAYJOBS_HOME"] = home
        set_up_logging(TargetPaths.of(target, under=Path(home)).log, f"agent-{node_id[:8]}")
        self._node_id = node_id
        self._node = Node(target, Path(home))
        self._ports = HeldPorts()
        self._prune_at_s = 0.0
        self._pruning: asyncio.Future[list[Path]] | None = None

    async def hello(self) -> dict[str, Any]:
        """See `cluster.Agent.hello`; the first call starts the warm interpreter."""
        import ray

        self._node.warm_up()
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._prune_at_s:
            self._prune_at_s = now_s + PRUNE_EVERY_S
            self._pruning = asyncio.ensure_future(asyncio.to_thread(self._node.prune))
        return {
            "node_id": self._node_id,
            "address": ray.util.get_node_ip_address(),
            "root": str(self._node.paths.root),
            "environment": inherited(os.environ),
            "python": sys.executable,
            "injob_path": str(self._node.injob_path()),
            "version": rayjobs.__version__,
            "pid": os.getpid(),
        }

    async def free_port(self) -> int:
        """See `cluster.Agent.free_port`."""
        return self._ports.take()

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.prepare`."""
        return await self._node.prepare(order)

    async def launch(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.launch`."""
        try:
            given = nodewatch.with_raylet(order)
            host = await self._node.launch(given)
            return {**host, "watches_raylet": bool(given["plan"].get("raylet"))}
        finally:
            self._ports.let_go(order["plan"].get("master_port"))

    async def follow(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.follow`."""
        return await self._node.follow(order)

    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        """See `cluster.Agent.stop`."""
        await self._node.stop(order, reason=reason, grace_s=grace_s)

    async def renew(self, order: Mapping[str, Any], stamp: float | None) -> float | None:
        """See `cluster.Agent.renew`."""
        return await nodewatch.renew(order, stamp)

    async def silent_s(self, order: Mapping[str, Any]) -> float | None:
        """See `cluster.Agent.silent_s`."""
        return await nodewatch.silent_s(order)

    async def stalled(self, order: Mapping[str, Any], *, reason: str) -> None:
        """See `cluster.Agent.stalled`."""
        await nodewatch.stalled(order, reason=reason)

    async def stacks(self, order: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """See `cluster.Agent.stacks`."""
        return await nodewatch.stacks(order)

    async def collect(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.collect`."""
        return await self._node.collect(order)

    async def settle(self, order: Mapping[str, Any], *, end: bool) -> dict[str, Any]:
        """See `cluster.Agent.settle`."""
        return await self._node.settle(order, end=end)

    async def clean(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.clean`."""
        return await self._node.clean(order)
