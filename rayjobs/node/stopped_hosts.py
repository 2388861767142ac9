"""Ends attempts whose host is alive but does not answer: stopped, or frozen in a debugger.

The host itself enforces cancel, time limit and stall timeout. While it is stopped, the node does it
instead: SIGTERM to the ranks, the job's grace period, then SIGKILL to all processes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

from rayjobs.core.errors import RayjobsError
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import duration_text
from rayjobs.injob import exit_record
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.outcomes import EndReason, Outcome
from rayjobs.launch import hostclient, leftovers
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)

# Seconds without an answer after which a living host counts as stopped.
ANSWER_S = 5.0
# After a time limit, how often to ask the host whether it is ending its attempt.
LOOK_S = 5.0

Note = Callable[[AttemptOnNode, str, str], None]
"""Writes a line into a job's history: the attempt, the kind, the text."""


class StoppedHosts:
    """The attempts of one node that the node ends instead of their hosts. For one event loop."""

    def __init__(self, note: Note) -> None:
        """Start without attempts; `note` writes into a job's history."""
        self._note = note
        self._ending: dict[str, asyncio.Task[None]] = {}

    def end(
        self,
        on: AttemptOnNode,
        host: hostclient.HostConnection,
        outcome: Outcome,
        reason: str,
        *,
        grace_s: float,
        end_reason: EndReason | None = None,
    ) -> None:
        """Begin to end an attempt whose host does not answer. Idempotent; returns immediately."""
        marker = on.marker
        if marker not in self._ending:
            record = ExitRecord.of_stopped_host(
                on, outcome=outcome, reason=reason, end_reason=end_reason
            )
            task = asyncio.ensure_future(self._end(on, host, record, grace_s))
            self._ending[marker] = task
            task.add_done_callback(lambda _: self._ending.pop(marker, None))

    async def _end(
        self,
        on: AttemptOnNode,
        host: hostclient.HostConnection,
        record: ExitRecord,
        grace_s: float,
    ) -> None:
        pid = host.identity.pid
        log.warning("%s: its host (pid %d) does not answer", on.job, pid)
        if grace_s > 0:
            await asyncio.to_thread(leftovers.signal_ranks, host.identity, signal.SIGTERM)
            await asyncio.sleep(grace_s)
        if await self._is_heard(host):
            return  # it runs again, and has read the request meanwhile
        text = (
            f"the attempt host (pid {pid}) did not answer, as if it had been stopped, so its node "
            "ended the attempt"
        )
        try:
            await asyncio.to_thread(self._note, on, "host_stopped", text)
        except RayjobsError as error:
            log.warning("%s: %s", on.job, error)
        # First, so that whatever finds the host dead knows why.
        await asyncio.to_thread(exit_record.write_outcome, on.root, record)
        await asyncio.to_thread(leftovers.kill_with_host, on.marker, host.identity)

    @staticmethod
    async def _is_heard(host: hostclient.HostConnection) -> bool:
        """Whether the host answers or has ended: then the node need not act."""
        try:
            await host.status(timeout_s=ANSWER_S)
        except hostclient.HostUnreachable:
            return False
        except hostclient.HostGone:
            return True
        return True

    async def watch(self, on: AttemptOnNode, host: hostclient.HostConnection) -> None:
        """Enforce the time limit and the stall timeout of an attempt whose host does not."""
        await asyncio.gather(self._watch_limit(on, host), self._watch_stall(on, host))

    async def _watch_limit(self, on: AttemptOnNode, host: hostclient.HostConnection) -> None:
        limit_s = on.max_duration_s
        if limit_s is None:
            return
        try:
            left_s = (await host.status(timeout_s=ANSWER_S)).deadline_in_s
        except (hostclient.HostUnreachable, hostclient.HostGone):
            # Stopped before it answered: the age of its own file tells when it started.
            left_s = limit_s - await asyncio.to_thread(_age_s, on.root)
        if left_s is None:
            return
        await asyncio.sleep(max(0.0, left_s) + LOOK_S)
        while await self._is_heard(host):
            await asyncio.sleep(LOOK_S)
        reason = (
            f"the attempt reached its time limit of {duration_text(limit_s, exact=True)}; its "
            "host did not answer"
        )
        self.end(on, host, Outcome.TIME_LIMIT, reason, grace_s=on.grace_s)

    async def _watch_stall(self, on: AttemptOnNode, host: hostclient.HostConnection) -> None:
        timeout_s = on.stall_timeout_s
        # With several nodes, perhaps only one prints: the engine compares all of them.
        if timeout_s is None or on.node_count > 1:
            return
        silent_s = 0.0
        while silent_s < timeout_s or await self._is_heard(host):
            await asyncio.sleep(max(1.0, min(timeout_s / 4, 30.0)))
            silent_s = await asyncio.to_thread(_silent_s, on)
        reason = (
            f"nothing was printed or logged for {duration_text(silent_s)}, and the attempt "
            "host did not "
            "answer"
        )
        self.end(on, host, Outcome.STALLED, reason, grace_s=on.grace_s)


def _age_s(root: str) -> float:
    try:
        return max(0.0, time.time() - AttemptPaths(Path(root)).host.lstat().st_mtime)
    except OSError:
        return 0.0


def _silent_s(on: AttemptOnNode) -> float:
    """Return for how long no rank has printed or logged; 0 if unknown."""
    paths = AttemptPaths(Path(on.root))
    newest = 0.0
    for number in on.ranks:
        for path in (paths.driver_log(number), paths.metrics(number), paths.host):
            try:
                newest = max(newest, path.lstat().st_mtime)
            except OSError:
                continue  # it has printed or logged nothing yet
    return max(0.0, time.time() - newest) if newest else 0.0
