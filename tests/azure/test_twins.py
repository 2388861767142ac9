"""Programs in the exact form of the public ones train for real, their `azureml` imports unchanged.

Each asserts metrics and files: some example scripts swallow every exception of their training.
"""

from __future__ import annotations

import random
import socket
import tarfile
import zipfile
from pathlib import Path

import pytest

from rayjobs.api.model import Model
from rayjobs.api.run import JobRun
from rayjobs.api.workspace import Workspace
from rayjobs.tuning import HyperDriveRun
from tests.azure.running import (
    CONFIG,
    as_notebook,
    azureml_run,
    copy_twin,
    map_urls,
    output_of,
    ran,
)
from tests.support.local_target import LocalTarget

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_script_estimator_and_sweep_of_one_driver(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("first", own_home)
    done = ran(folder, "driver.py")
    lines = done.stdout.splitlines()
    assert lines[1:5] == ["team-ws", "group-1", "local", CONFIG["subscription_id"]]
    assert "metrics ['accuracy', 'lr']" in lines
    assert "registered first-twin 1" in lines
    assert "estimator Completed" in lines
    assert "compute target 'cpu-cluster' (STANDARD_D2_V2, 0 to 4 nodes) runs" in done.stderr
    workspace = Workspace()
    assert workspace.name == "team-ws"
    runs = list(workspace.experiments["first-twin"].get_runs())
    assert [run.type for run in runs] == ["hyperdrive", "azureml.scriptrun", "azureml.scriptrun"]
    for run in runs[1:]:
        assert run.get_metrics()["accuracy"][-1] > 0.7
        assert "outputs/model.pt" in run.get_file_names()
    assert isinstance(runs[0], HyperDriveRun)
    best = runs[0].get_best_run_by_primary_metric()
    assert best is not None
    assert best.get_metrics()["accuracy"][-1] > 0.7
    workspace.close()


def runs_of(experiment: str) -> list[JobRun]:
    """Return an experiment's runs, the newest first; their workspace stays open."""
    return list(Workspace().experiments[experiment].get_runs())


def test_distributed_training_on_a_gpu_cluster_runs_on_cpus_only_when_that_is_allowed(
    local_target: LocalTarget, own_home: Path
) -> None:
    """PyTorchConfiguration requests nccl; on CPUs, two nodes of one process connect with gloo."""
    folder = copy_twin("ddp", own_home)
    map_urls(folder, cifar=cifar_like(own_home / "cifar.tar.gz"))
    (folder / "gpus.py").write_text(NO_GPUS)
    refused = azureml_run("gpus.py", "job.py", cwd=folder)
    assert refused.returncode == 1
    assert "allow CPUs: `rayjobs azureml run --allow-cpu`" in refused.stderr
    done = ran(folder, "--allow-cpu", "gpus.py", "job.py")
    assert "per process 2" in done.stdout
    assert f"{CONFIG['workspace_name']} {CONFIG['subscription_id']}" in done.stdout
    assert "with gloo in place of nccl" in done.stderr
    (run,) = runs_of("ddp-twin")
    assert "outputs/model.pt" in run.get_file_names()
    assert "azureml-logs/70_driver_log_1.txt" in run.get_file_names()
    assert "per node 2" in ran(folder, "--allow-cpu", "gpus.py", "per_node.py").stdout
    for run in runs_of("ddp-twin"):
        assert run.get_metrics()["accuracy"] > 0.5


def test_transfer_learning_is_swept_and_the_best_model_registered(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("transfer", own_home)
    map_urls(folder, fowl=pictures(own_home / "fowl_data.zip"))
    done = ran(folder, "--allow-cpu", "driver.py")
    assert "pytorch-birds\tpytorch-birds:1\t1" in done.stdout
    sweep, single = runs_of("pytorch-birds")
    assert single.get_metrics()["best_val_acc"][-1] > 0.9
    assert isinstance(sweep, HyperDriveRun)
    best = sweep.get_best_run_by_primary_metric()
    assert best is not None
    assert best.get_metrics()["best_val_acc"][-1] > 0.9
    assert 0.05 <= best.get_metrics()["lr"] <= 0.5
    model = Model(Workspace(), "pytorch-birds")
    assert (model.run_id, model.version) == (best.id, 1)


def test_runs_are_started_tagged_found_canceled_and_failed(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("runs", own_home)
    output = output_of(folder, as_notebook(folder / "manage-runs.cells").name)
    assert "Has it completed? Completed" in output
    assert "refused: " in output
    assert "'quality': 'fantastic run'" in output
    for count in range(3):
        assert f"{{'Hello from child run': {count}}}" in output
    assert "children 5" in output
    assert "Did the run cancel? Canceled" in output
    assert "failed Failed" in output
    snapshot = Path(folder, output.split("snapshot ")[1].splitlines()[0])
    assert "hello.py" in zipfile.ZipFile(snapshot).namelist()
    states = [run.status for run in runs_of("explore-runs")]
    assert sorted(states) == [
        "Canceled",
        "Completed",
        "Completed",
        "Completed",
        *["Completed"] * 2,
        "Failed",
    ]


def test_training_reads_a_table_and_mounted_files(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("datasets", own_home)
    write_iris(folder / "train-dataset" / "iris.csv")
    output = output_of(folder, as_notebook(folder / "train-with-datasets.cells").name)
    assert "files ['outputs/ridge_0.95.pkl']" in output
    # The run's own input, and the pair that the program gives.
    assert "model sklearn_diabetes ['diabetes:1', 'diabetes:1']" in output
    ridge, iris = runs_of("train-with-datasets")
    assert iris.get_metrics()["accuracy"] > 0.9
    assert "outputs/iris_model.pkl" in iris.get_file_names()
    metrics = ridge.get_metrics()
    assert len(metrics["alpha"]) == 20
    assert min(metrics["mse"]) < 3500
    assert [one["dataset"]["name"] for one in ridge.get_details()["inputDatasets"]] == ["diabetes"]


def test_all_kinds_of_values_are_logged_and_read_back(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("logging", own_home)
    output = output_of(folder, as_notebook(folder / "logging-api.cells").name, MPLBACKEND="Agg")
    assert "myfile.txt" in output.split("files ")[1].splitlines()[0]
    assert "tags {'My Favorite Run': None, 'Competition Rank': '1'}" in output
    (run,) = runs_of("logging-api-test")
    assert run.get_metrics()["Magic Number"] == 84
    assert any(name.startswith("Hyperbolic Tangent") for name in run.get_file_names())


def test_horovod_trains_on_two_nodes(local_target: LocalTarget, own_home: Path) -> None:
    folder = copy_twin("horovod", own_home)
    (folder / "gpus.py").write_text(NO_GPUS)
    ran(folder, "--allow-cpu", "gpus.py", "distributed.py")
    (run,) = runs_of("pytorch-distr-hvd")
    assert run.get_metrics()["ranks"] == 2
    assert run.get_metrics()["accuracy"][-1] > 0.6
    assert {"outputs/model.pt", "azureml-logs/70_mpi_log.txt"} <= {*run.get_file_names()}


def test_a_generic_estimator_passes_flags_and_is_swept(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("estimator", own_home)
    output = output_of(folder, as_notebook(folder / "how-to-use-estimator.cells").name)
    assert "cpu-cluster AmlCompute Succeeded" in output
    sweep, *singles = runs_of("estimator-test")
    assert sweep.type == "hyperdrive"
    last = [run.get_metrics()["Fibonacci numbers"][-1] for run in sweep.get_children()]
    assert f"best {max(last)}" in output
    for run in singles:
        assert run.get_metrics()["Fibonacci numbers"] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
        assert "outputs/sequence.txt" in run.get_file_names()


def test_run_history_is_shown_in_tensorboard(local_target: LocalTarget, own_home: Path) -> None:
    folder = copy_twin("history", own_home)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    notebook = as_notebook(folder / "export-run-history-to-tensorboard.cells")
    assert "shown True" in output_of(folder, notebook.name, TWIN_PORT=port)
    (run,) = runs_of("export-to-tensorboard")
    assert len(run.get_metrics()["mse"]) == len(list(run.get_children())) == 7
    assert len(list((folder / "exportedTBlogs").rglob("events.out.tfevents*"))) == 8


def test_training_logs_by_mlflow_in_a_driver_and_in_a_job(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("mlflow", own_home)
    ran(folder, as_notebook(folder / "train-local.cells").name, MPLBACKEND="Agg")
    job, local = runs_of("experiment-with-mlflow")
    assert local.get_metrics()["mse"] < 3500
    assert "actuals_vs_predictions.png" in local.get_file_names()
    assert any(name.startswith("model/") for name in local.get_file_names())
    assert job.get_metrics()["r2"] > 0.3
    assert "training_r2_score" in job.get_metrics()
    assert any(name.endswith("MLmodel") for name in job.get_file_names())


def cifar_like(path: Path) -> Path:
    """Pack pictures of CIFAR's shape: the class is the colour."""
    import torch

    torch.manual_seed(1)
    labels = torch.arange(200) % 10
    colours = torch.randint(0, 255, (10, 3, 1, 1))
    images = (colours[labels] + torch.randint(-9, 9, (200, 3, 32, 32))).clamp(0, 255)
    folder = path.parent / "packed"
    folder.mkdir()
    torch.save((images.to(torch.uint8), labels), folder / "batch.pt")
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder / "batch.pt", "batch.pt")
    return path


def pictures(path: Path) -> Path:
    """Pack light and dark pictures of 16 × 16, as `train/CLASS/` and `val/CLASS/`."""
    chance = random.Random(1)
    with zipfile.ZipFile(path, "w") as packed:
        for part, count in (("train", 24), ("val", 8)):
            for kind, base in (("chickens", 60), ("turkeys", 170)):
                for number in range(count):
                    pixels = bytes(base + chance.randrange(30) for _ in range(16 * 16 * 3))
                    content = b"P6 16 16 255\n" + pixels
                    packed.writestr(f"fowl_data/{part}/{kind}/{number}.ppm", content)
    return path


def write_iris(path: Path) -> None:
    """Write scikit-learn's iris data in the format of the notebook's file."""
    from sklearn.datasets import load_iris

    data, labels = load_iris(return_X_y=True)
    lines = ["sepal_length,sepal_width,petal_length,petal_width,species"]
    lines += [
        ",".join([*map(str, row), f"kind-{label}"]) for row, label in zip(data, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


# The tests' target reports GPUs; this program runs another one as if the target had none.
NO_GPUS = """
import dataclasses, runpy, sys
from rayjobs.target import targets
found = targets.capacity_of
def none(name="local", **more):
    has = found(name, **more)
    nodes = tuple(dataclasses.replace(one, gpus=0.0) for one in has.nodes)
    return dataclasses.replace(has, nodes=nodes)
targets.capacity_of = none
runpy.run_path(sys.argv[1], run_name="__main__")
"""
