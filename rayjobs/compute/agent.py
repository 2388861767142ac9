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
from rayjobs.clock import SystemClock
from rayjobs.compute import nodewatch, standing, versions
from rayjobs.compute.actor import NAMESPACE, set_up_logging
from rayjobs.compute.linger import Linger, attended
from rayjobs.compute.node import Node
from rayjobs.compute.nodesettings import NodeSettings
from rayjobs.compute.ports import HeldPorts
from rayjobs.injob import openfiles
from rayjobs.injob.lease import boot_clock_s
from rayjobs.launch import mpirelay
from rayjobs.launch.plan import inherited
from rayjobs.node.served_log import ServedLogs
from rayjobs.paths import TargetPaths
from rayjobs.protocol import ray_jobs

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 86400.0
LEAVE_S = 10.0
PRUNING_S = 0.2


def agent_name(target: str, node_id: str) -> str:
    """Return the name under which Ray knows a node's agent."""
    return f"rayjobs-agent-{target}-{node_id}"


class NodeAgent:
    """Carries a `Node` in a Ray actor. All methods are coroutines of one loop."""

    def __init__(self, target: str, home: str, node_id: str) -> None:
        os.environ["RAYJOBS_HOME"] = home
        set_up_logging(TargetPaths.of(target, under=Path(home)).log, f"agent-{node_id[:8]}")
        self._target = target
        settings = NodeSettings.read(target)
        self._node_id = node_id
        standing.take_over()
        openfiles.raise_limit()
        self._node = Node(target, Path(home), settings)
        self.linger = Linger(settings.linger_s, SystemClock().monotonic_s)
        self._leaving: asyncio.Task[None] | None = None
        self._ports = HeldPorts()
        self._logs = ServedLogs(ray_jobs.log_path, ray_jobs.is_our_log)
        self._prune_at_s = 0.0
        self._pruning: asyncio.Future[list[Path]] | None = None

    @attended
    async def hello(self) -> dict[str, Any]:
        """See `cluster.Agent.hello`; the first call starts the warm interpreter."""
        import ray

        self._node.warm_up()
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._leave_when_idle())
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
            "installed": versions.installed(),
            "pid": os.getpid(),
            "clock_s": boot_clock_s(),
        }

    @attended
    async def free_port(self) -> int:
        """See `cluster.Agent.free_port`."""
        return self._ports.take()

    @attended
    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.prepare`."""
        self.linger.expect(order)
        try:
            return await self._node.prepare(order)
        except BaseException:
            self.linger.drop(order)
            raise

    @attended
    async def launch(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.launch`."""
        self.linger.expect(order)
        try:
            given = nodewatch.with_raylet(order)
            host = await self._node.launch(given)
            return {**host, "watches_raylet": bool(given["plan"].get("raylet"))}
        finally:
            self._ports.let_go(order["plan"].get("master_port"))

    @attended
    async def follow(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.follow`."""
        self.linger.expect(order)
        beside = [asyncio.ensure_future(self._relay(order["plan"]))]
        if int(order["plan"].get("node", 0)) == 0:
            beside.append(asyncio.ensure_future(self._serve_log(order["plan"])))
        try:
            return await self._node.follow(order)
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _serve_log(self, plan: Mapping[str, Any]) -> None:
        """Show what rank 0 prints on Ray's dashboard."""
        await self._logs.serve(str(plan["job"]), int(plan["attempt"]), Path(plan["root"]))

    async def _relay(self, plan: Mapping[str, Any]) -> None:
        """Bring mpirun's requests for orted to the agents of the other nodes."""
        if mpirelay.is_needed(plan):
            await mpirelay.relay(plan, self._start_daemon_elsewhere)

    async def _start_daemon_elsewhere(self, peer: Mapping[str, Any], command: str) -> str:
        if peer["node_id"] == self._node_id:
            return await self.start_daemon(str(peer["socket"]), command)
        import ray

        name = agent_name(self._target, str(peer["node_id"]))
        try:
            other = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
            return str(await other.start_daemon.remote(str(peer["socket"]), command))
        except (ValueError, ray.exceptions.RayError) as error:
            return f"the agent of node {peer['node']} cannot be reached: {error}"

    async def start_daemon(self, socket: str, command: str) -> str:
        """Have an attempt host of this node start orted; return why it did not, else nothing."""
        return await mpirelay.start_daemon(socket, command)

    @attended
    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        """See `cluster.Agent.stop`."""
        await self._node.stop(order, reason=reason, grace_s=grace_s)

    @attended
    async def renew(self, order: Mapping[str, Any], stamp: float | None) -> float | None:
        """See `cluster.Agent.renew`."""
        starting = self._node.launching.renew(order["plan"], stamp)
        return await nodewatch.renew(order, stamp) if starting is None else starting

    @attended
    async def silent_s(self, order: Mapping[str, Any]) -> float | None:
        """See `cluster.Agent.silent_s`."""
        return await nodewatch.silent_s(order)

    @attended
    async def stalled(self, order: Mapping[str, Any], *, reason: str) -> None:
        """See `cluster.Agent.stalled`."""
        await nodewatch.stalled(order, reason=reason)

    @attended
    async def stacks(self, order: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """See `cluster.Agent.stacks`."""
        return await nodewatch.stacks(order)

    @attended
    async def collect(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.collect`."""
        return await self._node.collect(order)

    @attended
    async def settle(self, order: Mapping[str, Any], *, end: bool) -> dict[str, Any]:
        """See `cluster.Agent.settle`."""
        answer = await self._node.settle(order, end=end)
        if answer["proven"]:
            self.linger.drop(order)
        return answer

    @attended
    async def clean(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `cluster.Agent.clean`."""
        try:
            return await self._node.clean(order)
        finally:
            self.linger.drop(order)

    @attended
    async def uncleaned(self) -> list[dict[str, Any]]:
        """See `cluster.Agent.uncleaned`."""
        return await asyncio.to_thread(self._node.uncleaned)

    @attended
    async def sweep(self, roots: list[str]) -> int:
        """See `cluster.Agent.sweep`."""
        return await asyncio.to_thread(self._node.sweep, roots)

    async def _leave_when_idle(self) -> None:
        """End this actor once its node has had no attempt for a while.

        One idle detached actor keeps an autoscaled node for ever. The warm interpreters stay for
        their own idle time, and the node's next agent finds them.
        """
        import ray

        while wait_s := self._wait_s():
            await asyncio.sleep(wait_s)
        self.linger.leave()
        log.info("no attempt on this node: the agent leaves")
        # From within a call only does Ray take it for an end that was meant.
        ray.get_runtime_context().current_actor.leave.remote()
        await asyncio.sleep(LEAVE_S)
        log.warning("Ray has not ended this actor within %g s", LEAVE_S)
        os._exit(1)  # by now it would only refuse whatever it is asked

    def _wait_s(self) -> float:
        is_pruning = self._pruning is not None and not self._pruning.done()
        return PRUNING_S if is_pruning else self.linger.due_in_s()

    async def leave(self) -> None:
        """End this actor, which has said before that it takes nothing on."""
        import ray

        if self.linger.has_left:
            ray.actor.exit_actor()
