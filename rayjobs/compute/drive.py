"""Drives one attempt from its allocation to its one true end.

Whatever dies between two lines of this file, the store and the attempt's folder on its node say
how far it had come; `recovery` reads them and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from rayjobs import ids, rootcause
from rayjobs.clock import Clock
from rayjobs.compute.allocations import Allocations, Held
from rayjobs.compute.board import Served
from rayjobs.compute.cluster import Agent, AgentLostError, Cluster, NotPlacedError
from rayjobs.compute.group import GroupEnd, together
from rayjobs.errors import PrepareError, RayjobsError, StoreError
from rayjobs.failures import Failure, FailureClass
from rayjobs.launch.plan import TORCH_BACKENDS, AttemptContext, Place, launcher_for
from rayjobs.records import Job
from rayjobs.states import JobState

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# A group that found no room: other jobs of the cluster were faster. Not a failure.
NOT_PLACED_PAUSE_S = 2.0
AGENT_PAUSE_S = 0.5
STORE_PAUSE_S = 1.0
COLLECT_TRIES = 4
# Beyond a script's own grace, until a host is told again that its attempt is to end.
STOP_AGAIN_S = 5.0


class CanceledEarlyError(RayjobsError):
    """A cancel request reached the job before its host was started."""


@dataclass(frozen=True)
class Parts:
    """What every drive works with."""

    target: str
    cluster: Cluster
    allocations: Allocations
    clock: Clock
    count: Callable[[str], None] = lambda _name: None
    waited: Callable[[float], None] = lambda _seconds: None


@dataclass
class Drive:
    """One attempt in progress.

    Attributes:
        number: The attempt's number, once started.
        orders: What each node's agent is told, once planned.
        canceled: Set when the job's end was asked for.
        forsaken: Its workspace is gone: nothing can be written, all is to be ended.
    """

    parts: Parts
    served: Served
    job: Job
    held: Held
    number: int = 0
    orders: list[dict[str, Any]] = field(default_factory=list)
    canceled: asyncio.Event = field(default_factory=asyncio.Event)
    forsaken: bool = False
    _given_back: bool = False

    @property
    def key(self) -> str:
        """The job's name over all workspaces."""
        return self.served.key(self.job.id)

    # -- from the start ------------------------------------------------------------------------
    async def start(self, *, new: bool) -> None:
        """Start the job that the policy named, on a new or a handed-on allocation."""
        store = self.served.store
        if new:
            await self.served.ask(
                store.add_allocation,
                self.held.name,
                target=self.parts.target,
                shape=self.held.shape.to_dict(),
            )
        attempt = await self.served.ask(
            store.start, self.job.id, attempt=self.job.attempt, allocation=self.held.name
        )
        if attempt is None:  # canceled, or another actor was faster
            await self._drop_place(new)
            return
        self.number = attempt.number
        try:
            if new:
                self.held = await self._unless_canceled(self.parts.allocations.create(self.held))
            if not await self.served.ask(
                store.hold_allocation, self.held.name, job=self.job.id, attempt=self.number
            ):
                raise NotPlacedError(f"{self.held.name} was taken by another target actor")
            await self._provision()
        except CanceledEarlyError:
            await self._finish(JobState.CANCELED, outcome="canceled", reason="canceled")
            await self._clean()
            await self._give_back(proven=True)
        except NotPlacedError as error:
            self._given_back = True
            await self.parts.allocations.release(self.held)
            await self._requeue(str(error), outcome="not_placed", pause_s=NOT_PLACED_PAUSE_S)
        except PrepareError as error:
            # A host that was late to answer, or one on another node, may run all the same.
            proven = await self._settle_all()
            failure = Failure(FailureClass(error.failure_class), str(error))
            await self._fail(failure, outcome="not_prepared", proven=proven)
            await self._clean()

    async def _drop_place(self, new: bool) -> None:
        if new:
            await self.parts.allocations.release(self.held)
        else:
            await self.parts.allocations.give_back(
                self.held, attempt=-1, job=self.job.id, proven=True
            )

    async def _provision(self) -> None:
        await self._move(JobState.PROVISIONING, JobState.PREPARING)
        try:
            agents = [await self.parts.cluster.agent(node) for node in self.held.nodes]
            greetings = [await agent.hello() for agent in agents]
            meets = self.job.spec.distribution.backend in TORCH_BACKENDS
            self.orders = self._plan(greetings, await agents[0].free_port() if meets else None)
            await self._record_hosts([{} for _ in self.orders], cold=None)
            self._check_canceled()
            await self._prepare(agents)
            self._check_canceled()
            hosts = await together(
                agent.launch(order) for agent, order in zip(agents, self.orders, strict=True)
            )
        except AgentLostError as error:
            proven = await self._settle_all()
            await self._fail(
                Failure(FailureClass.SYSTEM, f"the node's agent was lost at start: {error}"),
                outcome="agent_lost",
                proven=proven,
            )
            return
        self.parts.count("launches")
        waited = self.parts.clock.now() - self.job.submitted_at
        self.parts.waited(waited.total_seconds())
        cold = next((host["cold"] for host in hosts if host.get("cold")), None)
        await self._record_hosts(hosts, cold=cold)
        await self._move(JobState.PREPARING, JobState.RUNNING)
        await self.follow()

    async def _prepare(self, agents: Sequence[Agent]) -> None:
        """Prepare every node; a cancel meanwhile ends what transfers data.

        Where a node has put the data is known only now: its ranks learn it by their variables.
        """
        pairs = list(zip(agents, self.orders, strict=True))
        preparing = asyncio.ensure_future(
            asyncio.gather(
                *(agent.prepare(order) for agent, order in pairs), return_exceptions=True
            )
        )
        canceling = asyncio.ensure_future(self.canceled.wait())
        try:
            await asyncio.wait({preparing, canceling}, return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                for agent, order in pairs:
                    await agent.stop(order, reason="canceled", grace_s=0.0)
            made = await preparing
        finally:
            canceling.cancel()
            if not preparing.done():
                preparing.cancel()
        for failed in made:  # raised only now: what is cleaned up must not be in the making
            if isinstance(failed, BaseException):
                raise failed
        for order, one in zip(self.orders, made, strict=True):
            assert not isinstance(one, BaseException)
            environment = order["plan"]["env"]
            for name, value in one.get("variables", {}).items():
                # An input may be called HOME: what the system needs stays.
                environment.setdefault(name, value)

    def _plan(
        self, greetings: list[Mapping[str, Any]], master_port: int | None
    ) -> list[dict[str, Any]]:
        spec = self.job.spec
        places = tuple(
            Place(
                node=index,
                node_id=self.held.nodes[index],
                address=str(hello["address"]),
                root=Path(hello["root"]),
                gpus=self.held.gpus[index] if index < len(self.held.gpus) else (),
                base_environment=hello["environment"],
            )
            for index, hello in enumerate(greetings)
        )
        context = AttemptContext(
            job=self.job,
            attempt=self.number,
            places=places,
            markers=tuple(ids.marker(self.job.id, self.number, place.node) for place in places),
            workspace_name=self.served.name,
            workspace_path=self.served.path,
            master_port=master_port,
            injob_path=str(greetings[0]["injob_path"]),
            python=spec.environment or str(greetings[0]["python"]),
        )
        return [
            {
                "workspace": self.served.path,
                "target": self.parts.target,
                "node_id": place.node_id,
                "snapshot": self.job.snapshot,
                "inputs": {name: one.model_dump() for name, one in spec.inputs.items()},
                "outputs": {name: one.model_dump() for name, one in spec.outputs.items()},
                "secrets": {name: ref.model_dump() for name, ref in spec.secrets.items()},
                "resume": {
                    "run": self.job.id if self.number > 1 else None,
                    "path": spec.resume_from,
                },
                "plan": plan,
            }
            for place, plan in zip(places, launcher_for(spec).plans(context), strict=True)
        ]

    # -- from the launch -----------------------------------------------------------------------
    async def follow(self) -> None:
        """Follow launched hosts to their end, then finalise.

        The first node that ends in any way but well ends the others.
        """
        end = GroupEnd(self.canceled)
        exits = await asyncio.gather(*(self._follow_one(order, end) for order in self.orders))
        await self.finalise(list(exits))

    async def _follow_one(self, order: dict[str, Any], end: GroupEnd) -> Mapping[str, Any]:
        """Return the node's exit record. Unreachable is not failed: this waits."""
        told = False
        while True:
            try:
                agent = await self.parts.cluster.agent(order["node_id"])
                following = asyncio.ensure_future(agent.follow(order))
                ending = asyncio.ensure_future(end.asked())
                try:
                    await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
                    while not following.done():
                        # Said again: a host that was stopped or busy has not heard it.
                        reason, grace_s = ending.result(), self.job.spec.grace_s
                        await agent.stop(order, reason=reason, grace_s=grace_s)
                        await asyncio.wait({following}, timeout=grace_s + STOP_AGAIN_S)
                    record = await following
                    end.note(record)
                    return record
                finally:
                    ending.cancel()
                    if not following.done():
                        following.cancel()
            except AgentLostError as error:
                if not told:
                    await self._event("agent_lost", f"the node's agent is replaced: {error}")
                told = True
                await asyncio.sleep(AGENT_PAUSE_S)

    async def finalise(self, exits: list[Mapping[str, Any]]) -> None:
        """Keep the exit records, store files and metrics, write the end, release the place."""
        store = self.served.store
        await self._write(store.record_exit, self.job.id, attempt=self.number, exits=exits)
        await self._move(JobState.RUNNING, JobState.FINALIZING)
        collected = await asyncio.gather(*(self._collect(order) for order in self.orders))
        tails: dict[int, bytes] = {}
        problems: list[str] = []
        for one in collected:
            tails.update({int(rank): text for rank, text in one["tails"].items()})
            problems += one["problems"]
        facts = [one["data"] for one in collected if one.get("data")]
        outcome, failure = rootcause.diagnose(exits, tails, data=facts)
        proven = all(record["leftovers"]["proven_dead"] for record in exits)
        if failure is None and outcome == "completed" and problems:
            kept = self.orders[0]["plan"]["root"]
            failure = Failure(
                FailureClass.STORAGE,
                f"the script ended well, but its files could not be stored: {problems[0]} "
                f"They are still in {kept}/work.",
            )
            # Not retried: the training is done, only its files are not in the store.
            await self._finish(JobState.FAILED, outcome="not_stored", failure=failure)
        elif outcome == "canceled":
            await self._finish(JobState.CANCELED, outcome=outcome, reason="canceled")
        elif failure is not None:
            await self._fail(failure, outcome=outcome, proven=proven)
        else:
            await self._finish(JobState.COMPLETED, outcome=outcome)
        await self._give_back(proven=proven)
        if not problems:
            await self._clean()

    async def _collect(self, order: dict[str, Any]) -> Mapping[str, Any]:
        """Store what the attempt left; a full disk may have room again in a moment."""
        last: Mapping[str, Any] = {"tails": {}, "problems": ["the node's agent cannot be reached."]}
        for attempt in range(COLLECT_TRIES):
            try:
                agent = await self.parts.cluster.agent(order["node_id"])
                last = await agent.collect(order)
            except AgentLostError:
                await asyncio.sleep(AGENT_PAUSE_S)
                continue
            except RayjobsError as error:
                last = {"tails": {}, "problems": [f"{error}."]}
            if not last["problems"]:
                break
            await asyncio.sleep(STORE_PAUSE_S * (attempt + 1))
        return last

    async def _clean(self) -> None:
        for order in self.orders:
            try:
                agent = await self.parts.cluster.agent(order["node_id"])
                await agent.clean(order)
            except RayjobsError as error:
                log.info("scratch of %s stays: %s", self.job.id, error)

    async def abandon(self, error: BaseException) -> None:
        """End a drive that met an error nobody foresaw: a fault of ours, said as such."""
        log.error("attempt %d of %s", self.number, self.job.id, exc_info=error)
        if self.number == 0:
            await self.parts.allocations.release(self.held)
            return
        proven = await self._settle_all()
        failure = Failure(FailureClass.SYSTEM, f"{type(error).__name__}: {error}")
        await self._fail(failure, outcome="system", proven=proven)

    async def let_go(self) -> None:
        """End what runs and free the place, with nothing written: the store cannot be used.

        A job that is live in the store without a drive is queued again by the engine.
        """
        proven = await self._settle_all()
        if self._given_back:
            return
        if proven:
            self._given_back = True
            await self._clean()
            await self.parts.allocations.release(self.held)
        else:
            await self._give_back(proven=False)

    async def _settle_all(self) -> bool:
        """End whatever may have been launched; return whether nothing is left, for sure."""
        proven = True
        for order in self.orders:
            try:
                agent = await self.parts.cluster.agent(order["node_id"])
                proven &= bool((await agent.settle(order, end=True))["proven"])
            except Exception as error:
                log.warning("what is left of %s is not known: %s", self.job.id, error)
                proven = False
        return proven

    # -- what recovery asks --------------------------------------------------------------------
    def hold_nothing(self) -> None:
        """Say that this attempt's place is gone already."""
        self._given_back = True

    async def now_running(self, state: JobState) -> None:
        """Catch up with a host that was started before its state was written."""
        if state is JobState.PROVISIONING:
            await self._move(JobState.PROVISIONING, JobState.PREPARING)
        await self._move(JobState.PREPARING, JobState.RUNNING)

    async def put_back(self, reason: str, *, proven: bool = True) -> None:
        """Queue a job again that had not started: no failure, no budget spent."""
        if self.canceled.is_set():
            await self.canceled_away(proven=proven)
        else:
            await self._requeue(reason, outcome="put_back", pause_s=0.0)
            if proven:
                await self._clean()
        await self._give_back(proven=proven)

    async def canceled_away(self, *, proven: bool) -> None:
        """End a job as Canceled whose request came while nobody was there to hear it."""
        is_stored = proven and await self._rescue()
        await self._finish(JobState.CANCELED, outcome="canceled", reason="canceled")
        if is_stored:
            await self._clean()

    async def lost(self, message: str, *, proven: bool) -> None:
        """Retry (or end) a job whose attempt was lost."""
        is_stored = proven and await self._rescue()
        failure = Failure(FailureClass.NODE_LOST, message)
        await self._fail(failure, outcome="node_lost", proven=proven)
        if is_stored:
            await self._clean()

    async def _rescue(self) -> bool:
        """Store the logs, metrics and checkpoints of an attempt that nobody finalised.

        Before its job is queued again: what comes after that is refused as late.
        """
        collected = await asyncio.gather(*(self._collect(order) for order in self.orders))
        return not any(one["problems"] for one in collected)

    # -- ends ----------------------------------------------------------------------------------
    async def _fail(self, failure: Failure, *, outcome: str, proven: bool = True) -> None:
        """Retry within the class's budget, else end as Failed."""
        job = await self._write(self.served.store.job, self.job.id)
        attempts = await self._write(self.served.store.attempts, self.job.id)
        used = sum(
            1
            for attempt in attempts
            if attempt.number < self.number
            and attempt.failure is not None
            and attempt.failure.failure_class == failure.failure_class
        )
        budget = job.spec.retries.budget(failure.failure_class)
        if job.cancel_requested_at is not None:
            await self._finish(JobState.CANCELED, outcome="canceled", reason="canceled")
        elif used < budget:
            pause_s = min(60.0, 2.0**used)
            reason = (
                f"tries again ({used + 1} of {budget}) after a failure of class "
                f"{failure.failure_class}: "
            )
            await self._requeue(
                reason + failure.message, outcome=outcome, failure=failure, pause_s=pause_s
            )
        else:
            await self._finish(JobState.FAILED, outcome=outcome, failure=failure)
        await self._give_back(proven=proven)

    async def _finish(
        self,
        state: JobState,
        *,
        outcome: str,
        reason: str = "",
        failure: Failure | None = None,
    ) -> None:
        self.parts.count(str(state))
        await self._write(
            self.served.store.finish,
            self.job.id,
            attempt=self.number,
            state=state,
            outcome=outcome,
            reason=reason or (failure.message if failure else ""),
            failure=failure,
        )

    async def _requeue(
        self,
        reason: str,
        *,
        outcome: str,
        pause_s: float,
        failure: Failure | None = None,
    ) -> None:
        await self._write(
            self.served.store.requeue,
            self.job.id,
            attempt=self.number,
            reason=reason,
            outcome=outcome,
            failure=failure,
            not_before=self.parts.clock.now() + timedelta(seconds=pause_s),
        )

    async def _give_back(self, *, proven: bool) -> None:
        if self._given_back:
            return
        self._given_back = True
        await self.parts.allocations.give_back(
            self.held,
            attempt=self.number,
            job=self.job.id,
            proven=proven,
            suspects=self.orders,
        )

    # -- small things --------------------------------------------------------------------------
    async def _write(self, function: Callable[..., Result], *given: Any, **more: Any) -> Result:
        """Write what must be written: a full or locked store is tried until it takes it.

        The exit record on the node tells the truth until the store can.
        """
        pause_s = STORE_PAUSE_S
        while True:
            try:
                return await self.served.ask(function, *given, **more)
            except StoreError as error:
                log.warning("%s waits for its store: %s", self.job.id, error)
                if self.forsaken or not Path(self.served.path).is_dir():
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(10.0, pause_s * 2)

    async def _move(self, old: JobState, new: JobState) -> None:
        await self._write(
            self.served.store.move, self.job.id, attempt=self.number, old=old, new=new
        )

    async def _event(self, kind: str, message: str) -> None:
        try:
            await self.served.ask(
                self.served.store.add_event, self.job.id, kind, message, attempt=self.number
            )
        except StoreError as error:
            log.warning("an event of %s was not written: %s", self.job.id, error)

    async def _record_hosts(self, hosts: Sequence[Mapping[str, Any]], *, cold: str | None) -> None:
        """Record where hosts will be before they are started, and who they are after."""
        records = [
            {
                "node": order["plan"]["node"],
                "node_id": order["node_id"],
                "root": order["plan"]["root"],
                "socket": order["plan"]["socket"],
                "marker": order["plan"]["marker"],
                **host,
            }
            for order, host in zip(self.orders, hosts, strict=True)
        ]
        await self._write(
            self.served.store.set_hosts,
            self.job.id,
            attempt=self.number,
            hosts=records,
            cold_reason=cold,
        )

    def _check_canceled(self) -> None:
        if self.canceled.is_set():
            raise CanceledEarlyError(f"{self.job.id} was canceled before it started")

    async def _unless_canceled(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work, or stop it when the job's end is asked for."""
        doing: asyncio.Future[Result] = asyncio.ensure_future(work)
        canceling: Awaitable[Any] = asyncio.ensure_future(self.canceled.wait())
        waiting = {doing, canceling}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
            if doing.done():
                return doing.result()
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            self._given_back = True
            await self.parts.allocations.release(self.held)
            raise CanceledEarlyError(f"{self.job.id} was canceled while it waited for its place")
        finally:
            doing.cancel()
            asyncio.ensure_future(canceling).cancel()
