"""A sweep started from earlier ones: trials that inform it, are skipped, or are resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.checkpoint import MANIFEST
from rayjobs.jobs.records import Job, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.tuning import warm_start
from rayjobs.tuning.driver import Driver
from rayjobs.tuning.errors import SweepError
from tests.unit.tuning_driver.world import World, good, parameters_of

GRID = {"type": "grid", "parameters": {"--x": ["choice", [[0.1, 0.2, 0.3, 0.4]]]}}
BAYES = {"type": "bayesian", "seed": 3, "parameters": {"--x": ["uniform", [0, 1]]}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def ended(world: World, **changes: Any) -> str:
    sweep = world.submit(**changes)
    world.finish(world.driver(sweep))
    return sweep


def tried(world: World, sweep: str) -> list[str]:
    return [parameters_of(job)["--x"] for job in world.jobs(sweep)]


def save(world: World, job: Job, step: int) -> None:
    """Store a whole checkpoint of a job."""
    folder = f"outputs/checkpoints/step-{step:012d}"
    weights = b"weights"
    facts = {"sha256": hashlib.sha256(weights).hexdigest(), "size": len(weights)}
    manifest = json.dumps({"version": 1, "step": step, "files": {"model.pt": facts}}).encode()
    for name, data in (("model.pt", weights), (MANIFEST, manifest)):
        path = world.folder / "stored"
        path.write_bytes(data)
        blob = world.workspace.blobs.add_file(path)
        row = StoredFile(
            name=f"{folder}/{name}",
            attempt=job.attempt,
            size=blob.size,
            digest=blob.digest,
            blob=blob.key,
            stored_at=datetime.now(UTC),
        )
        assert world.store.publish_files(job.id, attempt=job.attempt, files=[row])


@pytest.mark.long
def test_a_grid_does_not_repeat_what_an_earlier_sweep_completed(world: World) -> None:
    first = ended(world, sampling=GRID, limits={"total": 2})
    second = ended(world, sampling=GRID, limits={"total": 4}, resume_from=[first])
    assert (tried(world, first), tried(world, second)) == (["0.1", "0.2"], ["0.3", "0.4"])
    assert Driver(world.workspace, second).spec.total == 2
    [event] = [one for one in world.store.events(second) if one.kind == warm_start.EVENT]
    assert event.message == f"2 ended trials of {first} inform this sweep"


def test_a_grid_with_nothing_left_is_refused_at_the_submit(world: World) -> None:
    first = ended(world, sampling=GRID, limits={"total": 4})
    with pytest.raises(SweepError, match="all 4 points of the grid were completed"):
        world.submit(sampling=GRID, limits={"total": 4}, resume_from=[first])


@pytest.mark.long
def test_random_sweep_with_the_same_seed_continues_the_earlier_one(
    world: World,
) -> None:
    whole = tried(world, ended(world, limits={"total": 6}))
    first = ended(world, limits={"total": 2})
    second = ended(world, limits={"total": 4}, resume_from=[first])
    assert tried(world, first) + tried(world, second) == whole


@pytest.mark.long
def test_bayesian_sampling_learns_from_the_earlier_trials(world: World) -> None:
    first = ended(world, sampling=BAYES, limits={"total": 12, "concurrent": 1})
    cold = ended(world, sampling={**BAYES, "seed": 4}, limits={"total": 3, "concurrent": 1})
    warm = ended(
        world,
        sampling={**BAYES, "seed": 4},
        limits={"total": 3, "concurrent": 1},
        resume_from=[first],
    )
    # Optuna draws its first ten points at random; with twelve known results it does not.
    assert tried(world, warm) != tried(world, cold)
    driver = Driver(world.workspace, warm)
    driver._warm = warm_start.load(
        world.store, driver.spec, until=world.store.job(warm).submitted_at
    )
    driver._start_tune()
    driver._sampler.replay(())
    study = driver._sampler._inner._searcher._ot_study  # type: ignore[attr-defined]
    assert [one.value for one in study.trials] == [max(one.values) for one in world.trials(first)]


@pytest.mark.long
def test_a_driver_that_takes_over_asks_for_the_same_trials(world: World) -> None:
    first = ended(world, sampling=BAYES, limits={"total": 12, "concurrent": 1})
    changes: dict[str, Any] = {"sampling": {**BAYES, "seed": 4}, "resume_from": [first]}
    undisturbed = ended(world, **changes, limits={"total": 4, "concurrent": 1})
    disturbed = world.submit(**changes, limits={"total": 4, "concurrent": 1})
    for _ in range(200):
        if world.driver(disturbed).turn() is not None:
            break
        world.play()
        if world.store.job(disturbed).state.is_final:
            break
    assert tried(world, disturbed) == tried(world, undisturbed)


@pytest.mark.long
def test_trials_outside_the_search_space_are_counted_by_the_policy_only(world: World) -> None:
    wide = {**BAYES, "parameters": {"--x": ["uniform", [0, 10]]}}
    first = ended(world, sampling=wide, limits={"total": 3})
    second = ended(world, sampling=BAYES, limits={"total": 2}, resume_from=[first])
    [event] = [one for one in world.store.events(second) if one.kind == warm_start.EVENT]
    assert "outside its search space" in event.message
    assert world.store.job(second).state is JobState.COMPLETED


@pytest.mark.long
def test_a_policy_compares_with_the_earlier_trials(world: World) -> None:
    def script(parameters: Mapping[str, str]) -> Any:
        return good({"--x": str(float(parameters["--x"]) * world.scale)})  # type: ignore[attr-defined]

    world.script = script
    world.scale = 1.0  # type: ignore[attr-defined]
    first = ended(world, limits={"total": 2})
    world.scale = 0.01  # type: ignore[attr-defined]
    bandit = {"type": "bandit", "slack_factor": 0.1}
    alone = ended(world, policy=bandit, limits={"total": 1})
    warm = ended(world, policy=bandit, limits={"total": 1}, resume_from=[first])
    assert [str(one.state) for one in world.trials(alone)] == ["Completed"]
    [stopped] = world.trials(warm)
    assert str(stopped.state) == "Canceled"
    assert "stopped trial 0 at interval 1" in stopped.reason


@pytest.mark.long
def test_resumed_trial_continues_from_its_checkpoint_with_its_parameters(world: World) -> None:
    end = world.end

    def end_with_checkpoint(job: Job, state: JobState) -> None:
        save(world, job, 7)
        end(job, state)

    world.end = end_with_checkpoint  # type: ignore[method-assign]
    first = ended(world, sampling=GRID, limits={"total": 3})
    earlier = world.jobs(first)[1]
    second = ended(
        world, sampling=GRID, limits={"total": 3}, resume_from=[first], resume_trials=[earlier.id]
    )
    jobs = world.jobs(second)
    assert jobs[0].spec.resume_from == earlier.id
    assert jobs[0].spec.arguments[-2:] == (
        "--resume-from",
        "$AZUREML_DATAREFERENCE_MODEL_LOCATION",
    )
    assert jobs[0].spec.arguments[:2] == earlier.spec.arguments
    # The grid's points that were completed are not tried again, so one is left.
    assert [(one.spec.resume_from, one.spec.arguments) for one in jobs[1:]] == [
        (None, ("--x", "0.4"))
    ]


@pytest.mark.long
def test_all_problems_of_a_warm_start_are_one_error(world: World) -> None:
    first = ended(world, limits={"total": 2})
    other = ended(world, limits={"total": 1}, metric="accuracy", goal="minimize")
    running = world.submit(limits={"total": 1})
    [job] = world.jobs(running)
    plain = world.jobs(first)[0]
    with pytest.raises(SweepError) as caught:
        world.submit(
            limits={"total": 2},
            resume_from=[first, first, other, "nothing_1_00000000"],
            resume_trials=[plain.id, job.id, first],
        )
    text = "\n".join(f"{one.path}: {one.message}" for one in caught.value.problems)
    for expected in (
        f"resume_from: {first} is given twice.",
        f"resume_from: {other} has the goal to minimize accuracy",
        "resume_from: no job 'nothing_1_00000000'",
        f"resume_trials: run {plain.id} has no checkpoint",
        f"resume_trials: {job.id} is still Queued.",
        f"resume_trials: {first} is not a trial of a sweep.",
        "resume_trials: 3 trials are more than limits.total, 2.",
    ):
        assert expected in text, text


def test_a_trial_that_ended_after_the_submit_does_not_count(world: World) -> None:
    running = world.submit(limits={"total": 2, "concurrent": 2})
    second = world.submit(limits={"total": 1}, resume_from=[running], begun=False)
    world.finish(world.driver(running))
    known = warm_start.load(
        world.store,
        Driver(world.workspace, second).spec,
        until=world.store.job(second).submitted_at,
    )
    assert known.earlier == ()
