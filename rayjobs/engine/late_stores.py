"""Stores files that stayed on nodes during a storage outage, when a user requests it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from rayjobs.core.errors import NotFoundError, RayjobsError
from rayjobs.engine.attempt.nodes import NodeOfAttempt, of_record
from rayjobs.engine.attempt.supervisor import SupervisorParts
from rayjobs.engine.attempts import AttemptsInProgress
from rayjobs.engine.board import Served
from rayjobs.jobs import unstored
from rayjobs.protocol.calls import STORE_LATE, STORE_PROGRESS
from rayjobs.target.answers import StoreAnswer

# A client gets an answer within this time, and repeats its request: an upload may take hours.
ANSWER_S = 2.0
KEPT_S = 60.0  # how long a result waits for the client's next request
PROGRESS_S = 5.0  # for a node's report on its progress
log = logging.getLogger(__name__)


class LateStores:
    """The running late stores of one target, by the keys of their jobs."""

    def __init__(self, parts: SupervisorParts, attempts: AttemptsInProgress) -> None:
        """Start without late stores."""
        self._parts = parts
        self._attempts = attempts
        self._running: dict[str, asyncio.Task[list[str]]] = {}
        self._nodes: dict[str, list[NodeOfAttempt]] = {}

    async def ask(self, served: Served, job: str) -> StoreAnswer:
        """Begin to store a job's remaining files, or join a late store that already runs.

        Returns its result if it ends within `ANSWER_S`, otherwise its progress.

        Raises:
            RayjobsError: there is nothing to store, or the job's records cannot be read.
        """
        key = served.key(job)
        doing = self._running.get(key)
        if doing is None:
            doing = asyncio.ensure_future(self._store(served, job))
            self._running[key] = doing
            # It may end between two requests: the result is for the next one.
            later = asyncio.get_running_loop().call_later
            doing.add_done_callback(lambda done: later(KEPT_S, self._forget, key, done))
        await asyncio.wait({doing}, timeout=ANSWER_S)
        if not doing.done():
            nodes = self._nodes.get(key, [])
            lines = await asyncio.gather(*(self._progress_on(node) for node in nodes))
            if not doing.done():
                return StoreAnswer(progress=tuple(line for line in lines if line))
        self._forget(key, doing)
        return StoreAnswer(done=True, problems=tuple(doing.result()))

    def _forget(self, key: str, ended: asyncio.Task[list[str]]) -> None:
        if self._running.get(key) is ended:  # otherwise a newer late store runs
            del self._running[key]
            self._nodes.pop(key, None)

    async def _progress_on(self, node: NodeOfAttempt) -> str:
        try:
            node_id = await self._parts.leases.living_node(node, restarted=True)
            if node_id is None:
                return ""
            agent = await self._parts.cluster.agent(node_id)
            answer = await asyncio.wait_for(agent.call(STORE_PROGRESS, node.on), PROGRESS_S)
        except (RayjobsError, TimeoutError) as error:
            # The late store itself reports the error.
            log.debug("the progress on %s is unknown: %s", node.name, error)
            return ""
        return answer.line

    async def _store(self, served: Served, job_id: str) -> list[str]:
        if served.key(job_id) in self._attempts:
            raise NotFoundError(f"the end of job {job_id} is still being recorded")
        job = await served.ask(served.store.job, job_id)
        attempts = await served.ask(served.store.attempts, job_id)
        events = await served.ask(served.store.events, job_id)
        why_not = unstored.why_not(job, attempts, events)
        if why_not:
            raise NotFoundError(why_not.rstrip("."))
        nodes = [
            of_record(served.path, self._parts.target, job, job.attempt, host)
            for host in attempts[-1].hosts
        ]
        self._nodes[served.key(job_id)] = nodes
        found = await asyncio.gather(*(self._store_on(node) for node in nodes))
        problems = [sentence for node in found for sentence in node]
        if not problems:
            await served.ask(
                served.store.add_event,
                job_id,
                unstored.STORED_EVENT,
                "the outputs were stored after the job's end",
                attempt=job.attempt,
            )
        return problems

    async def _store_on(self, node: NodeOfAttempt) -> list[str]:
        try:
            node_id = await self._parts.leases.living_node(node, restarted=True)
            if node_id is None:
                return [f"{node.name} is gone, and with it the files that the script left there."]
            agent = await self._parts.cluster.agent(node_id)
            # With the current secrets: they may have changed since the job ran.
            answer = await agent.call(STORE_LATE, replace(node.on, reads_secrets=True))
        except RayjobsError as error:
            return [f"{node.name} cannot be reached: {error}"]
        refused = () if answer.data is None else answer.data.refused
        stuck = (f"{answer.stuck}.",) if answer.stuck else ()
        return [*answer.problems, *refused, *stuck]
