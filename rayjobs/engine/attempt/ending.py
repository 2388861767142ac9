"""Ends an attempt: settles its nodes, collects its files, records its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rayjobs.core.errors import RayjobsError, StoreError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.core.terminal import first_sentence
from rayjobs.engine.attempt import record as attempt_record
from rayjobs.engine.attempt.allocation import AttemptAllocation
from rayjobs.engine.attempt.end_request import EndRequest
from rayjobs.engine.attempt.leases import Leases
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.engine.attempt.record import AttemptRecord
from rayjobs.engine.attempt.settling import Settling
from rayjobs.engine.board import Served
from rayjobs.injob import open_files
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs import retry, rootcause
from rayjobs.jobs.events import AgentLost
from rayjobs.jobs.outcomes import LOST_WITH_NODE, failure_class
from rayjobs.jobs.records import Attempt, ModelDraft, ModelRefusal
from rayjobs.jobs.states import JobState
from rayjobs.models import requested
from rayjobs.protocol.agent import (
    AgentFaultError,
    AgentLostError,
    Cluster,
    ClusterUnreachableError,
)
from rayjobs.protocol.calls import CLEAN, COLLECT
from rayjobs.protocol.collected import Collected, RequestedModel
from rayjobs.protocol.settled import Found, Settled
from rayjobs.results.checkpoints import Lost, steps_lost
from rayjobs.spec.model import Packages
from rayjobs.workspace.folder import open_blobs

log = logging.getLogger(__name__)

AGENT_PAUSE_S = 0.5
COLLECT_TRIES = 4
# A collection without progress is given up after this time, or when the job is canceled.
STUCK_S = 600.0
STUCK_LOOK_S = 2.0
# How long to wait for storage that does not answer: as long as attempts keep trying to read.
OUTAGE_S = 300.0
OUTAGE_LONGEST_PAUSE_S = 10.0
# How often, and after which pause, to retry if a process of rayjobs could not open more files.
OUT_OF_FILES_PAUSE_S = 10.0
OUT_OF_FILES_TRIES = 60


def _waits_for_files(failure: Failure, attempts: Sequence[Attempt]) -> bool:
    """Whether an attempt failed for lack of open files, and not too often in a row."""
    if not failure.is_out_of_files:
        return False
    latest = attempts[:-1][-OUT_OF_FILES_TRIES:]
    return len(latest) < OUT_OF_FILES_TRIES or any(
        one.outcome != Outcome.OUT_OF_FILES for one in latest
    )


def _is_out_of_files(error: BaseException) -> bool:
    """Whether the agent, or this process, could not open more files."""
    is_agents = isinstance(error, AgentFaultError) and error.is_out_of_files
    return is_agents or open_files.is_exhausted(error)


@dataclass(frozen=True)
class SettledNodes:
    """The final state of an attempt on all its nodes.

    Attributes:
        proven: All processes of the attempt are proven dead.
        may_run: A host that may have been launched cannot be checked: the job must not start again.
        exits: Exit records of the hosts that ended by themselves.
    """

    proven: bool
    may_run: bool = False
    exits: tuple[ExitRecord, ...] = ()


class AttemptEnding:
    """All ways in which an attempt may end."""

    def __init__(
        self,
        record: AttemptRecord,
        allocation: AttemptAllocation,
        end_request: EndRequest,
        cluster: Cluster,
        leases: Leases,
        settling: Settling,
    ) -> None:
        """Prepare to end the attempt of `record`."""
        self._record = record
        self._allocation = allocation
        self._end_request = end_request
        self._cluster = cluster
        self._leases = leases
        self._settling = settling

    # -- after its hosts have ended ------------------------------------------------------------
    async def finalise(self, exits: Sequence[ExitRecord]) -> None:
        """Store exit records, files and metrics, record the end, free the allocation."""
        record = self._record
        await record.write(
            record.served.store.record_exit,
            record.job.id,
            attempt=record.number,
            exits=list(exits),
        )
        await record.move(JobState.RUNNING, JobState.FINALIZING)
        present = [node for node in record.nodes if not node.is_lost]
        collected = await asyncio.gather(*(self._collect(node) for node in record.nodes))
        lost = next((node for node in present if node.is_lost), None)
        tails: dict[int, bytes] = {}
        problems: list[str] = []
        for one in collected:
            tails.update(one.tails)
            problems += one.problems
        facts = [one.data for one in collected if one.data is not None]
        asked = record.job.spec.environment
        outcome, failure = rootcause.diagnose(
            exits,
            tails,
            data=facts,
            has_only_its_packages=isinstance(asked, Packages) and asked.base is None,
            brings_programs=isinstance(asked, Packages) or record.job.spec.container is not None,
        )
        proven = all(one.leftovers.proven_dead for one in exits)
        refused = [sentence for one in facts for sentence in one.refused]
        kept = record.nodes[0].on.root
        outage = any(one.outage for one in collected)
        given_up = next((one.gave_up for one in collected if one.gave_up), "")
        if given_up and self._end_request.is_canceled:
            reason = f"{given_up} Its files are still in {kept}{self._way_to_store()}"
            await record.finish(Outcome.CANCELED, reason=reason)
        elif failure is None and outcome is Outcome.COMPLETED and refused:
            failure = Failure(
                FailureClass.DATA,
                f"the script succeeded, but its outputs were not stored: {refused[0]} Its files "
                f"are still in {kept}/written.",
            )
            # No retry: another attempt would find the same files in the outputs' place.
            await record.finish(Outcome.NOT_STORED, failure=failure)
        elif failure is None and outcome is Outcome.COMPLETED and lost is not None:
            failure = Failure(
                FailureClass.NODE_LOST,
                f"the script succeeded, but {lost.name} was lost before its files were stored",
            )
            settled = SettledNodes(proven=proven)
            await self.fail(failure, outcome=Outcome.NODE_LOST, settled=settled)
        elif failure is None and outcome is Outcome.COMPLETED and problems:
            failure = Failure(
                FailureClass.STORAGE,
                f"the script succeeded, but its files could not be stored: {problems[0]} "
                f"They are still in {kept} (work, and written for outputs)"
                f"{self._way_to_store() if outage else self._ways_by_hand()}.",
            )
            # No retry: the training is done, only its files are not in the store.
            await record.finish(Outcome.NOT_STORED, failure=failure)
        elif outcome is Outcome.CANCELED:
            await record.finish(outcome)
        elif outcome is Outcome.PREEMPTED and self._end_request.is_free_preemption:
            await record.requeue(self._end_request.preempt_reason, outcome=outcome, pause_s=0.0)
        elif failure is not None:
            settled = SettledNodes(proven=proven, exits=tuple(exits))
            await self.fail(failure, outcome=outcome, settled=settled)
        else:
            models = await self._models(collected)
            await record.finish(outcome, models=models)
        await self.free(proven=proven, exits=exits)
        if not problems and not refused:
            await self.clean()

    def _way_to_store(self) -> str:
        """Return a clause that says how to store the outputs after the job's end."""
        if not self._record.job.spec.outputs:
            return ""
        job = self._record.job.id
        return f"; `rayjobs store {job}` stores the outputs once the storage answers"

    def _ways_by_hand(self) -> str:
        """Return a clause that says how to save files that no command can store afterwards."""
        return f"; copy what you need from there, or `rayjobs rerun {self._record.job.id}`"

    async def _models(self, collected: Sequence[Collected]) -> Sequence[ModelDraft | ModelRefusal]:
        """Return the models that the script requested to register, ready for the transaction."""
        requests = requested.fold(one for node in collected for one in node.models)
        if not requests:
            return ()
        served = self._record.served
        await self._record.wait_for_workspace()  # a removed one has no files to read
        return await self._record.write(_prepare_models, served, self._record.job.id, requests)

    async def free(self, *, proven: bool, exits: Sequence[ExitRecord] = ()) -> None:
        """Free the allocation once; drain it unless all its processes are proven dead.

        Args:
            exits: The exit records, which may say that a node was lost.
        """
        if self._allocation.is_given_back:
            return
        record = self._record
        is_lost = any(one.outcome in LOST_WITH_NODE for one in exits)
        if proven and (is_lost or any(one.is_lost for one in record.nodes)):
            # Ray moves the bundles of a dead node: such a group is never reused.
            await self._allocation.release()
            return
        await self._allocation.give_back(
            job=record.job.id, attempt=record.number, proven=proven, suspects=record.nodes
        )

    async def clean(self) -> None:
        """Remove the attempt's scratch files from its reachable nodes."""
        for node in self._record.nodes:
            self._leases.forget(node)
            if node.is_lost:
                continue
            try:
                agent = await self._cluster.agent(node.node_id)
                await agent.call(CLEAN, node.on)
            except RayjobsError as error:
                log.info("the scratch of %s was not removed: %s", self._record.job.id, error)

    # -- collect -------------------------------------------------------------------------------
    async def _collect(self, node: NodeOfAttempt) -> Collected:
        """Store the attempt's files from a node; retry, since a full disk may get free space."""
        if node.is_lost:
            return Collected()  # the node is no longer reachable
        await self._record.wait_for_workspace()
        last = Collected(problems=("the node's agent cannot be reached.",))
        attempt = waited = 0
        since_s = self._record.clock.monotonic_s()
        while attempt < COLLECT_TRIES:
            attempt += 1
            try:
                agent = await self._cluster.agent(node.node_id)
                last = await agent.call(COLLECT, node.on)
                last = await self._wait_for_end(node, last)
            except (AgentLostError, ClusterUnreachableError) as error:
                if await self._is_gone(node):
                    return Collected()
                if last.stuck:  # the files may not have been stored
                    last = Collected(problems=("the node's agent was lost in the meantime.",))
                is_away = isinstance(error, ClusterUnreachableError)
                if is_away and self._end_request.is_canceled:
                    why = f"{error}, so the collection was given up."
                    return Collected(problems=(why,), gave_up=why)
                if is_away and self._record.clock.monotonic_s() - since_s < OUTAGE_S:
                    attempt -= 1  # the files are safe on their node
                await asyncio.sleep(AGENT_PAUSE_S)
                continue
            except RayjobsError as error:
                last = Collected(problems=(f"{error}.",), is_out_of_files=_is_out_of_files(error))
            if not last.problems or last.gave_up:
                break
            if last.is_out_of_files and waited < OUT_OF_FILES_TRIES:
                attempt, waited = 0, waited + 1
                is_canceled = self._end_request.is_canceled  # its user waits: a minute at most
                await asyncio.sleep(
                    attempt_record.STORE_PAUSE_S if is_canceled else OUT_OF_FILES_PAUSE_S
                )
                continue
            await asyncio.sleep(attempt_record.STORE_PAUSE_S * max(1, attempt))
        return last

    async def _is_gone(self, node: NodeOfAttempt) -> bool:
        """Whether the node was lost with the attempt's files; if so, note that."""
        try:
            if not await self._leases.is_lost(node):
                return False
            # One with the same address is on the same machine, which has the files.
            other = await self._leases.living_node(node, restarted=True)
        except RayjobsError as error:
            log.info("cannot check whether %s is alive: %s", node.name, error)
            return False
        if other is not None:
            node.node_id = other
            return False
        node.is_lost = True
        await self._record.add_event("node_lost", f"{node.name} is lost: Ray has declared it dead")
        return True

    async def _wait_for_end(self, node: NodeOfAttempt, last: Collected) -> Collected:
        """Wait for a collection that makes no progress, or for storage that does not answer."""
        if last.stuck:
            last = await self._wait_for_progress(node, last)
        if last.outage:
            last = await self._wait_for_storage(node, last)
        return last

    async def _wait_for_progress(self, node: NodeOfAttempt, last: Collected) -> Collected:
        """Report a collection without progress; wait for it or give it up.

        This gives it up on a cancel or after `STUCK_S` seconds. Its thread on the node cannot be
        ended; it does not affect other attempts.
        """
        clock, end_request = self._record.clock, self._end_request
        since_s = clock.monotonic_s()
        await self._report_stuck(str(last.stuck))
        while last.stuck:
            if end_request.is_canceled or clock.monotonic_s() - since_s >= STUCK_S:
                why = f"{last.stuck}, so the collection was given up."
                return Collected(problems=(why,), gave_up=why)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(end_request.canceled(), STUCK_LOOK_S)
            agent = await self._cluster.agent(node.node_id)
            try:
                last = await agent.call(COLLECT, node.on)
            except AgentLostError:
                await self._report_stuck("")  # the next agent starts over
                raise
        await self._report_stuck("")
        return last

    async def _wait_for_storage(self, node: NodeOfAttempt, last: Collected) -> Collected:
        """Retry while storage does not answer, until a time limit or a cancel.

        The script's files are complete on its node: waiting costs less than repeating its work.
        """
        clock, end_request = self._record.clock, self._end_request
        since_s, pause_s = clock.monotonic_s(), attempt_record.STORE_PAUSE_S
        await self._report_stuck(f"waits for a storage: {str(last.outage).rstrip('.')}")
        while last.outage:
            if end_request.is_canceled or clock.monotonic_s() - since_s >= OUTAGE_S:
                return replace(last, gave_up=last.outage)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(end_request.canceled(), pause_s)
            pause_s = min(OUTAGE_LONGEST_PAUSE_S, pause_s * 2)
            agent = await self._cluster.agent(node.node_id)
            last = await agent.call(COLLECT, node.on)
            if last.stuck:
                last = await self._wait_for_progress(node, last)
        await self._report_stuck("")
        return last

    async def _report_stuck(self, why: str) -> None:
        """Show in `why`, `show` and the history what the job's end waits for; empty: nothing."""
        record = self._record
        text = f"{why}; `rayjobs cancel {record.job.id}` cancels it" if why else ""
        await record.add_event("collecting", text or "the job's files are still being collected")
        await record.write(
            record.served.store.set_reason, record.job.id, attempt=record.number, reason=text
        )

    async def _rescue(self) -> bool:
        """Store logs, metrics and checkpoints of an attempt that was not finalized.

        Call it before the job is requeued: the store refuses later files.
        """
        collected = await asyncio.gather(*(self._collect(node) for node in self._record.nodes))
        return not any(one.problems for one in collected)

    # -- settle --------------------------------------------------------------------------------
    async def settle(self) -> SettledNodes:
        """End all processes that may have been launched.

        After a launch request, this asks each node until it answers or is permanently gone: a lost
        agent says nothing about the host, which may be alive or done.
        """
        nodes = self._record.nodes
        found = await asyncio.gather(*(self._settle(node) for node in nodes))
        return SettledNodes(
            proven=all(one.proven for one in found),
            may_run=any(
                one.state is Found.UNKNOWN and node.was_launched
                for one, node in zip(found, nodes, strict=True)
            ),
            exits=tuple(one.exit for one in found if one.exit is not None and not one.ended_now),
        )

    async def _settle(self, node: NodeOfAttempt) -> Settled:
        if not node.was_launched:  # nothing runs there: the job can be tried elsewhere
            return await self._settling.ask(node, end=True, waits=True)

        async def report(why: str) -> None:
            await self._record.add_event(
                AgentLost.KIND,
                f"waits until its processes on {node.name} have ended: {first_sentence(why)}",
                AgentLost(why).to_json(),
            )

        return await self._settling.until_known(node, end=True, report=report)

    # -- fail ----------------------------------------------------------------------------------
    async def fail(self, failure: Failure, *, outcome: Outcome, settled: SettledNodes) -> None:
        """Retry within the failure class's budget, hold a poison job, otherwise end as Failed.

        A job whose processes may still run is not retried.
        """
        record = self._record
        job = await record.write(record.served.store.job, record.job.id)
        attempts = await record.attempts()
        events = await record.write(record.served.store.events, record.job.id)
        is_canceled = job.cancel_requested_at is not None
        if settled.may_run and not is_canceled:
            message = (
                f"{failure.message.rstrip('.')}. It is not retried, since its processes may still "
                "run: their node answers with errors"
            )
            await record.finish(outcome, failure=replace(failure, message=message))
            await self.free(proven=settled.proven, exits=settled.exits)
            return
        if _waits_for_files(failure, attempts) and not is_canceled:
            reason = f"waits until its node can open files again: {failure.message}"
            await record.requeue(reason, outcome=Outcome.OUT_OF_FILES, pause_s=OUT_OF_FILES_PAUSE_S)
            await self.free(proven=settled.proven, exits=settled.exits)
            return
        decision = retry.decide(
            job.spec.retries,
            failure,
            outcome=outcome,
            attempts=[one for one in attempts if one.number <= record.number],
            now=record.clock.now(),
            released_at=max((one.at for one in events if one.kind == "release"), default=None),
        )
        if is_canceled:
            await record.finish(Outcome.CANCELED)
        elif isinstance(decision, retry.GiveUp):
            await record.finish(outcome, failure=failure)
        else:
            reason = decision.reason
            lost = await self._steps_lost()
            if lost is not None:
                reason = f"{reason.removesuffix('.')}; {lost.sentence}"
                if lost.steps is not None:
                    await record.add_event("steps_lost", lost.sentence, lost.to_dict())
            hold = decision.hold if isinstance(decision, retry.Hold) else None
            pause_s = 0.0 if isinstance(decision, retry.Hold) else decision.pause_s
            await record.requeue(
                reason, outcome=outcome, failure=failure, pause_s=pause_s, hold=hold
            )
        await self.free(proven=settled.proven, exits=settled.exits)

    async def _steps_lost(self) -> Lost | None:
        """Return what the next attempt has to repeat; None: unknown."""
        served, job = self._record.served, self._record.job.id

        def lost() -> Lost | None:
            blobs = open_blobs(served.path)
            return None if blobs is None else steps_lost(served.store, blobs, job)

        try:
            return await asyncio.to_thread(lost)
        except RayjobsError as error:
            log.info("the lost work of %s is unknown: %s", job, error)
            return None

    # -- attempts that were interrupted --------------------------------------------------------
    async def abandon(self, error: BaseException) -> None:
        """End an attempt after an unexpected error, which is a bug in rayjobs."""
        record = self._record
        log.error("attempt %d of %s", record.number, record.job.id, exc_info=error)
        if record.number == 0:
            await self._allocation.release()
            return
        settled = await self.settle()
        failure = Failure(
            FailureClass.SYSTEM,
            f"{type(error).__name__}: {error}",
            is_out_of_files=_is_out_of_files(error),
        )
        await self.fail(failure, outcome=Outcome.SYSTEM, settled=settled)

    async def let_go(self) -> None:
        """End all processes and free the allocation without a record: the store is unusable.

        The engine requeues a job that is live in the store and has no supervisor.
        """
        settled = await self.settle()
        if self._allocation.is_given_back:
            return
        if settled.proven:
            await self.clean()
            await self._allocation.release()
        else:
            await self.free(proven=False)

    async def cancel(self, *, proven: bool) -> None:
        """Record as Canceled a job that was canceled while no target actor was running."""
        is_stored = proven and await self._rescue()
        await self._record.finish(Outcome.CANCELED)
        if is_stored:
            await self.clean()

    async def lose(
        self, message: str, *, settled: SettledNodes, outcome: Outcome = Outcome.NODE_LOST
    ) -> None:
        """Retry (or end) a job whose attempt was lost; see `fail`."""
        is_stored = settled.proven and await self._rescue()
        failure = Failure(failure_class(outcome), message)
        await self.fail(failure, outcome=outcome, settled=settled)
        if is_stored:
            await self.clean()

    async def put_back(
        self,
        reason: str,
        *,
        proven: bool = True,
        prove: Callable[[], Awaitable[bool]] | None = None,
        if_without_hosts: bool = False,
    ) -> bool:
        """Requeue a job that had not started: this is not a failure and uses no budget.

        Args:
            prove: Called after the requeue; returns whether all processes of the attempt are dead.
                Before the requeue, an actor that does not know yet that it was replaced could
                still start some.
            if_without_hosts: Do nothing and return False if hosts of the attempt have been
                recorded: they may run or may even have completed the job.
        """
        if self._end_request.is_canceled:
            await self.cancel(proven=proven)
            proven = await prove() if prove is not None else proven
        else:
            is_queued = await self._record.requeue(
                reason, outcome=Outcome.PUT_BACK, pause_s=0.0, if_without_hosts=if_without_hosts
            )
            if if_without_hosts and not is_queued and await self._record.has_hosts():
                return False
            proven = await prove() if prove is not None else proven
            if proven:
                await self.clean()
        await self.free(proven=proven)
        return True


def _prepare_models(
    served: Served, job: str, requests: Sequence[RequestedModel]
) -> Sequence[ModelDraft | ModelRefusal]:
    blobs = open_blobs(served.path)
    if blobs is None:
        raise StoreError(f"the files of the workspace {served.path} do not exist")
    return requested.prepare(served.store, blobs, job, requests)
