"""The nodes of one attempt as a group: they start together and end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rayjobs.compute.cluster import Cluster
from rayjobs.errors import RayjobsError
from rayjobs.injob.stall import silence

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# How often, at most, the nodes of a group are asked whether anything is heard.
SILENCE_LOOK_S = 30.0


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Return all results once all have ended; only then raise the first error there was.

    What one node still does must not meet what is done because of another node's error.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return [one for one in results if not isinstance(one, BaseException)]


def drop(work: asyncio.Future[Any]) -> None:
    """End work whose outcome nobody asks for any more, even if it has failed already."""
    if not work.cancel() and not work.cancelled():
        work.exception()  # else asyncio reports an error that nobody has looked at


class GroupEnd:
    """When, and why, what still runs of an attempt is to end."""

    def __init__(self, asked: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Wait for `asked` too, which returns the reason once the whole attempt is to end."""
        self._asked = asked
        self._failed = asyncio.Event()
        self._reason = ""
        self._ended_s: dict[int, float] = {}

    def note(self, record: Mapping[str, Any]) -> None:
        """Take in a node's exit record: the first that is no success ends the other nodes."""
        self._ended_s.setdefault(int(record["node"]), asyncio.get_running_loop().time())
        if record["outcome"] != "completed" and not self._failed.is_set():
            why = str(record.get("reason") or record["outcome"])
            self._reason = f"node {record['node']} of the job ended: {why}"
            self._failed.set()

    def node_lost(self, order: Mapping[str, Any]) -> None:
        """Take in that a node is gone for good: the other nodes are to end."""
        if not self._failed.is_set():
            self._reason = f"{node_name(order)} of the job was lost"
            self._failed.set()

    def ended_for_s(self, order: Mapping[str, Any]) -> float | None:
        """Return how long ago a node's end was taken in; None while it has not ended."""
        since_s = self._ended_s.get(int(order["plan"]["node"]))
        return None if since_s is None else asyncio.get_running_loop().time() - since_s

    async def asked(self) -> str:
        """Return the reason once the end of all nodes is asked for."""
        asked = asyncio.ensure_future(self._asked())
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({asked, failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            failed.cancel()
        return self._reason if self._failed.is_set() else asked.result()


def node_name(order: Mapping[str, Any]) -> str:
    """Return a node's name for people."""
    at = f" at {order['address']}" if order.get("address") else ""
    return f"node {order['plan']['node']} ({str(order['node_id'])[:12]}{at})"


def exit_record_of_lost_node(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record that stands for a host that went with its node, ended by its own clock."""
    plan = order["plan"]
    return {
        "version": 1,
        "job": plan["job"],
        "attempt": plan["attempt"],
        "node": plan["node"],
        "marker": plan["marker"],
        "started_at": None,
        "ended_at": None,
        "duration_s": None,
        "outcome": "node_lost",
        "reason": f"{node_name(order)} was lost, and its host ended by its own clock",
        "ranks": [],
        "first_failed_rank": None,
        "leftovers": {"killed": 0, "proven_dead": True, "remaining": []},
        "tree": "lost",
        "memory": {"limit_bytes": None, "how": "none", "peak_bytes": None},
        "cold": None,
    }


async def end_when_all_are_silent(
    cluster: Cluster, orders: Sequence[Mapping[str, Any]], end: GroupEnd, timeout_s: float | None
) -> None:
    """End a group of which nothing is heard on any node for `timeout_s`, until cancelled.

    A host alone cannot tell: in many scripts only rank 0 logs. A node that cannot be asked counts
    as heard, since unreachable is not stalled; one that has ended was heard for the last time then.
    """
    if timeout_s is None or len(orders) < 2:
        return
    while True:
        await asyncio.sleep(min(timeout_s / 4, SILENCE_LOOK_S))
        if any((ago_s := end.ended_for_s(one)) is not None and ago_s < timeout_s for one in orders):
            continue
        living = [order for order in orders if end.ended_for_s(order) is None]
        try:
            agents = [await cluster.agent(order["node_id"]) for order in living]
            asked = [agent.silent_s(order) for agent, order in zip(agents, living, strict=True)]
            silent = await asyncio.gather(*asked)
            if any(one is None or one < timeout_s for one in silent):
                continue
            reason = silence(timeout_s)
            told = [
                agent.stalled(order, reason=reason)
                for agent, order in zip(agents, living, strict=True)
            ]
            await asyncio.gather(*told)
        except RayjobsError as error:
            log.info("whether a group has stalled is not known: %s", error)
