"""Takes over an earlier target actor's work: follows running attempts, ends unowned ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rayjobs.core.clock import Clock
from rayjobs.core.errors import NotFoundError, RayjobsError
from rayjobs.engine.allocations import KnownAllocation
from rayjobs.engine.attempt.ending import SettledNodes
from rayjobs.engine.attempt.nodes import NodeOfAttempt, of_record
from rayjobs.engine.attempt.supervisor import AttemptSupervisor, SupervisorParts
from rayjobs.engine.attempts import AttemptsInProgress
from rayjobs.engine.board import Board, Served
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Allocation, AllocationState, Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.policy import Shape
from rayjobs.protocol.agent import NodeInfo
from rayjobs.protocol.settled import Found, Settled

log = logging.getLogger(__name__)

CLUSTER_RESTARTED = "the Ray cluster was restarted"


class Recovery:
    """Takes over attempts and allocations that the stores of a target record.

    It adds supervisors to the attempts in progress.
    """

    def __init__(self, parts: SupervisorParts, board: Board, attempts: AttemptsInProgress) -> None:
        """Prepare to take over the recorded attempts of the workspaces of `board`.

        Args:
            parts: The shared parts of the target's supervisors.
            attempts: Attempts in progress, to which this adds those that it takes over.
        """
        self._parts = parts
        self._board = board
        self._attempts = attempts
        # The workspaces taken over so far, by path.
        self._taken_over: dict[str, Served] = {}

    def has_taken_over(self, served: Served) -> bool:
        """Return whether the workspace was taken over: decisions on its jobs need that."""
        return self._taken_over.get(served.path) is served

    @property
    def is_complete(self) -> bool:
        """Whether every visible registered workspace was taken over."""
        return self._board.is_complete and all(map(self.has_taken_over, self._board.served))

    @property
    def is_due(self) -> bool:
        """Whether an open workspace was not taken over yet."""
        return not all(map(self.has_taken_over, self._board.served))

    async def is_replaced(self, served: Served) -> bool:
        """Return whether another actor has the newest claim on the workspace. Raises StoreError."""
        claim = await served.ask(served.store.target_epoch, self._parts.target)
        return claim is not None and claim[1] != self._parts.epoch

    # -- workspaces ----------------------------------------------------------------------------
    async def recover(self, alive: Sequence[NodeInfo]) -> None:
        """Take over the live jobs of every workspace that this actor has not recovered yet.

        If the Ray cluster is still the same, their groups exist, and this follows attempts whose
        host is alive (or left an exit record). If Ray was restarted, it first ends all surviving
        processes and proves them dead, and then requeues the jobs as lost with their node.

        Args:
            alive: The nodes of the cluster.
        """
        new = [one for one in self._board.served if not self.has_taken_over(one)]
        cluster_id = await self._parts.cluster.cluster_id()
        groups = set(await self._parts.cluster.group_names(f"rj-{self._parts.target}-"))
        for served in new:
            try:
                await self._recover_workspace(served, cluster_id, groups, alive)
            except RayjobsError as error:
                log.warning("workspace %s is not recovered yet: %s", served.path, error)
            else:
                self._taken_over[served.path] = served

    async def _recover_workspace(
        self, served: Served, cluster_id: str, groups: set[str], alive: Sequence[NodeInfo]
    ) -> None:
        store = served.store
        key = f"cluster:{self._parts.target}"
        same_cluster = await served.ask(store.meta, key) == cluster_id
        live = {
            job.id: (job, attempt)
            for job, attempt in await served.ask(store.live, self._parts.target)
            if served.key(job.id) not in self._attempts
        }
        taken: set[str] = set()
        gone: list[Allocation] = []
        for row in await served.ask(store.allocations, self._parts.target):
            if any(allocation.name == row.name for allocation in self._parts.allocations.all):
                continue  # taken over in an interrupted round
            if not (same_cluster and row.name in groups and _is_in_use(row, live)):
                gone.append(row)
                continue
            allocation = _known_allocation(row, served, self._parts.clock)
            if allocation.draining:
                _, suspects = await self._nodes_of_row(served, row)
                allocation = replace(allocation, suspects=tuple(suspects))
            self._parts.allocations.know(allocation)
            if row.job in live and not allocation.draining:
                job, attempt = live[row.job]
                taken.add(row.job)
                await self._take_over(served, job, attempt, allocation)
        why = "its allocation is gone" if same_cluster else CLUSTER_RESTARTED
        unowned = [one for job_id, one in live.items() if job_id not in taken]
        proven = await asyncio.gather(
            *(
                self.end_and_requeue(served, job, attempt, why=why, restarted=not same_cluster)
                for job, attempt in unowned
            )
        )
        ended = {
            (job.id, attempt.number): one
            for (job, attempt), one in zip(unowned, proven, strict=True)
        }
        for row in gone:
            await self.drop_row(served, row, ended, alive, restarted=not same_cluster)
        await served.ask(store.set_meta, key, cluster_id)

    async def drop_row(
        self,
        served: Served,
        row: Allocation,
        ended: Mapping[tuple[str, int], bool],
        alive: Sequence[NodeInfo],
        *,
        restarted: bool,
    ) -> None:
        """Release an allocation without a live job if its processes are dead; otherwise drain it.

        Args:
            ended: The attempts just ended, and whether they are proven dead.
            alive: The nodes of the cluster.
            restarted: Whether the cluster was restarted since the allocation was made.
        """
        proven = True
        suspects: list[NodeOfAttempt] = []
        if row.job is not None and row.attempt is not None:
            known = ended.get((row.job, row.attempt))
            ended_already, suspects = await self._nodes_of_row(served, row)
            if known is not None:
                proven = known
            elif not ended_already or row.state is AllocationState.DRAINING:
                proven = await self.prove(suspects, restarted=restarted)
        if proven:
            await self._parts.cluster.remove_group(row.name)
            await served.ask(served.store.release_allocation, row.name)
            return
        # Its resources remain reserved, though its group may be gone with its cluster.
        nodes = [self._living_node(node, alive) for node in row.nodes]
        allocation = replace(
            _known_allocation(row, served, self._parts.clock), job=None, draining=True
        )
        allocation = replace(
            allocation, nodes=tuple(node for node in nodes if node), suspects=tuple(suspects)
        )
        self._parts.allocations.know(allocation)
        assert row.job is not None
        assert row.attempt is not None
        await served.ask(
            served.store.free_allocation, row.name, job=row.job, attempt=row.attempt, proven=False
        )

    def _nodes_of(self, served: Served, job: Job, attempt: Attempt) -> list[NodeOfAttempt]:
        return [
            of_record(served.path, self._parts.target, job, attempt.number, host)
            for host in attempt.hosts
        ]

    async def _nodes_of_row(
        self, served: Served, row: Allocation
    ) -> tuple[bool, list[NodeOfAttempt]]:
        """Return whether a row's attempt is known to have ended on all its nodes, and the nodes."""
        if row.job is None:
            return True, []
        try:
            job = await served.ask(served.store.job, row.job)
        except NotFoundError:
            return True, []  # pruned by an earlier version, which left nothing to check
        for attempt in await served.ask(served.store.attempts, row.job):
            if attempt.number == row.attempt:
                nodes = self._nodes_of(served, job, attempt)
                proven = sum(one.leftovers.proven_dead for one in attempt.exits)
                return proven == len(nodes), nodes
        return True, []

    async def _known(
        self, nodes: Sequence[NodeOfAttempt], settled: Sequence[Settled], *, restarted: bool
    ) -> list[Settled]:
        """Replace unknown states by the known ones, however long that takes."""

        async def known(node: NodeOfAttempt, one: Settled) -> Settled:
            if one.state is not Found.UNKNOWN:
                return one
            return await self._parts.settling.until_known(node, end=True, restarted=restarted)

        return await asyncio.gather(*map(known, nodes, settled))

    async def _give_up_unknown(
        self, supervisor: AttemptSupervisor, settled: Sequence[Settled], why: str
    ) -> bool:
        """End a job without a retry if the state of its attempt cannot be determined.

        Args:
            why: What interrupted the attempt.
        """
        if all(one.state is not Found.UNKNOWN for one in settled):
            return False
        message = f"{why}, and the state of its attempt is unknown"
        unknown = SettledNodes(proven=False, may_run=True)
        await supervisor.ending.lose(message, settled=unknown, outcome=Outcome.SYSTEM)
        return True

    # -- attempts ------------------------------------------------------------------------------
    async def _take_over(
        self, served: Served, job: Job, attempt: Attempt, allocation: KnownAllocation
    ) -> None:
        """Continue an attempt whose group still exists."""
        nodes = self._nodes_of(served, job, attempt)
        supervisor = AttemptSupervisor(
            self._parts, served, job, allocation, number=attempt.number, nodes=nodes
        )
        if job.cancel_requested_at is not None:
            supervisor.end_request.cancel()
        self._attempts.adopt(supervisor, self._go_on(supervisor, attempt))

    async def _go_on(self, supervisor: AttemptSupervisor, attempt: Attempt) -> None:
        job = supervisor.record.job
        if not attempt.hosts:
            if await supervisor.ending.put_back(
                "the target actor was replaced before its host was started",
                prove=lambda: self._end_late_hosts(supervisor),
                if_without_hosts=True,
            ):
                return
            await self._learn_hosts(supervisor)
        settling, nodes = self._parts.settling, supervisor.record.nodes
        seen = await asyncio.gather(*(settling.until_known(node, end=False) for node in nodes))
        if any(one.state is Found.GONE for one in seen):
            ended = await asyncio.gather(*(settling.until_known(node, end=True) for node in nodes))
            if all(one.exit is not None and not one.ended_now for one in ended):
                # Started and finished during the check: its exit record is authoritative.
                if job.state in (JobState.PROVISIONING, JobState.PREPARING):
                    await supervisor.record.move_to_running(job.state)
                await supervisor.ending.finalise(
                    [one.exit for one in ended if one.exit is not None]
                )
                return
            if await self._give_up_unknown(supervisor, ended, "the target actor was replaced"):
                return
            proven = all(one.proven for one in ended)
            if job.state in (JobState.PROVISIONING, JobState.PREPARING):
                await supervisor.ending.put_back(
                    "the target actor was replaced while the job was prepared", proven=proven
                )
            else:
                await supervisor.ending.lose(
                    "its attempt host is gone and left no exit record",
                    settled=SettledNodes(proven=proven),
                )
            return
        if job.state in (JobState.PROVISIONING, JobState.PREPARING):
            await supervisor.record.move_to_running(job.state)
        await supervisor.follow()

    async def _end_late_hosts(self, supervisor: AttemptSupervisor) -> bool:
        """End hosts that an earlier actor recorded after the first check of its attempt."""
        await self._learn_hosts(supervisor)
        return await self.prove(supervisor.record.nodes)

    async def _learn_hosts(self, supervisor: AttemptSupervisor) -> None:
        """Take over the currently recorded hosts of a supervised attempt."""
        record = supervisor.record
        served, job = record.served, record.job
        for attempt in await served.ask(served.store.attempts, job.id):
            if attempt.number == record.number:
                record.nodes = self._nodes_of(served, job, attempt)

    async def end_and_requeue(
        self,
        served: Served,
        job: Job,
        attempt: Attempt,
        *,
        why: str,
        restarted: bool = False,
    ) -> bool:
        """End the processes of an attempt without an allocation, and requeue its job.

        Returns whether all its processes are dead. A separate task records the end: a store that is
        full or locked must not delay the other jobs.
        """
        nodes = self._nodes_of(served, job, attempt)
        settling = self._parts.settling
        settled = await asyncio.gather(
            *(settling.ask(node, end=True, restarted=restarted) for node in nodes)
        )
        supervisor = AttemptSupervisor(
            self._parts, served, job, None, number=attempt.number, nodes=nodes
        )
        self._attempts.adopt(
            supervisor, self._conclude(supervisor, settled, why=why, restarted=restarted)
        )
        return all(one.proven for one in settled)

    def requeue_unsupervised(self, served: Served, job: Job, attempt: Attempt) -> None:
        """End the processes of an attempt that lost its supervisor, and requeue its job.

        Its nodes are asked in a separate task: one that does not answer must not delay the queue.
        """
        nodes = self._nodes_of(served, job, attempt)
        supervisor = AttemptSupervisor(
            self._parts, served, job, None, number=attempt.number, nodes=nodes
        )
        unknown = [Settled(Found.UNKNOWN) for _ in nodes]
        self._attempts.adopt(
            supervisor, self._conclude(supervisor, unknown, why="its target lost track of it")
        )

    async def _conclude(
        self,
        supervisor: AttemptSupervisor,
        settled: Sequence[Settled],
        *,
        why: str,
        restarted: bool = False,
    ) -> None:
        job = supervisor.record.job
        settled = await self._known(supervisor.record.nodes, settled, restarted=restarted)
        finished = [one.exit for one in settled if one.exit is not None]
        is_early = job.state in (JobState.PROVISIONING, JobState.PREPARING)
        if settled and len(finished) == len(settled) and not any(one.ended_now for one in settled):
            # It had ended by itself: its exit record is authoritative, whatever happened to Ray.
            if is_early:
                await supervisor.record.move_to_running(job.state)
            await supervisor.ending.finalise(finished)
        elif await self._give_up_unknown(supervisor, settled, why):
            return
        elif job.cancel_requested_at is not None:
            await supervisor.ending.cancel(proven=all(one.proven for one in settled))
        elif not settled or is_early:
            late = None if settled else (lambda: self._end_late_hosts(supervisor))
            if not await supervisor.ending.put_back(
                f"{why} before it started", prove=late, if_without_hosts=not settled
            ):
                await self._learn_hosts(supervisor)
                unknown = [Settled(Found.UNKNOWN) for _ in supervisor.record.nodes]
                await self._conclude(supervisor, unknown, why=why, restarted=restarted)
        else:
            dead = SettledNodes(proven=all(one.proven for one in settled))
            # A restart of the cluster ends every attempt: no job has caused it.
            outcome = Outcome.CLUSTER_LOST if restarted else Outcome.NODE_LOST
            message = f"{why}; its remaining processes were ended first"
            await supervisor.ending.lose(message, settled=dead, outcome=outcome)

    async def prove(self, nodes: Iterable[NodeOfAttempt], *, restarted: bool = False) -> bool:
        """End remaining hosts, and return whether all are proven dead."""
        settling = self._parts.settling
        settled = await asyncio.gather(
            *(settling.ask(replace(node), end=True, restarted=restarted) for node in nodes)
        )
        return all(one.proven for one in settled)

    def _living_node(self, node_id: str, alive: Sequence[NodeInfo]) -> str | None:
        """Return the node, or one that sees the same processes, or None."""
        ids = [node.node_id for node in alive]
        if node_id in ids:
            return node_id
        # All nodes of a local target are on this machine.
        return ids[0] if self._parts.shares_machine and ids else None


def _is_in_use(row: Allocation, live: dict[str, tuple[Job, Attempt]]) -> bool:
    if row.state is AllocationState.DRAINING:
        return True
    if row.state is not AllocationState.HELD or row.job not in live:
        return False
    return live[row.job][1].number == row.attempt


def _known_allocation(row: Allocation, served: Served, clock: Clock) -> KnownAllocation:
    draining = row.state is AllocationState.DRAINING
    return KnownAllocation(
        name=row.name,
        served=served,
        shape=Shape.from_dict(row.shape),
        nodes=row.nodes,
        gpus=row.gpus,
        job=served.key(row.job) if row.job and not draining else None,
        since_s=clock.monotonic_s(),
        draining=draining,
    )
