"""The request to end an attempt early: a cancel or a preemption."""

from __future__ import annotations

import asyncio

from rayjobs.injob.outcomes import CANCELED, EndCause, EndReason


class EndRequest:
    """A request to end an attempt before its script ends. A cancel takes precedence."""

    def __init__(self, grace_s: float) -> None:
        """Start without a request.

        Args:
            grace_s: Seconds from SIGTERM to SIGKILL, unless a preemption sets another value.
        """
        self._grace_s = grace_s
        self._canceled = asyncio.Event()
        self._preempted = asyncio.Event()
        self._preempt_grace_s: float | None = None
        self._preempt_is_free = False
        self.preempt_reason = ""

    def cancel(self) -> None:
        """Request the end of the job, not only of this attempt."""
        self._canceled.set()

    def preempt(self, reason: str, *, grace_s: float | None = None, is_free: bool = False) -> None:
        """Request the end of only this attempt; see `AttemptSupervisor.preempt`."""
        if not self._preempted.is_set():
            self.preempt_reason, self._preempt_grace_s = reason, grace_s
            self._preempt_is_free = is_free
            self._preempted.set()

    @property
    def is_canceled(self) -> bool:
        """Whether a cancel was requested."""
        return self._canceled.is_set()

    @property
    def is_preemption(self) -> bool:
        """Whether the attempt has to end, and its job continues in another attempt."""
        return self._preempted.is_set() and not self._canceled.is_set()

    @property
    def is_free_preemption(self) -> bool:
        """Whether it is a preemption that does not use the job's budget."""
        return self.is_preemption and self._preempt_is_free

    @property
    def is_made(self) -> bool:
        """Whether the attempt has to end, for either reason."""
        return self._canceled.is_set() or self._preempted.is_set()

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL for the ranks."""
        if self.is_preemption and self._preempt_grace_s is not None:
            return self._preempt_grace_s
        return self._grace_s

    async def made(self) -> EndCause:
        """Wait for a request; return the cause for the attempt's hosts."""
        waiting = [
            asyncio.ensure_future(event.wait()) for event in (self._canceled, self._preempted)
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if self.is_preemption:
            return EndCause(EndReason.PREEMPTED, self.preempt_reason)
        return CANCELED

    async def canceled(self) -> None:
        """Wait until the job is canceled."""
        await self._canceled.wait()
