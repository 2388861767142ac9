"""How a drive's attempt ends: collected, recorded, retried within its budget, and cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rayjobs.core.errors import RayjobsError, UnreachableError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.engine.attempt import record as drivebase
from rayjobs.engine.attempt.record import DriveBase
from rayjobs.engine.attempt_nodes import NodeOfAttempt
from rayjobs.injob import openfiles
from rayjobs.injob.exitrecord import ExitRecord
from rayjobs.injob.outcomes import CANCELED, Outcome
from rayjobs.jobs import retry, rootcause
from rayjobs.jobs.outcomes import NODE_LOST, failure_class
from rayjobs.jobs.records import Attempt, ModelDraft, ModelRefusal
from rayjobs.jobs.states import JobState
from rayjobs.models import requested
from rayjobs.protocol.agent import AgentFaultError, AgentLostError
from rayjobs.protocol.calls import CLEAN, COLLECT, SETTLE, Settle
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.settled import Found, Settled
from rayjobs.resume.checkpoints import Lost, steps_lost
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import WorkspaceFiles

log = logging.getLogger(__name__)

AGENT_PAUSE_S = 0.5
COLLECT_TRIES = 4
# A collection that stands still is given up after this long, or once the job is canceled.
STUCK_S = 600.0
STUCK_LOOK_S = 2.0
# Ends of attempts, and pauses, where a process of ours could open no more files.
OUT_OF_FILES_PAUSE_S = 10.0
OUT_OF_FILES_TRIES = 60


# Classes of failures that a lack of open files may be behind, in a process that is not the user's.
OURS = (FailureClass.SYSTEM, FailureClass.STORAGE, FailureClass.ENVIRONMENT, FailureClass.DATA)


def _waits_for_files(failure: Failure, attempts: Sequence[Attempt]) -> bool:
    """Whether an attempt failed for want of open files, and not again and again."""
    if failure.failure_class not in OURS or not openfiles.is_exhausted(failure.message):
        return False
    latest = attempts[:-1][-OUT_OF_FILES_TRIES:]
    return len(latest) < OUT_OF_FILES_TRIES or any(
        one.outcome != Outcome.OUT_OF_FILES for one in latest
    )


class DriveEnds(DriveBase):
    """One attempt in progress, with every way in which it may end."""

    async def finalise(self, exits: Sequence[ExitRecord]) -> None:
        """Keep the exit records, store files and metrics, write the end, release the place."""
        store = self.served.store
        self._place_is_gone = any(one.outcome in NODE_LOST for one in exits)
        records = [one.to_json() for one in exits]
        await self._write(store.record_exit, self.job.id, attempt=self.number, exits=records)
        await self._move(JobState.RUNNING, JobState.FINALIZING)
        collected = await asyncio.gather(*(self._collect(node) for node in self.nodes))
        tails: dict[int, bytes] = {}
        problems: list[str] = []
        for one in collected:
            tails.update(one.tails)
            problems += one.problems
        facts = [one.data for one in collected if one.data is not None]
        outcome, failure = rootcause.diagnose(exits, tails, data=facts)
        proven = all(record.leftovers.proven_dead for record in exits)
        refused = [sentence for one in facts for sentence in one.refused]
        kept = self.nodes[0].on.root
        given_up = next((one.gave_up for one in collected if one.gave_up), "")
        if given_up and self.canceled.is_set():
            reason = f"canceled: {given_up} What it left is still in {kept}"
            await self._finish(Outcome.CANCELED, reason=reason)
        elif failure is None and outcome is Outcome.COMPLETED and refused:
            failure = Failure(
                FailureClass.DATA,
                f"the script ended well, but its outputs were not stored: {refused[0]} What it "
                f"wrote is still in {kept}/written.",
            )
            # Not retried: another attempt would find the same files there.
            await self._finish(Outcome.NOT_STORED, failure=failure)
        elif failure is None and outcome is Outcome.COMPLETED and problems:
            failure = Failure(
                FailureClass.STORAGE,
                f"the script ended well, but its files could not be stored: {problems[0]} "
                f"They are still in {kept} (work, and written for outputs).",
            )
            # Not retried: the training is done, only its files are not in the store.
            await self._finish(Outcome.NOT_STORED, failure=failure)
        elif outcome is Outcome.CANCELED:
            await self._finish(outcome, reason=CANCELED.sentence)
        elif outcome is Outcome.PREEMPTED and self._preempt_is_free and not self.canceled.is_set():
            await self._requeue(self._preempt_reason, outcome=outcome, pause_s=0.0)
        elif failure is not None:
            await self._fail(failure, outcome=outcome, proven=proven)
        else:
            models = await self._models(collected)
            await self._finish(outcome, models=models)
        await self._give_back(proven=proven)
        if not problems and not refused:
            await self._clean()

    async def _models(self, collected: Sequence[Collected]) -> Sequence[ModelDraft | ModelRefusal]:
        """Return what the script asked to have registered, ready for the end's transaction."""
        requests = requested.fold(one for node in collected for one in node.models)
        if not requests:
            return ()
        store, blobs = self.served.store, FolderBlobs(WorkspaceFiles(Path(self.served.path)).blobs)
        return await self._write(requested.prepare, store, blobs, self.job.id, requests)

    async def _collect(self, node: NodeOfAttempt) -> Collected:
        """Store what the attempt left; a full disk may have room again in a moment."""
        if node.is_lost:
            return Collected()  # on a node that nobody can reach any more
        await self._workspace_seen()
        last = Collected(problems=("the node's agent cannot be reached.",))
        attempt = waited = 0
        while attempt < COLLECT_TRIES:
            attempt += 1
            try:
                agent = await self.parts.cluster.agent(node.node_id)
                last = await agent.call(COLLECT, node.on)
                if last.stuck:
                    last = await self._until_it_moves(node, last)
            except AgentLostError:
                if last.stuck:  # it is not known to be stored
                    last = Collected(problems=("the node's agent was lost in the meantime.",))
                await asyncio.sleep(AGENT_PAUSE_S)
                continue
            except RayjobsError as error:
                last = Collected(problems=(f"{error}.",))
            if not last.problems or last.gave_up:
                break
            if any(map(openfiles.is_exhausted, last.problems)) and waited < OUT_OF_FILES_TRIES:
                attempt, waited = 0, waited + 1
            await asyncio.sleep(drivebase.STORE_PAUSE_S * max(1, attempt))
        return last

    async def _until_it_moves(self, node: NodeOfAttempt, last: Collected) -> Collected:
        """Report a collection that stands still; wait for it, or give it up.

        A cancel gives it up at once, and 10 minutes do. Its thread on the node cannot be ended,
        and takes nothing from other attempts.
        """
        clock = self.parts.clock
        since_s = clock.monotonic_s()
        await self._standing_still(str(last.stuck))
        while last.stuck:
            if self.canceled.is_set() or clock.monotonic_s() - since_s >= STUCK_S:
                why = f"{last.stuck}, so the collection was given up."
                return Collected(problems=(why,), gave_up=why)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.canceled.wait(), STUCK_LOOK_S)
            agent = await self.parts.cluster.agent(node.node_id)
            try:
                last = await agent.call(COLLECT, node.on)
            except AgentLostError:
                await self._standing_still("")  # the next agent begins again
                raise
        await self._standing_still("")
        return last

    async def _standing_still(self, why: str) -> None:
        """Let `why`, `show` and the history say where the job's end stands still."""
        text = f"{why}; `rayjobs cancel {self.job.id}` cancels it" if why else ""
        await self._event("collecting", text or "the job's files are still being collected")
        await self._write(
            self.served.store.set_reason, self.job.id, attempt=self.number, reason=text
        )

    async def _clean(self) -> None:
        for node in self.nodes:
            self.parts.leases.forget(node)
            if node.is_lost:
                continue
            try:
                agent = await self.parts.cluster.agent(node.node_id)
                await agent.call(CLEAN, node.on)
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
        await self._fail(failure, outcome=Outcome.SYSTEM, proven=proven)

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
        self._done = []
        for node in self.nodes:
            try:
                settled = await self._settle(node)
                proven &= settled.proven
                if settled.exit is not None and not settled.ended_now:
                    self._done.append(settled.exit)
            except Exception as error:
                log.warning("what is left of %s is not known: %s", self.job.id, error)
                proven = False
        return proven

    async def _settle(self, node: NodeOfAttempt) -> Settled:
        """End what the node has of the attempt, and return what it says of it.

        An agent that dies meanwhile has said nothing: its host may live, or be done. So once a
        launch was asked for, the node is asked until it answers, or is gone for good. Before
        that an agent that never starts is a reason to try elsewhere.
        """
        while True:
            try:
                node_id = await self.parts.leases.living_node(node)
                if node_id is None:
                    node.is_lost = True
                    return Settled(Found.GONE, proven=await self.parts.leases.wait_over(node))
                node.node_id = node_id
                agent = await self.parts.cluster.agent(node_id)
                return await agent.call(SETTLE, Settle(node.on, end=True))
            except AgentFaultError as error:
                if not openfiles.is_exhausted(error):
                    raise
                log.warning("settling %s waits for open files: %s", self.job.id, error)
                await asyncio.sleep(AGENT_PAUSE_S)
            except (AgentLostError, UnreachableError) as error:
                if not self.was_launched:
                    raise
                log.warning("settling %s: %s", self.job.id, error)
                await asyncio.sleep(AGENT_PAUSE_S)

    async def _rescue(self) -> bool:
        """Store the logs, metrics and checkpoints of an attempt that nobody finalised.

        Before its job is queued again: what comes after that is refused as late.
        """
        collected = await asyncio.gather(*(self._collect(node) for node in self.nodes))
        return not any(one.problems for one in collected)

    async def canceled_away(self, *, proven: bool) -> None:
        """End a job as Canceled whose request came while nobody was there to hear it."""
        is_stored = proven and await self._rescue()
        await self._finish(Outcome.CANCELED, reason=CANCELED.sentence)
        if is_stored:
            await self._clean()

    async def lost(
        self, message: str, *, proven: bool, outcome: Outcome = Outcome.NODE_LOST
    ) -> None:
        """Retry (or end) a job whose attempt was lost."""
        is_stored = proven and await self._rescue()
        failure = Failure(failure_class(outcome), message)
        await self._fail(failure, outcome=outcome, proven=proven)
        if is_stored:
            await self._clean()

    async def put_back(
        self,
        reason: str,
        *,
        proven: bool = True,
        prove: Callable[[], Awaitable[bool]] | None = None,
        if_without_hosts: bool = False,
    ) -> bool:
        """Queue a job again that had not started: no failure, no budget spent.

        Args:
            prove: Asked after that whether nothing of the attempt lives: what an actor that does
                not know yet that it was replaced starts from then on is refused, not before.
            if_without_hosts: Do nothing, and return False, when hosts of the attempt are recorded
                by now: they may run, and may even have done all there was to do.
        """
        if self.canceled.is_set():
            await self.canceled_away(proven=proven)
            proven = await prove() if prove is not None else proven
        else:
            is_queued = await self._requeue(
                reason, outcome=Outcome.PUT_BACK, pause_s=0.0, if_without_hosts=if_without_hosts
            )
            if if_without_hosts and not is_queued and await self._has_hosts():
                return False
            proven = await prove() if prove is not None else proven
            if proven:
                await self._clean()
        await self._give_back(proven=proven)
        return True

    async def _has_hosts(self) -> bool:
        """Whether hosts of the attempt are recorded, and it has not ended."""
        attempts = await self._write(self.served.store.attempts, self.job.id)
        return any(
            one.number == self.number and one.hosts and one.ended_at is None for one in attempts
        )

    async def _fail(self, failure: Failure, *, outcome: Outcome, proven: bool = True) -> None:
        """Retry within the class's budget, hold what is poison, else end as Failed."""
        job = await self._write(self.served.store.job, self.job.id)
        attempts = await self._write(self.served.store.attempts, self.job.id)
        events = await self._write(self.served.store.events, self.job.id)
        if _waits_for_files(failure, attempts) and job.cancel_requested_at is None:
            reason = f"waits until its node can open files again: {failure.message}"
            await self._requeue(reason, outcome=Outcome.OUT_OF_FILES, pause_s=OUT_OF_FILES_PAUSE_S)
            await self._give_back(proven=proven)
            return
        decision = retry.decide(
            job.spec.retries,
            failure,
            outcome=outcome,
            attempts=[one for one in attempts if one.number <= self.number],
            now=self.parts.clock.now(),
            released_at=max((one.at for one in events if one.kind == "hold"), default=None),
        )
        if job.cancel_requested_at is not None:
            await self._finish(Outcome.CANCELED, reason=CANCELED.sentence)
        elif isinstance(decision, retry.GiveUp):
            await self._finish(outcome, failure=failure)
        else:
            reason = decision.reason
            lost = await self._steps_lost()
            if lost is not None:
                reason = f"{reason.removesuffix('.')}; {lost.sentence}"
                if lost.steps is not None:
                    await self._event("steps_lost", lost.sentence, lost.to_dict())
            held = decision.hold if isinstance(decision, retry.Hold) else None
            pause_s = 0.0 if isinstance(decision, retry.Hold) else decision.pause_s
            await self._requeue(
                reason, outcome=outcome, failure=failure, pause_s=pause_s, hold=held
            )
        await self._give_back(proven=proven)

    async def _steps_lost(self) -> Lost | None:
        """Return what the next attempt does again; None where that cannot be told."""
        folder = WorkspaceFiles(Path(self.served.path)).blobs
        if not folder.is_dir():
            return None  # opening it would make it, in a workspace that is gone
        try:
            return await asyncio.to_thread(
                lambda: steps_lost(self.served.store, FolderBlobs(folder), self.job.id)
            )
        except RayjobsError as error:
            log.info("what %s lost is not known: %s", self.job.id, error)
            return None
