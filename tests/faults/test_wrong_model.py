"""Crashed, diverged or torn results never become a model, however good their numbers look.

Off switches: `refuse_without` and the check of the state in `put_model`, the checks of
`primary_metric`, `_is_sound` and `_check_bytes`.
"""

from __future__ import annotations

import math

import pytest

from rayjobs.api.model import Model
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.states import JobState
from rayjobs.models.facts import RunChoice
from tests.support import registering as models
from tests.unit.models.conftest import Runs
from tests.unit.models.conftest import runs as runs  # the fixture


def best(runs: Runs, run: str, value: float) -> Model:
    return models.register_best(
        runs.workspace,
        name="best",
        run=run,
        choice=RunChoice(
            metric="accuracy", value=value, configuration={"--lr": 0.1}, sweep="sweep_1"
        ),
    )


def nothing_is_there(runs: Runs) -> None:
    assert runs.workspace.store.models() == []


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELED])
def test_the_crashed_trial_with_the_highest_metric(runs: Runs, state: JobState) -> None:
    good = runs.trained((0.5, 0.8))
    crashed = runs.begin()
    runs.write(crashed, model__pt=b"half")
    runs.log(crashed, "accuracy", (0.5, 0.99))
    runs.end(crashed, state)
    with pytest.raises(UsageError, match=f"has ended as {state}"):
        best(runs, crashed.id, 0.99)
    nothing_is_there(runs)
    model = best(runs, good.id, 0.8)
    assert model.lineage["primary_metric"] == {"name": "accuracy", "value": 0.8}
    assert model.lineage["configuration"]["parameters"] == {"--lr": 0.1}
    assert model.lineage["sweep"] == "sweep_1"


def test_running_run_is_refused(runs: Runs) -> None:
    job = runs.begin()
    runs.write(job, model__pt=b"w")
    runs.log(job, "accuracy", (0.9,))
    runs.publish(job)
    with pytest.raises(UsageError, match="is Running"):
        best(runs, job.id, 0.9)
    nothing_is_there(runs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite(runs: Runs, value: float) -> None:
    job = runs.trained((0.5, 0.9))
    with pytest.raises(UsageError, match="only a finite value"):
        best(runs, job.id, value)
    nothing_is_there(runs)


def test_a_run_that_diverged_after_its_best(runs: Runs) -> None:
    job = runs.trained((0.5, 0.9, math.nan))
    with pytest.raises(UsageError, match="diverged"):
        best(runs, job.id, 0.9)
    with pytest.raises(UsageError, match="only a finite value"):
        models.register(
            runs.workspace, name="m", run=job.id, path="model.pt", primary_metric="accuracy"
        )
    nothing_is_there(runs)


def test_a_number_that_the_run_never_logged(runs: Runs) -> None:
    job = runs.trained((0.5, 0.9))
    with pytest.raises(UsageError, match=r"has not logged accuracy = 0\.95"):
        best(runs, job.id, 0.95)
    with pytest.raises(UsageError, match="has not logged the metric 'acuracy'"):
        models.register(
            runs.workspace, name="m", run=job.id, path="model.pt", primary_metric="acuracy"
        )
    nothing_is_there(runs)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_file_whose_bytes_are_not_what_was_stored(runs: Runs, damage: str) -> None:
    job = runs.trained()
    (row,) = [one for one in runs.workspace.store.files(job.id) if one.name.endswith("model.pt")]
    blobs = runs.workspace.opened.blobs
    if damage == "gone":
        blobs.delete(row.blob)
    else:
        blobs.put_bytes(b"weig" if damage == "cut" else b"WEIGHTS", row.blob)
    with pytest.raises(UsageError, match=r"damaged|no longer in the workspace"):
        best(runs, job.id, 0.9)
    nothing_is_there(runs)


def test_leftovers_of_a_killed_attempt_are_refused(runs: Runs) -> None:
    job = runs.begin()
    runs.write(job, model__pt=b"hal", other__pt=b"x")
    runs.publish(job)
    runs.retry(job)
    runs.write(job, other__pt=b"whole")
    runs.log(job, "accuracy", (0.9,))
    runs.end(job)
    with pytest.raises(UsageError, match="left by an earlier attempt than 2"):
        models.register(runs.workspace, name="m", run=job.id, path="outputs/model.pt")
    nothing_is_there(runs)
    model = best(runs, job.id, 0.9)  # from the folder, the files of the completed attempt
    assert [one.name for one in model.record.files] == ["other.pt"]
    assert model.lineage["left_out"] == ["outputs/model.pt"]


def test_a_torn_checkpoint(runs: Runs) -> None:
    job = runs.begin()
    runs.save(job, 1)
    runs.publish(job)
    runs.save(job, 2)
    runs.publish(job, only=1)  # the first name: the manifest of step 1 again
    runs.retry(job)
    runs.save(job, 3)
    runs.end(job)
    store = runs.workspace.store
    files = {one.name: one for one in store.files(job.id)}
    torn = files["outputs/checkpoints/step-000000000003/model.pt"]
    runs.workspace.opened.blobs.delete(torn.blob)
    with pytest.raises(UsageError, match="cut short"):
        models.register(
            runs.workspace, name="m", run=job.id, path="outputs/checkpoints/step-000000000003"
        )
    nothing_is_there(runs)
    whole = models.register(
        runs.workspace, name="m", run=job.id, path="outputs/checkpoints/step-000000000001"
    )
    assert sorted(one.name for one in whole.record.files) == ["manifest.json", "model.pt"]


def test_a_checkpoint_of_a_second_node_of_an_earlier_attempt(runs: Runs) -> None:
    job = runs.begin()
    runs.save(job, 1)
    runs.publish(job, node=1)
    runs.save(job, 2)
    runs.publish(job, only=1, node=1)  # the first name: the manifest of step 1 again
    runs.retry(job)
    runs.write(job, checkpoints___notes__txt=b"x")
    runs.end(job)
    folder = "node-1/outputs/checkpoints"
    for path in (f"{folder}/step-000000000001", folder):
        model = models.register(runs.workspace, name="m", run=job.id, path=path)
        names = [one.name.rpartition("/")[2] for one in model.record.files]
        assert sorted(names) == ["manifest.json", "model.pt"]
    blobs, files = runs.workspace.opened.blobs, runs.workspace.store.files(job.id)
    (weights,) = [one for one in files if one.name.endswith("model.pt")]
    blobs.delete(weights.blob)
    with pytest.raises(UsageError, match="is a checkpoint that was cut short"):
        path = f"{folder}/step-000000000001"
        models.register(runs.workspace, name="m", run=job.id, path=path)


def test_run_without_lineage_or_unknown_run_is_refused(runs: Runs) -> None:
    job = runs.begin(snapshot=None)
    runs.write(job, model__pt=b"w")
    runs.end(job)
    with pytest.raises(UsageError, match="no snapshot of its code"):
        models.register(runs.workspace, name="m", run=job.id, path="model.pt")
    job = runs.trained()
    with pytest.raises(NotFoundError, match=r"no file or folder 'modle\.pt'"):
        models.register(runs.workspace, name="m", run=job.id, path="modle.pt")
    with pytest.raises(NotFoundError):
        models.register(runs.workspace, name="m", run="no_1_such", path="model.pt")
    nothing_is_there(runs)


def test_registering_again_is_repeatable(runs: Runs) -> None:
    job = runs.trained((0.5, 0.9))
    assert [best(runs, job.id, 0.9).id for _ in range(3)] == ["best:1"] * 3
    assert len(runs.workspace.store.models()) == 1
