"""The target actor: a detached, named Ray actor that runs one target's queue."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rayjobs.core import ids
from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import RayjobsError, TargetError
from rayjobs.core.logs import set_up_logging
from rayjobs.core.paths import TargetPaths, short_socket
from rayjobs.core.text import duration_text
from rayjobs.core.version import __version__
from rayjobs.datastore import credentials
from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.engine.board import Board
from rayjobs.engine.dashboard_jobs import DashboardJobs
from rayjobs.engine.engine import Engine, Observer, TargetMachines, TurnFacts
from rayjobs.engine.notifications import Notifications
from rayjobs.engine.pending_nodes import PendingNodes
from rayjobs.engine.reporting import Reporting
from rayjobs.engine.sweep_drivers import Drivers
from rayjobs.engine.wake_server import WakeServer
from rayjobs.engine.workspace_server import WorkspaceServer
from rayjobs.injob import open_files
from rayjobs.injob.session_steps import SessionStep
from rayjobs.protocol import ray_jobs
from rayjobs.protocol.calls import SESSION, STACKS, SessionCall
from rayjobs.protocol.names import NAMESPACE, actor_name
from rayjobs.store.base import Store
from rayjobs.target.answers import (
    EvictAnswer,
    ExplainAnswer,
    JobDecision,
    NodeRankStack,
    RetireAnswer,
    SeesAnswer,
    SessionAnswer,
    StacksAnswer,
    TargetAnswer,
    WakeAnswer,
)
from rayjobs.target.limits import LimitsFile
from rayjobs.target.record import load_target
from rayjobs.target.requests import TargetRequest
from rayjobs.target.secrets import TargetSecrets

if TYPE_CHECKING:
    from rayjobs.engine.gauges import Gauges

log = logging.getLogger(__name__)
Identified = TypeVar("Identified", bound=TargetAnswer)
SECRET = "RAYJOBS_SECRET_"

START_TIMEOUT_S = 180.0
# Nodes that do not share the disk transfer files and records through these calls.
CALLS_AT_ONCE = 32
STOPPED = "the target was stopped; the job continues when the target is started again"


class TargetActor:
    """Runs the engine in a thread with its own loop.

    The actor thus answers Ray's calls immediately, whatever the engine does.
    """

    def __init__(self, target: str, home: str, shares_machine: bool) -> None:
        self.target = target
        self.home = Path(home)
        self.paths = TargetPaths.of(target, under=self.home)
        set_up_logging(self.paths.log, "target")
        # Use this home's sockets, whatever home the process was started with.
        os.environ["RAYJOBS_HOME"] = home
        open_files.raise_limit()
        self.epoch = ids.token(8)
        self._shares_machine = shares_machine
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._reporting = Reporting(self.paths)
        self._serves_others = False
        self._server = WorkspaceServer()
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- Ray methods -------------------------------------------------------------------------------
    def ping(self) -> dict[str, Any]:
        """Return the JSON of a `TargetAnswer`: this actor's identity, once its socket answers.

        Raises:
            TargetError: the engine could not start, or was not ready in time.
        """
        if not self._ready.wait(START_TIMEOUT_S):
            raise TargetError(
                f"the target {self.target} was not ready within {duration_text(START_TIMEOUT_S)}"
            )
        if self._error is not None:
            raise TargetError(f"the target {self.target} could not start: {self._error}")
        return self._identified(TargetAnswer()).to_json()

    def workspace(self, method: str, *args: Any) -> Any:
        """Answer an agent that does not share this machine's disk; see `WorkspaceServer`."""
        if method == "secrets":
            return TargetSecrets(self.target, home=self.home).values()
        if method not in ("about", "call", "read", "append", "keep", "keep_parts"):
            raise TargetError(f"the target {self.target} does not know the call {method!r}")
        return getattr(self._server, method)(*args)

    def stop(self) -> None:
        """End the engine; attempts continue without it."""
        if self._loop is not None and self._engine is not None:
            self._loop.call_soon_threadsafe(self._engine.stop)
            self._thread.join(10.0)

    # -- the thread of the engine ----------------------------------------------------------------
    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
            if self._engine is not None and self._engine.is_superseded:
                self._leave()
        except BaseException as error:
            self._error = error
            log.exception("the target actor's engine ended")
            self._ready.set()

    def _leave(self) -> None:
        """End this process permanently, which frees its name for a start."""
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _serve(self) -> None:
        from rayjobs.engine.gauges import Gauges
        from rayjobs.engine.ray.cluster import RayCluster

        self._loop = asyncio.get_running_loop()
        gauges = Gauges(self.target)
        board = Board(self.target, self.paths.workspaces, self._open_store)
        drivers = Drivers(self.target, self.home, clock=SystemClock(), wake=self._wake_engine)
        record = load_target(self.target, home=self.home)
        engine = Engine(
            self.target,
            machines=TargetMachines(
                cluster=RayCluster(self.target, self.home),
                is_shared=self._shares_machine,
                lease_s=record.lease_s,
                pending_nodes=PendingNodes(record.node_types, timeout_s=record.start_timeout_s),
            ),
            board=board,
            clock=SystemClock(),
            observer=Observer(
                count=gauges.count,
                waited=gauges.waited,
                note=lambda facts: self._note(facts, gauges),
                dashboard=DashboardJobs(
                    self.target, partial(ray_jobs.open_ray_jobs, self.target), SystemClock()
                ),
            ),
            drivers=drivers,
            epoch=self.epoch,
            limits=LimitsFile(self.target, home=self.home),
        )
        self._engine = engine
        notifications = Notifications(
            self.target, lambda: engine.board.served, SystemClock(), self._notify_secrets
        )
        server = WakeServer(short_socket("target", self.target, of=self.home), self._answer)
        await server.start()
        self._ready.set()
        warming = asyncio.ensure_future(_warm_up(engine)) if self._shares_machine else None
        notifying = asyncio.ensure_future(notifications.run())
        try:
            await engine.run()
        finally:
            notifying.cancel()
            if warming is not None:
                warming.cancel()
            await server.stop()

    def _notify_secrets(self) -> Mapping[str, str]:
        """Return the secrets that receivers of notifications may need."""
        given = {name: value for name, value in os.environ.items() if name.startswith(SECRET)}
        return {**given, **TargetSecrets(self.target, home=self.home).values()}

    def _wake_engine(self) -> None:
        if self._engine is not None:
            self._engine.wake()

    def _identified(self, answer: Identified) -> Identified:
        """Return the answer with this actor's identity."""
        return replace(answer, version=__version__, epoch=self.epoch, pid=os.getpid())

    async def _answer(self, values: dict[str, object]) -> TargetAnswer:
        """Return the answer to a request; `answers.ANSWERS` names its class."""
        engine = self._engine
        assert engine is not None
        request = TargetRequest.from_json(values)
        if engine.is_retired and request.op not in ("retire", "resume"):
            return TargetAnswer(False, "the target is being stopped", stopping=True)
        return self._identified(await self._carry_out(engine, request))

    async def _carry_out(self, engine: Engine, request: TargetRequest) -> TargetAnswer:
        match request.op:
            case "retire":
                return await self._retire(engine, force=request.force)
            case "resume":
                engine.resume()
                return TargetAnswer()
            case "ping":
                return TargetAnswer()
            case "wake":
                return await _wake(engine, request.workspace)
            case "sees":
                return SeesAnswer(sees=tuple(one for one in request.names if os.environ.get(one)))
            case "status":
                return engine.status(request.keys)
            case "explain":
                return ExplainAnswer(decision=await _decision_of(engine, request))
            case "store":
                return await _store_late(engine, request)
            case "evict" | "stacks" | "session":
                return await _answer_of_job(engine, request)
        return _no(f"unknown operation {request.op!r}")

    async def _retire(self, engine: Engine, *, force: bool) -> RetireAnswer:
        """Start no more jobs, so that none starts before the head stops.

        With `force`, running jobs go back into the queue; in repeated calls, `live` counts those
        that still run. The retirement expires after a while (see `Engine.retire`).
        """
        engine.retire()  # before the check: wakes are refused from here on
        waiting = await engine.board.waiting()
        jobs = [*engine.attempts, *waiting]
        sweeps = engine.drivers.count if engine.drivers is not None else 0
        if (jobs or sweeps) and not force:
            engine.resume()
            return RetireAnswer(False, busy=True, jobs=tuple(dict.fromkeys(jobs)))
        for supervisor in engine.attempts.supervisors:
            supervisor.preempt(STOPPED, is_free=True)
        grace_s = max((one.end_request.grace_s for one in engine.attempts.supervisors), default=0.0)
        return RetireAnswer(busy=bool(jobs or sweeps), live=len(engine.attempts), grace_s=grace_s)

    def _open_store(self, path: str) -> tuple[str, Store]:
        from rayjobs.target import elsewhere
        from rayjobs.workspace.folder import needs_secrets, open_workspace

        if needs_secrets(path):  # its records or files are on a server
            credentials.give(TargetSecrets(self.target, home=self.home).values())
        opened = open_workspace(Path(path), create=False)
        store = opened.store
        try:
            store.claim_target(
                self.target, epoch=self.epoch, claimant=elsewhere.claimant(self.home)
            )
            self._serves_others |= store.serving(self.target) is not None
            store.watch_wakes(self.target, epoch=self.epoch, wake=self._wake_from_thread)
        except BaseException:
            store.close()
            raise
        return opened.name, store

    def _wake_from_thread(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_engine)

    def _note(self, facts: TurnFacts, gauges: Gauges) -> None:
        """Report the activity to the keeper, the capacity to clients and the figures to Ray."""
        gauges.levels({"waiting": facts.waiting, "live": facts.live})
        # Clients on other machines cannot start the target, so it keeps running for them.
        busy = bool(facts.waiting or facts.live or self._serves_others)
        self._reporting.report(is_busy=busy, nodes=facts.nodes)


async def _wake(engine: Engine, workspace: str | None) -> WakeAnswer:
    served = await engine.board.add(workspace) is not None if workspace else None
    engine.wake()
    return WakeAnswer(served=served)


async def _decision_of(engine: Engine, request: TargetRequest) -> JobDecision | None:
    if request.after_turn:
        await engine.turned()
    decision = engine.explain(request.key)
    return None if decision is None else JobDecision.from_json(decision.to_dict())


async def _answer_of_job(engine: Engine, request: TargetRequest) -> TargetAnswer:
    """Return the answer to a request about a job: a refusal if it has no running attempt."""
    supervisor = engine.attempts.get(f"{request.workspace}::{request.job}")
    if supervisor is None:
        return _no(f"job {request.job} has no running attempt")
    if request.op == "evict":
        return _evict(supervisor, request.notice_s)
    if request.op == "session":
        return await _session(engine, supervisor, request.step)
    return await _stacks(engine, supervisor)


async def _store_late(engine: Engine, request: TargetRequest) -> TargetAnswer:
    """Store the files that an ended job left on its nodes; see `LateStores.ask`."""
    served = next((one for one in engine.board.served if one.path == request.workspace), None)
    if served is None:
        return _no(f"target {engine.target} does not serve the workspace {request.workspace}")
    try:
        return await engine.late_stores.ask(served, request.job)
    except RayjobsError as error:
        return _no(str(error))


def _evict(supervisor: AttemptSupervisor, notice_s: float | None) -> TargetAnswer:
    """Preempt the attempt, as when its spot node is evicted; without notice, kill it immediately.

    It counts as a preemption.
    """
    if supervisor.end_request.is_made:
        return _no(f"job {supervisor.record.job.id} is already ending")
    grace_s = notice_s or 0.0
    how = "without notice" if notice_s is None else f"with {duration_text(grace_s)} of notice"
    supervisor.preempt(f"a simulated eviction {how}", grace_s=grace_s)
    return EvictAnswer(attempt=supervisor.record.number)


async def _stacks(engine: Engine, supervisor: AttemptSupervisor) -> TargetAnswer:
    try:
        agents = [await engine.cluster.agent(node.node_id) for node in supervisor.record.nodes]
        pairs = zip(agents, supervisor.record.nodes, strict=True)
        found = await asyncio.gather(*(agent.call(STACKS, node.on) for agent, node in pairs))
    except RayjobsError as error:
        return _no(f"a node of job {supervisor.record.job.id} cannot be reached: {error}")
    ranks = [
        NodeRankStack.of(rank, node.on.node)
        for node, one in zip(supervisor.record.nodes, found, strict=True)
        for rank in one.ranks or ()
    ]
    if not ranks:
        return _no(f"job {supervisor.record.job.id} has no running processes at the moment")
    return StacksAnswer(
        attempt=supervisor.record.number, ranks=tuple(sorted(ranks, key=lambda one: one.rank))
    )


async def _session(
    engine: Engine, supervisor: AttemptSupervisor, step: SessionStep | None
) -> TargetAnswer:
    if step is None:
        return _no("the request has no step of a session")
    nodes = supervisor.record.nodes
    node = next((one for one in nodes if step.rank in one.on.ranks), None)
    if node is None:
        return _no(f"job {supervisor.record.job.id} has no running rank {step.rank}")
    try:
        agent = await engine.cluster.agent(node.node_id)
        reply = await agent.call(SESSION, SessionCall(node.on, step))
    except RayjobsError as error:
        return _no(f"the node of rank {step.rank} cannot be reached: {error}")
    return SessionAnswer(reply=reply)


def _no(sentence: str) -> TargetAnswer:
    return TargetAnswer(False, sentence)


async def _warm_up(engine: Engine) -> None:
    """Start the agent, and with it the warm interpreter, before the first job starts."""
    try:
        for node in await engine.cluster.nodes():
            await engine.cluster.agent(node.node_id)
    except RayjobsError as error:
        log.info("the agent was not started in advance: %s", error)


def start_target_actor(name: str, home: str) -> TargetAnswer:
    """Create (or find) the target's actor; return its identity once its wake socket answers.

    Call it in a process connected by ``ray.init(address=…, namespace="rayjobs")``.

    Raises:
        TargetError: it could not start.
    """
    import ray

    shares_machine = name == "local"
    actor = (
        ray.remote(TargetActor)
        .options(
            name=actor_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,
        )
        .remote(name, home, shares_machine)
    )
    try:
        found = ray.get(actor.ping.remote(), timeout=START_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        raise TargetError(f"the target {name} did not start: {error}") from error
    return TargetAnswer.from_json(found)
