"""Calls of a job's script through the agent of its node: which are answered, which refused."""

from __future__ import annotations

import asyncio
import json
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core import paths
from rayjobs.datastore import Dataset, Datastore
from rayjobs.injob import run_calls
from rayjobs.injob.attempt_runs import OtherRun
from rayjobs.injob.attempt_workspace import RunWorkspace
from rayjobs.injob.channel import Channel, ChannelError
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.run_calls import RunAnswer
from rayjobs.jobs.records import StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.models import uploaded
from rayjobs.node.node import _end_once_moved
from rayjobs.node.run_calls import RunCalls, token_of
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.submitter import submit_pipeline
from rayjobs.snapshots import blob_key
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import bring
from tests.support.run_calls import Agent, Scene, agent, scene, serve

__all__ = ["agent", "scene", "serve"]

S = JobState

WITHOUT_RAYJOBS = """
    import json, os
    from rayjobs.injob.run import Run

    run = Run.get_context()
    run.description = "from within"
    run.tag("seen")
    one = run.child_run("part")
    with one:
        one.log("loss", 0.5)
        one.log("loss", float("inf"))
        one.log_row("row", x=1, y=None)
        one.tag("k", 3)
        open("a.txt", "w").write("a")
        one.upload_file("deep/a.txt", "a.txt")
    below = one.child_run()
    below.fail(ValueError("no"))
    many = run.create_children(tag_key="fold", tag_values=[0, 1])
    many[0].complete()
    os.remove("a.txt")
    one.download_files("deep/", "back")
    workspace = run.experiment.workspace
    print(json.dumps({
        "metrics": one.get_metrics(),
        "children": sorted(child.name for child in run.get_children()),
        "folds": [child.id == many[1].id for child in run.get_children(tags={"fold": 1})],
        "failed": [child.id == below.id for child in run.get_children(True, status="Failed")],
        "all": len(run.get_metrics(recursive=True)),
        "parent": [one.parent.id == run.id, run.parent],
        "name": [run.name, run.number, run.description, run.status, one.status],
        "tags": [run.tags, one.tags],
        "files": [one.get_file_names(), open("back/deep/a.txt").read()],
        "details": run.get_details()["status"],
        "zip": run.restore_snapshot(path="code.zip"),
        "workspace": [type(workspace).__name__, sorted(workspace.datastores),
                      sorted(workspace.experiments)],
    }))
"""


@pytest.mark.long
def test_a_script_with_the_standard_library_alone(scene: Scene, agent: Agent) -> None:
    found: dict[str, Any] = json.loads(scene.script(WITHOUT_RAYJOBS, bare=True))
    assert found["metrics"] == {"loss": [0.5, float("inf")], "row": {"x": 1, "y": None}}
    assert found["children"][0] == "part" and len(found["children"]) == 3
    assert (found["folds"], found["failed"], found["all"]) == ([True], [True], 5)
    assert found["parent"] == [True, None]
    assert found["name"] == ["train", 1, "from within", "Running", "Completed"]
    assert found["tags"] == [{"team": "blue", "seen": None}, {"k": "3"}]
    assert found["files"] == [["deep/a.txt"], "a"]
    assert found["details"] == "Running"
    with zipfile.ZipFile(scene.root / "work" / found["zip"]) as file:
        assert file.namelist() == ["train.py"]
    assert found["workspace"] == [
        "RunWorkspace",
        ["workspaceblobstore", "workspacefilestore"],
        ["mnist"],
    ]
    store = scene.opened.store
    [part] = [job for job in store.jobs(JobFilter(parent=scene.job)) if job.display_name == "part"]
    assert (part.state, part.user, part.snapshot) == (
        S.COMPLETED,
        "ada",
        store.job(scene.job).snapshot,
    )
    [below] = store.jobs(JobFilter(parent=part.id))
    assert below.failure is not None and below.failure.message == "ValueError: no"
    assert list((scene.root / run_calls.EXCHANGE).iterdir()) == []


@pytest.mark.parametrize("version", [None, 1, 2])
def test_files_of_a_model_and_a_dataset_are_fetched(
    scene: Scene, agent: Agent, tmp_path: Path, version: int | None
) -> None:
    store = Datastore.get_default(scene.opened)
    for number in (1, 2):
        (tmp_path / "a.txt").write_text(f"version {number}")
        uploaded.put(scene.opened, name="digits", path=tmp_path / "a.txt", user="ada")
        store.upload_files([str(tmp_path / "a.txt")], target_path=f"{number}", show_progress=False)
        dataset = Dataset.File.from_files((store, f"{number}/a.txt"))
        registered = dataset.register(scene.opened, "letters", create_new_version=True)
    workspace = RunWorkspace("w", scene.channel())
    text = f"version {version or 2}"
    model = workspace.download_model("digits", tmp_path / "model", version)
    assert Path(model, "a.txt").read_text() == text
    folder = workspace.download_dataset("letters", tmp_path / "data", version)
    assert [one.read_text() for one in Path(folder).rglob("a.txt")] == [text]
    by_id = workspace.download_dataset("", tmp_path / "by-id", id=registered.id)
    assert [one.read_text() for one in Path(by_id).rglob("a.txt")] == ["version 2"]


FOUND_IN_A_JOB = """
    import json, os
    from pathlib import Path
    from rayjobs import Run, Workspace

    own = Run.get_context().experiment.workspace
    found = [Workspace.from_config(), Workspace(), Workspace.get(own.name)]
    os.mkdir(".azureml")
    config = {"workspace_name": "contoso", "subscription_id": "s", "resource_group": "r"}
    Path(".azureml/config.json").write_text(json.dumps(config))
    found.append(Workspace.from_config())
    names = [found[-1].name, found[-1].subscription_id]
    config["rayjobs_workspace"] = "/nowhere/.rayjobs"  # the submitter's folder, on another machine
    Path(".azureml/config.json").write_text(json.dumps(config))
    found.append(Workspace.from_config())
    print(json.dumps({
        "names": names,
        "files": [one.opened.path == own.opened.path for one in found],
        "runs": [one.get_run(Run.get_context().id).status for one in found],
    }))
"""


@pytest.mark.long
def test_a_script_finds_the_workspace_of_its_job(
    scene: Scene, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It creates no other workspace in the data folder of the node's user."""
    monkeypatch.delenv("RAYJOBS_WORKSPACE")
    found = json.loads(scene.script(FOUND_IN_A_JOB))
    assert found["files"] == [True] * 5
    assert found["runs"] == ["Running"] * 5
    assert found["names"] == ["contoso", "s"]
    assert not (paths.home() / "workspace").exists()


WITH_RAYJOBS = """
    import json
    from rayjobs import Dataset, Datastore, Experiment, Model, Run, ScriptRunConfig

    run = Run.get_context()
    workspace = run.experiment.workspace
    store = workspace.get_default_datastore()
    open("data.csv", "w").write("a,b\\n1,2\\n")
    store.upload_files(["data.csv"], target_path="in")
    made = Dataset.File.from_files((store, "in")).register(workspace, "table")
    again = Dataset.get_by_name(workspace, "table")
    by_id = Dataset.get_by_id(workspace, made.id)
    handle = workspace.get_run(run.id)
    open("train2.py", "w").write("print(2)")
    model = Model.register(workspace, "data.csv", "table-model", tags={"area": "tables"})
    own = run.child_run("makes a model")
    own.upload_file("m.csv", "data.csv")
    second = workspace.get_run(own.id).register_model("table-model", "m.csv")
    fetched = Model(workspace, "table-model", version=1).download("models")
    submitted = run.submit_child(ScriptRunConfig(".", "train2.py"), tags={"why": "child"})
    print(json.dumps({
        "workspace": type(workspace).__module__,
        "dataset": [again.name, again.version, by_id.name, [f for f in again.to_path()]],
        "handle": [handle.status, handle.parent, handle.get_details()["runId"] == run.id],
        "runs": [one.id for one in Experiment(workspace, "mnist").get_runs()] == [run.id],
        "environment": run.get_environment().python.user_managed_dependencies,
        "child": [submitted.parent.id == run.id, submitted.status, submitted.get_tags()],
        "models": list(workspace.models),
        "model": [model.version, second.version, second.run_id == own.id, open(fetched).read()],
        "experiments": list(workspace.experiments),
    }))
"""


@pytest.mark.long
def test_a_script_whose_python_has_rayjobs_gets_the_full_workspace(
    scene: Scene, agent: Agent
) -> None:
    found = json.loads(scene.script(WITH_RAYJOBS))
    assert found["workspace"] == "rayjobs.api.workspace"
    assert found["dataset"][:3] == ["table", 1, "table"]
    assert found["handle"] == ["Running", None, True]
    assert found["runs"] and found["environment"]
    assert found["child"] == [True, "Queued", {"why": "child"}]
    assert found["model"] == [1, 2, True, "a,b\n1,2\n"]
    assert (found["models"], found["experiments"]) == (["table-model"], ["mnist"])
    [child, _own] = scene.opened.store.jobs(JobFilter(parent=scene.job))
    assert (child.kind, child.state, child.spec.script) == ("job", S.QUEUED, "train2.py")


def test_values_of_answers_keep_their_json(scene: Scene, agent: Agent) -> None:
    """Scripts of other versions read them, too."""
    calls = RunCalls(scene.on, lambda: scene.opened)

    def value(request: run_calls.Request[Any]) -> Any:
        call = run_calls.RunCall(token_of(scene.root), request.NAME, request.to_json())
        answer = calls.answer(json.dumps(call.to_json()).encode())
        assert answer.error is None
        return json.loads(json.dumps(answer.to_json()))["value"]

    job = scene.opened.store.job(scene.job)
    identity = {
        "id": job.id,
        "name": "train",
        "number": 1,
        "type": "azureml.scriptrun",
        "kind": "job",
        "experiment": "mnist",
        "parent": None,
        "status": "Running",
        "reason": job.reason,
        "description": "",
        "tags": {"team": "blue"},
        "properties": {},
        "snapshot": job.snapshot,
    }
    found = value(run_calls.Details(job.id))
    assert found.pop("details")["runId"] == job.id
    assert found == identity
    changed = value(run_calls.Change(job.id, tags={"team": None, "k": "v"}))
    assert changed == {**identity, "tags": {"k": "v"}}
    started = value(run_calls.Start("child_1_00000001", job.id))
    assert set(started) == set(identity)
    assert value(run_calls.Children(job.id)) == [started]
    point = run_calls.Point("metric", "loss", 0.5, None, 1, 1.0)
    row = run_calls.Point("row", "row", {"x": 1, "y": None}, None, 2, 2.0)
    assert value(run_calls.Log("child_1_00000001", (point, row))) == 2
    assert value(run_calls.Metrics("child_1_00000001")) == [
        ["loss", 0.5],
        ["row", {"kind": "row", "value": {"x": 1, "y": None}}],
    ]
    assert value(run_calls.End("child_1_00000001", "completed")) == "Completed"
    assert value(run_calls.Files("child_1_00000001")) == []
    assert value(run_calls.Records("datastores")) == [
        {"name": "workspaceblobstore", "kind": "local"},
        {"name": "workspacefilestore", "kind": "local"},
    ]
    assert value(run_calls.Records("experiments")) == [{"name": "mnist"}]
    uploaded.put(scene.opened, name="m", path=scene.root / run_calls.TOKEN_FILE, user="ada")
    assert value(run_calls.Records("models")) == [
        {"name": "m", "version": 1, "run": "", "tags": {}}
    ]
    assert value(run_calls.HasBlob("no")) is None


def test_value_of_another_version_is_read_or_refused(
    scene: Scene, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = scene.channel()
    values: list[object] = [[{"id": "a", "later": 1}], ["a"]]
    monkeypatch.setattr(RunCalls, "answer", lambda _self, _line: RunAnswer(values.pop(0)))
    assert channel.call(run_calls.Children("r")) == (run_calls.RunRecord("a"),)
    with pytest.raises(ChannelError, match="cannot be read: a run record is one JSON object"):
        channel.call(run_calls.Children("r"))


def call(channel: Channel, request: Any) -> Any:
    return channel.call(request)


def refused(channel: Channel, request: Any) -> str:
    with pytest.raises(ChannelError) as caught:
        channel.call(request)
    return f"{caught.value.kind}: {caught.value}"


def test_a_token_ends_with_its_attempt(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    store = scene.opened.store
    child = OtherRun(channel, "child_1_00000001", None, "")
    channel.call(run_calls.Start(child.id, scene.job))
    child.log("x", 1)
    assert "not the token" in refused(scene.channel(token="x" * 40), run_calls.Details(scene.job))
    store.move(scene.job, attempt=scene.attempt, old=S.RUNNING, new=S.FINALIZING)
    child.log("x", 2)  # its last write still counts
    store.finish(scene.job, attempt=scene.attempt, state=S.COMPLETED)
    for asked in (
        run_calls.Details(scene.job),
        run_calls.Log(child.id, ()),
        run_calls.Start("child_1_00000002", scene.job),
        run_calls.Method("store", "model", ["$"], {}),
    ):
        assert "AttemptEndedError" in refused(channel, asked)
    assert store.job(child.id).state is S.COMPLETED  # with its attempt
    assert [point.value for point in store.metrics(child.id)] == [1, 2]
    assert [job.id for job in store.jobs(JobFilter(parent=scene.job))] == [child.id]


def test_token_of_a_retried_attempt_is_refused(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    channel.call(run_calls.Details(scene.job))
    scene.opened.store.requeue(
        scene.job, attempt=scene.attempt, reason="lost", outcome=Outcome.NODE_LOST
    )
    assert "AttemptEndedError" in refused(channel, run_calls.Details(scene.job))
    job = scene.opened.store.job(scene.job)
    bring(scene.opened.store, job, S.RUNNING)
    assert "has ended" in refused(channel, run_calls.Details(scene.job))


@pytest.mark.long
def test_without_an_agent_the_end_of_the_attempt_is_named(
    scene: Scene, agent: Agent, serve: Callable[[], Agent]
) -> None:
    channel = scene.channel(patience_s=0.2)
    channel.call(run_calls.Details(scene.job))
    agent.stop()
    assert "does not answer" in refused(channel, run_calls.Details(scene.job))
    (scene.root / "exit.json").write_text("{}")
    assert "AttemptEndedError: attempt 1" in refused(channel, run_calls.Details(scene.job))


@pytest.mark.long
def test_a_call_waits_for_the_next_agent(
    scene: Scene, agent: Agent, serve: Callable[[], Agent]
) -> None:
    channel = scene.channel(patience_s=60)
    request = run_calls.Start("child_1_00000001", scene.job)
    first = channel.call(request)
    agent.stop()
    later = threading.Timer(0.3, serve)
    later.start()
    again = channel.call(request)  # as after a lost answer
    later.join()
    assert again == first
    assert len(scene.opened.store.jobs(JobFilter(parent=scene.job))) == 1


def test_access_to_other_runs_is_refused(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    other, _ = scene.opened.store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="else", snapshot=None, user="eve")
    )
    for asked, text in (
        (run_calls.Change(other.id, tags={"a": "b"}), "not a run of this job"),
        (run_calls.End(other.id, "completed"), "not a run of this job"),
        (run_calls.End(scene.job, "completed"), "not a child run"),
        (run_calls.Log(scene.job, ()), "not a child run"),
        (run_calls.Start("x_1_00000001", other.id), "not a run of this job"),
        (run_calls.Keep(scene.job, ("a",), ("../../../etc/passwd",)), "not a child run"),
        (run_calls.KeepBlob("../../../etc/passwd"), "no file"),
        (run_calls.Details("nothing"), "NotFoundError"),
        (run_calls.Fetch(scene.job, "nothing"), "it has: none"),
        (run_calls.Records("secrets"), "has no 'secrets'"),
        (method("store", "request_cancel", other.id), "not a run of this job"),
        (method("store", "prune_records", [other.id]), "may not call store.prune_records"),
        (method("store", "claim_target", "local"), "may not call store.claim_target"),
        (method("catalogue", "remove_dataset", "x"), "may not call catalogue.remove_dataset"),
        (method("store", "__class__"), "may not call"),
        (method("blobs", "delete", "x"), "may not call blobs.delete"),
    ):
        assert text in refused(channel, asked), asked
    assert scene.opened.store.job(other.id).tags == {}


def test_an_error_of_the_agent_is_not_blamed_on_the_script(
    scene: Scene,
    agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    channel = scene.channel()
    monkeypatch.setattr(SqlStore, "files", fail)
    for request in (run_calls.Files(scene.job), method("store", "files", scene.job)):
        caplog.clear()
        assert refused(channel, request) == "SystemError: ValueError: a bug"
        assert "a call of a script failed" in caplog.text and "a bug" in caplog.text


def test_a_call_that_cannot_be_read_is_a_usage_error(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    channel.call(run_calls.Start("child_1_00000001", scene.job))
    for request in (
        run_calls.Method("store", "job", {"$": "Popen", "of": {}}, []),
        run_calls.Method("store", "job", 3, 3),
        method("store", "job"),
        method("store", "job", scene.job, named={"later": 1}),
        method("store", "end_run"),
        run_calls.End("child_1_00000001", "exploded"),
    ):
        assert "UsageError: the call cannot be read: " in refused(channel, request), request
    for keep in (
        run_calls.Keep("child_1_00000001", ("a", "b"), ("c",)),
        run_calls.Keep("child_1_00000001", ("../a",), ("c",)),
    ):
        text = refused(channel, keep)
        assert "UsageError" in text and ("give one name per" in text or "relative one" in text)


def test_arguments_of_a_call_may_be_named(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    other, _ = scene.opened.store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="else", snapshot=None, user="eve")
    )
    cancel = method("store", "request_cancel", named={"job_id": other.id, "by": "me"})
    assert "not a run of this job" in refused(channel, cancel)
    assert scene.opened.store.job(other.id).cancel_requested_at is None
    channel.call(run_calls.Start("child_1_00000001", scene.job))
    channel.call(method("store", "request_cancel", named={"job_id": "child_1_00000001"}))
    assert scene.opened.store.job("child_1_00000001").state is S.CANCELED


def test_script_cancels_a_job_that_it_submitted(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    child, _ = scene.opened.store.submit(
        NewJob(
            spec=JobSpec(script="a.py"),
            experiment="else",
            snapshot=None,
            user="ada",
            parent=scene.job,
        )
    )
    channel.call(method("store", "request_cancel", child.id))
    assert scene.opened.store.job(child.id).state is S.CANCELED
    cancel = method("store", "request_cancel", scene.job)
    assert "a run cannot cancel itself" in refused(channel, cancel)
    assert scene.opened.store.job(scene.job).cancel_requested_at is None


STEP = """
from rayjobs.injob.run import Run
run = Run.get_context()
above = run.parent
above.log("accuracy", 0.5)
above.tag("build", "7")
above.add_properties({"who": "me"})
open("report.txt", "w").write("good")
above.upload_file("report.txt", "report.txt")
print(above.type, above.get_metrics(), above.get_tags()["build"], above.get_file_names())
for refused in (above.complete, above.fail, above.child_run):
    try:
        refused()
    except Exception as error:
        print(error)
above.cancel()
"""


def test_a_step_reaches_the_run_of_its_pipeline(
    scene: Scene, serve: Callable[[], Agent], tmp_path: Path
) -> None:
    store = scene.opened.store
    definition = {"steps": {"a": {"script": "train.py"}, "b": {"command": "true"}}}
    spec = pipeline_of({"name": "two", **definition}, folder=tmp_path / "source")
    run, other = (submit_pipeline(scene.opened, spec, wake=False).run for _ in range(2))
    scene.job = run.steps[0].job_id
    scene.attempt = bring(store, store.job(scene.job), S.RUNNING)
    scene.on = replace(scene.on, job=scene.job, attempt=scene.attempt)
    serve()
    lines = scene.script(STEP).splitlines()
    assert lines[0] == "azureml.PipelineRun {'accuracy': 0.5} 7 ['report.txt']"
    assert "ends with its last step" in lines[1] and lines[1] == lines[2]
    assert "its only children are its steps" in lines[3]
    assert store.job(run.id).properties["who"] == "me"
    assert store.job(run.steps[1].job_id).state is S.CANCELED
    assert store.job(scene.job).cancel_requested_at is not None
    channel = scene.channel()
    for request in (
        run_calls.Change(other.id, tags={"a": "b"}),
        run_calls.End(other.id, "canceled"),
    ):
        assert "not a run of this job" in refused(channel, request)
    for asked in (
        method("store", "end_run", run.id, named={"outcome": Outcome.COMPLETED}),
        method("store", "set_run_snapshot", run.id, "sha256:" + "0" * 64),
    ):
        assert f"may not call store.{asked.method}" in refused(channel, asked)


def test_a_snapshot_is_never_replaced(scene: Scene, agent: Agent) -> None:
    channel = scene.channel()
    digest = scene.opened.store.job(scene.job).snapshot
    assert digest is not None
    key = blob_key(digest)
    with scene.opened.blobs.open(key) as stored:
        whole = stored.read()

    def keep(content: bytes, key: str) -> run_calls.KeepBlob:
        path = Path(channel.new_file())
        path.write_bytes(content)
        return run_calls.KeepBlob(path.name, key)

    assert "is damaged" in refused(channel, keep(b"other code", key))
    assert "not the key of a snapshot" in refused(channel, keep(whole, "snapshots/../meta"))
    other = blob_key("sha256:" + "0" * 64)
    assert "holds something else" in refused(channel, keep(whole, other))
    assert not scene.opened.blobs.exists(other)
    channel.call(keep(whole, key))  # as a call whose answer was lost
    with scene.opened.blobs.open(key) as stored:
        assert stored.read() == whole


def test_an_answer_that_is_too_large_is_an_error_at_once(
    scene: Scene, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = scene.channel(patience_s=60)
    monkeypatch.setattr("rayjobs.node.run_server.MAX_LINE_BYTES", 500)
    assert "UsageError: the answer has" in refused(channel, run_calls.Details(scene.job))
    monkeypatch.setattr(run_calls, "MAX_LINE_BYTES", 100)
    assert "UsageError: the call has" in refused(channel, run_calls.Details(scene.job))


def test_calls_that_hang_take_no_thread_from_the_node(
    scene: Scene, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def answer(self: RunCalls, line: bytes) -> RunAnswer:
        names.append(threading.current_thread().name)
        return RunAnswer(1)

    monkeypatch.setattr(RunCalls, "answer", answer)
    assert scene.channel().call(run_calls.HasBlob("key")) == 1
    assert not names[0].startswith("asyncio")  # the threads of the loop's own pool have such names


@pytest.mark.long
def test_the_end_of_an_older_server_leaves_the_socket_of_the_next(
    scene: Scene, agent: Agent, serve: Callable[[], Agent]
) -> None:
    channel = scene.channel()
    channel.call(run_calls.Details(scene.job))
    serve()
    agent.stop()  # closes the connection that is open
    assert channel.call(run_calls.Details(scene.job)).status == "Running"


def test_a_server_ends_when_its_workspace_was_moved() -> None:
    async def fails() -> None:
        raise OSError("no")

    async def returns() -> None:
        pass

    async def main() -> None:
        for watch, is_ended in ((returns, True), (fails, False)):
            serving = asyncio.get_running_loop().create_future()
            watching = asyncio.ensure_future(watch())
            watching.add_done_callback(partial(_end_once_moved, serving))
            await asyncio.gather(watching, return_exceptions=True)
            assert serving.cancelled() == is_ended

    asyncio.run(main())


def method(
    part: str, name: str, *args: Any, named: dict[str, Any] | None = None
) -> run_calls.Method:
    from rayjobs.protocol import values

    return run_calls.Method(part, name, values.encode(list(args)), values.encode(named or {}))


def test_foreign_job_is_readable_but_not_writable(scene: Scene, agent: Agent) -> None:
    from rayjobs.protocol import values

    channel = scene.channel()
    found = values.decode(channel.call(method("store", "job", scene.job)))
    assert found == scene.opened.store.job(scene.job)


def test_values_are_transferred_unchanged() -> None:
    from rayjobs.protocol import values

    at = json.loads(json.dumps(values.encode({"a": (1, [b"\x00", None]), 3: {S.FAILED}})))
    assert values.decode(at) == {"a": (1, [b"\x00", None]), 3: {S.FAILED}}
    with pytest.raises(values.ValueFormError, match="cannot be sent"):
        values.encode(object())
    for wrong in ({"$": "Popen", "of": {}}, {"$": "os.system", "is": "true"}, {}, [1], {"$": 1}):
        with pytest.raises(values.ValueFormError):
            values.decode(wrong)
    assert StoredFile.__name__ in values._RECORDS
