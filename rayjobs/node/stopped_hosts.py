"""Ends attempts whose host lives and does not answer: stopped, or frozen under a debugger.

The host keeps cancel, time limit and stall timeout by itself. While it is stopped nothing of that
happens, so the node does it: SIGTERM to the ranks, the job's grace, then SIGKILL to all of it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayjobs.errors import RayjobsError
from rayjobs.injob import exitrecord
from rayjobs.launch import hostclient, leftovers
from rayjobs.paths import AttemptPaths

log = logging.getLogger(__name__)

# A living host that does not answer for so long is taken to be stopped.
ANSWER_S = 5.0
# Beyond a time limit, how often the host is asked whether it ends its attempt.
LOOK_S = 5.0

Note = Callable[[Mapping[str, Any], str, str], None]
"""Writes a line into a job's history: the order, the kind, the text."""


class StoppedHosts:
    """The attempts of one node that are ended in place of their hosts. For one event loop."""

    def __init__(self, note: Note) -> None:
        """Begin with none; `note` writes into a job's history."""
        self._note = note
        self._ending: dict[str, asyncio.Task[None]] = {}

    def end(
        self,
        order: Mapping[str, Any],
        host: hostclient.HostConnection,
        outcome: str,
        reason: str,
        *,
        grace_s: float,
    ) -> None:
        """Begin to end an attempt whose host does not answer. Idempotent; returns at once."""
        marker = str(order["plan"]["marker"])
        if marker not in self._ending:
            task = asyncio.ensure_future(self._end(order, host, outcome, reason, grace_s))
            self._ending[marker] = task
            task.add_done_callback(lambda _: self._ending.pop(marker, None))

    async def _end(
        self,
        order: Mapping[str, Any],
        host: hostclient.HostConnection,
        outcome: str,
        reason: str,
        grace_s: float,
    ) -> None:
        pid = host.identity.pid
        log.warning("%s: its host (pid %d) does not answer", order["plan"]["job"], pid)
        if grace_s > 0:
            await asyncio.to_thread(leftovers.signal_ranks, host.identity, signal.SIGTERM)
            await asyncio.sleep(grace_s)
        if await self._is_heard(host):
            return  # it goes on, and has read what it was asked meanwhile
        text = (
            f"the attempt host (pid {pid}) did not answer, as if it were stopped, so its node "
            "ended the attempt"
        )
        try:
            await asyncio.to_thread(self._note, order, "host_stopped", text)
        except RayjobsError as error:
            log.warning("%s: %s", order["plan"]["job"], error)
        # First, so that the process that finds the host dead knows why.
        await asyncio.to_thread(
            exitrecord.write_outcome,
            str(order["plan"]["root"]),
            {"marker": order["plan"]["marker"], "outcome": outcome, "reason": reason},
        )
        await asyncio.to_thread(
            leftovers.kill_with_host, str(order["plan"]["marker"]), host.identity
        )

    @staticmethod
    async def _is_heard(host: hostclient.HostConnection) -> bool:
        """Whether the host answers, or has ended: then there is nothing to do in its place."""
        try:
            await host.status(timeout_s=ANSWER_S)
        except hostclient.HostUnreachable:
            return False
        except hostclient.HostGone:
            return True
        return True

    async def watch(self, order: Mapping[str, Any], host: hostclient.HostConnection) -> None:
        """Keep the time limit and the stall timeout of an attempt whose host does not."""
        await asyncio.gather(self._watch_limit(order, host), self._watch_stall(order, host))

    async def _watch_limit(self, order: Mapping[str, Any], host: hostclient.HostConnection) -> None:
        plan = order["plan"]
        limit_s = plan.get("max_duration_s")
        if limit_s is None:
            return
        try:
            left_s = (await host.status(timeout_s=ANSWER_S))["deadline_in_s"]
        except (hostclient.HostUnreachable, hostclient.HostGone):
            # Stopped before it could be asked: its own record tells since when it runs.
            left_s = float(limit_s) - await asyncio.to_thread(_age_s, str(plan["root"]))
        if left_s is None:
            return
        await asyncio.sleep(max(0.0, float(left_s)) + LOOK_S)
        while await self._is_heard(host):
            await asyncio.sleep(LOOK_S)
        reason = (
            f"the attempt reached its time limit of {float(limit_s):g} s; its host did not answer"
        )
        self.end(order, host, "time_limit", reason, grace_s=float(plan.get("grace_s") or 0.0))

    async def _watch_stall(self, order: Mapping[str, Any], host: hostclient.HostConnection) -> None:
        plan = order["plan"]
        timeout_s = plan.get("stall_timeout_s")
        # Of several nodes only one may have anything to say: the engine looks at all of them.
        if timeout_s is None or int(plan.get("node_count", 1)) > 1:
            return
        silent_s = 0.0
        while silent_s < float(timeout_s) or await self._is_heard(host):
            await asyncio.sleep(max(1.0, min(float(timeout_s) / 4, 30.0)))
            silent_s = await asyncio.to_thread(_silent_s, plan)
        reason = (
            f"nothing was printed or logged for {silent_s:.0f} s, and the attempt host did not "
            "answer"
        )
        self.end(order, host, "stalled", reason, grace_s=float(plan.get("grace_s") or 0.0))


def _age_s(root: str) -> float:
    try:
        return max(0.0, time.time() - AttemptPaths(Path(root)).host.lstat().st_mtime)
    except OSError:
        return 0.0


def _silent_s(plan: Mapping[str, Any]) -> float:
    """Return for how long no rank has printed or logged; 0 when that cannot be told."""
    paths = AttemptPaths(Path(str(plan["root"])))
    newest = 0.0
    for rank in plan.get("ranks", ()):
        number = int(rank["rank"])
        for path in (paths.driver_log(number), paths.metrics(number), paths.host):
            try:
                newest = max(newest, path.lstat().st_mtime)
            except OSError:
                continue  # it has printed or logged nothing yet
    return max(0.0, time.time() - newest) if newest else 0.0
