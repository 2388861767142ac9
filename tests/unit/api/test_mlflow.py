"""Real MLflow clients against the endpoints of an attempt and of a driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayjobs import Experiment, Model, Workspace
from rayjobs.api.mlflow_runs import tracking_uri
from rayjobs.injob import mlflow_server
from rayjobs.injob.metrics_file import read_all
from rayjobs.injob.mlflow_server import TrackingServer, tracking_of
from rayjobs.injob.mlflow_tracking import TrackingError

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]


def run(script: str, folder: Path, **environment: str) -> str:
    """Run a script that uses MLflow; return what it printed."""
    path = folder / "script.py"
    path.write_text(script)
    bin_folder = Path(sys.executable).parent
    variables = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    root = tmp_path / "attempt"
    (root / "metrics").mkdir(parents=True)
    variables = {
        "RAYJOBS_RUN_ID": "mnist_1_0a1b",
        "RAYJOBS_ATTEMPT_DIR": str(root),
        "RAYJOBS_METRICS_DIR": str(root / "metrics"),
        "RAYJOBS_EXPERIMENT": "mnist",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture
def server(attempt: dict[str, str]) -> Iterator[TrackingServer]:
    made = TrackingServer(tracking_of(attempt), "token")
    made.start()
    yield made
    made.close()


IN_JOB = """
import json, mlflow
from mlflow import MlflowClient
mlflow.log_metric("loss", 0.5, step=1)
mlflow.log_metric("loss", float("nan"), step=2)
mlflow.log_params({"lr": 0.1, "name": "a"})
mlflow.set_tag("kind", "test")
mlflow.log_text("text", "notes/a.txt")
with mlflow.start_run(nested=True, run_name="fold-1"):
    mlflow.log_metric("loss", 9)
try:
    mlflow.log_param("lr", 0.2)
except mlflow.exceptions.MlflowException as error:
    refused = str(error)
mlflow.end_run()
mlflow.set_experiment("another name")
with mlflow.start_run(run_id="mnist_1_0a1b"):
    mlflow.log_metric("late", 1)
model = mlflow.initialize_logged_model(name="net")
client = MlflowClient()
history = client.get_metric_history("mnist_1_0a1b", "loss")
asked = "metrics.loss > 3 and tags.`mlflow.runName` = 'fold-1'"
runs = mlflow.search_runs(output_format="list", filter_string=asked)
print(json.dumps({
    "steps": [one.step for one in history],
    "refused": refused,
    "found": [one.info.run_name for one in runs],
    "model": model.artifact_location,
    "params": client.get_run("mnist_1_0a1b").data.params,
}))
"""


def test_mlflow_logs_of_a_script_are_in_the_job(
    server: TrackingServer, attempt: dict[str, str], tmp_path: Path
) -> None:
    out = run(
        IN_JOB,
        tmp_path,
        MLFLOW_TRACKING_URI=server.uri,
        MLFLOW_TRACKING_TOKEN="token",
        MLFLOW_RUN_ID="mnist_1_0a1b",
        MLFLOW_EXPERIMENT_NAME="mnist",
    )
    result = json.loads(out.splitlines()[-1])
    assert result["steps"] == [1, 2] and "written once" in result["refused"]
    assert result["found"] == ["fold-1"] and result["params"] == {"lr": "0.1", "name": "a"}
    root = Path(attempt["RAYJOBS_ATTEMPT_DIR"])
    assert (root / "uploads" / "notes" / "a.txt").read_text() == "text"
    assert result["model"] == f"file://{root}/uploads/net"
    records = read_all(str(root / "metrics" / f"rank-{mlflow_server.RANK}.jsonl"))
    metrics = [(one.name, one.value) for one in records if one.kind == "metric"]
    assert metrics == [("loss", 0.5), ("loss", "NaN"), ("fold-1/loss", 9.0), ("late", 1.0)]
    properties = {one.name: one.value for one in records if one.kind == "property"}
    assert properties == {"mlflow.param.lr": "0.1", "mlflow.param.name": "a"}
    # A token is a secret, and what MLflow prints is in the job's log.
    assert "token" not in out
    # A server that takes over has the state of the previous one.
    again = tracking_of(attempt).call("GET", "runs/get", {"run_id": "mnist_1_0a1b"})["run"]
    assert {one["key"] for one in again["data"]["metrics"]} == {"loss", "late"}


@pytest.fixture
def losses(attempt: dict[str, str]) -> Callable[..., list[str]]:
    """A search among four child runs, which returns their names."""
    tracking = tracking_of(attempt)
    own = tracking.call("GET", "runs/get", {"run_id": "mnist_1_0a1b"})["run"]["info"]
    experiment = own["experiment_id"]
    for number, (name, loss) in enumerate(
        (("a", 0.5), ("b", 0.1), ("c", None), ("d", 0.3), ("e", float("nan")))
    ):
        values = {"experiment_id": experiment, "run_name": name, "start_time": 1000 + number}
        values["tags"] = [{"key": "mlflow.parentRunId", "value": "mnist_1_0a1b"}]
        made = tracking.call("POST", "runs/create", values)["run"]["info"]["run_id"]
        if loss is not None:
            point = {"run_id": made, "key": "loss", "value": loss}
            tracking.call("POST", "runs/log-metric", point)
        tracking.call("POST", "runs/log-parameter", {"run_id": made, "key": "n", "value": name})

    def search(*order: str, query: str = "params.n != ''", most: int = 100) -> list[str]:
        body = {"experiment_ids": [experiment], "filter": query, "max_results": most}
        answer = tracking.call("POST", "runs/search", {**body, "order_by": list(order)})
        return [one["info"]["run_name"] for one in answer["runs"]]

    return search


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ((), "edcba"),  # the newest first
        (("metrics.loss ASC",), "bdaec"),
        (("metric.`loss`",), "bdaec"),
        (('metrics."loss" desc',), "adbec"),
        (("params.n DESC",), "edcba"),
        (("tags.mlflow.runName ASC",), "abcde"),
        (("attributes.start_time ASC",), "abcde"),
        (("start_time ASC",), "abcde"),
        (("tags.none", "metrics.loss DESC"), "adbec"),
    ],
)
def test_a_search_is_sorted(
    losses: Callable[..., list[str]], order: tuple[str, ...], names: str
) -> None:
    assert "".join(losses(*order)) == names
    assert "".join(losses(*order, most=1)) == names[0]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("start_time >= 1002", "edc"),
        ("attributes.start_time < 1001", "a"),
        ("metrics.loss <= 0.3", "db"),
        ("metrics.loss != 0.5", "db"),
        ("params.n != 'a' and tags.`mlflow.runName` ILIKE '%B'", "b"),
        ("run_name LIKE 'c%'", "c"),
        ("end_time > 0", ""),
    ],
)
def test_search_compares_numbers_and_texts(
    losses: Callable[..., list[str]], query: str, names: str
) -> None:
    own = "tags.mlflow.parentRunId = 'mnist_1_0a1b'"
    assert "".join(losses(query=f"{query} and {own}")) == names


@pytest.mark.parametrize(
    ("order", "query", "message"),
    [
        ("nothing.loss ASC", "", "'nothing'; runs have metrics"),
        ("metrics.loss FOO", "", "is not understood"),
        ("metrics.loss", "metricss.loss > 0.2", "'metricss'; runs have metrics"),
        ("metrics.loss", "params.n > 'a'", "n cannot be compared by >"),
        ("metrics.loss", "metrics.loss LIKE '0%'", "loss cannot be compared by LIKE"),
        ("metrics.loss", "metrics.loss > 'low'", "loss is compared with a number"),
    ],
)
def test_unsupported_search_is_refused(
    losses: Callable[..., list[str]], order: str, query: str, message: str
) -> None:
    with pytest.raises(TrackingError, match=message):
        losses(order, query=query)


DRIVER = """
import json, os, sys
from pathlib import Path
from rayjobs import Workspace
import mlflow
from mlflow import MlflowClient
workspace = Workspace(path=sys.argv[1] if len(sys.argv) > 1 else os.environ["FOLDER"])
mlflow.set_tracking_uri(workspace.get_mlflow_tracking_uri())
mlflow.set_experiment("trees")
with mlflow.start_run(run_name="first") as first:
    mlflow.log_param("depth", 3)
    mlflow.log_metric("loss", 0.5)
    mlflow.log_metric("loss", 0.25, step=1)
    mlflow.log_text("text", "notes/a.txt")
    with mlflow.start_run(nested=True):
        mlflow.log_metric("inner", 1)
try:
    with mlflow.start_run():
        raise RuntimeError("boom")
except RuntimeError:
    pass
client = MlflowClient()
Path("project").mkdir()
Path("project/MLproject").write_text(
    'name: p\\nentry_points:\\n  main:\\n    parameters: {alpha: float}\\n'
    '    command: "python train.py {alpha}"\\n'
)
Path("project/train.py").write_text(
    "import mlflow, sys\\nwith mlflow.start_run():\\n"
    "    mlflow.log_metric('alpha', float(sys.argv[1]))\\n"
)
done = mlflow.projects.run(
    "project", parameters={"alpha": 0.7}, env_manager="local", experiment_name="projects"
)
print(json.dumps({
    "files": [one.path for one in client.list_artifacts(first.info.run_id, "notes")],
    "text": mlflow.artifacts.load_text(f"runs:/{first.info.run_id}/notes/a.txt"),
    "found": [
        (one.info.status, one.data.params, one.data.metrics)
        for one in mlflow.search_runs(experiment_names=["trees"], output_format="list")
    ],
    "project": (done.get_status(), done.run_id),
}))
"""


def test_runs_of_a_driver_are_interactive_runs_of_the_workspace(
    own_home: Path, tmp_path: Path
) -> None:
    workspace = Workspace.create("w", path=own_home / "w")
    out = run(DRIVER, tmp_path, FOLDER=str(own_home / "w"))
    result = json.loads(out.splitlines()[-1])
    assert (result["files"], result["text"]) == (["notes/a.txt"], "text")
    assert result["found"] == [
        ["FAILED", {}, {}],
        ["FINISHED", {}, {"inner": 1.0}],
        ["FINISHED", {"depth": "3"}, {"loss": 0.25}],
    ]
    runs = list(Experiment(workspace, "trees").get_runs(include_children=True))
    assert [one.status for one in runs] == ["Failed", "Completed", "Completed"]
    assert runs[1].parent is not None and runs[1].parent.id == runs[2].id
    assert (runs[2].display_name, runs[2].get_metrics()) == ("first", {"loss": [0.5, 0.25]})
    assert runs[2].get_file_names() == ["notes/a.txt"]
    status, run_id = result["project"]
    assert status == "FINISHED"
    assert workspace.get_run(run_id).get_metrics() == {"alpha": 0.7}
    workspace.close()


NAMES = """
import json, os
import rayjobs.azureml.install
import azureml.mlflow, mlflow
from pathlib import Path
from azureml.core import Experiment, Workspace
from azureml.exceptions import UserErrorException
workspace = Workspace(path=os.environ["FOLDER"])
mlflow.set_tracking_uri(azureml.mlflow.get_mlflow_tracking_uri(workspace))
mlflow.set_experiment("trees")
with mlflow.start_run() as run:
    mlflow.log_text("text", "net/a.txt")
found = workspace.get_run(run.info.run_id)
urls = [azureml.mlflow.get_portal_url(one) for one in (run, found)]
with Experiment(workspace, "trees").start_logging() as logged:
    Path("net").write_text("x")
    logged.upload_file("net", "net")
model = azureml.mlflow.register_model(logged, "net", "net", tags={"a": "1"})
refused = []
for _ in range(2):
    try:
        azureml.mlflow.register_model(run, "net", "net")
    except UserErrorException as error:
        refused.append(str(error))
    run.info._run_id = "gone"
print(json.dumps([urls, found.id, model.run_id == logged.id, refused]))
"""


def test_azureml_mlflow_names_accept_both_kinds_of_runs(own_home: Path, tmp_path: Path) -> None:
    workspace = Workspace.create("w", path=own_home / "w")
    out = run(NAMES, tmp_path, FOLDER=str(own_home / "w"))
    urls, run_id, is_of_run, refused = json.loads(out.splitlines()[-1])
    assert (urls, is_of_run) == ([f"rayjobs://w/{run_id}"] * 2, True)
    assert "no snapshot of its code" in refused[0] and "snapshot_directory=" in refused[0]
    assert "'gone' is not in a workspace" in refused[1]
    (model,) = Model.list(workspace)
    assert (model.name, model.version, model.tags) == ("net", 1, {"a": "1"})
    workspace.close()


def ask(uri: str, path: str, token: str = "", body: bytes | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"{uri}{path}", data=body)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_unauthorized_and_invalid_requests_get_a_readable_refusal(server: TrackingServer) -> None:
    get = "/api/2.0/mlflow/runs/get?run_id="
    assert ask(server.uri, f"{get}mnist_1_0a1b")[0] == 403
    assert ask(server.uri, f"{get}mnist_1_0a1b", "other")[0] == 403
    assert ask(server.uri, f"{get}mnist_1_0a1b", "token")[0] == 200
    status, text = ask(server.uri, f"{get}nothing", "token")
    assert (status, json.loads(text)["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")
    status, text = ask(server.uri, "/api/2.0/mlflow/registered-models/create", "token", b"{}")
    assert status == 404 and "run.register_model" in text
    for body in (b"no json", b"[]", b'{"run_id": "mnist_1_0a1b", "key": "a", "value": "x"}'):
        assert ask(server.uri, "/api/2.0/mlflow/runs/log-metric", "token", body)[0] == 400
    assert ask(server.uri, "/")[0] == 200
    assert ask(server.uri, "/health", "token") == (200, "OK")


def test_one_process_has_one_endpoint_for_a_workspace(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    workspace = Workspace.create("w", path=own_home / "w")
    assert tracking_uri(workspace) == workspace.get_mlflow_tracking_uri()
    assert ask(tracking_uri(workspace), "/health", "mine") == (200, "OK")
    workspace.close()


LINKED = """
import mlflow
from mlflow import MlflowClient
mlflow.log_metric("loss", 0.5, step=1)
client, run_id = MlflowClient(), mlflow.active_run().info.run_id
(one,) = client.get_metric_history(run_id, "loss")
again = {"timestamp": one.timestamp, "step": one.step, "model_id": "m-1"}
client.log_metric(run_id, "loss", one.value, **again)
client.log_metric(run_id, "loss", 0.25, **again)
"""


def test_metrics_that_are_linked_to_a_model_count_once(
    server: TrackingServer, attempt: dict[str, str], tmp_path: Path
) -> None:
    """MLflow 3 logs the metrics of a run again when a model is logged."""
    run(
        LINKED,
        tmp_path,
        MLFLOW_TRACKING_URI=server.uri,
        MLFLOW_TRACKING_TOKEN="token",
        MLFLOW_RUN_ID="mnist_1_0a1b",
        MLFLOW_EXPERIMENT_NAME="mnist",
    )
    file = Path(attempt["RAYJOBS_METRICS_DIR"]) / f"rank-{mlflow_server.RANK}.jsonl"
    records = read_all(str(file))
    assert [one.value for one in records if one.kind == "metric"] == [0.5, 0.25]
