"""A cancel at any moment of a job's lifetime gives one correct end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayjobs.engine import engine
from rayjobs.engine.attempt import record, supervisor
from rayjobs.jobs.states import JobState
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.store.base import Store
from tests.fakes.cluster import FakeAgent
from tests.fakes.world import World, play
from tests.unit.engine.test_engine_faults import all_is_free


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr(engine, "TIDY_S", 0.05)
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.02)
    monkeypatch.setattr(supervisor, "NOT_PLACED_PAUSE_S", 0.02)


class Moments:
    """A store that requests a job's cancel right before or after the n-th call about it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.at: dict[str, int] = {}
        self.seen: Counter[str] = Counter()
        self.cancel: Callable[[str], None] = lambda job: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            job = str(more.get("job") or (given[0] if given else ""))
            self.moment(job)
            try:
                return found(*given, **more)
            finally:
                self.moment(job)

        return call

    def moment(self, job: str) -> None:
        """Count one moment of the job's lifetime; cancel the job at the moment set for it."""
        if job not in self.at:
            return
        self.seen[job] += 1
        if self.seen[job] == self.at[job]:
            self.cancel(job)


@pytest.mark.long
def test_cancel_at_any_moment_gives_one_consistent_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 jobs, each canceled at one of 30 moments; every other one never ends by itself."""
    note = FakeAgent._note
    ends = {JobState.COMPLETED, JobState.CANCELED, JobState.FAILED}

    async def scene(here: World) -> None:
        await here.crash()
        moments = Moments(here.store)
        here.open = lambda: moments
        endless: set[str] = set()

        def cancel(job: str) -> None:
            for _ in range(2):  # it is idempotent
                here.store.request_cancel(job)

        def noted(agent: FakeAgent, what: str, on: AttemptOnNode) -> tuple[str, int]:
            job = on.job
            moments.moment(job)
            if what == "launch":
                agent.instant = None if job in endless else 0
            if what == "follow" and job in endless:
                cancel(job)  # the last chance: it never ends by itself
            return note(agent, what, on)

        moments.cancel = cancel
        monkeypatch.setattr(FakeAgent, "_note", noted)
        await here.restart()
        jobs = []
        for number in range(300):
            job = here.submit()
            jobs.append(job)
            if number % 2:
                endless.add(job.id)
            moments.at[job.id] = 1 + number % 30
        for job in jobs:
            await here.until(lambda one=job: here.store.job(one.id).state.is_final, job.id)  # type: ignore[misc]
        for job in jobs:
            state = here.store.job(job.id).state
            assert state is not JobState.FAILED, job.id
            assert state is JobState.CANCELED or job.id not in endless, job.id
            changes = [one.message for one in here.store.events(job.id) if one.kind == "state"]
            final = [text for text in changes if any(str(end) in text for end in ends)]
            assert len(final) == 1, (job.id, changes)
        launched = Counter(job for what, job, _ in here.agent.calls if what == "launch")
        assert max(launched.values()) == 1
        await all_is_free(here)
        assert not here.cluster.over_capacity

    play(scene, tmp_path, cpus=4.0)
