"""Supervises one attempt from its allocation to its recorded end.

Whatever dies between two lines of this file, the store and the attempt's folder on its node show
how far the attempt had come, and `rayjobs.engine.recovery` continues from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from rayjobs.core.clock import Clock
from rayjobs.core.errors import PrepareError, RayjobsError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.terminal import first_sentence
from rayjobs.engine.allocations import Allocations, KnownAllocation
from rayjobs.engine.attempt.allocation import AttemptAllocation
from rayjobs.engine.attempt.end_request import EndRequest
from rayjobs.engine.attempt.ending import AGENT_PAUSE_S, AttemptEnding
from rayjobs.engine.attempt.group import (
    GroupEnd,
    drop,
    end_when_all_are_silent,
    exit_record_of_lost_node,
    together,
)
from rayjobs.engine.attempt.launch_requests import azure_identity, launch_requests
from rayjobs.engine.attempt.leases import Leases
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.engine.attempt.record import AttemptRecord
from rayjobs.engine.attempt.settling import Settling
from rayjobs.engine.board import Served
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import EndCause, EndReason, Outcome
from rayjobs.jobs.events import AgentLost
from rayjobs.jobs.outcomes import LOST_WITH_NODE
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.plan import MEETING_BACKENDS
from rayjobs.protocol.agent import (
    Agent,
    AgentFaultError,
    AgentLostError,
    Cluster,
    ClusterUnreachableError,
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

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# Another job of the cluster took the free capacity first. This is not a failure.
NOT_PLACED_PAUSE_S = 2.0
# If nodes do not start: how long other jobs go first, and after how many tries in a row to hold the
# job.
NOT_GROWN_PAUSE_S = 30.0
NOT_GROWN_TRIES = 3
# How long after the script's grace period to repeat the stop request to the host.
STOP_AGAIN_S = 5.0
# How long to wait before repeating the stop request to a preparing node.
STOP_PREPARING_AGAIN_S = 1.0


class EndedEarlyError(RayjobsError):
    """The attempt was canceled or preempted before its host started."""


@dataclass(frozen=True)
class SupervisorParts:
    """The parts that all supervisors of a target share.

    Attributes:
        target: Name of the compute target.
        count: Called with ``launches`` and with the name of each final state.
        waited: Called with the seconds from a job's submit to its start.
        leases: The leases of all hosts.
        settling: How the final state of attempts is determined.
        shares_machine: Whether all nodes are on this machine.
        epoch: The epoch of the target actor, which has claimed its workspaces; None: no claims.
    """

    target: str
    cluster: Cluster
    allocations: Allocations
    clock: Clock
    count: Callable[[str], None]
    waited: Callable[[float], None]
    leases: Leases
    settling: Settling
    shares_machine: bool
    epoch: str | None


class AttemptSupervisor:
    """Supervises one attempt: starts it, follows its hosts, and ends it.

    Attributes:
        record: The attempt and its records in the store.
        allocation: The resources that it uses.
        end_request: Whether it has to end early.
        ending: How it ends.
    """

    def __init__(
        self,
        parts: SupervisorParts,
        served: Served,
        job: Job,
        allocation: KnownAllocation | None,
        *,
        number: int = 0,
        nodes: Sequence[NodeOfAttempt] = (),
    ) -> None:
        """Supervise an attempt of `job`.

        Args:
            allocation: The attempt's allocation; None: it no longer exists.
            number: The number of an attempt that another target actor has started; 0: it starts
                here.
            nodes: The nodes of such an attempt.
        """
        self.record = AttemptRecord(served, job, parts.clock, parts.count, number, list(nodes))
        self.allocation = AttemptAllocation(parts.allocations, allocation)
        self.end_request = EndRequest(job.spec.grace_s)
        self.ending = AttemptEnding(
            self.record,
            self.allocation,
            self.end_request,
            parts.cluster,
            parts.leases,
            parts.settling,
        )
        self._parts = parts

    @property
    def key(self) -> str:
        """The job's key, which is unique over all workspaces of the target."""
        return self.record.served.key(self.record.job.id)

    def preempt(self, reason: str, *, grace_s: float | None = None, is_free: bool = False) -> None:
        """Preempt the attempt: SIGTERM, time for a checkpoint, then its end.

        The job returns to its old position in the queue with outcome and class `preempted`, within
        the budget of that class, and its next attempt continues from the newest whole checkpoint. A
        cancel before the attempt's end takes precedence. Repeated calls keep the first reason.

        Args:
            reason: For users: what the resources are needed for.
            grace_s: Seconds from SIGTERM to SIGKILL; None takes the job's own `grace_s`.
            is_free: It does not use the budget: a user of the target requested it.
        """
        self.end_request.preempt(reason, grace_s=grace_s, is_free=is_free)

    def leave_removed_workspace(self) -> None:
        """End the attempt because its workspace was removed."""
        self.record.is_workspace_gone = True
        self.end_request.cancel()

    async def start(self, *, new: bool) -> None:
        """Start the job that the policy has chosen, and follow it to its end.

        Args:
            new: Its allocation has to be made first; otherwise it is reused.
        """
        record, allocation = self.record, self.allocation
        served, job, store = record.served, record.job, record.served.store
        if new:
            await served.ask(
                store.add_allocation,
                allocation.name,
                target=self._parts.target,
                shape=allocation.shape.to_dict(),
            )
        attempt = await served.ask(
            store.start,
            job.id,
            attempt=job.attempt,
            allocation=allocation.name,
            epoch=self._parts.epoch,
            changed_at=job.changed_at,
        )
        if attempt is None:  # canceled, or another actor was faster or has taken over
            if new:
                await allocation.release()
            else:
                await allocation.give_back(job=job.id, attempt=-1, proven=True)
            return
        record.number = attempt.number
        try:
            if new:
                await self._unless_ended(self._create_allocation())
            if not await served.ask(
                store.hold_allocation, allocation.name, job=job.id, attempt=record.number
            ):
                raise NotPlacedError(f"{allocation.name} was taken by another target actor")
            await self._provision()
        except EndedEarlyError:
            if self.end_request.is_preemption:
                await self._requeue_unstarted()
            else:
                await record.finish(Outcome.CANCELED)
            await self.ending.clean()
            await self.ending.free(proven=True)
        except NotGrownError as error:
            await allocation.release()
            await self._requeue_not_grown(error)
        except NotPlacedError as error:
            await allocation.release()
            await record.requeue(str(error), outcome=Outcome.NOT_PLACED, pause_s=NOT_PLACED_PAUSE_S)
        except PrepareError as error:
            await self._end_unprepared(error)

    async def _end_unprepared(self, error: PrepareError) -> None:
        record = self.record
        await record.check_ours()  # raises if another actor has ended the attempt
        # A host that answered late, or one on another node, may still run.
        settled = await self.ending.settle()
        if self.end_request.is_preemption and not any(one.was_launched for one in record.nodes):
            # The nodes ended their preparation because the supervisor requested it.
            await self._requeue_unstarted()
            await self.ending.clean()
            await self.ending.free(proven=settled.proven)
            return
        failure = Failure(
            error.failure_class,
            str(error),
            lines=error.lines,
            is_outage=error.is_outage,
            is_permanent=error.is_permanent,
            is_out_of_files=error.is_out_of_files,
        )
        await self.ending.fail(failure, outcome=Outcome.NOT_PREPARED, settled=settled)
        await self.ending.clean()

    async def _requeue_unstarted(self) -> None:
        """Put a preempted job back into the queue. Nothing had run: it uses no budget."""
        reason = self.end_request.preempt_reason
        await self.record.requeue(reason, outcome=Outcome.PREEMPTED, pause_s=0.0)

    async def _create_allocation(self) -> None:
        try:
            await self.allocation.create()
        except ClusterUnreachableError as error:
            raise NotPlacedError(str(error)) from error

    async def _requeue_not_grown(self, error: NotGrownError) -> None:
        """Let other jobs go first, then wait for nodes again; hold the job if nodes never start."""
        tries = 1
        for attempt in reversed((await self.record.attempts())[:-1]):
            if attempt.outcome != Outcome.NOT_GROWN:
                break
            tries += 1
        hold = None
        if tries % NOT_GROWN_TRIES == 0:
            hold = (
                f"{error}, {NOT_GROWN_TRIES} times in a row. `ray status` on the cluster says why "
                f"nodes do not start; then release it: "
                f"rayjobs update {self.record.job.id} --release"
            )
        await self.record.requeue(
            str(error), outcome=Outcome.NOT_GROWN, pause_s=NOT_GROWN_PAUSE_S, hold=hold
        )

    async def _provision(self) -> None:
        await self.record.move(JobState.PROVISIONING, JobState.PREPARING)
        try:
            # Concurrently: an agent takes half a second to start, and ends if no call comes.
            agents = await together(
                self._parts.cluster.agent(node) for node in self.allocation.nodes
            )
            greetings = await together(agent.call(HELLO, Nothing()) for agent in agents)
            port = None
            if self.record.job.spec.distribution.backend in MEETING_BACKENDS:
                port = (await agents[0].call(FREE_PORT, Nothing())).number
            azure = await self.record.write(azure_identity, self.record.served, self._parts.target)
            self.record.nodes, requests = launch_requests(
                self.record,
                self.allocation,
                greetings,
                port,
                target=self._parts.target,
                lease_s=self._parts.leases.lease_s,
                azure=azure,
            )
            await self.record.set_hosts([None for _ in self.record.nodes], cold=None)
            self._check_not_ended()
            requests = await self._prepare(agents, requests)
            self._check_not_ended()
            hosts = await self._launch(agents, requests)
        except (AgentLostError, ClusterUnreachableError) as error:
            settled = await self.ending.settle()
            if settled.exits and len(settled.exits) == len(self.record.nodes):
                # Launched and finished before its agent could report it: the exit records count.
                await self.record.move(JobState.PREPARING, JobState.RUNNING)
                await self.ending.finalise(settled.exits)
                return
            failure = Failure(FailureClass.SYSTEM, f"the node's agent was lost at start: {error}")
            if any(node.is_lost for node in self.record.nodes):
                failure = replace(failure, failure_class=FailureClass.NODE_LOST)
            await self.ending.fail(failure, outcome=Outcome.AGENT_LOST, settled=settled)
            return
        for node, host in zip(self.record.nodes, hosts, strict=True):
            node.watches_raylet = host.watches_raylet
        self._parts.count("launches")
        waited = self._parts.clock.now() - self.record.job.submitted_at
        self._parts.waited(waited.total_seconds())
        cold = next((host.cold for host in hosts if host.cold), None)
        await self.record.set_hosts(hosts, cold=cold)
        await self.record.move(JobState.PREPARING, JobState.RUNNING)
        await self.follow()

    async def _launch(
        self, agents: Sequence[Agent], requests: Sequence[LaunchRequest]
    ) -> list[Launched]:
        """Start every node's host; meanwhile, renew the leases of those that already run."""
        if self._parts.leases.lease_s is not None:
            # Count the lease from before the request: if the request is late, the lease is shorter.
            greetings = await together(agent.call(HELLO, Nothing()) for agent in agents)
            requests = [
                replace(one, plan=replace(one.plan, lease_since_s=hello.clock_s))
                for one, hello in zip(requests, greetings, strict=True)
            ]
        keeping = []
        for agent, node in zip(agents, self.record.nodes, strict=True):
            node.was_launched = True
            self._parts.leases.grant(node)
            keeping.append(asyncio.ensure_future(self._parts.leases.keep(agent, node)))
        try:
            pairs = zip(agents, requests, strict=True)
            return await together(agent.call(LAUNCH, one) for agent, one in pairs)
        finally:
            for one in keeping:
                one.cancel()

    async def _prepare(
        self, agents: Sequence[Agent], requests: Sequence[LaunchRequest]
    ) -> list[LaunchRequest]:
        """Prepare every node; a cancel, or a node that fails, stops the other nodes.

        Returns:
            The requests, with the variables that give the ranks the paths of their data.
        """
        pairs = list(zip(agents, requests, strict=True))
        calls = [asyncio.ensure_future(agent.call(PREPARE, one)) for agent, one in pairs]
        canceling = asyncio.ensure_future(self.end_request.made())
        failed: BaseException | None = None
        try:
            while pending := [call for call in calls if not call.done()]:
                # Repeated: a node that has just begun may not know the attempt yet.
                is_ending = failed is not None or canceling.done()
                waiting: list[asyncio.Future[Any]] = [*pending, *([] if is_ending else [canceling])]
                await asyncio.wait(
                    waiting,
                    timeout=STOP_PREPARING_AGAIN_S if is_ending else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                failed = failed or next((e for one in calls if (e := _error_of(one))), None)
                if canceling.done():
                    cause = canceling.result()
                elif failed is not None:  # fault 143: a failed node ends the others
                    cause = EndCause(EndReason.NODE_ENDED, "another node could not be prepared")
                else:
                    continue
                for (agent, one), call in zip(pairs, calls, strict=True):
                    if not call.done():
                        # Its own call fails, too, or the next round repeats the request.
                        with suppress(AgentFaultError, AgentLostError, ClusterUnreachableError):
                            await agent.call(STOP, Stop(one.on, cause, grace_s=0.0))
        finally:
            canceling.cancel()
            for call in calls:
                call.cancel()
        # Raised only now: no node may still prepare while the attempt is cleaned up.
        failed = failed or next((e for one in calls if (e := _error_of(one))), None)
        if failed is not None:
            raise failed
        made = [call.result() for call in calls]
        ready = []
        for node, one, prepared in zip(self.record.nodes, requests, made, strict=True):
            node.facts = prepared.facts
            # An input may be called HOME: the plan's variables take precedence.
            env = {**prepared.variables, **one.plan.env}
            plan = replace(one.plan, env=env, python=prepared.python or one.plan.python)
            ready.append(replace(one, plan=plan))
        return ready

    async def follow(self) -> None:
        """Follow launched hosts to their end, then finalize.

        The first node that does not succeed ends the others.
        """
        end = GroupEnd(self.end_request.made)
        listening = asyncio.ensure_future(
            end_when_all_are_silent(
                self._parts.cluster, self.record.nodes, end, self.record.job.spec.stall_timeout_s
            )
        )
        followed = [
            asyncio.ensure_future(self._follow_one(node, end)) for node in self.record.nodes
        ]
        try:
            exits = await asyncio.gather(*followed)
        finally:
            listening.cancel()
            for one in followed:
                drop(one)  # so that no lease of an abandoned attempt is renewed
        await self.ending.finalise(list(exits))

    async def _follow_one(self, node: NodeOfAttempt, end: GroupEnd) -> ExitRecord:
        """Return the node's exit record. Unreachable does not mean failed: this waits."""
        is_reported = False
        while True:
            try:
                agent = await self._parts.cluster.agent(node.node_id)
                following = asyncio.ensure_future(agent.call(FOLLOW, node.on))
                ending = asyncio.ensure_future(end.asked())
                renewing = asyncio.ensure_future(self._parts.leases.keep(agent, node))
                try:
                    await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
                    while not following.done():
                        # Repeated: a stopped or busy host may not have received it.
                        cause, grace_s = ending.result(), self.end_request.grace_s
                        await agent.call(STOP, Stop(node.on, cause, grace_s))
                        await asyncio.wait({following}, timeout=grace_s + STOP_AGAIN_S)
                    ended = await following
                    if ended.outcome in LOST_WITH_NODE:  # before anything is allocated there again
                        self._parts.cluster.doubt(node.node_id)
                        if not node.is_lost:  # its host noticed before Ray
                            await self._report_lost(node, ended.reason)
                    end.note(ended)
                    return ended
                finally:
                    ending.cancel()
                    renewing.cancel()
                    drop(following)  # a dying agent fails both FOLLOW and STOP: raise one error
            except AgentFaultError as error:
                if not error.is_out_of_files:
                    raise
                log.warning("%s is followed again: %s", self.record.job.id, error)
                await asyncio.sleep(AGENT_PAUSE_S)
            except ClusterUnreachableError as error:
                log.warning("%s is followed once Ray answers: %s", self.record.job.id, error)
                await asyncio.sleep(AGENT_PAUSE_S)
            except AgentLostError as error:
                lost = await self._lost_with_node(node, end)
                if lost is not None:
                    return lost
                if not is_reported:
                    await self.record.add_event(
                        AgentLost.KIND,
                        f"the node's agent is replaced: {first_sentence(str(error))}",
                        AgentLost(str(error)).to_json(),  # Ray's text may be a page long
                    )
                is_reported = True
                await asyncio.sleep(AGENT_PAUSE_S)

    async def _lost_with_node(self, node: NodeOfAttempt, end: GroupEnd) -> ExitRecord | None:
        """Return the record of a host on a permanently lost node when it has certainly ended.

        None while the node is alive or its state is unknown: the caller tries again.
        """
        leases = self._parts.leases
        try:
            if not await leases.is_lost(node):
                return None
            other = await leases.living_node(node)
        except RayjobsError as error:
            log.info("cannot check whether a node of %s is alive: %s", self.record.job.id, error)
            return None
        if other is not None:
            node.node_id = other  # that node sees the host and follows it
            return None
        if not node.is_lost:
            node.is_lost = True
            await self._report_lost(node, "Ray has declared it dead")
        end.node_lost(node)  # the others need not hang until the lease ends
        if not await leases.wait_over(node):
            return None
        return exit_record_of_lost_node(node)

    async def _report_lost(self, node: NodeOfAttempt, why: str) -> None:
        await self.record.add_event("node_lost", f"{node.name} is lost: {why}")

    def _check_not_ended(self) -> None:
        if self.end_request.is_made:
            raise EndedEarlyError(f"{self.record.job.id} had to end before it started")

    async def _unless_ended(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work, or cancel it when the attempt has to end."""
        doing: asyncio.Future[Result] = asyncio.ensure_future(work)
        canceling: Awaitable[Any] = asyncio.ensure_future(self.end_request.made())
        waiting = {doing, canceling}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
            if doing.done():
                return doing.result()
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            await self.allocation.release()
            raise EndedEarlyError(f"{self.record.job.id} had to end before its allocation")
        finally:
            drop(doing)
            asyncio.ensure_future(canceling).cancel()


def _error_of(call: asyncio.Future[Any]) -> BaseException | None:
    """Return the error that a call raised; None: it raised none, or was canceled here."""
    return call.exception() if call.done() and not call.cancelled() else None
