"""The nodes of one attempt as a group: they start together and end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from rayjobs.core.errors import RayjobsError
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.outcomes import CANCELED, EndCause, EndReason, Outcome
from rayjobs.injob.stall import silence
from rayjobs.protocol.agent import Cluster
from rayjobs.protocol.calls import SILENCE, STALLED, Stalled

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# The longest pause between two checks of a group's nodes for signs of life.
SILENCE_LOOK_S = 30.0


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Wait for all; then return the results or raise the first error.

    The work on one node must not overlap with the handling of another node's error.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return [one for one in results if not isinstance(one, BaseException)]


def drop(work: asyncio.Future[Any]) -> None:
    """Cancel work whose outcome is no longer needed, even if it has already failed."""
    if not work.cancel() and not work.cancelled():
        work.exception()  # otherwise asyncio reports an error that was never retrieved


class GroupEnd:
    """When and why the remaining nodes of an attempt have to end."""

    def __init__(self, asked: Callable[[], Coroutine[Any, Any, EndCause]]) -> None:
        """Also wait for `asked`, which returns the cause when the whole attempt has to end."""
        self._asked = asked
        self._failed = asyncio.Event()
        self._cause = CANCELED
        self._ended_s: dict[int, float] = {}

    def note(self, record: ExitRecord) -> None:
        """Process a node's exit record: the first one without success ends the other nodes."""
        self._ended_s.setdefault(record.node, asyncio.get_running_loop().time())
        if record.outcome is not Outcome.COMPLETED and not self._failed.is_set():
            why = record.reason or str(record.outcome)
            self._end(f"node {record.node} of the job ended: {why}")

    def node_lost(self, node: NodeOfAttempt) -> None:
        """Note that a node is permanently gone: the other nodes have to end."""
        if not self._failed.is_set():
            self._end(f"{node.name} of the job was lost")

    def _end(self, why: str) -> None:
        self._cause = EndCause(EndReason.NODE_ENDED, why)
        self._failed.set()

    def ended_for_s(self, node: NodeOfAttempt) -> float | None:
        """Return how long ago a node's end was processed; None if it has not ended."""
        since_s = self._ended_s.get(node.on.node)
        return None if since_s is None else asyncio.get_running_loop().time() - since_s

    async def asked(self) -> EndCause:
        """Wait until all nodes have to end; return the cause."""
        asked = asyncio.ensure_future(self._asked())
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({asked, failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            failed.cancel()
        return self._cause if self._failed.is_set() else asked.result()


def exit_record_of_lost_node(node: NodeOfAttempt) -> ExitRecord:
    """Return the record of a host that was lost with its node and has certainly ended."""
    return ExitRecord.of_lost_node(node.on, name=node.name)


async def end_when_all_are_silent(
    cluster: Cluster, nodes: Sequence[NodeOfAttempt], end: GroupEnd, timeout_s: float | None
) -> None:
    """Until canceled, end the group when no node shows a sign of life for `timeout_s`.

    A single host cannot decide this: in many scripts only rank 0 logs. An unreachable node counts
    as active, since unreachable is not stalled; for an ended node, its end is its last sign of
    life.
    """
    if timeout_s is None or len(nodes) < 2:
        return
    while True:
        await asyncio.sleep(min(timeout_s / 4, SILENCE_LOOK_S))
        if any((ago_s := end.ended_for_s(one)) is not None and ago_s < timeout_s for one in nodes):
            continue
        living = [node for node in nodes if end.ended_for_s(node) is None]
        try:
            agents = [await cluster.agent(node.node_id) for node in living]
            pairs = list(zip(agents, living, strict=True))
            silent = await asyncio.gather(*(agent.call(SILENCE, node.on) for agent, node in pairs))
            if any(one.silent_s is None or one.silent_s < timeout_s for one in silent):
                continue
            reason = silence(timeout_s)
            await asyncio.gather(
                *(agent.call(STALLED, Stalled(node.on, reason)) for agent, node in pairs)
            )
        except RayjobsError as error:
            log.info("cannot check whether a group has stalled: %s", error)
