"""Attempts that have ended, and whose clean-up a death interrupted, are cleaned up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError
from rayjobs.protocol.calls import SWEEP, UNCLEANED, Nothing, Sweep, Uncleaned

if TYPE_CHECKING:
    from rayjobs.engine.engine import Engine

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 60.0


async def sweep(engine: Engine) -> None:
    """Sweep the nodes once after the start, and then now and then where attempts are.

    Elsewhere no agent is started for it: it would keep an idle node.
    """
    now_s = engine.clock.monotonic_s()
    if not engine.board.is_complete or any(
        engine.recovered.get(served.path) is not served for served in engine.board.served
    ):
        return  # ends that are not taken over yet
    busy = {node.node_id for one in engine.attempts.supervisors for node in one.record.nodes}
    if engine.swept_s is None:
        nodes = {node.node_id for node in engine.nodes} if engine.shares_machine else busy
    elif now_s - engine.swept_s < SWEEP_EVERY_S:
        return
    else:
        nodes = busy
    if not nodes:
        return
    engine.swept_s = now_s
    for node_id in sorted(nodes):
        agent = await engine.cluster.agent(node_id)
        found = await agent.call(UNCLEANED, Nothing())
        roots = tuple([one.root for one in found.folders if await _has_ended(engine, one)])
        if roots and (swept := await agent.call(SWEEP, Sweep(roots))).removed:
            log.info(
                "%d folders of ended attempts were left on %s: removed", swept.removed, node_id[:12]
            )


async def _has_ended(engine: Engine, one: Uncleaned) -> bool:
    """Whether the store says that an attempt has ended, and nothing here is at work on its job."""
    job, number = one.job, one.attempt
    for served in engine.board.served:
        if served.key(job) in engine.attempts:
            return False
        try:
            attempts = await served.ask(served.store.attempts, job)
        except NotFoundError:
            continue
        if attempts:
            return any(known.number == number and known.ended_at is not None for known in attempts)
    return False
