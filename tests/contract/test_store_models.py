"""The contract of stores for models: versions, aliases, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.records import Job, ModelDraft, ModelFile, ModelVersion
from rayjobs.jobs.states import JobState
from rayjobs.store.base import Store
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import TurnedClock, bring, stored, submit


@pytest.fixture
def store(where: str | Path) -> Iterator[Store]:
    made = SqlStore(where, clock=TurnedClock(), busy_timeout_s=60)
    yield made
    made.close()


def completed(store: Store, name: str = "outputs/m.pt") -> Job:
    """Return a completed run with one file."""
    job = submit(store)
    bring(store, job, JobState.FINALIZING)
    assert store.publish_files(job.id, attempt=1, files=[stored(name, 1)])
    assert store.finish(job.id, attempt=1, state=JobState.COMPLETED)
    return store.job(job.id)


def put(store: Store, job: Job, name: str = "m", **values: Any) -> tuple[ModelVersion, bool]:
    source = stored("outputs/m.pt", 1)
    file = ModelFile(name="m.pt", size=source.size, digest=source.digest, blob=source.blob)
    given: dict[str, Any] = {
        "name": name,
        "path": "outputs/m.pt",
        "digest": source.digest,
        "files": (file,),
        "sources": (source,),
        "lineage": {"run": job.id, "metrics": {"loss": 0.5}},
        **values,
    }
    run = given.pop("run", job.id)
    return store.put_model(run, ModelDraft(**given))


def test_versions_count_from_one_and_come_back_as_written(store: Store) -> None:
    one, two = completed(store), completed(store)
    first, is_new = put(
        store,
        one,
        user="ada",
        framework="PyTorch",
        framework_version="2.1",
        description="ü",
        tags={"a": "1"},
        properties={"p": "q"},
        aliases=["best"],
    )
    assert is_new
    assert (first.version, first.attempt, first.aliases, first.size) == (1, 1, ("best",), 1)
    assert (first.tags, first.properties) == ({"a": "1"}, {"p": "q"})
    assert first.lineage == {"run": one.id, "metrics": {"loss": 0.5}}
    second, _ = put(store, two)
    assert second.version == 2
    assert store.model("m") == second
    assert store.model("m", version=1) == first == store.model("m", alias="best")
    assert put(store, one, name="other")[0].version == 1


def test_the_same_files_of_a_run_are_one_version(store: Store) -> None:
    job = completed(store)
    first, _ = put(store, job, tags={"a": "1"})
    again, is_new = put(store, job, tags={"b": "2"}, aliases=["best"], description="late")
    assert not is_new
    assert (again.version, again.tags) == (first.version, {"a": "1", "b": "2"})
    assert (again.aliases, again.description) == (("best",), "late")
    assert len(store.models(name="m")) == 1


def test_threads_registering_the_same_files_get_one_version(store: Store) -> None:
    job = completed(store)
    found: list[tuple[int, bool]] = []

    def register() -> None:
        model, is_new = put(store, job)
        found.append((model.version, is_new))

    threads = [threading.Thread(target=register) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(1, False)] * 5 + [(1, True)]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED, JobState.CANCELED])
def test_only_completed_runs_can_register_models(store: Store, state: JobState) -> None:
    job = submit(store)
    bring(store, job, JobState.FINALIZING)
    store.publish_files(job.id, attempt=1, files=[stored("outputs/m.pt", 1)])
    if state is not JobState.RUNNING:
        store.finish(job.id, attempt=1, state=state)
    with pytest.raises(UsageError, match="only a completed run can become a model"):
        put(store, job)
    assert store.models() == []


def test_files_changed_since_the_end_are_refused(store: Store) -> None:
    job = completed(store, "outputs/else.pt")
    with pytest.raises(UsageError, match="is not there"):
        put(store, job)
    changed = stored("outputs/else.pt", 1)
    with pytest.raises(UsageError, match="has changed"):
        put(
            store,
            job,
            sources=[type(changed)(**{**changed.__dict__, "digest": "sha256:" + "1" * 64})],
        )
    with pytest.raises(NotFoundError):
        put(store, job, run="no_1_such")
    assert store.models() == []


def test_an_alias_points_to_one_version(store: Store) -> None:
    one, two = completed(store), completed(store)
    put(store, one, aliases=["live"])
    put(store, two, aliases=["live"])
    assert store.model("m", alias="live").version == 2
    store.set_model_alias("m", "live", 1)
    assert [(m.version, m.aliases) for m in store.models(name="m")] == [(2, ()), (1, ("live",))]
    store.set_model_alias("m", "live", None)
    for call in (
        lambda: store.model("m", alias="live"),
        lambda: store.set_model_alias("m", "live", None),
        lambda: store.set_model_alias("m", "live", 7),
        lambda: store.model("m", version=7),
        lambda: store.model("x"),
    ):
        with pytest.raises(NotFoundError, match="m"):
            call()


def test_mutable_model_fields_change(store: Store) -> None:
    put(store, completed(store), tags={"a": "1"}, properties={"p": "1"})
    store.update_model("m", 1, tags={"a": None, "b": "2"}, description="new")
    found = store.update_model("m", 1, properties={"p": "1", "q": "2"})
    assert (found.tags, found.description) == ({"b": "2"}, "new")
    assert found.properties == {"p": "1", "q": "2"}
    with pytest.raises(UsageError, match="written once"):
        store.update_model("m", 1, properties={"p": "2"})


def test_deleted_version_number_is_not_reused(store: Store) -> None:
    job = completed(store)
    put(store, job, aliases=["live"])
    store.delete_model("m", 1, force=True)
    assert store.models() == []
    with pytest.raises(NotFoundError, match="has no alias"):
        store.model("m", alias="live")
    assert put(store, job)[0].version == 2


def test_models_are_listed_by_name_run_and_age(store: Store) -> None:
    one, two = completed(store), completed(store)
    put(store, one, "b")
    put(store, two, "b")
    put(store, two, "a")
    assert [(m.name, m.version) for m in store.models()] == [("a", 1), ("b", 2), ("b", 1)]
    assert [(m.name, m.version) for m in store.models(latest=True)] == [("a", 1), ("b", 2)]
    assert [(m.name, m.version) for m in store.models(run=one.id)] == [("b", 1)]
