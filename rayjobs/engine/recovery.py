"""What a target actor does first: find what lives, take it over, and end what nobody owns."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from rayjobs.core.clock import Clock
from rayjobs.core.errors import RayjobsError
from rayjobs.engine.allocations import Held
from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.engine.attempt_nodes import NodeOfAttempt, of_record
from rayjobs.engine.board import Served
from rayjobs.engine.settling import living_node, prove, settle, until_known
from rayjobs.engine.sweeping import sweep
from rayjobs.engine.unowned import is_replaced, release_idle_on_dead_nodes, remove_groups_of_nobody
from rayjobs.injob.exitrecord import ExitRecord
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Allocation, AllocationState, Attempt, Job
from rayjobs.jobs.states import JobState
from rayjobs.policy import Shape
from rayjobs.protocol.settled import Found, Settled

if TYPE_CHECKING:
    from rayjobs.engine.engine import Engine

log = logging.getLogger(__name__)

CLUSTER_RESTARTED = "the Ray cluster was restarted"


async def recover(engine: Engine) -> None:
    """Take over the live jobs of every workspace that this actor has not looked at yet.

    On the same Ray cluster their groups still stand: attempts whose host lives (or left an
    exit record) are followed again. On another one (Ray was restarted) whatever survived is
    ended and proven dead first, then the jobs are queued again as lost with their node.
    """
    new = [one for one in engine.board.served if engine.recovered.get(one.path) is not one]
    if not new:
        return
    engine.nodes = await engine.cluster.nodes()
    cluster_id = await engine.cluster.cluster_id()
    groups = set(await engine.cluster.group_names(f"rj-{engine.target}-"))
    for served in new:
        try:
            await _recover_workspace(engine, served, cluster_id, groups)
        except RayjobsError as error:
            log.warning("workspace %s is not recovered yet: %s", served.path, error)
        else:
            engine.recovered[served.path] = served
    await remove_groups_of_nobody(engine)


async def _recover_workspace(
    engine: Engine, served: Served, cluster_id: str, groups: set[str]
) -> None:
    store = served.store
    key = f"cluster:{engine.target}"
    same_cluster = await served.ask(store.meta, key) == cluster_id
    live = {
        job.id: (job, attempt)
        for job, attempt in await served.ask(store.live, engine.target)
        if served.key(job.id) not in engine.attempts
    }
    taken: set[str] = set()
    gone: list[Allocation] = []
    for row in await served.ask(store.allocations, engine.target):
        if any(held.name == row.name for held in engine.allocations.all):
            continue  # taken over in a round that was cut short
        if not (same_cluster and row.name in groups and _is_in_use(row, live)):
            gone.append(row)
            continue
        held = _held(row, served, engine.clock)
        if held.draining:
            _, suspects = await _nodes_of_row(engine, served, row)
            held = replace(held, suspects=tuple(suspects))
        engine.allocations.know(held)
        if row.job in live and not held.draining:
            job, attempt = live[row.job]
            taken.add(row.job)
            await _take_over(engine, served, job, attempt, held)
    why = "its place is gone" if same_cluster else CLUSTER_RESTARTED
    ended: dict[tuple[str, int], bool] = {}
    for job_id, (job, attempt) in live.items():
        if job_id not in taken:
            ended[job_id, attempt.number] = await end_and_requeue(
                engine, served, job, attempt, why=why, restarted=not same_cluster
            )
    for row in gone:
        await _drop_row(engine, served, row, ended, restarted=not same_cluster)
    await served.ask(store.set_meta, key, cluster_id)


async def _drop_row(
    engine: Engine,
    served: Served,
    row: Allocation,
    ended: dict[tuple[str, int], bool],
    *,
    restarted: bool,
) -> None:
    """Release an allocation without a living job, once nothing of its attempt runs any more."""
    proven = True
    suspects: list[NodeOfAttempt] = []
    if row.job is not None and row.attempt is not None:
        known = ended.get((row.job, row.attempt))
        ended_already, suspects = await _nodes_of_row(engine, served, row)
        if known is not None:
            proven = known
        elif not ended_already or row.state is AllocationState.DRAINING:
            proven = await prove(engine, suspects, restarted=restarted)
    if proven:
        await engine.cluster.remove_group(row.name)
        await served.ask(served.store.release_allocation, row.name)
        return
    # Its room stays taken, though its group may be gone with the cluster it was made on.
    nodes = [living_node(engine, node) for node in row.nodes]
    held = replace(_held(row, served, engine.clock), job=None, draining=True)
    held = replace(held, nodes=tuple(node for node in nodes if node), suspects=tuple(suspects))
    engine.allocations.know(held)
    assert row.job is not None
    assert row.attempt is not None
    await served.ask(
        served.store.free_allocation, row.name, job=row.job, attempt=row.attempt, proven=False
    )


def _nodes_of(engine: Engine, served: Served, job: Job, attempt: Attempt) -> list[NodeOfAttempt]:
    return [
        of_record(served.path, engine.target, job, attempt.number, host) for host in attempt.hosts
    ]


async def _nodes_of_row(
    engine: Engine, served: Served, row: Allocation
) -> tuple[bool, list[NodeOfAttempt]]:
    """Return the nodes of a row's attempt, and whether all are known to have ended."""
    if row.job is None:
        return True, []
    job = await served.ask(served.store.job, row.job)
    for attempt in await served.ask(served.store.attempts, row.job):
        if attempt.number == row.attempt:
            nodes = _nodes_of(engine, served, job, attempt)
            exits = [ExitRecord.from_json(one) for one in attempt.exits]
            proven = sum(one.leftovers.proven_dead for one in exits)
            return proven == len(nodes), nodes
    return True, []


# -- every now and then ------------------------------------------------------------------------


async def tidy(engine: Engine) -> None:
    """Look again at drained allocations, and for groups that nobody owns."""
    try:
        for held in engine.allocations.all:
            if held.draining and await prove(engine, held.suspects):
                log.info("nothing is left on %s: released", held.name)
                await engine.allocations.release(held)
        await release_idle_on_dead_nodes(engine)
        await _drop_rows_of_nobody(engine)
        await remove_groups_of_nobody(engine)
        await sweep(engine)
    except RayjobsError as error:
        log.warning("tidying was cut short: %s", error)
    except Exception:
        log.exception("a fault while tidying")


async def _drop_rows_of_nobody(engine: Engine) -> None:
    """Release places that the actor before this one recorded after this one had looked.

    It may have been at it while this one claimed the workspace. A job that it started there is
    queued again first (`Engine.turn`).
    """
    for served in engine.board.served:
        if engine.recovered.get(served.path) is not served:
            continue
        rows = await served.ask(served.store.allocations, engine.target)
        live = await served.ask(served.store.live, engine.target)
        attempts = {(job.id, attempt.number) for job, attempt in live}
        if await is_replaced(engine, served):
            continue
        # Last of all: a place of this one is known before its row is written.
        known = {held.name for held in engine.allocations.all}
        for row in rows:
            if row.name not in known and (row.job, row.attempt) not in attempts:
                log.info("the place %s belongs to no job", row.name)
                await _drop_row(engine, served, row, {}, restarted=False)


def _is_in_use(row: Allocation, live: dict[str, tuple[Job, Attempt]]) -> bool:
    if row.state is AllocationState.DRAINING:
        return True
    if row.state is not AllocationState.HELD or row.job not in live:
        return False
    return live[row.job][1].number == row.attempt


def _held(row: Allocation, served: Served, clock: Clock) -> Held:
    draining = row.state is AllocationState.DRAINING
    return Held(
        name=row.name,
        served=served,
        shape=Shape.from_dict(row.shape),
        nodes=row.nodes,
        gpus=row.gpus,
        job=served.key(row.job) if row.job and not draining else None,
        since_s=clock.monotonic_s(),
        draining=draining,
    )


async def _take_over(
    engine: Engine, served: Served, job: Job, attempt: Attempt, held: Held
) -> None:
    """Go on with an attempt whose group still stands."""
    nodes = _nodes_of(engine, served, job, attempt)
    supervisor = AttemptSupervisor(
        engine.parts, served, job, held, number=attempt.number, nodes=nodes
    )
    if job.cancel_requested_at is not None:
        supervisor.end_request.cancel()
    engine.attempts.adopt(supervisor, _go_on(engine, supervisor, attempt))


async def _go_on(engine: Engine, supervisor: AttemptSupervisor, attempt: Attempt) -> None:
    job = supervisor.record.job
    if not attempt.hosts:
        if await supervisor.ending.put_back(
            "the target actor was replaced before its host was started",
            prove=lambda: _end_late_hosts(engine, supervisor),
            if_without_hosts=True,
        ):
            return
        await _learn_hosts(engine, supervisor)
    seen = [await until_known(engine, node, end=False) for node in supervisor.record.nodes]
    if any(one.state is Found.GONE for one in seen):
        ended = [await until_known(engine, node, end=True) for node in supervisor.record.nodes]
        if all(one.exit is not None and not one.ended_now for one in ended):
            # Started, and done, while it was looked at: its exit record tells the truth.
            if job.state in (JobState.PROVISIONING, JobState.PREPARING):
                await supervisor.record.move_to_running(job.state)
            await supervisor.ending.finalise([one.exit for one in ended if one.exit is not None])
            return
        proven = all(one.proven for one in ended)
        if job.state in (JobState.PROVISIONING, JobState.PREPARING):
            await supervisor.ending.put_back(
                "the target actor was replaced while the job was prepared", proven=proven
            )
        else:
            await supervisor.ending.lose(
                "its attempt host is gone and left no exit record", proven=proven
            )
        return
    if job.state in (JobState.PROVISIONING, JobState.PREPARING):
        await supervisor.record.move_to_running(job.state)
    await supervisor.follow()


async def _end_late_hosts(engine: Engine, supervisor: AttemptSupervisor) -> bool:
    """End hosts that the actor before this one recorded after its attempt was first looked at."""
    await _learn_hosts(engine, supervisor)
    return await prove(engine, supervisor.record.nodes)


async def _learn_hosts(engine: Engine, supervisor: AttemptSupervisor) -> None:
    """Take over the hosts of a supervised attempt as they are recorded now."""
    record = supervisor.record
    served, job = record.served, record.job
    for attempt in await served.ask(served.store.attempts, job.id):
        if attempt.number == record.number:
            record.nodes = _nodes_of(engine, served, job, attempt)


async def end_and_requeue(
    engine: Engine,
    served: Served,
    job: Job,
    attempt: Attempt,
    *,
    why: str,
    restarted: bool = False,
) -> bool:
    """End what an attempt without a place left, and queue its job again.

    Returns whether nothing of it is left. The writing goes on by itself: a store that is full or
    locked must not hold up the others.
    """
    nodes = _nodes_of(engine, served, job, attempt)
    settled = [await settle(engine, node, end=True, restarted=restarted) for node in nodes]
    nothing_left = all(one.proven for one in settled)
    supervisor = AttemptSupervisor(
        engine.parts, served, job, None, number=attempt.number, nodes=nodes
    )
    engine.attempts.adopt(
        supervisor, _conclude(engine, supervisor, settled, why=why, restarted=restarted)
    )
    return nothing_left


async def _conclude(
    engine: Engine,
    supervisor: AttemptSupervisor,
    settled: list[Settled],
    *,
    why: str,
    restarted: bool = False,
) -> None:
    job = supervisor.record.job
    settled = [
        one
        if one.state is not Found.UNKNOWN
        else await until_known(engine, node, end=True, restarted=restarted)
        for one, node in zip(settled, supervisor.record.nodes, strict=True)
    ]
    finished = [one.exit for one in settled if one.exit is not None]
    is_early = job.state in (JobState.PROVISIONING, JobState.PREPARING)
    if settled and len(finished) == len(settled) and not any(one.ended_now for one in settled):
        # It had ended by itself: its exit record tells the truth, Ray's end does not matter.
        if is_early:
            await supervisor.record.move_to_running(job.state)
        await supervisor.ending.finalise(finished)
    elif job.cancel_requested_at is not None:
        await supervisor.ending.cancel(proven=all(one.proven for one in settled))
    elif not settled or is_early:
        late = None if settled else (lambda: _end_late_hosts(engine, supervisor))
        if not await supervisor.ending.put_back(
            f"{why} before it started", prove=late, if_without_hosts=not settled
        ):
            await _learn_hosts(engine, supervisor)
            found = [await settle(engine, node, end=True) for node in supervisor.record.nodes]
            await _conclude(engine, supervisor, found, why=why)
    else:
        nothing_left = all(one.proven for one in settled)
        # A cluster that is restarted takes everybody's attempts: no sign that this job is poison.
        outcome = Outcome.CLUSTER_LOST if why == CLUSTER_RESTARTED else Outcome.NODE_LOST
        message = f"{why}; whatever had survived was ended first"
        await supervisor.ending.lose(message, proven=nothing_left, outcome=outcome)
