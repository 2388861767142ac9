"""Removes what no job needs: drained and idle allocations, groups, folders."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rayjobs.core.errors import NotFoundError, RayjobsError, StoreError
from rayjobs.engine.attempt.supervisor import SupervisorParts
from rayjobs.engine.attempts import AttemptsInProgress
from rayjobs.engine.board import Board, Served
from rayjobs.engine.recovery import Recovery
from rayjobs.protocol.agent import NodeInfo
from rayjobs.protocol.calls import CLEAN_FOLDERS, UNCLEANED, CleanFolders, Nothing, Uncleaned

log = logging.getLogger(__name__)

CLEAN_EVERY_S = 60.0


class Tidying:
    """Removes what crashes and faults have left on the cluster, in the stores and on nodes.

    Attributes:
        cleaned_s: When nodes were last cleaned, on the monotonic clock; None: not yet.
    """

    def __init__(
        self,
        parts: SupervisorParts,
        board: Board,
        attempts: AttemptsInProgress,
        recovery: Recovery,
    ) -> None:
        """Tidy up for the target of `parts`.

        Args:
            recovery: Determines the final state of attempts.
        """
        self._parts = parts
        self._board = board
        self._attempts = attempts
        self._recovery = recovery
        self.cleaned_s: float | None = None

    async def tidy(self, nodes: Sequence[NodeInfo]) -> None:
        """Check drained allocations again, and find groups and folders without a job.

        Errors are logged: the next round tries again.

        Args:
            nodes: The nodes of the cluster at the last check.
        """
        allocations = self._parts.allocations
        try:
            for allocation in allocations.all:
                if allocation.draining and await self._recovery.prove(allocation.suspects):
                    log.info("no process is left on %s: released", allocation.name)
                    await allocations.release(allocation)
            await self._release_idle_on_dead_nodes()
            await self._drop_unowned_rows(nodes)
            await self.remove_unowned_groups()
            await self._clean_nodes(nodes)
        except RayjobsError as error:
            log.warning("tidying was cut short: %s", error)
        except Exception:
            log.exception("an unexpected error while tidying")

    async def _release_idle_on_dead_nodes(self) -> None:
        """Release idle allocations that lost a node, since Ray moves their bundles."""
        alive = {node.node_id for node in await self._parts.cluster.nodes()}
        for allocation in self._parts.allocations.all:
            if (
                allocation.job is None
                and not allocation.draining
                and not alive.issuperset(allocation.nodes)
            ):
                log.info("%s had a node that is gone: released", allocation.name)
                await self._parts.allocations.release(allocation)

    async def _drop_unowned_rows(self, nodes: Sequence[NodeInfo]) -> None:
        """Release allocations that the previous actor recorded after this actor's recovery.

        That actor may have recorded one while this actor claimed the workspace. If it started a
        job in it, the job is requeued first (`Engine.turn`).
        """
        for served in self._board.served:
            if not self._recovery.has_taken_over(served):
                continue
            try:
                await self._drop_unowned_rows_of(served, nodes)
            except StoreError as error:  # the other workspaces are tidied
                log.info("allocations of %s are not tidied: %s", served.path, error)

    async def _drop_unowned_rows_of(self, served: Served, nodes: Sequence[NodeInfo]) -> None:
        rows = await served.ask(served.store.allocations, self._parts.target)
        live = await served.ask(served.store.live, self._parts.target)
        attempts = {(job.id, attempt.number) for job, attempt in live}
        if await self._recovery.is_replaced(served):
            return
        # Checked last: an allocation of this actor is known before its row is written.
        known = {allocation.name for allocation in self._parts.allocations.all}
        for row in rows:
            if row.name not in known and (row.job, row.attempt) not in attempts:
                log.info("the allocation %s belongs to no job", row.name)
                await self._recovery.drop_row(served, row, {}, nodes, restarted=False)

    async def remove_unowned_groups(self) -> None:
        """Remove groups without an allocation: made during their job's cancel, or forgotten.

        Only if every workspace is taken over: one that cannot be opened now may own groups. And
        only by the actor with the newest claims, which every store must confirm: it does not know
        the groups of the next actor.
        """
        if not self._recovery.is_complete:
            return
        # In this order: an allocation is known before its group is made.
        groups = await self._parts.cluster.group_names(f"rj-{self._parts.target}-")
        known = {allocation.name for allocation in self._parts.allocations.all}
        # Checked after the list: the next actor claims before it makes or takes over a group.
        for served in self._board.served:
            try:
                if await self._recovery.is_replaced(served):
                    return
            except StoreError as error:
                log.info("groups are not tidied while %s cannot be read: %s", served.path, error)
                return
        for name in groups:
            if name not in known:
                log.info("group %s belongs to no job: removed", name)
                await self._parts.cluster.remove_group(name)

    # -- folders of ended attempts ---------------------------------------------------------------
    async def _clean_nodes(self, nodes: Sequence[NodeInfo]) -> None:
        """Periodically clean the nodes that run attempts; first, all nodes of a local target.

        This starts no agent on an idle node of a cluster, which would prevent the node's removal.
        """
        now_s = self._parts.clock.monotonic_s()
        if not self._recovery.is_complete:
            return  # some attempts have not been taken over yet
        busy = {node.node_id for one in self._attempts.supervisors for node in one.record.nodes}
        if self.cleaned_s is None:
            cleaning = {node.node_id for node in nodes} if self._parts.shares_machine else busy
        elif now_s - self.cleaned_s < CLEAN_EVERY_S:
            return
        else:
            cleaning = busy
        if not cleaning:
            return
        self.cleaned_s = now_s
        for node_id in sorted(cleaning):
            agent = await self._parts.cluster.agent(node_id)
            found = await agent.call(UNCLEANED, Nothing())
            roots = tuple([one.root for one in found.folders if await self._has_ended(one)])
            if roots and (cleaned := await agent.call(CLEAN_FOLDERS, CleanFolders(roots))).removed:
                log.info(
                    "removed %d folders of ended attempts on %s",
                    cleaned.removed,
                    node_id[:12],
                )

    async def _has_ended(self, one: Uncleaned) -> bool:
        """Whether an attempt has ended according to its store, and its job has no supervisor."""
        job, number = one.job, one.attempt
        for served in self._board.served:
            if served.key(job) in self._attempts:
                return False
            try:
                attempts = await served.ask(served.store.attempts, job)
            except NotFoundError:
                continue
            except StoreError:
                return False  # the job may be one of this workspace
            if attempts:
                return any(
                    known.number == number and known.ended_at is not None for known in attempts
                )
        return False
