"""One workspace that cannot be read leaves the work for the others undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from rayjobs.core.errors import StoreError, StoreUnreachableError
from rayjobs.engine.board import Served
from rayjobs.engine.candidates import Candidates
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.policy import Shape, Waiting
from rayjobs.spec.model import Dependency, JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from tests.fakes.world import World, play


class _Unreadable:
    """A store that fails every call once `is_away` is set."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise StoreUnreachableError("the store cannot be reached")
        return getattr(self.store, name)


class _Unwritable:
    """A store that can be read, but records no end and no hold of a job."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.refused: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def finish(self, job: str, **_values: Any) -> bool:
        self.refused.add(job)
        raise StoreError("the disk is full")

    def hold(self, job: str, **_values: Any) -> bool:
        self.refused.add(job)
        raise StoreError("the disk is full")


def test_unreadable_workspace_does_not_stop_the_work_for_the_others(tmp_path: Path) -> None:
    """Off switch: one workspace's error ends the round of all."""
    stores = {}
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        stores[str(tmp_path / name)] = _Unreadable(SqlStore(tmp_path / name / "store.db"))

    async def scene(here: World) -> None:
        await here.crash()
        here.open_at = lambda path: cast(Store, stores[path])
        here.engine = here._engine()
        first, second, third = stores
        for path in (first, second):
            await here.engine.board.add(path)
        await here.engine.turn()
        # An allocation that a previous actor recorded late, in the workspace looked at last.
        late = stores[second].store
        late.add_allocation("rj-local-late", target="local", shape=Shape().to_dict())
        here.cluster.groups["rj-local-late"] = (Shape(), ("node0",))
        here.cluster.groups["rj-local-ghost"] = (Shape(), ("node0",))
        stores[first].is_away = True
        await here.engine.tidying.tidy(here.engine.nodes)
        assert not late.allocations("local")
        assert {*here.cluster.groups} == {"rj-local-ghost"}  # it may belong to the first workspace
        await here.engine.board.add(third)
        await here.engine.turn()  # takes over the third workspace, and raises nothing
        assert len(here.engine.board.served) == 3
        stores[first].is_away = False
        await here.engine.tidying.tidy(here.engine.nodes)
        assert not here.cluster.groups

    play(scene, tmp_path)
    for one in stores.values():
        one.store.close()


def test_unwritable_workspace_with_refused_jobs_does_not_stop_the_queue_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: one workspace's error ends the turn of all."""
    for name in ("full", "good"):
        (tmp_path / name).mkdir()
    full = _Unwritable(SqlStore(tmp_path / "full" / "store.db"))
    good = SqlStore(tmp_path / "good" / "store.db")
    stores: dict[str, Any] = {str(tmp_path / "full"): full, str(tmp_path / "good"): good}
    waiting = Candidates.waiting

    def failing(self: Candidates, served: Served, job: Job, **values: Any) -> Waiting:
        if job.name == "faulty":
            raise ValueError("a bad job")
        return waiting(self, served, job, **values)

    monkeypatch.setattr(Candidates, "waiting", failing)

    async def scene(here: World) -> None:
        await here.crash()
        here.open_at = lambda path: cast(Store, stores[path])
        here.engine = here._engine()
        for path in stores:
            await here.engine.board.add(path)
        parent = submit(full.store)
        full.store.request_cancel(parent.id)
        doomed = submit(full.store, depends_on=(Dependency(job=parent.id),))
        faulty = submit(full.store, name="faulty")
        job = submit(good)
        await here.engine.turn()
        assert full.refused == {doomed.id, faulty.id}
        await here.until(lambda: good.job(job.id).state is JobState.RUNNING)

    play(scene, tmp_path)
    full.store.close()
    good.close()


def submit(store: SqlStore, **values: Any) -> Job:
    spec = JobSpec(**{"script": "train.py", "name": "t"} | values)
    job, _ = store.submit(NewJob(spec=spec, experiment="t", snapshot=None, user="u"))
    return job


def test_draining_allocation_of_a_pruned_job_does_not_stop_the_recovery(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        here.store.finish(job.id, attempt=1, state=JobState.FAILED)
        (row,) = here.store.allocations("local")
        assert here.store.free_allocation(row.name, job=job.id, attempt=1, proven=False)
        with here.store._database.write() as connection:  # as an earlier version did
            connection.execute("DELETE FROM attempts")
            connection.execute("DELETE FROM jobs")
        await here.restart()
        here.agent.instant = 0
        after = here.submit()
        await here.state(after, JobState.COMPLETED)
        await here.until(lambda: row.name not in here.cluster.groups)

    play(scene, tmp_path)
