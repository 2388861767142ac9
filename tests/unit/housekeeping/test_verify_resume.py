"""What verify-resume compares, without a target: curves, files, kills chosen by the seed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy
import pytest

from rayjobs.core.errors import RayjobsError, StoreBusyError, UsageError
from rayjobs.housekeeping.verify_resume import tensors, verify
from rayjobs.housekeeping.verify_resume.compare import Tolerance, curves
from rayjobs.housekeeping.verify_resume.kills import Pace, choose, pace_of, restarts
from rayjobs.jobs.records import MetricPoint, name_of
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.submit import submitting
from tests.unit.cli.conftest import Queue, queue  # noqa: F401 - a fixture

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


def point(
    step: int | None, value: float, *, attempt: int = 1, name: str = "loss", number: int = 0
) -> MetricPoint:
    at = BEGAN + timedelta(seconds=step or 0)
    return MetricPoint(
        attempt=attempt, rank=0, sequence=number, name=name, value=value, step=step, at=at
    )


def sentences(before: list[MetricPoint], after: list[MetricPoint]) -> list[str]:
    found, _ = curves(before, after, tolerance=Tolerance())
    return [text for one in found for text in one.sentences]


FIVE = [point(step, step / 2) for step in range(5)]


def test_equal_curve_is_not_a_finding() -> None:
    assert sentences(FIVE, list(FIVE)) == []
    assert sentences([point(1, float("nan"))], [point(1, float("nan"))]) == []
    assert sentences([point(1, 1.0)], [point(1, 1.0 + 1e-6)]) == []


def test_gaps_doubles_and_values_are_distinguished() -> None:
    assert sentences(FIVE, [FIVE[0], FIVE[1], FIVE[4]]) == [
        "metric 'loss' has a gap: steps 2, 3 missing"
    ]
    assert sentences(FIVE, [*FIVE, FIVE[3]]) == ["metric 'loss' is doubled at step 3"]
    assert sentences(FIVE, [*FIVE, point(7, 0.0)]) == [
        "metric 'loss' has step 7, which the undisturbed run lacks"
    ]
    other = [*FIVE[:2], point(2, 1.5), point(3, 3.5), FIVE[4]]
    assert sentences(FIVE, other) == [
        "metric 'loss' first differs at step 2: by 0.5 there, by 2 at most"
    ]
    assert sentences(FIVE, []) == ["metric 'loss' has a gap: steps 0, 1, 2, 3, 4 missing"]


def test_metrics_without_a_step_are_named_and_not_compared() -> None:
    loose = [point(None, 1.0, name="time")]
    found, left_out = curves([*FIVE, *loose], [*FIVE, *loose, *loose], tolerance=Tolerance())
    assert [one.name for one in found] == ["loss"]
    assert left_out == ["time"]
    assert curves(FIVE, [], tolerance=Tolerance(), ignore={"loss"}) == ([], [])


def test_one_seed_chooses_the_same_steps_and_spares_the_ends() -> None:
    pace = pace_of([point(step, 0.0) for step in range(100)])
    assert pace is not None
    assert (pace.name, pace.step_s) == ("loss", 1.0)
    for seed in range(50):
        chosen = choose(pace, 4, random.Random(seed))
        assert chosen == choose(pace, 4, random.Random(seed))
        assert chosen == sorted(set(chosen))
        assert chosen[0] >= 10
        assert chosen[-1] < 99
    assert choose(pace, 4, random.Random(1)) != choose(pace, 4, random.Random(2))


def test_too_few_steps_are_refused_with_the_remedy() -> None:
    pace = Pace("loss", 0, (0, 1, 2), 1.0)
    with pytest.raises(UsageError, match=r"3 steps.*too few for 2 kills.*--kills"):
        choose(pace, 2, random.Random(0))
    assert pace_of([point(None, 1.0)]) is None


def test_an_attempt_that_ignores_its_checkpoint_is_named() -> None:
    pace = Pace("loss", 0, (0, 1, 2, 3), 1.0)
    resumed = [point(0, 0.0), point(1, 0.0), point(1, 0.0, attempt=2)]
    assert restarts(resumed, pace, attempts=2, brought=[2]) == []
    restarted = [point(0, 0.0), point(1, 0.0), point(0, 0.0, attempt=2)]
    (sentence,) = restarts(restarted, pace, attempts=2, brought=[2])
    assert "attempt 2 started over at step 0, though it was given a checkpoint" in sentence
    (sentence,) = restarts(restarted, pace, attempts=2, brought=[])
    assert "attempt 1 stored no complete checkpoint" in sentence


def compared(folder: Path, name: str, one: object, other: object) -> dict[str, object]:
    """Compare two files of JSON, or of arrays, by the process that verify-resume starts."""
    for side, content in (("a", one), ("b", other)):
        path = folder / side / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif name.endswith(".npz"):
            assert isinstance(content, dict)
            numpy.savez(path, **content)
        else:
            path.write_text(json.dumps(content))
    done = subprocess.run(
        [
            sys.executable,
            tensors.__file__,
            str(folder / "a"),
            str(folder / "b"),
            "1e-5",
            "1e-8",
            name,
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    (found,) = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.long
def test_arrays_are_compared_by_name(tmp_path: Path) -> None:
    before = {"w": numpy.ones(3), "b": numpy.zeros(2), "old": numpy.ones(1)}
    after = {"w": numpy.array([1.0, 1.5, 1.0]), "b": numpy.zeros(2), "new": numpy.ones(1)}
    found = compared(tmp_path, "state.npz", before, after)
    assert found["largest"] == [{"name": "w", "by": 0.5}]
    assert (found["missing"], found["extra"]) == (["old"], ["new"])


@pytest.mark.long
def test_the_largest_differences_are_listed(tmp_path: Path) -> None:
    before = {f"v{number:02}": 0.0 for number in range(30)} | {"text": "x"}
    after = {f"v{number:02}": float(number) for number in range(30)} | {"text": "y"}
    found = compared(tmp_path, "s.json", before, after)
    largest = found["largest"]
    assert isinstance(largest, list)
    names = [one["name"] for one in largest]
    assert names == ["text", *(f"v{number:02}" for number in range(29, 10, -1))]
    assert found["differ"] == 30


@pytest.mark.long
def test_plain_values_and_shapes(tmp_path: Path) -> None:
    found = compared(tmp_path, "s.json", {"a": [1, 2.0], "n": "x"}, {"a": [1, 2.5], "n": "y"})
    assert found["largest"] == [
        {"name": "n", "why": "is 'y', not 'x'"},
        {"name": "a.1", "by": 0.5},
    ]
    found = compared(tmp_path, "t.npz", {"w": numpy.ones(3)}, {"w": numpy.ones(4)})
    assert found["largest"] == [{"name": "w", "why": "its shape is [4], not [3]"}]


def test_files_of_no_known_kind_are_never_executed(tmp_path: Path) -> None:
    found = compared(tmp_path, "state.pkl", b"one", b"two")
    assert "byte for byte" in str(found["unread"])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreBusyError("locked"), "`rayjobs verify-resume`, which failed"),
        (KeyboardInterrupt(), "`rayjobs verify-resume`, which was interrupted"),
    ],
)
def test_the_cancel_of_its_jobs_says_how_it_ended(
    queue: Queue,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    words: str,
) -> None:
    def end(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(verify, "submit", partial(submitting.submit, wake=False))
    monkeypatch.setattr(verify.attaching, "attach", end)  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        verify.verify(queue.workspace, verify.Asked(JobSpec(command="true"), "e"))
    (job,) = queue.workspace.store.jobs()
    assert (job.state, words in job.reason) == (JobState.CANCELED, True)


@pytest.mark.parametrize("shown", [None, "my script"])
def test_its_jobs_have_different_names(
    queue: Queue,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    shown: str | None,
) -> None:
    """A disturbed run that ends too early is followed by another one."""
    points = [point(step, 0.0) for step in range(100)]
    store = queue.workspace.store
    monkeypatch.setattr(type(store), "metrics", lambda *_arguments, **_values: points)
    monkeypatch.setattr(verify, "submit", partial(submitting.submit, wake=False))
    monkeypatch.setattr(
        verify.attaching,  # type: ignore[attr-defined]
        "attach",
        lambda _workspace, job: queue.finish(queue.start(store.job(job))),
    )
    monkeypatch.setattr(verify.checkpoints, "newest", lambda *_arguments: "one")  # type: ignore[attr-defined]
    monkeypatch.setattr(verify.starting, "ensure_target", lambda *_a, **_b: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(verify.Hunter, "kill", lambda *_arguments: None)  # type: ignore[attr-defined]
    spec = JobSpec(command="true", name="a" * 128, display_name=shown)
    said: list[str] = []
    with pytest.raises(RayjobsError, match=r"^(\S+, ){2}\S+ ended before one of their") as error:
        verify.verify(queue.workspace, verify.Asked(spec, "e"), say=said.append)
    assert all(job.id in str(error.value) for job in list(store.jobs())[:3])
    assert sum("running it again" in text for text in said) == 2
    names = [name_of(job) for job in reversed(store.jobs())]
    if shown is None:
        short, shorter = "a" * 118, "a" * 116
        numbered = [f"{short}-disturbed-{number}" for number in (1, 2, 3)]
        assert names == [f"{shorter}-undisturbed-1", *numbered]
    else:
        assert names == ["my script (undisturbed)", *["my script (disturbed)"] * 3]
