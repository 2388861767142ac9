"""What a target actor does first: find what lives, take it over, and end what nobody owns."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rayjobs.clock import Clock
from rayjobs.compute.allocations import Held
from rayjobs.compute.board import Served
from rayjobs.compute.cluster import AgentLostError
from rayjobs.compute.drive import Drive
from rayjobs.errors import RayjobsError
from rayjobs.policy import Shape
from rayjobs.records import Allocation, AllocationState, Attempt, Job
from rayjobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.compute.engine import Engine

log = logging.getLogger(__name__)


async def recover(engine: Engine) -> None:
    """Take over the live jobs of every workspace.

    On the same Ray cluster their groups still stand: attempts whose host lives (or left an
    exit record) are followed again. On another one (Ray was restarted) whatever survived is
    ended and proven dead first, then the jobs are queued again as lost with their node.
    """
    engine.nodes = await engine.cluster.nodes()
    cluster_id = await engine.cluster.cluster_id()
    groups = set(await engine.cluster.group_names(f"rj-{engine.target}-"))
    known: set[str] = set()
    for served in engine.board.served:
        try:
            known |= await _recover_workspace(engine, served, cluster_id, groups)
        except RayjobsError as error:
            log.warning("workspace %s is not recovered: %s", served.path, error)
    for name in groups - known:
        log.info("group %s belongs to no job: removed", name)
        await engine.cluster.remove_group(name)


async def _recover_workspace(
    engine: Engine, served: Served, cluster_id: str, groups: set[str]
) -> set[str]:
    store = served.store
    key = f"cluster:{engine.target}"
    same_cluster = await served.ask(store.meta, key) == cluster_id
    live = {job.id: (job, attempt) for job, attempt in await served.ask(store.live, engine.target)}
    kept: set[str] = set()
    taken: set[str] = set()
    for row in await served.ask(store.allocations, engine.target):
        job_id = row.job
        if same_cluster and row.name in groups and _is_in_use(row, live):
            held = _held(row, served, engine.clock)
            engine.allocations.know(held)
            kept.add(row.name)
            if job_id in live and not held.draining:
                job, attempt = live[job_id]
                taken.add(job_id)
                await _take_over(engine, served, job, attempt, held)
        else:
            await engine.cluster.remove_group(row.name)
            await served.ask(store.release_allocation, row.name)
    for job_id, (job, attempt) in live.items():
        if job_id not in taken:
            await _end_and_requeue(engine, served, job, attempt, same_cluster=same_cluster)
    await served.ask(store.set_meta, key, cluster_id)
    return kept


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
    drive = Drive(engine.parts, served, job, held, number=attempt.number)
    drive.orders = [order_of(served, engine.target, job, host) for host in attempt.hosts]
    if job.cancel_requested_at is not None:
        drive.canceled.set()
    engine.adopt(drive, _go_on(engine, drive, attempt))


async def _go_on(engine: Engine, drive: Drive, attempt: Attempt) -> None:
    job = drive.job
    if not attempt.hosts:
        await drive.put_back("the target actor was replaced before its host was started")
        return
    seen = [await _settle(engine, order, end=False) for order in drive.orders]
    if any(one["state"] == "gone" for one in seen):
        ended = [await _settle(engine, order, end=True) for order in drive.orders]
        proven = all(one["proven"] for one in ended)
        if job.state in (JobState.PROVISIONING, JobState.PREPARING):
            await drive.put_back(
                "the target actor was replaced while the job was prepared", proven=proven
            )
        else:
            await drive.lost("its attempt host is gone and left no exit record", proven=proven)
        return
    if job.state in (JobState.PROVISIONING, JobState.PREPARING):
        await drive.now_running(job.state)
    await drive.follow()


async def _end_and_requeue(
    engine: Engine, served: Served, job: Job, attempt: Attempt, *, same_cluster: bool
) -> None:
    """End what an attempt without a standing group left, and queue its job again."""
    orders = [order_of(served, engine.target, job, host) for host in attempt.hosts]
    settled = [await _settle(engine, order, end=True) for order in orders]
    finished = [one["exit"] for one in settled if one["state"] == "ended"]
    nothing_left = all(one["proven"] for one in settled)
    ghost = Held("", served, Shape(), (), (), None, engine.clock.monotonic_s())
    drive = Drive(engine.parts, served, job, ghost, number=attempt.number)
    drive.orders = orders
    drive.hold_nothing()
    if orders and len(finished) == len(orders) and not any(one["ended_now"] for one in settled):
        # It had ended by itself: its exit record tells the truth, Ray's end does not matter.
        if job.state in (JobState.PROVISIONING, JobState.PREPARING):
            await drive.now_running(job.state)
        engine.adopt(drive, drive.finalise(finished))
    elif job.cancel_requested_at is not None:
        await drive.canceled_away()
    elif not orders or job.state in (JobState.PROVISIONING, JobState.PREPARING):
        await drive.put_back("its place was lost before it started", proven=nothing_left)
    else:
        why = "the Ray cluster was restarted" if not same_cluster else "its place is gone"
        await drive.lost(f"{why}; whatever had survived was ended first", proven=nothing_left)


async def _settle(engine: Engine, order: dict[str, Any], *, end: bool) -> dict[str, Any]:
    """Ask the node what became of an attempt; a node that is gone has nothing left."""
    node_id = order["node_id"]
    alive = {node.node_id for node in engine.nodes}
    if node_id not in alive and engine.shares_machine and engine.nodes:
        # All nodes of this target stand on this machine: any agent can see its processes.
        node_id = engine.nodes[0].node_id
        order["node_id"] = node_id
    if node_id not in alive and not engine.shares_machine:
        return {"state": "gone", "proven": False, "ended_now": False}
    for _ in range(3):
        try:
            agent = await engine.cluster.agent(node_id)
            return {"ended_now": False, **await agent.settle(order, end=end)}
        except AgentLostError as error:
            log.warning("settling %s: %s", order["plan"]["job"], error)
    return {"state": "gone", "proven": False, "ended_now": False}


def order_of(served: Served, target: str, job: Job, host: Any) -> dict[str, Any]:
    """Return an agent's order for a host that was launched earlier, from its record."""
    return {
        "workspace": served.path,
        "target": target,
        "node_id": host["node_id"],
        "snapshot": job.snapshot,
        "secrets": {},
        "plan": {
            "job": job.id,
            "attempt": host.get("attempt", job.attempt),
            "node": host["node"],
            "node_count": job.spec.distribution.nodes,
            "root": host["root"],
            "socket": host["socket"],
            "marker": host["marker"],
            "ranks": [
                {"rank": host["node"] * job.spec.distribution.processes_per_node + local}
                for local in range(job.spec.distribution.processes_per_node)
            ],
            "grace_s": job.spec.grace_s,
        },
    }
