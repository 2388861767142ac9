"""`rayjobs compare`: only the differences between jobs, unless more is requested."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs import snapshots
from rayjobs.cli.compare import FILES_SHOWN
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.results.values import named_arguments
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, NewJob
from tests.unit.cli.conftest import Queue, Terminal


def submitted(queue: Queue, folder: Path, *arguments: str, **spec: Any) -> Job:
    """Write a job with the snapshot of a folder."""
    blobs = queue.workspace.blobs
    packed = snapshots.pack(
        folder, blobs_put=blobs.put_file, blobs_has=blobs.exists, cache=queue.workspace.path / "c"
    )
    job, _ = queue.workspace.store.submit(
        NewJob(
            spec=JobSpec(name="train", script="train.py", arguments=arguments, **spec),
            experiment="train",
            snapshot=packed.digest,
            user="ada",
            numbered=True,
        )
    )
    return job


def measured(queue: Queue, job: Job, values: list[float]) -> None:
    """Log an accuracy for each step."""
    at = datetime.now(UTC)
    points = [
        MetricPoint(attempt=0, rank=0, sequence=n, name="accuracy", value=value, step=n, at=at)
        for n, value in enumerate(values)
    ]
    queue.workspace.store.add_metrics(job.id, points)


@pytest.fixture
def pair(queue: Queue, tmp_path: Path) -> tuple[Job, Job]:
    """Two jobs whose code, arguments and metrics differ."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    (folder / "same.py").write_text("x = 1")
    first = submitted(queue, folder, "--lr", "0.1", "--epochs=3", tags={"owner": "ada"})
    (folder / "train.py").write_text("print(2)")
    (folder / "new.py").write_text("")
    second = submitted(queue, folder, "--lr", "0.2", "--epochs=3", environment_variables={"A": "1"})
    queue.workspace.store.update(first.id, JobChanges(properties={"azureml.git.commit": "abc123"}))
    measured(queue, first, [0.1, 0.5])
    measured(queue, second, [0.2, 0.75])
    return first, second


def rows_of(terminal: Terminal, *arguments: str) -> dict[tuple[str, str], list[Any]]:
    """Return the rows as JSON has them, by section and name."""
    done = terminal.type("compare", "--json", *arguments)
    assert done.code == 0, done.err
    return {(row["section"], row["name"]): row["values"] for row in json.loads(done.out)["rows"]}


def test_only_differences_are_shown(pair: tuple[Job, Job], terminal: Terminal) -> None:
    rows = rows_of(terminal, "train-1", "train-2")
    assert rows["Arguments", "lr"] == ["0.1", "0.2"]
    assert rows["Metrics", "accuracy"] == [0.5, 0.75]
    assert rows["Code", "git commit"] == ["abc123", None]
    assert rows["Code", "new.py"][0] is None
    assert len(set(rows["Code", "train.py"])) == 2
    assert rows["Environment", "variable A"] == [None, "1"]
    assert rows["Job", "tag owner"] == ["ada", None]
    assert ("Code", "same.py") not in rows
    assert ("Arguments", "epochs") not in rows
    everything = rows_of(terminal, "--all", "train-1", "train-2")
    assert everything["Arguments", "epochs"] == ["3", "3"]
    assert len(set(everything["Code", "same.py"])) == 1
    assert set(rows) < set(everything)


def test_comparison_is_a_table_with_a_column_for_each_job(
    pair: tuple[Job, Job], terminal: Terminal
) -> None:
    done = terminal.type("compare", *[job.id for job in pair])
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["train-1", "train-2"]
    assert ["lr", "0.1", "0.2"] in lines
    assert ["accuracy", "0.5", "0.75"] in lines
    assert ["Metrics"] in lines
    assert (done.code, done.err) == (0, "")


def test_number_of_further_files_ends_the_section_of_the_code(
    queue: Queue, tmp_path: Path, terminal: Terminal
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    first = submitted(queue, tmp_path)
    for number in range(FILES_SHOWN + 3):
        (tmp_path / f"f{number:03}.py").write_text("")
    second = submitted(queue, tmp_path)
    measured(queue, first, [0.5])
    measured(queue, second, [0.75])
    lines = [
        line.strip() for line in terminal.type("compare", "train-1", "train-2").out.split("\n")
    ]
    assert lines.index("… 3 more files: --json") < lines.index("Metrics")


def test_compare_reports_equal_jobs(queue: Queue, tmp_path: Path, terminal: Terminal) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    submitted(queue, tmp_path)
    submitted(queue, tmp_path)
    done = terminal.type("compare", "train-1", "train-2")
    assert (done.code, done.out.split()) == (0, ["train-1", "train-2"])
    assert "the recorded values do not differ" in done.err


def test_pruned_code_is_a_note(queue: Queue, pair: tuple[Job, Job], terminal: Terminal) -> None:
    assert pair[0].snapshot is not None
    queue.workspace.blobs.delete(snapshots.blob_key(pair[0].snapshot))
    done = terminal.type("compare", "train-1", "train-2")
    assert done.code == 0
    assert f"the files of {pair[0].id} cannot be compared" in done.err


def test_one_job_is_refused(pair: tuple[Job, Job], terminal: Terminal) -> None:
    assert terminal.type("compare", "train-1").code == 2
    same = terminal.type("compare", "train-1", pair[0].id)
    assert same.code == 2
    assert "are the same job" in same.err


@pytest.mark.long
def test_common_metrics_are_drawn(
    queue: Queue, pair: tuple[Job, Job], terminal: Terminal, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.svg"
    done = terminal.type("compare", "train-1", "train-2", "--plot", str(picture))
    assert done.code == 0, done.err
    drawn = picture.read_text()
    assert "#1f5fa8" in drawn  # a curve each
    assert "#d55e00" in drawn
    other = queue.submit("other")
    bare = terminal.type("compare", "other", "train-1", "--plot", str(picture))
    assert (bare.code, other.id in bare.err) == (3, False)
    assert "no numbers that could be drawn" in bare.err


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--lr", "0.1", "--fast", "--name=x"), {"lr": "0.1", "fast": "true", "name": "x"}),
        (("--shift", "-1e-3", "-v", "-n", "2"), {"shift": "-1e-3", "v": "true", "n": "2"}),
        (("model.depth=3", "data.csv", "--", "-"), {"model.depth": "3"}),
        (("--a", "--b", "1"), {"a": "true", "b": "1"}),
    ],
)
def test_arguments_have_names(arguments: tuple[str, ...], found: dict[str, str]) -> None:
    assert named_arguments(arguments) == found
