"""What a client asks a target actor of one living job: to give way now, or where its ranks are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import RayjobsError
from rayjobs.core.text import duration_text
from rayjobs.protocol.calls import STACKS
from rayjobs.target.requests import TargetRequest

if TYPE_CHECKING:
    from rayjobs.engine.attempt.supervisor import AttemptSupervisor
    from rayjobs.engine.engine import Engine

OPERATIONS = ("evict", "stacks")


async def answer(engine: Engine, asked: TargetRequest) -> dict[str, Any]:
    """Return the answer to a request about a job.

    ``{"ok": False, "error": sentence}`` where the job has no attempt that runs.
    """
    supervisor = engine.attempts.get(f"{asked.workspace}::{asked.job}")
    if supervisor is None:
        return _no(f"job {asked.job} has no attempt that runs")
    if asked.op == "evict":
        return _evict(supervisor, asked.notice_s)
    return await _stacks(engine, supervisor)


def _evict(supervisor: AttemptSupervisor, notice_s: float | None) -> dict[str, Any]:
    """Let the attempt be evicted, as a spot machine is; without notice it is killed at once."""
    if supervisor.end_request.is_made:
        return _no(f"job {supervisor.record.job.id} is being ended already")
    grace_s = notice_s or 0.0
    how = "without notice" if notice_s is None else f"with {duration_text(grace_s)} of notice"
    supervisor.preempt(f"a simulated eviction {how}", grace_s=grace_s)
    return {"attempt": supervisor.record.number}


async def _stacks(engine: Engine, supervisor: AttemptSupervisor) -> dict[str, Any]:
    try:
        agents = [await engine.cluster.agent(node.node_id) for node in supervisor.record.nodes]
        pairs = zip(agents, supervisor.record.nodes, strict=True)
        found = await asyncio.gather(*(agent.call(STACKS, node.on) for agent, node in pairs))
    except RayjobsError as error:
        return _no(f"a node of job {supervisor.record.job.id} cannot be asked: {error}")
    ranks = [
        {**rank.to_json(), "node": node.on.node}
        for node, one in zip(supervisor.record.nodes, found, strict=True)
        for rank in one.ranks or ()
    ]
    if not ranks:
        return _no(f"job {supervisor.record.job.id} has no running processes at the moment")
    return {
        "attempt": supervisor.record.number,
        "ranks": sorted(ranks, key=lambda rank: int(rank["rank"])),
    }


def _no(sentence: str) -> dict[str, Any]:
    return {"ok": False, "error": sentence}
