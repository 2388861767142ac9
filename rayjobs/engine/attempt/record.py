"""What a drive knows of its attempt, and writes of it however long the store refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from rayjobs.core.clock import Clock
from rayjobs.core.errors import RayjobsError, StoreError
from rayjobs.core.failures import Failure
from rayjobs.engine.allocations import Allocations, Held
from rayjobs.engine.attempt.leases import Leases
from rayjobs.engine.attempt_nodes import NodeOfAttempt
from rayjobs.engine.board import Served
from rayjobs.injob.exitrecord import ExitRecord
from rayjobs.injob.outcomes import CANCELED, EndCause, EndReason, Outcome
from rayjobs.jobs.outcomes import final_state
from rayjobs.jobs.records import Job, ModelDraft, ModelRefusal
from rayjobs.jobs.states import JobState
from rayjobs.protocol.agent import Cluster
from rayjobs.protocol.attempts import Launched

log = logging.getLogger(__name__)
Result = TypeVar("Result")

STORE_PAUSE_S = 1.0


class ReplacedError(RayjobsError):
    """Another target actor looks after the attempt: nothing of it is ours any more."""


@dataclass(frozen=True)
class Parts:
    """What every drive works with.

    Attributes:
        lease_s: How long a host may go on without a renewal; None on one machine, where an end
            is proven by the identity of processes.
        shares_machine: All nodes stand on this machine.
        epoch: This life of the target actor, as it has claimed its workspaces; None: it has not.
    """

    target: str
    cluster: Cluster
    allocations: Allocations
    clock: Clock
    count: Callable[[str], None] = lambda _name: None
    waited: Callable[[float], None] = lambda _seconds: None
    lease_s: float | None = None
    shares_machine: bool = True
    epoch: str | None = None
    leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        """Make the leases: one book of them for all drives."""
        leases = Leases(
            self.cluster, self.clock, lease_s=self.lease_s, shares_machine=self.shares_machine
        )
        object.__setattr__(self, "leases", leases)


@dataclass
class DriveBase:
    """One attempt in progress, as its store is told of it.

    Attributes:
        number: The attempt's number, once started.
        nodes: Its nodes, once planned.
        canceled: Set when the job's end was asked for.
        preempted: Set when the attempt is to give way, and be tried again.
        forsaken: Its workspace is gone: nothing can be written, all is to be ended.
        was_launched: Its nodes may have been asked to start hosts.
    """

    parts: Parts
    served: Served
    job: Job
    held: Held
    number: int = 0
    nodes: list[NodeOfAttempt] = field(default_factory=list)
    canceled: asyncio.Event = field(default_factory=asyncio.Event)
    preempted: asyncio.Event = field(default_factory=asyncio.Event)
    forsaken: bool = False
    was_launched: bool = False
    _given_back: bool = False
    # Records of hosts that were done by themselves when they were to be ended.
    _done: list[ExitRecord] = field(default_factory=list)
    _place_is_gone: bool = False
    _preempt_reason: str = ""
    _preempt_grace_s: float | None = None
    # Whether that costs nothing of the budget of its class.
    _preempt_is_free: bool = False

    @property
    def key(self) -> str:
        """The job's name over all workspaces."""
        return self.served.key(self.job.id)

    # -- why it is to end ----------------------------------------------------------------------
    def preempt(self, reason: str, *, grace_s: float | None = None, is_free: bool = False) -> None:
        """Let the attempt give way: SIGTERM, time for a checkpoint, then its end.

        The job is queued again at its old place with outcome and class `preempted`, within that
        class's budget, and its next attempt goes on from the newest whole checkpoint. A cancel
        that comes before its end wins. Asked again, the first reason stays.

        Args:
            reason: For people: who needs the place.
            grace_s: Seconds from SIGTERM to SIGKILL; None takes the job's own `grace_s`.
            is_free: It is no retry: the target's user asked for it.
        """
        if not self.preempted.is_set():
            self._preempt_reason, self._preempt_grace_s = reason, grace_s
            self._preempt_is_free = is_free
            self.preempted.set()

    @property
    def gives_way(self) -> bool:
        """Whether it is to end for another's sake, not its user's."""
        return self.preempted.is_set() and not self.canceled.is_set()

    @property
    def end_grace_s(self) -> float:
        """Seconds that its ranks have from SIGTERM to SIGKILL."""
        if self.gives_way and self._preempt_grace_s is not None:
            return self._preempt_grace_s
        return self.job.spec.grace_s

    async def end_asked(self) -> EndCause:
        """Return the cause, for the attempt's hosts, once its end is asked for."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.canceled, self.preempted)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        return EndCause(EndReason.PREEMPTED, self._preempt_reason) if self.gives_way else CANCELED

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
                if self.forsaken:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(10.0, pause_s * 2)

    async def _workspace_seen(self) -> None:
        """Return once the workspace's folder is there, or is taken for removed."""
        while not self.forsaken and not await asyncio.to_thread(Path(self.served.path).is_dir):
            await asyncio.sleep(STORE_PAUSE_S)

    async def _move(self, old: JobState, new: JobState) -> None:
        await self._write(
            self.served.store.move, self.job.id, attempt=self.number, old=old, new=new
        )

    async def _event(self, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        try:
            await self.served.ask(
                self.served.store.add_event,
                self.job.id,
                kind,
                message,
                attempt=self.number,
                data=data,
            )
        except StoreError as error:
            log.warning("an event of %s was not written: %s", self.job.id, error)

    async def _record_hosts(self, hosts: Sequence[Launched | None], *, cold: str | None) -> None:
        """Record where hosts will be before they are started, and who they are after.

        Raises:
            ReplacedError: another target actor has ended this attempt.
        """
        records = [node.record(host) for node, host in zip(self.nodes, hosts, strict=True)]
        is_ours = await self._write(
            self.served.store.set_hosts,
            self.job.id,
            attempt=self.number,
            hosts=records,
            cold_reason=cold,
        )
        if not is_ours:
            raise ReplacedError(
                f"attempt {self.number} of {self.job.id} was ended by another actor"
            )

    async def _check_ours(self) -> None:
        """Return if no other actor has ended this attempt. Raises ReplacedError."""
        attempts = await self._write(self.served.store.attempts, self.job.id)
        if attempts[-1].number != self.number or attempts[-1].ended_at is not None:
            raise ReplacedError(
                f"attempt {self.number} of {self.job.id} was ended by another actor"
            )

    async def _finish(
        self,
        outcome: Outcome,
        *,
        reason: str = "",
        failure: Failure | None = None,
        models: Sequence[ModelDraft | ModelRefusal] = (),
    ) -> None:
        state = final_state(outcome)
        self.parts.count(str(state))
        await self._write(
            self.served.store.finish,
            self.job.id,
            attempt=self.number,
            state=state,
            outcome=outcome,
            reason=reason or (failure.message if failure else ""),
            failure=failure,
            models=models,
        )

    async def _requeue(
        self,
        reason: str,
        *,
        outcome: Outcome,
        pause_s: float,
        failure: Failure | None = None,
        hold: str | None = None,
        if_without_hosts: bool = False,
    ) -> bool:
        return await self._write(
            self.served.store.requeue,
            self.job.id,
            attempt=self.number,
            reason=reason,
            outcome=outcome,
            failure=failure,
            not_before=self.parts.clock.now() + timedelta(seconds=pause_s),
            hold=hold,
            if_without_hosts=if_without_hosts,
        )

    async def _give_back(self, *, proven: bool) -> None:
        if self._given_back:
            return
        self._given_back = True
        if proven and (self._place_is_gone or any(one.is_lost for one in self.nodes)):
            # Ray moves a dead node's bundles elsewhere: such a group is never handed on.
            await self.parts.allocations.release(self.held)
            return
        await self.parts.allocations.give_back(
            self.held,
            attempt=self.number,
            job=self.job.id,
            proven=proven,
            suspects=self.nodes,
        )
