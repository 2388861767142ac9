"""The work of a node agent: it answers the target's calls and leaves when its node is idle."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import PrepareError
from rayjobs.core.logs import set_up_logging
from rayjobs.core.paths import TargetPaths
from rayjobs.core.version import __version__
from rayjobs.injob import open_files
from rayjobs.injob.answers import Answer as HostAnswer
from rayjobs.injob.answers import refusal
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lease import boot_clock_s
from rayjobs.injob.plan import Peer
from rayjobs.injob.session_steps import SessionReply
from rayjobs.launch import mpirelay
from rayjobs.launch.plan import inherited
from rayjobs.node import watch
from rayjobs.node.linger import Linger
from rayjobs.node.node import Node
from rayjobs.node.ports import HeldPorts
from rayjobs.node.served_log import ServedLogs
from rayjobs.node.sessions import Sessions
from rayjobs.protocol import calls, ray_jobs
from rayjobs.protocol.attempts import AttemptOnNode, Launched, LaunchRequest
from rayjobs.protocol.calls import (
    Answer,
    Asked,
    Call,
    Cleaned,
    CleanedFolders,
    CleanFolders,
    DaemonStarted,
    Nothing,
    Port,
    Renew,
    Renewed,
    SessionCall,
    Settle,
    Silence,
    Stacks,
    Stalled,
    StartDaemon,
    Stop,
    UncleanedFolders,
)
from rayjobs.protocol.names import NAMESPACE, agent_name
from rayjobs.protocol.nodes import Hello, Prepared
from rayjobs.protocol.settled import Settled
from rayjobs.target import standing, versions
from rayjobs.target.node_settings import NodeSettings

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 86400.0
LEAVE_S = 10.0
PRUNING_S = 0.2


class NodeService:
    """Runs a `Node` in the process of its agent. All methods are coroutines of one loop."""

    def __init__(self, target: str, home: str, node_id: str) -> None:
        os.environ["RAYJOBS_HOME"] = home
        set_up_logging(TargetPaths.of(target, under=Path(home)).log, f"agent-{node_id[:8]}")
        self._target = target
        settings = NodeSettings.read(target)
        self._node_id = node_id
        standing.take_over()
        open_files.raise_limit()
        self._node = Node(target, Path(home), settings)
        self.linger = Linger(settings.linger_s, SystemClock().monotonic_s)
        self._leaving: asyncio.Task[None] | None = None
        self._ports = HeldPorts()
        self._logs = ServedLogs(ray_jobs.log_path, ray_jobs.is_our_log)
        self._sessions = Sessions()
        self._prune_at_s = 0.0
        self._pruning: asyncio.Future[list[Path]] | None = None
        self._methods = dict(
            (
                self._answering(calls.HELLO, self._hello),
                self._answering(calls.FREE_PORT, self._free_port),
                self._answering(calls.PREPARE, self._prepare),
                self._answering(calls.LAUNCH, self._launch),
                self._answering(calls.FOLLOW, self._follow),
                self._answering(calls.STOP, self._stop),
                self._answering(calls.RENEW, self._renew),
                self._answering(calls.SILENCE, self._silence),
                self._answering(calls.STALLED, self._stalled),
                self._answering(calls.STACKS, self._stacks),
                self._answering(calls.SESSION, self._session),
                self._answering(calls.COLLECT, self._node.collect),
                self._answering(calls.STORE_LATE, self._node.store_late),
                self._answering(calls.STORE_PROGRESS, self._node.store_progress),
                self._answering(calls.SETTLE, self._settle),
                self._answering(calls.CLEAN, self._clean),
                self._answering(calls.UNCLEANED, self._uncleaned),
                self._answering(calls.CLEAN_FOLDERS, self._clean_folders),
                self._answering(calls.START_DAEMON, self._start_daemon),
            )
        )

    async def call(self, method: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """See `NodeAgent.call`."""
        with self.linger.call():
            try:
                return await self._methods[method](message)
            except PrepareError as error:
                # Ray carries an error to the engine without those that caused it.
                if open_files.is_exhausted(error):
                    values = {**error.values, "is_out_of_files": True}
                    raise PrepareError(error.message, **values) from error
                raise

    def _answering(
        self, method: Call[Asked, Answer], work: Callable[[Asked], Awaitable[Answer]]
    ) -> tuple[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]]:
        async def answer(message: Mapping[str, Any]) -> dict[str, Any]:
            return (await work(method.asked.from_json(message))).to_json()

        return method.name, answer

    async def _hello(self, _: Nothing) -> Hello:
        """Return this agent's identity; the first call also starts the warm interpreter."""
        import ray

        self._node.warm_up()
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._leave_when_idle())
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._prune_at_s:
            self._prune_at_s = now_s + PRUNE_EVERY_S
            self._pruning = asyncio.ensure_future(asyncio.to_thread(self._node.prune))
        return Hello(
            node_id=self._node_id,
            address=ray.util.get_node_ip_address(),
            root=str(self._node.paths.root),
            environment=inherited(os.environ),
            python=sys.executable,
            injob_path=str(self._node.injob_path()),
            rayjobs=__version__,
            installed=versions.installed(),
            pid=os.getpid(),
            clock_s=boot_clock_s(),
        )

    async def _free_port(self, _: Nothing) -> Port:
        return Port(self._ports.take())

    async def _prepare(self, request: LaunchRequest) -> Prepared:
        self.linger.expect(request.on)
        try:
            return await self._node.prepare(request)
        except BaseException:
            self.linger.drop(request.on)
            raise

    async def _launch(self, request: LaunchRequest) -> Launched:
        self.linger.expect(request.on)
        try:
            plan = watch.with_raylet(request.plan)
            launched = await self._node.launch(replace(request, plan=plan))
            return replace(launched, watches_raylet=plan.raylet is not None)
        finally:
            self._ports.let_go(request.plan.master_port)

    async def _follow(self, on: AttemptOnNode) -> ExitRecord:
        self.linger.expect(on)
        helpers = []
        if on.relay is not None:  # forward mpirun's requests for orted to the other nodes' agents
            relaying = mpirelay.relay(on.relay, self._start_daemon_elsewhere)
            helpers.append(asyncio.ensure_future(relaying))
        if on.node == 0:  # Ray's dashboard shows the output of rank 0
            serving = self._logs.serve(on.job, on.attempt, Path(on.root))
            helpers.append(asyncio.ensure_future(serving))
        try:
            return await self._node.follow(on)
        finally:
            for one in helpers:
                one.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _start_daemon(self, request: StartDaemon) -> DaemonStarted:
        answer = await mpirelay.start_daemon(request.socket, request.command)
        return DaemonStarted(answer.ok, answer.error)

    async def _start_daemon_elsewhere(self, peer: Peer, command: str) -> HostAnswer:
        if peer.node_id == self._node_id:
            return await mpirelay.start_daemon(peer.socket, command)
        import ray

        name, method = agent_name(self._target, peer.node_id), calls.START_DAEMON
        message = StartDaemon(peer.socket, command).to_json()
        try:
            other = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
            found = method.answer.from_json(await other.call.remote(method.name, message))
        except (ValueError, ray.exceptions.RayError) as error:
            return refusal(f"the agent of node {peer.node} cannot be reached: {error}")
        return HostAnswer(found.is_started, found.why_not)

    async def _stop(self, request: Stop) -> Nothing:
        await self._node.stop(request.on, request.cause, grace_s=request.grace_s)
        return Nothing()

    async def _renew(self, request: Renew) -> Renewed:
        starting = self._node.launching.renew(request.on.marker, request.stamp)
        if starting is not None:
            return Renewed(starting)
        return Renewed(await watch.renew(request.on, request.stamp))

    async def _silence(self, on: AttemptOnNode) -> Silence:
        return Silence(await watch.silent_s(on))

    async def _stalled(self, request: Stalled) -> Nothing:
        await watch.stalled(request.on, reason=request.reason)
        return Nothing()

    async def _stacks(self, on: AttemptOnNode) -> Stacks:
        return Stacks(await watch.stacks(on))

    async def _session(self, request: SessionCall) -> SessionReply:
        return await self._sessions.step(request.on, request.step)

    async def _settle(self, request: Settle) -> Settled:
        answer = await self._node.ends.settle(request.on, end=request.end)
        if answer.proven:
            self.linger.drop(request.on)
        return answer

    async def _clean(self, on: AttemptOnNode) -> Cleaned:
        try:
            return await self._node.ends.clean(on)
        finally:
            self.linger.drop(on)

    async def _uncleaned(self, _: Nothing) -> UncleanedFolders:
        found = await asyncio.to_thread(self._node.cleaning.uncleaned)
        return UncleanedFolders(tuple(found))

    async def _clean_folders(self, request: CleanFolders) -> CleanedFolders:
        return CleanedFolders(await asyncio.to_thread(self._node.cleaning.clean, request.roots))

    async def _leave_when_idle(self) -> None:
        """End this actor when its node has had no attempt for a while.

        An idle detached actor would keep an autoscaled node forever. The warm interpreters stay for
        their own idle time, and the node's next agent finds them.
        """
        import ray

        while wait_s := self._wait_s():
            await asyncio.sleep(wait_s)
        self.linger.leave()
        log.info("no attempt on this node: the agent leaves")
        # Ray treats an exit as intended only inside a call.
        ray.get_runtime_context().current_actor.leave.remote()
        await asyncio.sleep(LEAVE_S)
        log.warning("Ray has not ended this actor within %g s", LEAVE_S)
        os._exit(1)  # by now it would refuse every call

    def _wait_s(self) -> float:
        is_pruning = self._pruning is not None and not self._pruning.done()
        return PRUNING_S if is_pruning else self.linger.due_in_s()

    @property
    def has_left(self) -> bool:
        """Whether this agent refuses work, because its node was idle."""
        return self.linger.has_left
