"""The reason of a canceled job: the store adds who canceled it, and keeps the values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import bring, submit

S = JobState


@pytest.fixture
def store(where: str | Path) -> Iterator[SqlStore]:
    store = SqlStore(where, busy_timeout_s=60)
    yield store
    store.close()


def test_canceled_job_names_the_requesting_user(store: SqlStore) -> None:
    job, other = submit(store), submit(store)
    for one, by in ((job, "ada"), (other, "")):
        bring(store, one, S.RUNNING)
        store.request_cancel(one.id, by=by)
        assert store.finish(one.id, attempt=1, state=S.CANCELED)
    assert store.job(job.id).reason == "canceled by ada"
    assert store.job(other.id).reason == "canceled"
    given_up, again = submit(store), submit(store)
    for one in (given_up, again):
        bring(store, one, S.RUNNING)
        store.request_cancel(one.id, by="ada")
    text = "the store is full."
    assert store.finish(given_up.id, attempt=1, state=S.CANCELED, reason=text)
    assert store.job(given_up.id).reason == "canceled by ada; the store is full."
    assert store.job(given_up.id).cancellation == Cancellation("ada", text)
    assert store.requeue(again.id, attempt=1, reason="its node died", outcome=Outcome.NODE_LOST)
    again = store.job(again.id)
    assert again.reason == "canceled by ada instead of being queued again (its node died)"
    assert again.cancellation == Cancellation("ada", requeue_reason="its node died")


def test_end_without_a_cancel_keeps_its_reason(store: SqlStore) -> None:
    job = submit(store)
    text = "canceled by ada; it is what another job's reason would be"
    assert store.finish(
        job.id, attempt=0, state=S.CANCELED, reason=text, outcome=Outcome.DEPENDENCY
    )
    ended = store.job(job.id)
    assert (ended.reason, ended.cancellation) == (text, None)
    assert [line.cancellation for line in store.job_lines(JobFilter())] == [None]
