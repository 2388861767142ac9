"""Settles an attempt on its node: proves its end, or ends it, and removes its scratch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rayjobs.core.errors import PrepareError, RayjobsError
from rayjobs.core.failures import FailureClass
from rayjobs.injob import exit_record
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.outcomes import EndCause, EndReason
from rayjobs.injob.plan import LaunchPlan
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import end_leftovers, find_leftovers
from rayjobs.node.data import NodeData
from rayjobs.node.hosts import host_of, host_on, record_of, record_of_dead_host
from rayjobs.node.scratch import Scratch, remove_if_empty
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.calls import Cleaned
from rayjobs.protocol.settled import Found, Settled

log = logging.getLogger(__name__)

SETTLE_GRACE_S = 2.0
END_TIMEOUT_S = 60.0
CLEAN_TIMEOUT_S = 60.0
CLEAN_PAUSE_S = 0.05
# How long scratch stays if it was kept after its attempt's end.
KEEP_S = 7 * 86400.0
# A late call of a replaced target actor arrives within seconds.
REMEMBERED = 10_000


def _ended(record: ExitRecord, *, proven: bool) -> Settled:
    # Only the record tells: the host may have ended by itself before the request to end it, and an
    # earlier agent may have ended it and died before its report.
    ended_now = record.end_reason is EndReason.UNFOLLOWED
    return Settled.of_record(record, proven=proven, ended_now=ended_now)


class Fence:
    """The ended and the starting attempts of this node, by their markers.

    Two target actors may briefly handle the same attempt: the new one ends it and queues the job
    again, while the old one, which does not know this yet, starts its host.
    """

    def __init__(self) -> None:
        """Start with no ended attempts."""
        self._ended: dict[str, None] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._callers: Counter[str] = Counter()

    @asynccontextmanager
    async def starting(self, marker: str) -> AsyncIterator[None]:
        """Start an attempt's host within this block; `end` waits for it.

        Raises:
            PrepareError: class ``system``: the attempt has already been ended.
        """
        async with self._locked(marker):
            if marker in self._ended:
                raise PrepareError(
                    "the attempt was ended before its host started: another target actor "
                    "has taken over the job",
                    failure_class=FailureClass.SYSTEM,
                )
            yield

    async def end(self, marker: str) -> None:
        """Refuse every later start of an attempt; return when a start in progress is finished."""
        self._ended[marker] = None
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        async with self._locked(marker):
            return

    @asynccontextmanager
    async def _locked(self, marker: str) -> AsyncIterator[None]:
        """Hold an attempt's lock, which remains the same object while any caller waits for it."""
        self._callers[marker] += 1
        try:
            async with self._locks.setdefault(marker, asyncio.Lock()):
                yield
        finally:
            self._callers[marker] -= 1
            if not self._callers[marker]:
                del self._callers[marker], self._locks[marker]


class Ends:
    """Settles and cleans up the attempts of one node."""

    def __init__(self, attempts: Path, scratch: Scratch, data: NodeData) -> None:
        """Manage the attempts in the folder `attempts`, which is below `scratch`."""
        self.fence = Fence()
        self._attempts = attempts
        self._scratch = scratch
        self._data = data

    async def ended_unheard(self, on: AttemptOnNode) -> ExitRecord:
        """Return the record of a dead host; without one, end its processes and make a record."""
        record = await asyncio.to_thread(record_of, on.root)
        if record is not None:
            return record
        proof = await asyncio.to_thread(end_leftovers, on.marker, None, SETTLE_GRACE_S)
        return await asyncio.to_thread(record_of_dead_host, on, proof)

    async def settle(self, on: AttemptOnNode, *, end: bool) -> Settled:
        """Return ``running``, ``ended`` (with the record) or ``gone``; with `end`, end it first."""
        if end:
            await self.fence.end(on.marker)
        connection = host_on(on)
        record = await asyncio.to_thread(record_of, on.root)
        if record is None and connection is not None and hostclient.is_alive(connection.identity):
            if not end:
                return Settled(Found.RUNNING)
            record = await self._end_living(connection, on)
        if record is not None:
            proven = record.leftovers.proven_dead
            if end and not proven:
                # A process that could not be ended at that time may be gone, or may end, now.
                again = await asyncio.to_thread(end_leftovers, on.marker, None, 0.0)
                proven = again.proven_dead
            return _ended(record, proven=proven)
        if end:
            self._data.stop(on)
            proof = await asyncio.to_thread(end_leftovers, on.marker, None, SETTLE_GRACE_S)
            if exit_record.has_outcome(on.root, on.marker):
                record = await asyncio.to_thread(record_of_dead_host, on, proof)
                return _ended(record, proven=proof.proven_dead)
            if proof.proven_dead:
                await asyncio.to_thread(self._data.release, Path(on.root))
            return Settled(Found.GONE, proven=proof.proven_dead, ended_now=True)
        left = await asyncio.to_thread(find_leftovers, on.marker)
        return Settled(Found.GONE, proven=not left)

    async def _end_living(
        self, connection: hostclient.HostConnection, on: AttemptOnNode
    ) -> ExitRecord | None:
        try:
            await connection.cancel(EndCause(EndReason.UNFOLLOWED), grace_s=SETTLE_GRACE_S)
            return await connection.wait(timeout_s=END_TIMEOUT_S)
        except (RayjobsError, TimeoutError, ValueError) as error:
            log.warning("%s: %s", on.job, error)
            return None

    async def clean(self, on: AttemptOnNode) -> Cleaned:
        """Remove the attempt's scratch once none of its processes runs; wait up to a minute."""
        # The host answers before it exits, so it still has the marker for an instant.
        deadline_s = time.monotonic() + CLEAN_TIMEOUT_S
        while await asyncio.to_thread(find_leftovers, on.marker):
            if time.monotonic() > deadline_s:
                return Cleaned(proven=False)
            await asyncio.sleep(CLEAN_PAUSE_S)
        root = Path(on.root)
        await asyncio.to_thread(self._data.release, root)
        self._data.forget(on)
        kept = await asyncio.to_thread(self._scratch.remove, root)
        # A killed host leaves its socket; any other host has removed it.
        await asyncio.to_thread(Path(on.socket).unlink, missing_ok=True)
        # The job's folder is removed with its last attempt.
        await asyncio.to_thread(remove_if_empty, root.parent)
        return Cleaned(proven=not kept)

    def prune(self, keep_s: float = KEEP_S) -> list[Path]:
        """Remove scratch that was kept after its attempt's end; return the removed folders.

        It was kept so that users could save files that could not be stored.

        Args:
            keep_s: Leave scratch that has changed within so many seconds.
        """
        removed = []
        for root in sorted(self._attempts.glob("*/a*")):
            try:
                changed_s = max(path.lstat().st_mtime for path in (root, *root.glob("*.json")))
                if root.is_symlink() or time.time() - changed_s < keep_s:
                    continue
                connection = host_of(str(root))
                plan = LaunchPlan.read(str(root))
                if plan is None:
                    continue
                lives = connection is not None and hostclient.is_alive(connection.identity)
                if lives or find_leftovers(plan.marker):
                    continue
            except (OSError, ValueError) as error:
                log.info("%s stays: %s", root, error)
                continue
            self._data.release(root)
            if not self._scratch.remove(root):
                removed.append(root)
                remove_if_empty(root.parent)
        return removed
