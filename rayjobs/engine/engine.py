"""The queue's loop: read the queue, decide, start attempts, forward cancels, tidy up."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from rayjobs import policy
from rayjobs.core.clock import Clock
from rayjobs.core.errors import RayjobsError, StoreError
from rayjobs.engine.allocations import Allocations
from rayjobs.engine.attempt.leases import Leases
from rayjobs.engine.attempt.settling import Settling
from rayjobs.engine.attempt.supervisor import AttemptSupervisor, SupervisorParts
from rayjobs.engine.attempts import AttemptsInProgress
from rayjobs.engine.board import Board, Change, QueueView, Served, changes_of
from rayjobs.engine.candidates import Candidates
from rayjobs.engine.dashboard_jobs import DashboardJobs
from rayjobs.engine.forecasts import Forecasts
from rayjobs.engine.late_stores import LateStores
from rayjobs.engine.pending_nodes import PendingNodes
from rayjobs.engine.recovery import Recovery
from rayjobs.engine.reporting import status_of
from rayjobs.engine.sweep_drivers import Drivers
from rayjobs.engine.tidying import Tidying
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.policy import Decisions, Limits, Reservation, Shape, Situation
from rayjobs.protocol.agent import Cluster, NodeInfo
from rayjobs.target.answers import (
    AllocatedShape,
    AllocationStatus,
    StatusAnswer,
    WaitingJob,
)

log = logging.getLogger(__name__)
Result = TypeVar("Result")

POLL_S = 1.0
# How often to check idle and drained groups.
TIDY_S = 2.0
# After this time a stop has finished or was repeated, or it never will: its keeper died.
RETIRED_S = 60.0
# With at least this many waiting jobs, decisions are made on a thread.
LONG = 1000
# Without changes, a decision is repeated after this time per waiting job: at most a hundredth of a
# processor, whatever the length of the queue.
AGAIN_S_PER_JOB = 0.0005


@dataclass(frozen=True, kw_only=True)
class TargetMachines:
    """The machines of a target.

    Attributes:
        cluster: Creates placement groups there, and starts agents.
        is_shared: All nodes are on this machine, and share it with other programs.
        lease_s: Length of a host's lease in seconds: the host ends its ranks after two thirds of it
            without a renewal; the target assumes their end after all of it. None if all nodes are
            on this machine, whose processes can always be checked.
        pending_nodes: Which nodes the cluster can add; None: none.
    """

    cluster: Cluster
    is_shared: bool
    lease_s: float | None = None
    pending_nodes: PendingNodes | None = None


@dataclass(frozen=True)
class TurnFacts:
    """The state of a queue after one turn of its engine.

    Attributes:
        waiting: How many jobs wait.
        live: How many attempts and sweep drivers are in progress.
        nodes: The living nodes at the last check.
    """

    waiting: int
    live: int
    nodes: tuple[NodeInfo, ...]


@dataclass(frozen=True, kw_only=True)
class Observer:
    """What observes an engine: gauges, the status file and the Ray dashboard.

    Attributes:
        count: Called with the name of a counter that grows by one.
        waited: Called with the seconds that a job waited for its start.
        note: Called with facts about the queue after each turn.
        dashboard: The copy of the queue on the Ray dashboard; None without one.
    """

    count: Callable[[str], None] = lambda _name: None
    waited: Callable[[float], None] = lambda _seconds: None
    note: Callable[[TurnFacts], None] = lambda _facts: None
    dashboard: DashboardJobs | None = None


UNOBSERVED = Observer()


class Engine:
    """Runs the queue of one target over all the workspaces it serves."""

    def __init__(
        self,
        target: str,
        *,
        machines: TargetMachines,
        board: Board,
        clock: Clock,
        observer: Observer = UNOBSERVED,
        drivers: Drivers | None = None,
        epoch: str | None = None,
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        self.target = target
        self._dashboard = observer.dashboard
        self.epoch = epoch
        self.drivers = drivers
        self.cluster = cluster = machines.cluster
        self.board = board
        self.clock = clock
        self.candidates = Candidates(shares_machine=machines.is_shared)
        self.pending_nodes = machines.pending_nodes or PendingNodes()
        self.allocations = Allocations(
            target, cluster, clock, start_timeout_s=self.pending_nodes.timeout_s
        )
        leases = Leases(cluster, clock, lease_s=machines.lease_s, shares_machine=machines.is_shared)
        self._parts = SupervisorParts(
            target,
            cluster,
            self.allocations,
            clock,
            observer.count,
            observer.waited,
            leases,
            Settling(cluster, leases),
            shares_machine=machines.is_shared,
            epoch=epoch,
        )
        self.attempts = AttemptsInProgress(self.wake)
        self._recovery = Recovery(self._parts, board, self.attempts)
        self.late_stores = LateStores(self._parts, self.attempts)
        self.tidying = Tidying(self._parts, board, self.attempts, self._recovery)
        # The last decision, while jobs wait.
        self.decisions: Decisions | None = None
        self._reservation: Reservation | None = None
        # The change token of each store at which this actor was seen to own the workspace.
        self._claims: dict[str, tuple[Served, Change]] = {}
        self._again_s = self._pause_ends_s = float("-inf")
        self._limits = limits
        self.forecasts = Forecasts(target, clock)
        self.nodes: list[NodeInfo] = []
        # Attempts that were live and had no supervisor in the last round.
        self._unsupervised: set[tuple[str, int]] = set()
        self._tidying: asyncio.Task[None] | None = None
        self.is_superseded = False
        self._note = observer.note
        self._wake = asyncio.Event()
        self._turns_begun = self._turns_ended = 0
        self._turn_ended = asyncio.Condition()
        self._stopping = False
        self._retired_until_s: float | None = None
        self._tidied_s = clock.monotonic_s()

    # -- from outside ----------------------------------------------------------------------------
    def wake(self) -> None:
        """Process the queue now. Call it from the loop's own thread."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop after this turn; attempts continue without it."""
        self._stopping = True
        self._wake.set()

    @property
    def is_retired(self) -> bool:
        """Whether the target is being stopped: then no job or sweep starts."""
        until_s = self._retired_until_s
        return until_s is not None and self.clock.monotonic_s() < until_s

    def retire(self) -> None:
        """Start nothing for `RETIRED_S`: by then the target has ended, or this was called again.

        Running attempts continue under supervision.
        """
        self._retired_until_s = self.clock.monotonic_s() + RETIRED_S

    def resume(self) -> None:
        """Start jobs again: the stop was refused, or failed."""
        self._retired_until_s = None
        self._wake.set()

    def status(self, keys: Collection[str] | None = None) -> StatusAnswer:
        """Return the target's activity.

        Args:
            keys: The jobs whose reasons for waiting to include; None: all.
        """
        return StatusAnswer(
            target=self.target,
            live=tuple(sorted(self.attempts)),
            waiting={} if self.decisions is None else _reasons(self.decisions, keys),
            scaling=PendingNodes.waits(self.allocations.all, self.nodes),
            nodes=tuple(status_of(node) for node in self.nodes),
            allocations=tuple(
                AllocationStatus(
                    name=allocation.name,
                    shape=AllocatedShape.from_json(allocation.shape.to_dict()),
                    nodes=allocation.nodes,
                    gpus=allocation.gpus,
                    job=allocation.job,
                    draining=allocation.draining,
                )
                for allocation in self.allocations.all
            ),
            workspaces=tuple(served.path for served in self.board.served),
            refused=self.board.refused,
        )

    def explain(self, key: str) -> policy.Decision | None:
        """Return why a job waits; None: it does not wait, or there is no decision yet."""
        if self.decisions is None or key not in self.decisions.by_key:
            return None
        return policy.explain(self.decisions, key)

    async def turned(self) -> None:
        """Request a turn, and wait for its end: it sees everything that the stores have now."""
        turn = self._turns_begun + 1
        self.wake()
        async with self._turn_ended:
            await self._turn_ended.wait_for(lambda: self._turns_ended >= turn)

    # -- the loop --------------------------------------------------------------------------------
    async def run(self) -> None:
        """Serve until `stop`, or until another actor has claimed a workspace of this one."""
        try:
            while not self._stopping:
                self._wake.clear()
                self._turns_begun += 1
                try:
                    await self.turn()
                except RayjobsError as error:
                    log.warning("this turn was cut short: %s", error)
                except Exception:
                    # One bad turn must not end the whole queue.
                    log.exception("an unexpected error in the queue's loop")
                    await asyncio.sleep(POLL_S)
                async with self._turn_ended:
                    self._turns_ended = self._turns_begun
                    self._turn_ended.notify_all()
                try:
                    # Not wait_for: in Python 3.11 it loses a cancel that coincides with the wake.
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            if self._tidying is not None:
                self._tidying.cancel()
            if self._dashboard is not None:
                await self._dashboard.stop()

    async def turn(self) -> None:
        """Do one round: recovery, cancels, decisions, starts, tidying."""
        await self.board.refresh()
        if await self._stop_if_replaced():
            return
        await self._follow_moved_workspaces()
        self._leave_removed_workspaces()
        if self._recovery.is_due:
            self.nodes = await self.cluster.nodes()
            await self._recovery.recover(self.nodes)
            await self.tidying.remove_unowned_groups()
        views = [
            view
            for view in await self.board.look(self.clock.now())
            if self._recovery.has_taken_over(view.served)
        ]
        live = [one for view in views for one in view.live]
        self._pass_on_cancels(live)
        self._requeue_unsupervised(live)
        if self.drivers is not None and not self.is_retired:
            await self.drivers.look(self.board)
        waiting = 0
        if any(view.queued for view in views):
            self.nodes = await self.cluster.nodes()
            waiting = await self._decide(views)
        if not waiting:
            self.decisions = self._reservation = None
        now_s = self.clock.monotonic_s()
        if now_s - self._tidied_s > TIDY_S:
            self._tidied_s = now_s
            self.nodes = await self.cluster.nodes()
            if self._reservation is None:  # otherwise the freed capacity is reserved
                self.allocations.hasten(
                    self.pending_nodes.capacities_of(self.allocations, self.nodes)
                )
            await self.allocations.release_old()
            if self._tidying is None or self._tidying.done():
                self._tidying = asyncio.ensure_future(self.tidying.tidy(self.nodes))
        # A sweep keeps the target running, even between two trials.
        busy = len(self.attempts) + (self.drivers.count if self.drivers is not None else 0)
        self._note(TurnFacts(waiting, busy, tuple(self.nodes)))
        if self._dashboard is not None:
            self._dashboard.look(views, self.decisions, [node.node_id for node in self.nodes])

    async def _decide(self, views: Sequence[QueueView]) -> int:
        """Decide and act if anything has changed since the last decision.

        Returns how many jobs wait, including those that start now.
        """
        entries = {entry for view in views for entry in view.entries}
        usual = await self.forecasts.usual(entries, self.board.served)
        self.candidates.look_at(self.nodes)
        count = sum(len(view.queued) for view in views)
        records = await _think(
            count, self.candidates.records, views, usual=usual, without=frozenset(self.attempts)
        )
        await self._refuse()
        situation = Situation(
            waiting=records,
            capacities=self.pending_nodes.capacities_of(self.allocations, self.nodes),
            running=self.pending_nodes.running(
                self.attempts.supervisors, self.candidates, views, usual
            ),
            may_start=self.pending_nodes.may_start(self.nodes, self.allocations),
            limits=self._limits(),
            now_s=self.clock.now().timestamp(),
            reservation=self._reservation,
        )
        if not records or self._is_decided(situation):
            return len(records)
        decisions = await _think(count, policy.decide, situation)
        if self.is_retired:  # checked last: nothing else runs from here on
            return len(records)
        self.decisions, self._reservation = decisions, decisions.reservation
        self._note_validity(decisions)
        capacities = list(decisions.capacities)
        for start in decisions.starts:
            found = self.candidates.job(start.key)
            if found is not None:
                shape = decisions.by_key[start.key].shape
                capacities = self._start(*found, shape, start.nodes, capacities)
        for one in decisions.preempts:
            supervisor = self.attempts.get(one.key)
            if supervisor is not None:  # otherwise it has ended meanwhile
                supervisor.preempt(one.reason)
        await self.forecasts.note(decisions, self.candidates.job)
        return len(records)

    def _is_decided(self, now: Situation) -> bool:
        """Whether the last decision is still valid: nothing changed and it is not due again."""
        decisions = self.decisions
        if decisions is None:
            return False
        then = decisions.situation
        return (
            not decisions.starts
            and not decisions.preempts
            and now.waiting is then.waiting
            and now.reservation == then.reservation
            and now.limits == then.limits
            and list(now.capacities) == list(then.capacities)
            and now.may_start == then.may_start
            and list(now.running) == list(then.running)
            and self.clock.monotonic_s() < self._again_s
            and now.now_s < self._pause_ends_s
        )

    def _note_validity(self, decisions: Decisions) -> None:
        """Note how long a decision stays valid: time alone also changes it, but rarely."""
        now_s, waiting = decisions.situation.now_s, decisions.situation.waiting
        self._again_s = self.clock.monotonic_s() + len(waiting) * AGAIN_S_PER_JOB
        pauses = [job.not_before_s for job in waiting if job.not_before_s is not None]
        self._pause_ends_s = min((at_s for at_s in pauses if at_s > now_s), default=math.inf)

    async def _refuse(self) -> None:
        """End the jobs with a failed parent, and hold those that cause an error."""
        for served, job, reason in list(self.candidates.doomed.values()):
            finish = functools.partial(
                served.store.finish,
                job.id,
                attempt=job.attempt,
                state=JobState.CANCELED,
                reason=reason,
                outcome=Outcome.DEPENDENCY,
                also_requeued=True,
            )
            await self._write_refusal(served, job, finish)
        for served, job, error in list(self.candidates.faulty.values()):
            if job.held is None:
                log.error("%s causes an error in the queue: it is held", job.id, exc_info=error)
                reason = f"the target cannot process it ({type(error).__name__}: {error})"
                hold = functools.partial(served.store.hold, job.id, reason=reason)
                await self._write_refusal(served, job, hold)

    @staticmethod
    async def _write_refusal(served: Served, job: Job, write: Callable[[], object]) -> None:
        """Call `write`; a store that cannot be written must not stop the other workspaces."""
        try:
            await served.ask(write)
        except StoreError as error:
            log.warning("%s is refused once its store can be written: %s", job.id, error)

    def _start(
        self,
        served: Served,
        job: Job,
        shape: Shape,
        nodes: tuple[str, ...],
        capacities: list[policy.NodeCapacity],
    ) -> list[policy.NodeCapacity]:
        """Start a job where the policy decided; return the remaining capacities.

        An idle allocation elsewhere is equally good if nothing is reserved for another job.
        """
        key = served.key(job.id)
        idle = self.allocations.idle_like(served, shape, nodes)
        if idle is None and self._reservation is None:
            idle = self.allocations.idle_like(served, shape)
            moved = None if idle is None else policy.move(capacities, shape, nodes, idle.nodes)
            capacities, idle = (capacities, None) if moved is None else (moved, idle)
        if idle is not None:
            allocation = self.allocations.reserve_idle(idle, key)
        else:
            up = {node.node_id for node in self.nodes}
            allocation = self.allocations.reserve_new(
                served, shape, key, nodes, up=up, types=PendingNodes.types_to_start(nodes)
            )
        supervisor = AttemptSupervisor(self._parts, served, job, allocation)
        self.attempts.adopt(supervisor, supervisor.start(new=idle is None))
        return capacities

    # -- which attempts are this actor's -----------------------------------------------------------
    async def _stop_if_replaced(self) -> bool:
        """Stop and return True if a newer actor has claimed a workspace: two must never act."""
        if self.epoch is None:
            return False
        changes = await changes_of(self.board.served)
        self._claims = {path: seen for path, seen in self._claims.items() if path in changes}
        for served in self.board.served:
            change = changes.get(served.path)
            if self._claims.get(served.path) == (served, change):
                continue  # nothing was written since the last check
            try:
                is_replaced = await self._recovery.is_replaced(served)
            except StoreError:
                continue  # an unreadable workspace allows no action either
            if isinstance(change, tuple):
                self._claims[served.path] = (served, change)
            if is_replaced:
                log.error("another actor of %s serves %s: this one stops", self.target, served.path)
                await asyncio.gather(*self.attempts.cancel(), return_exceptions=True)
                self.is_superseded = True
                self.stop()
                return True
        return False

    async def _follow_moved_workspaces(self) -> None:
        """Stop supervising attempts at the old paths of moved workspaces.

        The attempts continue. Recovery then takes over the workspaces at their new paths, as after
        a death of this actor: the store and the nodes show what a supervisor was about to do.
        """
        moves = self.board.take_moves()
        if moves and self._tidying is not None:
            # It must not treat the groups of these allocations as unowned.
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        for old, new in moves:
            log.info("the attempts of %s are taken over at %s", old.path, new.path)
            await asyncio.gather(*self.attempts.cancel(of=old), return_exceptions=True)
            self.allocations.forget_all(of=old)
            if self.drivers is not None:
                self.drivers.forget(old)

    def _leave_removed_workspaces(self) -> None:
        """End the attempts of workspaces that were removed, or replaced by new ones."""
        served = {id(one) for one in self.board.known}
        for supervisor in self.attempts.supervisors:
            record = supervisor.record
            if id(record.served) not in served and not record.is_workspace_gone:
                log.warning("the workspace of %s is gone: the job is ended", record.job.id)
                supervisor.leave_removed_workspace()

    def _requeue_unsupervised(self, live: list[tuple[Served, Job, Attempt]]) -> None:
        """Requeue jobs whose supervisor gave up because it could not write to their store.

        Only if two rounds see the same attempt: a supervisor may have written since the first one.
        """
        seen = set()
        for served, job, attempt in live:
            key = served.key(job.id)
            if key in self.attempts or not self._recovery.has_taken_over(served):
                continue
            if (key, attempt.number) in self._unsupervised:
                self._recovery.requeue_unsupervised(served, job, attempt)
            else:
                seen.add((key, attempt.number))
        self._unsupervised = seen

    def _pass_on_cancels(self, live: list[tuple[Served, Job, Attempt]]) -> None:
        for served, job, _attempt in live:
            if job.cancel_requested_at is None:
                continue
            supervisor = self.attempts.get(served.key(job.id))
            if supervisor is not None:
                supervisor.end_request.cancel()


async def _think(count: int, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return a function's result; for a long queue, on a thread, to keep the loop free.

    The function must not read what the loop changes meanwhile.
    """
    if count < LONG:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def _reasons(decisions: Decisions, keys: Collection[str] | None) -> dict[str, WaitingJob]:
    """Return why jobs wait, without the jobs that start."""
    found = {}
    for key in decisions.by_key if keys is None else decisions.by_key.keys() & set(keys):
        rule, reason, position = policy.summary(decisions, key)
        if rule is not policy.Rule.START:
            found[key] = WaitingJob(reason, position, str(rule))
    return found
