"""What a script can log, and how the rank's file records it."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import rayjobs
from rayjobs import Run
from rayjobs.injob.channel import ChannelError
from rayjobs.injob.metrics_file import LoggedRecord, read_all
from rayjobs.injob.submitted import SubmittedRun
from tests.unit.api.conftest import InJob


def records(in_job: InJob) -> list[LoggedRecord]:
    return read_all(str(in_job.metrics_file))


def attempt_run() -> SubmittedRun:
    run = Run.get_context()
    assert isinstance(run, SubmittedRun)
    return run


def test_context_is_the_submitted_run(in_job: InJob) -> None:
    run = Run.get_context(allow_offline=False)
    assert isinstance(run, SubmittedRun)
    assert run.id == "mnist_1_0a1b2c3d"
    assert run.experiment.name == "mnist"
    assert run.experiment.workspace.name == "team"
    assert Run.get_context() is run
    assert Run.get_submitted_run() is run
    assert run.get_status() == "Running"


def test_each_call_is_one_line_at_once(in_job: InJob) -> None:
    run = Run.get_context()
    run.log("loss", 0.5, step=3)
    line = in_job.metrics_file.read_text()
    assert line.endswith("\n")
    record = json.loads(line)
    assert record.pop("t") > 1e9
    assert record == {"k": "metric", "name": "loss", "value": 0.5, "step": 3}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, 1),
        (True, True),
        (1e-300, 1e-300),
        ("text", "text"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (Decimal("0.25"), 0.25),
        (10**400, "Infinity"),
        ("nul\0", "nul\ufffd"),
        ("lone \ud800", "lone ?"),
    ],
)
def test_scalars_are_kept(in_job: InJob, value: Any, written: Any) -> None:
    Run.get_context().log("m", value)
    assert [record.value for record in records(in_job)] == [written]


def test_scalars_of_numpy_and_torch_are_numbers(in_job: InJob) -> None:
    numpy = pytest.importorskip("numpy")
    run = Run.get_context()
    run.log("a", numpy.float32(0.5), step=numpy.int64(2))
    run.log("b", numpy.array([[3]]))
    run.log("c", numpy.bool_(True))
    run.log_list("d", numpy.array([1.5, numpy.nan]))
    found = [(record.value, record.step) for record in records(in_job)]
    assert found == [(0.5, 2), (3, None), (True, None), ([1.5, "NaN"], None)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.log("m", [1, 2]), "log_list"),
        (lambda run: run.log("m", range(3)), "log_list"),
        (lambda run: run.log("m", (x for x in "ab")), "log_list"),
        (lambda run: run.log("m", {"a": 1}), "log_row"),
        (lambda run: run.log("m", b"bytes"), "bytes"),
        (lambda run: run.log("m", None), "None"),
        (lambda run: run.log("m", object()), "object"),
        (lambda run: run.log(3, 1), "name must be text"),
        (lambda run: run.log("m", 1.0, step=1.5), "whole number"),
        (lambda run: run.log("m", 1.0, step="x"), "whole number"),
        (lambda run: run.log_list("m", [[1], [2]]), "m|list"),
        (lambda run: run.log_row("m", x=[1]), "row"),
        (lambda run: run.log_image("m"), "path= or plot="),
    ],
)
def test_non_numeric_value_is_refused(
    in_job: InJob, call: Callable[[Any], None], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(Run.get_context())
    assert records(in_job) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.log("", 1.0),
        lambda run: run.log("x" * 1_000_000, 1.0),
        lambda run: run.log("two\nlines", 1.0),
        lambda run: run.log("m", "x" * 1_000_000),
        lambda run: run.log("m", 1.0, step=2**70),
        lambda run: run.log_row("m"),
        lambda run: run.log_table("m", {"a": [1, 2], "b": [1]}),
        lambda run: run.log_list("m", range(1_000_000)),
    ],
)
def test_limits_are_reported(in_job: InJob, call: Callable[[Any], None]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        call(Run.get_context())
    assert records(in_job) == []


def test_metrics_read_back_as_in_azure(in_job: InJob) -> None:
    run = Run.get_context()
    run.log("once", 0.5)
    for value in (1, 2, math.nan):
        run.log("often", value)
    run.log_list("list", [1, 2])
    run.log_row("row", x=1, y=2)
    run.log_row("row", x=3, y=4)
    run.log_table("table", {"a": [1, 2], "b": [3, 4]})
    run.log_confusion_matrix("matrix", {"schema_type": "x", "data": {"m": [[1, 0], [0, 1]]}})
    found = run.get_metrics()
    assert math.isnan(found["often"].pop())
    assert found == {
        "once": 0.5,
        "often": [1, 2],
        "list": [1, 2],
        "row": {"x": [1, 3], "y": [2, 4]},
        "table": {"a": [1, 2], "b": [3, 4]},
        "matrix": {"schema_type": "x", "data": {"m": [[1, 0], [0, 1]]}},
    }
    assert run.get_metrics("once") == {"once": 0.5}


def test_ranks_have_files_of_their_own(in_job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    Run.get_context().log("m", 1.0)
    assert (in_job.root / "metrics" / "rank-3.jsonl").exists()


@pytest.mark.long
def test_threads_and_forks_share_the_file(in_job: InJob) -> None:
    run = Run.get_context()
    run.log("m", 0.5)

    def write() -> None:
        for number in range(200):
            run.log("m", float(number) + 0.5)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code = "from rayjobs import Run\nfor i in range(100): Run.get_context().log('m', i)"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [child.wait(150) for child in children] == [0, 0]
    assert len(records(in_job)) == 1 + 4 * 200 + 2 * 100


def test_a_closed_descriptor_is_opened_again(in_job: InJob, tmp_path: Path) -> None:
    run = attempt_run()
    run.log("m", 1.5)
    descriptor = run._file._fd
    os.close(descriptor)
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    try:
        assert other == descriptor  # the number now belongs to another file
        run.log("m", 2.5)
    finally:
        os.close(other)
    assert (tmp_path / "other").read_bytes() == b""
    assert [record.value for record in records(in_job)] == [1.5, 2.5]


def test_tags_and_properties(in_job: InJob) -> None:
    run = Run.get_context()
    run.set_tags({"quality": "good", "epochs": 3})
    run.tag("seen")
    run.add_properties({"author": "me"})
    run.add_properties({"author": "me"})
    with pytest.raises(ValueError, match="only be added"):
        run.add_properties({"author": "you"})
    assert run.get_tags() == {"quality": "good", "epochs": "3", "seen": None}
    assert run.remove_tags(["seen"]) == {"quality": "good", "epochs": "3"}
    kinds = [(record.kind, record.name, record.value) for record in records(in_job)]
    assert kinds[:3] == [("tag", "quality", "good"), ("tag", "epochs", "3"), ("tag", "seen", "")]
    assert kinds[-1] == ("tag", "seen", None)


def test_uploads_are_whole_copies(in_job: InJob, tmp_path: Path) -> None:
    run = attempt_run()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.bin").write_bytes(b"a")
    (tmp_path / "model" / "sub").mkdir()
    (tmp_path / "model" / "sub" / "b.bin").write_bytes(b"b")
    run.upload_file("results/one.bin", str(tmp_path / "model" / "a.bin"))
    run.upload_file("stream.bin", io.BytesIO(b"stream"))
    run.upload_folder("model", str(tmp_path / "model"))
    uploads = in_job.root / "uploads"
    assert (uploads / "results" / "one.bin").read_bytes() == b"a"
    assert (uploads / "stream.bin").read_bytes() == b"stream"
    assert run.get_file_names() == [
        "model/a.bin",
        "model/sub/b.bin",
        "results/one.bin",
        "stream.bin",
    ]
    with pytest.raises(FileExistsError, match="already"):
        run.upload_file("stream.bin", io.BytesIO(b"again"))
    for wrong in ("../x", "/x", "", "a/../../x"):
        with pytest.raises(ValueError, match="cannot be the name"):
            run.upload_file(wrong, io.BytesIO(b""))
    with pytest.raises(FileNotFoundError):
        run.upload_file("missing", str(tmp_path / "missing"))
    assert sorted(path.name for path in uploads.iterdir()) == ["model", "results", "stream.bin"]


def test_images_are_stored_and_named(in_job: InJob, tmp_path: Path) -> None:
    class Figure:
        def savefig(self, path: str) -> None:
            Path(path).write_bytes(b"png")

    (tmp_path / "p.jpg").write_bytes(b"jpg")
    run = Run.get_context()
    run.log_image("a plot", plot=Figure())
    run.log_image("photo/1", path=str(tmp_path / "p.jpg"))
    plot, photo = (record.value for record in records(in_job))
    assert (in_job.root / "uploads" / plot).read_bytes() == b"png"
    assert plot.endswith(".png")
    assert photo.startswith("photo_1_")
    assert photo.endswith(".jpg")


def test_the_end_is_left_to_the_exit_code(in_job: InJob) -> None:
    with attempt_run() as run:
        run.complete()
        run.fail("not so good")
    assert [record.kind for record in records(in_job)] == ["fail"]
    with pytest.raises(KeyError), Run.get_context():
        raise KeyError("mine")
    with pytest.warns(UserWarning, match="a run cannot cancel itself"):
        run.cancel()
    with pytest.raises(ChannelError, match="has no token of its attempt"):
        run.child_run()


def test_inputs_are_found_by_name(in_job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZUREML_DATAREFERENCE_digits", "/data/digits")
    monkeypatch.setenv("RAYJOBS_INPUT_DIGITS", "/data/digits")
    monkeypatch.setenv("digits", "/data/digits")
    assert attempt_run().input_datasets == {"digits": "/data/digits"}


@pytest.mark.long
def test_run_needs_only_the_standard_library_in_a_job(in_job: InJob) -> None:
    """Run, checkpoint and all that they import, in an interpreter without site-packages."""
    code = (
        "import sys\n"
        "sys.path.append(sys.argv[1])\n"
        "from rayjobs import Run, checkpoint\n"
        "run = Run.get_context()\n"
        "run.log('m', 1.5)\n"
        "checkpoint.save(1, {'a': b'x'})\n"
        "assert checkpoint.latest().step == 1\n"
        "outside = [n for n in sys.modules if n.startswith('rayjobs') and '.injob' not in n]\n"
        "print(sorted(outside))\n"
    )
    package = str(Path(rayjobs.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code, package],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['rayjobs', 'rayjobs.api', 'rayjobs.api.run_context']"
    assert [record.value for record in records(in_job)] == [1.5]


def test_heartbeat_counts_and_leaves_no_record(in_job: InJob) -> None:
    run = Run.get_context(allow_offline=False)
    run.log("loss", 1.0)
    os.utime(in_job.metrics_file, (1, 1))
    before = records(in_job)
    run.heartbeat()
    assert in_job.metrics_file.stat().st_mtime > 1
    assert records(in_job) == before
