"""Drives one attempt from its allocation to its one true end.

Whatever dies between two lines of this file, the store and the attempt's folder on its node say
how far it had come; `recovery` reads them and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rayjobs.compute.cluster import (
    Agent,
    AgentFaultError,
    AgentLostError,
    NotGrownError,
    NotPlacedError,
)
from rayjobs.compute.drivebase import Parts
from rayjobs.compute.driveends import AGENT_PAUSE_S, DriveEnds
from rayjobs.compute.driveorders import orders_of
from rayjobs.compute.group import (
    GroupEnd,
    drop,
    end_when_all_are_silent,
    exit_record_of_lost_node,
    node_name,
    together,
)
from rayjobs.errors import PrepareError, RayjobsError
from rayjobs.failures import Failure, FailureClass
from rayjobs.injob import openfiles
from rayjobs.launch.plan import MEETING_BACKENDS
from rayjobs.rootcause import NODE_LOST
from rayjobs.states import JobState

__all__ = ["Drive", "Parts"]

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# A group that found no room: other jobs of the cluster were faster. Not a failure.
NOT_PLACED_PAUSE_S = 2.0
# Nodes that did not start: so long another job may try, and so often in a row it is tried.
NOT_GROWN = "not_grown"
NOT_GROWN_PAUSE_S = 30.0
NOT_GROWN_TRIES = 3
# Beyond a script's own grace, until a host is told again that its attempt is to end.
STOP_AGAIN_S = 5.0


class CanceledEarlyError(RayjobsError):
    """A cancel, or another job's need of its place, reached the job before its host started."""


class Drive(DriveEnds):
    """One attempt in progress: start, follow, finalise."""

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
            store.start,
            self.job.id,
            attempt=self.job.attempt,
            allocation=self.held.name,
            epoch=self.parts.epoch,
            changed_at=self.job.changed_at,
        )
        if attempt is None:  # canceled, or another actor was faster, or has taken over
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
            if self.gives_way:  # nothing had run: no failure, no budget spent
                await self._requeue(self._preempt_reason, outcome="preempted", pause_s=0.0)
            else:
                await self._finish(JobState.CANCELED, outcome="canceled", reason="canceled")
            await self._clean()
            await self._give_back(proven=True)
        except NotGrownError as error:
            self._given_back = True
            await self.parts.allocations.release(self.held)
            await self._not_grown(error)
        except NotPlacedError as error:
            self._given_back = True
            await self.parts.allocations.release(self.held)
            await self._requeue(str(error), outcome="not_placed", pause_s=NOT_PLACED_PAUSE_S)
        except PrepareError as error:
            await self._check_ours()  # another actor that ended the attempt has it refused here
            # A host that was late to answer, or one on another node, may run all the same.
            proven = await self._settle_all()
            failure = Failure(
                FailureClass(error.failure_class),
                str(error),
                lines=error.lines,
                is_outage=error.is_outage,
                is_permanent=error.is_permanent,
            )
            await self._fail(failure, outcome="not_prepared", proven=proven)
            await self._clean()

    async def _not_grown(self, error: NotGrownError) -> None:
        """Let others go first, then wait for nodes again; hold the job where none ever come."""
        tries = 1
        for attempt in reversed((await self._write(self.served.store.attempts, self.job.id))[:-1]):
            if attempt.outcome != NOT_GROWN:
                break
            tries += 1
        hold = None
        if tries % NOT_GROWN_TRIES == 0:
            hold = (
                f"{error}, {NOT_GROWN_TRIES} times running. `ray status` on the cluster says why "
                f"nodes do not come; then release it: rayjobs update {self.job.id} --release"
            )
        await self._requeue(str(error), outcome=NOT_GROWN, pause_s=NOT_GROWN_PAUSE_S, hold=hold)

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
            # At once: an agent takes half a second to start, and leaves where nothing is asked.
            agents = await together(self.parts.cluster.agent(node) for node in self.held.nodes)
            greetings = await together(agent.hello() for agent in agents)
            meets = self.job.spec.distribution.backend in MEETING_BACKENDS
            self.orders = orders_of(self, greetings, await agents[0].free_port() if meets else None)
            await self._record_hosts([{} for _ in self.orders], cold=None)
            self._check_canceled()
            await self._prepare(agents)
            self._check_canceled()
            hosts = await self._launch(agents)
        except AgentLostError as error:
            proven = await self._settle_all()
            if self._done and len(self._done) == len(self.orders):
                # Launched, and done, before anybody heard of it: the exit records tell the truth.
                await self._move(JobState.PREPARING, JobState.RUNNING)
                await self.finalise(self._done)
                return
            failure = Failure(FailureClass.SYSTEM, f"the node's agent was lost at start: {error}")
            if any(order.get("is_lost") for order in self.orders):
                failure = replace(failure, failure_class=FailureClass.NODE_LOST)
            await self._fail(failure, outcome="agent_lost", proven=proven)
            return
        for order, host in zip(self.orders, hosts, strict=True):
            order["plan"]["watches_raylet"] = bool(host.get("watches_raylet"))
        self.parts.count("launches")
        waited = self.parts.clock.now() - self.job.submitted_at
        self.parts.waited(waited.total_seconds())
        cold = next((host["cold"] for host in hosts if host.get("cold")), None)
        await self._record_hosts(hosts, cold=cold)
        await self._move(JobState.PREPARING, JobState.RUNNING)
        await self.follow()

    async def _launch(self, agents: Sequence[Agent]) -> list[Mapping[str, Any]]:
        """Start every node's host; the first to run must not lose its lease to a slow one."""
        if self.parts.leases.lease_s is not None:
            # From before the order is sent: what arrives late has little of it left, or nothing.
            greetings = await together(agent.hello() for agent in agents)
            for order, hello in zip(self.orders, greetings, strict=True):
                order["plan"]["lease_since_s"] = hello.get("clock_s")
        pairs = list(zip(agents, self.orders, strict=True))
        self.was_launched = True
        keeping = []
        for agent, order in pairs:
            self.parts.leases.grant(order)
            keeping.append(asyncio.ensure_future(self.parts.leases.keep(agent, order)))
        try:
            return await together(agent.launch(order) for agent, order in pairs)
        finally:
            for one in keeping:
                one.cancel()

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
        canceling = asyncio.ensure_future(self.end_asked())
        try:
            await asyncio.wait({preparing, canceling}, return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                for agent, order in pairs:
                    await agent.stop(order, reason=canceling.result(), grace_s=0.0)
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
            order["facts"] = one.get("facts")
            if one.get("python"):
                order["plan"]["python"] = one["python"]
            for name, value in one.get("variables", {}).items():
                # An input may be called HOME: what the system needs stays.
                environment.setdefault(name, value)

    async def follow(self) -> None:
        """Follow launched hosts to their end, then finalise.

        The first node that ends in any way but well ends the others.
        """
        end = GroupEnd(self.end_asked)
        listening = asyncio.ensure_future(
            end_when_all_are_silent(
                self.parts.cluster, self.orders, end, self.job.spec.stall_timeout_s
            )
        )
        followed = [asyncio.ensure_future(self._follow_one(order, end)) for order in self.orders]
        try:
            exits = await asyncio.gather(*followed)
        finally:
            listening.cancel()
            for one in followed:
                drop(one)  # no host is kept alive for an attempt that is given up
        await self.finalise(list(exits))

    async def _follow_one(self, order: dict[str, Any], end: GroupEnd) -> Mapping[str, Any]:
        """Return the node's exit record. Unreachable is not failed: this waits."""
        told = False
        while True:
            try:
                agent = await self.parts.cluster.agent(order["node_id"])
                following = asyncio.ensure_future(agent.follow(order))
                ending = asyncio.ensure_future(end.asked())
                renewing = asyncio.ensure_future(self.parts.leases.keep(agent, order))
                try:
                    await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
                    while not following.done():
                        # Said again: a host that was stopped or busy has not heard it.
                        reason, grace_s = ending.result(), self.end_grace_s
                        await agent.stop(order, reason=reason, grace_s=grace_s)
                        await asyncio.wait({following}, timeout=grace_s + STOP_AGAIN_S)
                    record = await following
                    if record["outcome"] in NODE_LOST:  # before anything is placed there again
                        self.parts.cluster.doubt(str(order["node_id"]))
                        if not order.get("is_lost"):  # its host has seen it before Ray has
                            await self._tell_lost(order, str(record.get("reason")))
                    end.note(record)
                    return record
                finally:
                    ending.cancel()
                    renewing.cancel()
                    drop(following)  # an agent that dies fails it and the stop: one is raised
            except AgentFaultError as error:
                if not openfiles.is_exhausted(error):
                    raise
                log.warning("%s is followed again: %s", self.job.id, error)
                await asyncio.sleep(AGENT_PAUSE_S)
            except AgentLostError as error:
                lost = await self._lost_with_node(order, end)
                if lost is not None:
                    return lost
                if not told:
                    await self._event("agent_lost", f"the node's agent is replaced: {error}")
                told = True
                await asyncio.sleep(AGENT_PAUSE_S)

    async def _lost_with_node(
        self, order: dict[str, Any], end: GroupEnd
    ) -> Mapping[str, Any] | None:
        """Return the record of a host whose node is gone for good, once it has ended for sure.

        None while the node lives, or nobody knows: then it is asked again.
        """
        leases = self.parts.leases
        try:
            if not await leases.is_lost(order):
                return None
            other = await leases.living_node(order)
        except RayjobsError as error:
            log.info("whether a node of %s lives is not known: %s", self.job.id, error)
            return None
        if other is not None:
            order["node_id"] = other  # it sees the host, and follows it
            return None
        if not order.get("is_lost"):
            order["is_lost"] = True
            await self._tell_lost(order, "Ray has given it up")
        end.node_lost(order)  # the others need not hang until the lease is over
        if not await leases.wait_over(order):
            return None
        return exit_record_of_lost_node(order)

    async def _tell_lost(self, order: Mapping[str, Any], why: str) -> None:
        await self._event("node_lost", f"{node_name(order)} is lost: {why}")

    async def now_running(self, state: JobState) -> None:
        """Catch up with a host that was started before its state was written."""
        if state is JobState.PROVISIONING:
            await self._move(JobState.PROVISIONING, JobState.PREPARING)
        await self._move(JobState.PREPARING, JobState.RUNNING)

    def hold_nothing(self) -> None:
        """Say that this attempt's place is gone already."""
        self._given_back = True

    def _check_canceled(self) -> None:
        if self.canceled.is_set() or self.preempted.is_set():
            raise CanceledEarlyError(f"{self.job.id} was to end before it started")

    async def _unless_canceled(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work, or stop it when the job's end is asked for."""
        doing: asyncio.Future[Result] = asyncio.ensure_future(work)
        canceling: Awaitable[Any] = asyncio.ensure_future(self.end_asked())
        waiting = {doing, canceling}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
            if doing.done():
                return doing.result()
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            self._given_back = True
            await self.parts.allocations.release(self.held)
            raise CanceledEarlyError(f"{self.job.id} was to end while it waited for its place")
        finally:
            drop(doing)
            asyncio.ensure_future(canceling).cancel()
