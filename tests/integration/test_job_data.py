"""Jobs with named data on a real target: where a script finds it, and what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import Experiment, OutputFileDatasetConfig, ScriptRunConfig, Workspace
from rayjobs.core.failures import FailureClass
from rayjobs.data.pins import inputs_read
from rayjobs.datastore import Dataset, Datastore, FileDataset
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Distribution, Input, Output, Registration, Retries
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray

READS = """
import json, os, sys
from rayjobs import Run
run = Run.get_context()
folder = run.input_datasets["digits"]
table = run.input_datasets["table"]
assert sys.argv[1] == folder == os.environ["AZUREML_DATAREFERENCE_digits"]
assert os.environ["RAYJOBS_INPUT_DIGITS"] == os.environ["digits"] == folder
found = sorted(
    os.path.relpath(os.path.join(at, name), folder)
    for at, _, names in os.walk(folder, followlinks=True) for name in names
)
one = run.input_datasets["one"]
with open(os.path.join(run.output_datasets["made"], "result.txt"), "w") as file:
    file.write("made")
assert run.output_datasets["made"] == sys.argv[2]
print(json.dumps({
    "files": found,
    "one": [os.path.basename(one), open(one).read()],
    "rows": table.to_pandas_dataframe()["label"].tolist(),
    "home": os.environ["HOME"],
}))
"""


def fill(store: Datastore, folder: Path) -> None:
    for path in ("train/a.txt", "train/deep/b.txt", "table.csv"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("id,label\n1,cat\n2,dog\n" if "csv" in path else path)
    store.upload(folder, "data", show_progress=False)


def test_job_reads_pinned_data_and_stores_its_outputs(jobs: Jobs, tmp_path: Path) -> None:
    store = Datastore.get_default(jobs.workspace)
    fill(store, tmp_path / "source")
    Dataset.File.from_files((store, "data/train")).register(jobs.workspace, "digits")
    Dataset.Tabular.from_delimited_files((store, "data/table.csv")).register(
        jobs.workspace, "scores"
    )
    job = jobs.submit(
        READS,
        arguments=("$AZUREML_DATAREFERENCE_digits", "${AZUREML_DATAREFERENCE_made}"),
        inputs={
            "digits": Input(source="dataset:digits"),
            "table": Input(source="dataset:scores", mode="direct"),
            "one": Input(source="workspaceblobstore/data/train/a.txt", mode="download"),
            "HOME": Input(source="workspaceblobstore/data"),
        },
        outputs={
            "made": Output(
                destination="workspaceblobstore/made/{run-id}/{output-name}",
                register_as=Registration(name="made"),
            )
        },
    )
    assert job.spec.inputs["digits"].source == "dataset:digits:1"
    jobs.wait(job, JobState.COMPLETED)
    log = jobs.log(job).decode()
    assert '"files": ["a.txt", "deep/b.txt"]' in log
    assert '"one": ["a.txt", "train/a.txt"]' in log
    assert '"rows": ["cat", "dog"]' in log
    assert "inputs/HOME" not in log
    read = {one.name: one.provided for one in inputs_read(jobs.store, job)}
    digits, table, one = read["digits"], read["table"], read["one"]
    assert digits is not None and (digits.version, digits.how) == ("digits:1", "linked")
    assert table is not None and table.version == "scores:1"
    assert one is not None and one.files == 1
    (stored,) = store.files(f"made/{job.id}/made")
    assert stored.path.endswith("result.txt")
    assert Dataset.get_by_name(jobs.workspace, "made").version == 1
    root = jobs.root(job)
    until(lambda: not root.exists(), "the attempt's folder is gone")


PRINTS = """
import os, sys
from rayjobs import Run
files, folder, out, direct = sys.argv[1:]
print(sorted(os.listdir(files)), sorted(os.listdir(folder)))
with open(os.path.join(out, "kept.txt"), "w") as file, open(os.path.join(out, "not"), "w"):
    file.write("kept")
dataset = Run.get_context().input_datasets["table"]
print(dataset.id == direct, dataset.version, dataset.take(1).to_pandas_dataframe().shape)
"""


def test_objects_of_the_python_api_arrive_as_paths(jobs: Jobs, tmp_path: Path) -> None:
    workspace = Workspace(path=jobs.workspace.path)
    store = workspace.get_default_datastore()
    fill(store, tmp_path / "source")
    table = Dataset.Tabular.from_delimited_files((store, "data/table.csv"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PRINTS)
    out = OutputFileDatasetConfig("out", (store, "out/{run-id}")).as_upload(source_globs="*.txt")
    config = ScriptRunConfig(
        tmp_path / "code",
        "train.py",
        [
            Dataset.File.from_files((store, "data/train/**/*.txt"))
            .as_named_input("some")
            .as_mount(),
            store.path("data"),  # without a name, it gets one of hexadecimal digits
            out,
            table.register(workspace, "scores").as_named_input("table"),
        ],
    )
    run = Experiment(workspace, "test").submit(config)
    run.wait_for_completion()
    (log,) = run.get_details_with_logs()["logFiles"].values()
    assert "['a.txt', 'deep'] ['table.csv', 'train']" in log
    assert "True 1 (1, 2)" in log
    assert [file.path for file in store.files(f"out/{run.id}")] == [f"out/{run.id}/kept.txt"]
    used = {
        one["consumptionDetails"]["inputName"]: one for one in run.get_details()["inputDatasets"]
    }
    assert used["some"]["dataset"]["version"].startswith("sha256:")
    assert used["table"]["dataset"]["version"] == "scores:1"
    workspace.close()


def test_data_missing_at_the_start_is_a_data_failure(jobs: Jobs, tmp_path: Path) -> None:
    store = Datastore.get_default(jobs.workspace)
    fill(store, tmp_path / "source")
    Dataset.File.from_files((store, "data/train")).register(jobs.workspace, "digits")
    Path(store.record.settings["root"], "data/train/a.txt").unlink()
    job = jobs.submit(
        "print('never')",
        inputs={"digits": Input(source="dataset:digits:1")},
        retries={"data": 0},
    )
    failed = jobs.wait(job, JobState.FAILED)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.DATA
    assert "input 'digits'" in failed.failure.message
    assert "a.txt" in failed.failure.message
    root = Path(jobs.attempt(job).hosts[0].root)
    until(lambda: not root.exists(), "the attempt's folder is gone")


WRITES = """
import os, signal, sys
from rayjobs import Run
run = Run.get_context()
folder = run.output_datasets["feat"]
assert folder == sys.argv[1], folder
assert os.listdir(folder) == [], (os.path.realpath(folder), os.listdir(folder))
with open(os.path.join(folder, "res.txt"), "w") as file:
    file.write(sys.argv[2])
if sys.argv[3] == "killed" and not os.path.exists(sys.argv[4]):
    open(sys.argv[4], "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_retry_and_other_job_write_to_one_destination_and_lose_nothing(
    jobs: Jobs, tmp_path: Path
) -> None:
    store = Datastore.get_default(jobs.workspace)
    place = tmp_path / "compute" / "feat"

    def submit(text: str, how: str = "well", **more: bool) -> Job:
        output = Output(
            destination=f"{store.name}/features",
            path_on_compute=str(place),
            register_as=Registration(name="features"),
            **more,
        )
        arguments = (str(place), text, how, str(tmp_path / "was-killed"))
        return jobs.submit(
            WRITES, arguments=arguments, outputs={"feat": output}, retries={"user": 1, "data": 1}
        )

    first = jobs.wait(submit("one", "killed"), JobState.COMPLETED)
    assert first.attempt == 2
    second = jobs.wait(submit("two"), JobState.FAILED)
    assert second.failure is not None
    assert second.failure.failure_class is FailureClass.DATA
    assert "features/res.txt" in second.failure.message
    assert second.attempt == 1
    written = Path(jobs.attempt(second).hosts[0].root) / "written" / "feat" / "res.txt"
    assert str(written.parents[1]) in second.failure.message
    assert written.read_text() == "two"
    assert Dataset.get_by_name(jobs.workspace, "features").version == 1
    jobs.wait(submit("one"), JobState.COMPLETED)  # the same bytes
    jobs.wait(submit("three", overwrite=True), JobState.COMPLETED)
    stored = Path(store.record.settings["root"], "features/res.txt")
    assert stored.read_text() == "three"
    until(lambda: not place.is_symlink(), "the link is gone")


HARMS = """
import os, sys, time
shown, stored, waits = sys.argv[1:]
for path in (os.path.join(shown, "a.txt"), stored):
    try:
        with open(path, "w") as file:
            file.write("harmed")
        print("wrote", os.path.basename(os.path.dirname(path)), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
deadline = time.monotonic() + 150
while waits == "waits" and os.path.getsize(stored) < 20:
    assert time.monotonic() < deadline
    time.sleep(0.02)
if waits == "ends":
    open(stored, "w")
"""


def test_job_cannot_change_its_inputs_and_external_changes_are_named(
    jobs: Jobs, tmp_path: Path
) -> None:
    """Also as root. Off switches: no views in the plan; links instead of copies."""
    store = Datastore.get_default(jobs.workspace)
    fill(store, tmp_path / "source")
    Dataset.File.from_files((store, "data/train")).register(jobs.workspace, "digits")
    stored = Path(store.record.settings["root"], "data/train/a.txt")

    def submit(source: str, mode: str, what: str) -> Job:
        arguments = ("$AZUREML_DATAREFERENCE_digits", str(stored), what)
        inputs = {"digits": Input(source=source, mode=mode)}
        return jobs.submit(HARMS, arguments=arguments, inputs=inputs)

    def changes(job: Job) -> list[str]:
        return [one.message for one in jobs.store.events(job.id) if one.kind == "input_changed"]

    refused = "Read-only file system"
    copied = jobs.wait(submit("dataset:digits:1", "download", "ends"), JobState.FAILED)
    assert jobs.log(copied).decode().splitlines()[:2] == ["wrote digits", refused]
    assert (
        copied.failure is not None
        and "files of input 'digits' are read-only" in copied.failure.message
    )
    linked = jobs.wait(submit("dataset:digits:1", "mount", "goes on"), JobState.COMPLETED)
    assert jobs.log(linked).decode().splitlines() == [refused, refused]
    assert stored.read_text() == "train/a.txt"
    assert changes(copied) == changes(linked) == []
    waiting = submit("workspaceblobstore/data/train", "mount", "waits")
    jobs.wait(waiting, JobState.RUNNING)
    stored.write_text("changed by something else")
    jobs.wait(waiting, JobState.COMPLETED)
    (change,) = changes(waiting)
    assert str(stored) in change and "Something else changed them" in change


CONTINUES = """
import os, sys
from rayjobs import Run
out = sys.argv[1]
assert Run.get_context().output_datasets["out"] == out
before = sorted(os.listdir(out))
with open(os.path.join(out, "step-%d" % len(before)), "w") as file:
    file.write("saved")
print("found", before)
sys.exit(0 if before else 3)
"""


def test_mounted_output_of_a_failed_attempt_is_visible_to_the_next(
    jobs: Jobs, tmp_path: Path
) -> None:
    workspace = Workspace(path=jobs.workspace.path)
    store = workspace.get_default_datastore()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(CONTINUES)
    out = OutputFileDatasetConfig("out", (store, "kept/{run-id}")).register_on_complete("kept")
    # The same folder is also an input: only the output is writable.
    (Path(store.record.settings["root"]) / "kept" / "old").mkdir(parents=True)
    (Path(store.record.settings["root"]) / "kept" / "old" / "a").write_text("a")
    config = ScriptRunConfig(tmp_path / "code", "train.py", [out, store.path("kept", "all")])
    spec = config.to_spec().model_copy(update={"retries": Retries(user=1)})
    run = Experiment(workspace, "test").submit(spec)
    run.wait_for_completion()
    log = run.get_details_with_logs()["logFiles"]
    assert "found ['step-0']" in "".join(log.values())
    files = sorted(file.path for file in store.files(f"kept/{run.id}"))
    assert files == [f"kept/{run.id}/step-0", f"kept/{run.id}/step-1"]
    kept = Dataset.get_by_name(workspace, "kept")
    assert isinstance(kept, FileDataset)
    assert kept.to_path() == ["/step-0", "/step-1"]
    workspace.close()


MLFLOW = """
import os
import mlflow
rank = int(os.environ["RANK"])
with mlflow.start_run():
    for step in range(3):
        mlflow.log_metric(f"loss-{rank}", 1.0 / (step + 1), step=step)
    mlflow.log_param(f"rank-{rank}", rank)
    mlflow.log_text("kept", f"notes/rank-{rank}.txt")
print("logged to", mlflow.get_tracking_uri())
"""


def test_mlflow_metrics_of_ranks_are_in_the_run(jobs: Jobs) -> None:
    job = jobs.submit(MLFLOW, distribution=Distribution(processes_per_node=2, backend="gloo"))
    jobs.wait(job, JobState.COMPLETED)
    run = Workspace(path=jobs.workspace.path).get_run(job.id)
    losses = [1.0, 0.5, 1 / 3]
    assert run.get_metrics() == {"loss-0": losses, "loss-1": losses}
    properties = run.get_properties()
    assert (properties["mlflow.param.rank-0"], properties["mlflow.param.rank-1"]) == ("0", "1")
    assert {"notes/rank-0.txt", "notes/rank-1.txt"} <= set(run.get_file_names())
