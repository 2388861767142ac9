"""Drives one attempt from its allocation to its one true end.

Whatever dies between two lines of this file, the store and the attempt's folder on its node say
how far it had come; `recovery` reads them and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rayjobs.core.errors import PrepareError, RayjobsError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.terminal import first_sentence
from rayjobs.engine.attempt.ends import AGENT_PAUSE_S, DriveEnds
from rayjobs.engine.attempt.group import (
    GroupEnd,
    drop,
    end_when_all_are_silent,
    exit_record_of_lost_node,
    together,
)
from rayjobs.engine.attempt.orders import requests_of
from rayjobs.engine.attempt.record import Parts
from rayjobs.engine.attempt_nodes import NodeOfAttempt
from rayjobs.injob import openfiles
from rayjobs.injob.exitrecord import ExitRecord
from rayjobs.injob.outcomes import CANCELED, Outcome
from rayjobs.jobs.outcomes import NODE_LOST
from rayjobs.jobs.states import JobState
from rayjobs.launch.plan import MEETING_BACKENDS
from rayjobs.protocol.agent import (
    Agent,
    AgentFaultError,
    AgentLostError,
    NotGrownError,
    NotPlacedError,
)
from rayjobs.protocol.attempts import Launched, LaunchRequest
from rayjobs.protocol.calls import (
    FOLLOW,
    FREE_PORT,
    HELLO,
    LAUNCH,
    PREPARE,
    STOP,
    Nothing,
    Stop,
)

__all__ = ["Drive", "Parts"]

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# A group that found no room: other jobs of the cluster were faster. Not a failure.
NOT_PLACED_PAUSE_S = 2.0
# Nodes that did not start: so long another job may try, and so often in a row it is tried.
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
                await self._requeue(self._preempt_reason, outcome=Outcome.PREEMPTED, pause_s=0.0)
            else:
                await self._finish(Outcome.CANCELED, reason=CANCELED.sentence)
            await self._clean()
            await self._give_back(proven=True)
        except NotGrownError as error:
            self._given_back = True
            await self.parts.allocations.release(self.held)
            await self._not_grown(error)
        except NotPlacedError as error:
            self._given_back = True
            await self.parts.allocations.release(self.held)
            await self._requeue(str(error), outcome=Outcome.NOT_PLACED, pause_s=NOT_PLACED_PAUSE_S)
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
            await self._fail(failure, outcome=Outcome.NOT_PREPARED, proven=proven)
            await self._clean()

    async def _not_grown(self, error: NotGrownError) -> None:
        """Let others go first, then wait for nodes again; hold the job where none ever come."""
        tries = 1
        for attempt in reversed((await self._write(self.served.store.attempts, self.job.id))[:-1]):
            if attempt.outcome != Outcome.NOT_GROWN:
                break
            tries += 1
        hold = None
        if tries % NOT_GROWN_TRIES == 0:
            hold = (
                f"{error}, {NOT_GROWN_TRIES} times running. `ray status` on the cluster says why "
                f"nodes do not come; then release it: rayjobs update {self.job.id} --release"
            )
        await self._requeue(
            str(error), outcome=Outcome.NOT_GROWN, pause_s=NOT_GROWN_PAUSE_S, hold=hold
        )

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
            greetings = await together(agent.call(HELLO, Nothing()) for agent in agents)
            port = None
            if self.job.spec.distribution.backend in MEETING_BACKENDS:
                port = (await agents[0].call(FREE_PORT, Nothing())).number
            self.nodes, requests = requests_of(self, greetings, port)
            await self._record_hosts([None for _ in self.nodes], cold=None)
            self._check_canceled()
            requests = await self._prepare(agents, requests)
            self._check_canceled()
            hosts = await self._launch(agents, requests)
        except AgentLostError as error:
            proven = await self._settle_all()
            if self._done and len(self._done) == len(self.nodes):
                # Launched, and done, before anybody heard of it: the exit records tell the truth.
                await self._move(JobState.PREPARING, JobState.RUNNING)
                await self.finalise(self._done)
                return
            failure = Failure(FailureClass.SYSTEM, f"the node's agent was lost at start: {error}")
            if any(node.is_lost for node in self.nodes):
                failure = replace(failure, failure_class=FailureClass.NODE_LOST)
            await self._fail(failure, outcome=Outcome.AGENT_LOST, proven=proven)
            return
        for node, host in zip(self.nodes, hosts, strict=True):
            node.watches_raylet = host.watches_raylet
        self.parts.count("launches")
        waited = self.parts.clock.now() - self.job.submitted_at
        self.parts.waited(waited.total_seconds())
        cold = next((host.cold for host in hosts if host.cold), None)
        await self._record_hosts(hosts, cold=cold)
        await self._move(JobState.PREPARING, JobState.RUNNING)
        await self.follow()

    async def _launch(
        self, agents: Sequence[Agent], requests: Sequence[LaunchRequest]
    ) -> list[Launched]:
        """Start every node's host; the first to run must not lose its lease to a slow one."""
        if self.parts.leases.lease_s is not None:
            # From before the request is sent: what arrives late has little of it left, or nothing.
            greetings = await together(agent.call(HELLO, Nothing()) for agent in agents)
            requests = [
                replace(one, plan=replace(one.plan, lease_since_s=hello.clock_s))
                for one, hello in zip(requests, greetings, strict=True)
            ]
        self.was_launched = True
        keeping = []
        for agent, node in zip(agents, self.nodes, strict=True):
            self.parts.leases.grant(node)
            keeping.append(asyncio.ensure_future(self.parts.leases.keep(agent, node)))
        try:
            pairs = zip(agents, requests, strict=True)
            return await together(agent.call(LAUNCH, one) for agent, one in pairs)
        finally:
            for one in keeping:
                one.cancel()

    async def _prepare(
        self, agents: Sequence[Agent], requests: Sequence[LaunchRequest]
    ) -> list[LaunchRequest]:
        """Prepare every node; a cancel meanwhile ends what transfers data.

        Where a node has put the data is known only now: its ranks learn it by their variables.
        """
        pairs = list(zip(agents, requests, strict=True))
        preparing = asyncio.ensure_future(
            asyncio.gather(
                *(agent.call(PREPARE, one) for agent, one in pairs), return_exceptions=True
            )
        )
        canceling = asyncio.ensure_future(self.end_asked())
        try:
            waiting: set[asyncio.Future[Any]] = {preparing, canceling}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                for agent, one in pairs:
                    await agent.call(STOP, Stop(one.on, canceling.result(), grace_s=0.0))
            made = await preparing
        finally:
            canceling.cancel()
            if not preparing.done():
                preparing.cancel()
        for failed in made:  # raised only now: what is cleaned up must not be in the making
            if isinstance(failed, BaseException):
                raise failed
        ready = []
        for node, one, prepared in zip(self.nodes, requests, made, strict=True):
            assert not isinstance(prepared, BaseException)
            node.facts = prepared.facts
            # An input may be called HOME: what the system needs stays.
            env = {**prepared.variables, **one.plan.env}
            plan = replace(one.plan, env=env, python=prepared.python or one.plan.python)
            ready.append(replace(one, plan=plan))
        return ready

    async def follow(self) -> None:
        """Follow launched hosts to their end, then finalise.

        The first node that ends in any way but well ends the others.
        """
        end = GroupEnd(self.end_asked)
        listening = asyncio.ensure_future(
            end_when_all_are_silent(
                self.parts.cluster, self.nodes, end, self.job.spec.stall_timeout_s
            )
        )
        followed = [asyncio.ensure_future(self._follow_one(node, end)) for node in self.nodes]
        try:
            exits = await asyncio.gather(*followed)
        finally:
            listening.cancel()
            for one in followed:
                drop(one)  # no host is kept alive for an attempt that is given up
        await self.finalise(list(exits))

    async def _follow_one(self, node: NodeOfAttempt, end: GroupEnd) -> ExitRecord:
        """Return the node's exit record. Unreachable is not failed: this waits."""
        told = False
        while True:
            try:
                agent = await self.parts.cluster.agent(node.node_id)
                following = asyncio.ensure_future(agent.call(FOLLOW, node.on))
                ending = asyncio.ensure_future(end.asked())
                renewing = asyncio.ensure_future(self.parts.leases.keep(agent, node))
                try:
                    await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
                    while not following.done():
                        # Said again: a host that was stopped or busy has not heard it.
                        cause, grace_s = ending.result(), self.end_grace_s
                        await agent.call(STOP, Stop(node.on, cause, grace_s))
                        await asyncio.wait({following}, timeout=grace_s + STOP_AGAIN_S)
                    record = await following
                    if record.outcome in NODE_LOST:  # before anything is placed there again
                        self.parts.cluster.doubt(node.node_id)
                        if not node.is_lost:  # its host has seen it before Ray has
                            await self._tell_lost(node, record.reason)
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
                lost = await self._lost_with_node(node, end)
                if lost is not None:
                    return lost
                if not told:
                    await self._event(
                        "agent_lost",
                        f"the node's agent is replaced: {first_sentence(str(error))}",
                        {"detail": str(error)},  # Ray's text may be a page long
                    )
                told = True
                await asyncio.sleep(AGENT_PAUSE_S)

    async def _lost_with_node(self, node: NodeOfAttempt, end: GroupEnd) -> ExitRecord | None:
        """Return the record of a host whose node is gone for good, once it has ended for sure.

        None while the node lives, or nobody knows: then it is asked again.
        """
        leases = self.parts.leases
        try:
            if not await leases.is_lost(node):
                return None
            other = await leases.living_node(node)
        except RayjobsError as error:
            log.info("whether a node of %s lives is not known: %s", self.job.id, error)
            return None
        if other is not None:
            node.node_id = other  # it sees the host, and follows it
            return None
        if not node.is_lost:
            node.is_lost = True
            await self._tell_lost(node, "Ray has given it up")
        end.node_lost(node)  # the others need not hang until the lease is over
        if not await leases.wait_over(node):
            return None
        return exit_record_of_lost_node(node)

    async def _tell_lost(self, node: NodeOfAttempt, why: str) -> None:
        await self._event("node_lost", f"{node.name} is lost: {why}")

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
