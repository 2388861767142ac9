"""Outputs that are missing, changed or torn are not reused: the step that made them runs again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import UsageError
from rayjobs.data import made
from rayjobs.datastore.errors import DataNotFound, DatastoreUnavailable
from rayjobs.pipelines.planning import PlannedRun
from tests.unit.pipelines.played import Played, decisions, reused


@pytest.fixture
def played(tmp_path: Path, own_home: Path) -> Iterator[Played]:
    world = Played(tmp_path)
    yield world
    world.workspace.close()


def damaged(played: Played, text: bytes | None) -> PlannedRun:
    """Run a pipeline, damage the output of its first step, and submit it again."""
    first = played.run()
    file = played.stored(first.steps[0].job_id, "clean")
    if text is None:
        file.unlink()
    else:
        file.write_bytes(text)
        os.utime(file, ns=(1, 1))
    return played.submit()


def test_missing_output_is_recreated(played: Played) -> None:
    run = damaged(played, None)
    assert reused(run) == []
    assert "its output 'clean' has changed" in decisions(run)["prep"]
    assert "is missing" in decisions(run)["prep"]


def test_truncated_output_is_recreated(played: Played) -> None:
    run = damaged(played, b"prep")
    assert reused(run) == []
    assert "has 4 bytes instead of" in decisions(run)["prep"]


def test_overwritten_output_is_recreated(played: Played) -> None:
    run = damaged(played, b"prep MADE clean")
    assert reused(run) == []
    assert "was overwritten" in decisions(run)["prep"]


def test_older_complete_output_replaces_a_damaged_one(played: Played) -> None:
    first = played.run()
    second = played.run(regenerate=True)
    played.stored(second.steps[0].job_id, "clean").unlink()
    run = played.submit()
    assert run.steps[0].decision.original == first.steps[0].job_id


def test_a_job_that_was_pruned_is_not_reused(played: Played) -> None:
    first = played.run()
    played.store.prune_records([first.steps[0].job_id])
    run = played.submit()
    assert reused(run) == []


def test_original_removed_during_submit_writes_nothing(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = played.run()
    put = played.store.put_pipeline

    def late(new: object) -> object:
        played.store.prune_records([first.steps[0].job_id])
        return put(new)  # type: ignore[arg-type]

    monkeypatch.setattr(played.store, "put_pipeline", late)
    with pytest.raises(UsageError, match="pruned meanwhile; nothing was submitted"):
        played.submit()
    assert len(played.store.pipelines()) == 1


def test_an_output_without_a_pin_is_an_error_that_names_the_job(played: Played) -> None:
    run = played.submit()
    prep = run.steps[0].job_id
    with pytest.raises(DataNotFound, match=f"job {prep} has stored no output 'clean'"):
        made.input_of(played.workspace, prep, "clean")


def test_an_unfinished_consumer_keeps_its_producer_from_being_pruned(played: Played) -> None:
    first = played.run()
    played.submit(values={"epochs": 4})
    # Its train step waits for the step of its own run, and reads the output that it reuses.
    assert played.store.prune_records([first.steps[0].job_id]) == frozenset()
    assert played.store.prune_records([first.steps[1].job_id]) != frozenset()


def test_step_runs_when_storage_is_down(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played.run()

    def down(_record: object) -> object:
        raise DatastoreUnavailable("http://storage does not answer")

    monkeypatch.setattr(made, "open_backend", down)
    run = played.submit()
    assert reused(run) == []
    assert "its outputs cannot be checked: http://storage" in decisions(run)["prep"]
