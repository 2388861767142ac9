"""One simulated history: jobs, successive target actors, and faults chosen by a seed."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rayjobs.core import ids
from rayjobs.core.errors import StoreBusyError, StoreFullError
from rayjobs.engine.board import Board
from rayjobs.engine.engine import Engine, TargetMachines
from rayjobs.injob import lease
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import AllocationState, Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Dependency, Distribution, JobSpec, Resources, Retries
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.store.sql import SqlStore
from tests.checker.evidence import Evidence, Ran
from tests.checker.invariants import Violation, check
from tests.simulation.cluster import SimCluster
from tests.simulation.loop import BEGAN, VirtualClock, VirtualLoop
from tests.simulation.machines import LEASE_S, Machines
from tests.simulation.nodes import Machine

CPUS, GPUS, NODES = 2.0, 1, 2
APART = 3  # nodes on separate machines
# Faults happen in this time; afterwards every job must end.
STORM_S = 30.0
CALM_S = 900.0
QUIET_S = 30.0  # within it, idle allocations are released, and draining ones proven empty
MANY = 10_000_000
# How the message of a failure begins that was caused by an error in rayjobs itself.
OUR_FAULT = re.compile(r"(Type|Key|Index|Value|Attribute|Name|Assertion)Error: ")


class Actor:
    """One target actor: an engine that may be killed at any call of the store or the cluster.

    Attributes:
        steps: How many steps it has taken; a call has one before and one after its effect.
        dies_at: The step at which it is killed.
    """

    def __init__(self, world: World, epoch: str) -> None:
        self.world = world
        self.epoch = epoch
        self.is_dead = False
        self.steps = 0
        self.dies_at = MANY
        board = Board("local", world.folder / "none", lambda _path: ("ws", SimStore(self)))
        self.engine = Engine(
            "local",
            machines=TargetMachines(
                cluster=SimCluster(world.machine, self.step),
                is_shared=world.machine.shares_machine,
                lease_s=world.machine.lease_s,
            ),
            board=board,
            clock=world.clock,
            epoch=epoch,
        )
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(self.world.rng.random())
        self.world.store.claim_target("local", epoch=self.epoch)
        await self.engine.board.add(str(self.world.folder))
        await self.engine.run()

    def step(self, what: str) -> None:
        """Count a step; raise CancelledError if this actor is dead, or dies at this step."""
        self.steps += 1
        if not self.is_dead and self.steps >= self.dies_at:
            self.world.note(f"the actor dies at {what}")
            self.kill()
        if self.is_dead:
            raise asyncio.CancelledError

    def kill(self) -> None:
        """End the actor as kill -9 does: it has no further effect."""
        self.is_dead = True
        self.task.cancel()
        self.engine.attempts.cancel()


class SimStore:
    """The real store as an actor sees it: locked or full at times, and the actor may die."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._actor.world.store, name)
        if not callable(function) or name == "close":
            return (lambda: None) if name == "close" else function

        def call(*given: Any, **more: Any) -> Any:
            actor, world = self._actor, self._actor.world
            actor.step(f"store.{name}")
            now = world.loop.time()
            if now < world.store_fails_until:
                raise world.store_error("simulated")
            result = function(*given, **more)
            actor.step(f"store.{name}")
            return result

        return call


@dataclass
class World:
    """The parts and the state of one history.

    Attributes:
        apart: Whether nodes are separate machines, which are lost, frozen and cut off.
        trace: The injected faults, for diagnosis.
    """

    seed: int
    folder: Path
    jobs: int
    loop: VirtualLoop
    apart: bool = False
    machine: Machine = field(init=False)
    rng: Random = field(init=False)
    trace: list[str] = field(default_factory=list)
    store_fails_until: float = 0.0
    store_error: type[Exception] = StoreBusyError
    made: list[tuple[str, str]] = field(default_factory=list)
    actor: Actor | None = None

    def __post_init__(self) -> None:
        """Create the machine and the store."""
        self.rng = Random(self.seed)
        self.clock = VirtualClock(self.loop)
        self.nodes = APART if self.apart else NODES
        size: dict[str, Any] = {"nodes": self.nodes, "cpus": CPUS, "gpus": GPUS}
        if self.apart:
            self.machine = Machines(self.loop, self.rng, **size, calm_at_s=STORM_S, note=self.note)
        else:
            self.machine = Machine(self.loop, self.rng, **size)
        self.store = SqlStore(":memory:", clock=self.clock)

    def note(self, text: str) -> None:
        """Record a fault with its time."""
        self.trace.append(f"{self.loop.time():9.3f} {text}")

    # -- what clients do -----------------------------------------------------------------------
    def submit(self) -> Job:
        """Submit a job of a random kind that fits the machine."""
        rng = self.rng
        parents = [job for _, job in self.made]
        depends: tuple[Dependency, ...] = ()
        if parents and rng.random() < 0.15:
            depends = (Dependency(job=rng.choice(parents), when=rng.choice(("ok", "any"))),)
        nodes = rng.choice((1, 1, 1, 2))
        spec = JobSpec(
            script="train.py",
            name="t",
            distribution=Distribution(nodes=nodes, backend="gloo" if nodes > 1 else "none"),
            resources=Resources(cpus=rng.choice((1, 1, 2)), gpus=rng.choice((0, 0, 1))),
            retries=Retries(user=rng.choice((0, 1, 2)), node_lost=10, system=10),
            max_duration_s=rng.choice((None, 5.0, 60.0)),
            grace_s=rng.choice((0.0, 2.0)),
            priority=rng.choice((0, 0, 0, 5)),
            preemptible=rng.random() < 0.3,
            depends_on=depends,
        )
        key = f"key{len(self.made)}"
        job, _ = self.store.submit(
            NewJob(spec=spec, experiment="t", snapshot=None, user="u", idempotency_key=key)
        )
        again, created = self.store.submit(
            NewJob(spec=spec, experiment="t", snapshot=None, user="u", idempotency_key=key)
        )
        assert (again.id, created) == (job.id, False)
        self.made.append((key, job.id))
        if self.actor is not None and not self.actor.is_dead:
            self.actor.engine.wake()
        return job

    async def clients(self) -> None:
        """Submit jobs during the storm, and cancel some of them at random moments."""
        rng = self.rng
        for _ in range(self.jobs):
            await asyncio.sleep(rng.random() * STORM_S / self.jobs)
            job = self.submit()
            if rng.random() < 0.2:
                self.loop.call_later(
                    rng.choice((0.0, 0.3, 3.0, 20.0)) * rng.random(), self._cancel(job)
                )

    def _cancel(self, job: Job) -> Callable[[], None]:
        def cancel() -> None:
            self.note(f"cancel of {job.id}, {self.store.job(job.id).state}")
            self.store.request_cancel(job.id)

        return cancel

    # -- faults --------------------------------------------------------------------------------
    async def nemesis(self) -> None:
        """Inject one fault after another, until the storm is over."""
        rng = self.rng
        harms = [
            self._kill_actor,
            self._kill_actor,
            self._lose_agent,
            self._kill_host,
            self._store_outage,
            self._restart_ray,
            self._second_actor,
        ]
        if self.apart:
            # Each new actor waits for whole leases. Without new actors, the knowledge of the old
            # one is tested.
            is_quiet = rng.random() < 0.5
            harms = [self._harm_node] * 7 + ([self._lose_agent] if is_quiet else harms)
        while self.loop.time() < STORM_S:
            await asyncio.sleep(rng.random() * 3.0)
            await rng.choice(harms)()

    async def _kill_actor(self) -> None:
        """Kill the actor at one of its next steps, and start another one."""
        assert self.actor is not None
        doomed = self.actor
        doomed.dies_at = doomed.steps + self.rng.randrange(1, 60)
        while not (doomed.is_dead or doomed.task.done()):
            await asyncio.sleep(0.05)
        await self._replace()

    async def _replace(self) -> None:
        await asyncio.sleep(self.rng.random() * 3.0)
        self._start_actor()

    def _start_actor(self) -> None:
        self.actor = Actor(self, ids.token(4))
        self.note("an actor starts")

    async def _second_actor(self) -> None:
        """Start a second actor, which makes the live one stop."""
        self.note("a second actor claims the target")
        self._start_actor()

    async def _harm_node(self) -> None:
        assert isinstance(self.machine, Machines)
        self.machine.harm()

    async def _lose_agent(self) -> None:
        if not self.machine.agents:
            return
        node = self.rng.choice(sorted(self.machine.agents))
        self.note(f"the agent of {node} dies")
        self.machine.lose_agent(node)

    async def _kill_host(self) -> None:
        alive = [host for host in self.machine.history if host.is_alive]
        if alive:
            host = self.rng.choice(alive)
            self.note(f"host {host.on.marker} is killed")
            self.machine.kill(host)

    async def _store_outage(self) -> None:
        self.store_error = self.rng.choice((StoreBusyError, StoreFullError))
        self.store_fails_until = self.loop.time() + self.rng.choice((0.05, 1.0, 12.0))
        self.note(f"the store refuses: {self.store_error.__name__}")

    async def _restart_ray(self) -> None:
        assert self.actor is not None
        self.note("Ray is restarted")
        self.actor.kill()
        self.machine.restart_ray()
        await self._replace()

    async def move_clock(self) -> None:
        """Move the wall clock forward and back, by seconds up to a day, until the storm is over."""
        rng = Random(self.seed + 3)  # its own, so that the other faults are the same without it
        while self.loop.time() < STORM_S:
            await asyncio.sleep(rng.random() * 3.0)
            self.clock.moved += timedelta(seconds=rng.choice((-86_400, -3_600, -5, 5, 3_600)))
            self.note(f"the wall clock is set to {self.clock.now():%d %H:%M:%S}")

    # -- play and check ------------------------------------------------------------------------
    async def play(self, *, moves_clock: bool = False) -> None:
        """Play the storm, then wait until all jobs have ended."""
        self._start_actor()
        moving = [self.move_clock()] if moves_clock else []
        await asyncio.gather(self.clients(), self.nemesis(), *moving)
        self.note("calm")
        until = self.loop.time() + CALM_S
        while self.loop.time() < until:
            await asyncio.sleep(1.0)
            assert self.actor is not None
            if self.actor.task.done():
                self._start_actor()
            for job in self.store.jobs(JobFilter(states=[JobState.QUEUED])):
                if job.held is not None:  # too many of its hosts were killed: a user checks it
                    self.store.release(job.id)
            if all(state.is_final for state, count in self.store.counts().items() if count):
                break
        await asyncio.sleep(QUIET_S + (LEASE_S if self.apart else 0.0))

    def evidence(self) -> Evidence:
        """Return the evidence for the checker: the store's records, and what really ran."""
        store, jobs = self.store, self.store.jobs()
        alive: dict[str, list[int]] = {}
        ran = []
        for host in self.machine.history:
            on = host.on
            if host.is_alive:
                alive.setdefault(on.marker, []).append(1)
            ran.append(
                Ran(
                    on.job,
                    on.attempt,
                    on.node,
                    host.began_at,
                    self.loop.time() if host.ended_at is None else host.ended_at,
                    cpus=host.shape.cpus,
                    gpus=host.gpus,
                    frozen_s=host.frozen_s,
                )
            )
        return Evidence(
            jobs=jobs,
            attempts={job.id: store.attempts(job.id) for job in jobs},
            events={job.id: store.events(job.id) for job in jobs},
            allocations=store.allocations("local"),
            acknowledged=self.made,
            keys={key: [job] for key, job in self.made},
            ran=ran,
            alive=alive,
            total_cpus=CPUS * self.nodes,
            total_gpus=float(GPUS * self.nodes),
        )

    def violations(self) -> list[str]:
        """Return the violations at the end of the history."""
        evidence = self.evidence()
        found = [str(one) for one in check(evidence)]
        found += [str(one) for one in self._truths(evidence)]
        return found + [f"loop: {text}" for text in self.loop.exceptions]

    def _truths(self, evidence: Evidence) -> list[Violation]:
        found = []
        for job in evidence.jobs:
            if not job.state.is_final:
                found.append(Violation("end", f"{job.id} never leaves {job.state}: {job.reason}"))
            for one in evidence.attempts[job.id]:
                if one.failure is not None and OUR_FAULT.match(one.failure.message):
                    found.append(Violation("fault", f"{job.id}: {one.failure.message}"))
        found += self._done_again(evidence)
        if self.machine.groups:
            found.append(Violation("I5", f"groups are left: {sorted(self.machine.groups)}"))
        for row in evidence.allocations:
            if row.state is not AllocationState.RELEASED:
                found.append(Violation("I5", f"the allocation {row.name} is {row.state}"))
        return found

    def _done_again(self, evidence: Evidence) -> list[Violation]:
        found = []
        good: dict[tuple[str, int], int] = {}
        for host in self.machine.history:
            if host.record is not None and host.record.outcome is Outcome.COMPLETED:
                if isinstance(self.machine, Machines) and not self.machine.was_reachable(host):
                    continue  # unknown to the target: the job had to be repeated
                on = host.on
                good[on.job, on.attempt] = good.get((on.job, on.attempt), 0) + 1
        nodes = {job.id: job.spec.distribution.nodes for job in evidence.jobs}
        for job_id in nodes:
            well = [
                number
                for (job, number), count in good.items()
                if (job, count) == (job_id, nodes[job_id])
            ]
            if len(well) > 1:
                found.append(Violation("once", f"{job_id} succeeded in attempts {well}"))
        return found


def simulate(
    seed: int, folder: Path, *, jobs: int, moves_clock: bool = False, apart: bool = False
) -> World:
    """Play one history and return it; a seed always gives the same history.

    Args:
        moves_clock: Whether the wall clock is changed meanwhile.
        apart: See `World`.
    """
    loop = VirtualLoop(Random(seed + 1))
    names = Random(seed + 2)
    seeded = SimpleNamespace(token_hex=lambda count=16: names.randbytes(count).hex())
    logging.disable(logging.CRITICAL)
    try:
        wall = SimpleNamespace(time=lambda: BEGAN.timestamp() + loop.time())
        with mock.patch.object(ids, "secrets", seeded), mock.patch.object(ids, "time", wall):
            asyncio.set_event_loop(loop)
            world = World(seed, folder, jobs, loop, apart=apart)
            boot = getattr(world.machine, "boot_clock_s", lease.boot_clock_s)
            with mock.patch.object(lease, "boot_clock_s", boot):
                loop.run_until_complete(world.play(moves_clock=moves_clock))
            if world.actor is not None:
                world.actor.kill()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        logging.disable(logging.NOTSET)
        asyncio.set_event_loop(None)
        loop.close()
    return world
