"""Records an attempt in progress, with store writes that retry until they succeed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from rayjobs.core.clock import Clock
from rayjobs.core.errors import RayjobsError, StoreError
from rayjobs.core.failures import Failure
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.engine.board import Served
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.outcomes import final_state
from rayjobs.jobs.records import Attempt, Job, ModelDraft, ModelRefusal
from rayjobs.jobs.states import JobState
from rayjobs.protocol.attempts import Launched

log = logging.getLogger(__name__)
Result = TypeVar("Result")

STORE_PAUSE_S = 1.0


class ReplacedError(RayjobsError):
    """Another target actor has taken over the attempt; this one must leave it alone."""


@dataclass
class AttemptRecord:
    """One attempt in progress, with its records in the workspace's store.

    Attributes:
        count: Called with ``launches`` and the name of each final state.
        number: The attempt's number; 0 until it is started.
        nodes: Its nodes, after planning.
        is_workspace_gone: The workspace was removed: writes are no longer retried.
    """

    served: Served
    job: Job
    clock: Clock
    count: Callable[[str], None] = lambda _name: None
    number: int = 0
    nodes: list[NodeOfAttempt] = field(default_factory=list)
    is_workspace_gone: bool = False

    async def write(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call a method of the store until it succeeds, even if the store is full or locked.

        In the meantime, the exit record on the node has the facts that are not written yet.

        Raises:
            StoreError: the call failed, and the workspace is gone.
        """
        pause_s = STORE_PAUSE_S
        while True:
            try:
                return await self.served.ask(function, *args, **kwargs)
            except StoreError as error:
                log.warning("%s waits for its store: %s", self.job.id, error)
                if self.is_workspace_gone:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(10.0, pause_s * 2)

    async def wait_for_workspace(self) -> None:
        """Wait until the workspace's folder exists or counts as removed."""
        while not self.is_workspace_gone and not await self.served.ask(
            Path(self.served.path).is_dir
        ):
            await asyncio.sleep(STORE_PAUSE_S)

    async def attempts(self) -> Sequence[Attempt]:
        """Return all recorded attempts of the job."""
        return await self.write(self.served.store.attempts, self.job.id)

    async def move(self, old: JobState, new: JobState) -> None:
        """Record the job's new state."""
        await self.write(self.served.store.move, self.job.id, attempt=self.number, old=old, new=new)

    async def move_to_running(self, state: JobState) -> None:
        """Record that the job runs, if its host was started before its state was written.

        Args:
            state: The recorded state, Provisioning or Preparing.
        """
        if state is JobState.PROVISIONING:
            await self.move(JobState.PROVISIONING, JobState.PREPARING)
        await self.move(JobState.PREPARING, JobState.RUNNING)

    async def add_event(
        self, kind: str, message: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Add an event to the job's history, if the store accepts it now."""
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

    async def set_hosts(self, hosts: Sequence[Launched | None], *, cold: str | None) -> None:
        """Record where hosts will be before their start, and their identity afterwards.

        Args:
            hosts: The host of each node; None: not started yet.
            cold: Why a host started cold; None: none did.

        Raises:
            ReplacedError: another target actor has ended this attempt.
        """
        records = [node.record(host) for node, host in zip(self.nodes, hosts, strict=True)]
        is_ours = await self.write(
            self.served.store.set_hosts,
            self.job.id,
            attempt=self.number,
            hosts=records,
            cold_reason=cold,
        )
        if not is_ours:
            raise self._replaced()

    async def has_hosts(self) -> bool:
        """Whether hosts of the attempt are recorded, and it has not ended."""
        return any(
            one.number == self.number and one.hosts and one.ended_at is None
            for one in await self.attempts()
        )

    async def check_ours(self) -> None:
        """Raise ReplacedError if another target actor has ended this attempt."""
        newest = (await self.attempts())[-1]
        if newest.number != self.number or newest.ended_at is not None:
            raise self._replaced()

    def _replaced(self) -> ReplacedError:
        return ReplacedError(f"attempt {self.number} of {self.job.id} was ended by another actor")

    async def finish(
        self,
        outcome: Outcome,
        *,
        reason: str = "",
        failure: Failure | None = None,
        models: Sequence[ModelDraft | ModelRefusal] = (),
    ) -> None:
        """Record the end of the job, and register its models, in one transaction."""
        state = final_state(outcome)
        is_written = await self.write(
            self.served.store.finish,
            self.job.id,
            attempt=self.number,
            state=state,
            outcome=outcome,
            reason=reason or (failure.message if failure else ""),
            failure=failure,
            models=models,
        )
        if is_written:
            self.count(str(state))
        else:
            log.warning("attempt %d of %s had been ended already", self.number, self.job.id)

    async def requeue(
        self,
        reason: str,
        *,
        outcome: Outcome,
        pause_s: float,
        failure: Failure | None = None,
        hold: str | None = None,
        if_without_hosts: bool = False,
    ) -> bool:
        """Record the end of the attempt and requeue its job.

        Args:
            pause_s: Seconds to wait before the job may start again.
            hold: Why the job is held; None: no hold.
            if_without_hosts: Do nothing if hosts of the attempt are recorded.

        Returns:
            Whether the job is queued.
        """
        return await self.write(
            self.served.store.requeue,
            self.job.id,
            attempt=self.number,
            reason=reason,
            outcome=outcome,
            failure=failure,
            not_before=self.clock.now() + timedelta(seconds=pause_s),
            hold=hold,
            if_without_hosts=if_without_hosts,
        )
