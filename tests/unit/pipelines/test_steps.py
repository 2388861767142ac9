"""Steps as Azure ML has them: every argument, and the error for each that is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rayjobs.api.configs import RunConfiguration, ScriptRunConfig
from rayjobs.api.environment import Environment
from rayjobs.api.estimators import Estimator
from rayjobs.api.experiment import Experiment
from rayjobs.api.workspace import Workspace
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.datastore import (
    DataPath,
    DataPathComputeBinding,
    Dataset,
    DatasetConsumptionConfig,
    OutputFileDatasetConfig,
    outputs,
)
from rayjobs.datastore.errors import InvalidReference
from rayjobs.pipelines import (
    CommandStep,
    EstimatorStep,
    HyperDriveStep,
    ModuleStep,
    MpiStep,
    Pipeline,
    PipelineData,
    PipelineEndpoint,
    PipelineParameter,
    PythonScriptStep,
    StepSequence,
    TrainingOutput,
    data,
)
from rayjobs.pipelines.graph import graph_of
from rayjobs.pipelines.planning import Packer, plan
from rayjobs.pipelines.reuse import key_of
from rayjobs.pipelines.runs import PipelineRun
from rayjobs.pipelines.spec import PipelineSpec, StepSpec
from rayjobs.pipelines.submitter import submit_pipeline
from rayjobs.submit import submitting


@pytest.fixture
def ws(tmp_path: Path, own_home: Path) -> Iterator[Workspace]:
    (tmp_path / "src").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "src" / name).write_text("print(1)\n")
    workspace = Workspace.create("ws", path=str(tmp_path / "ws"))
    yield workspace
    workspace.close()


def step(ws: Workspace, name: str = "a", **more: Any) -> PythonScriptStep:
    return PythonScriptStep(**{"script_name": f"{name}.py", "name": name, **source(ws), **more})


def source(ws: Workspace) -> dict[str, Any]:
    return {"source_directory": str(ws.opened.path.parent / "src"), "compute_target": "local"}


def built(ws: Workspace, *steps: Any) -> PipelineSpec:
    return Pipeline(ws, [*steps]).to_spec()


def only(ws: Workspace, one: Any) -> StepSpec:
    (found,) = built(ws, one).steps.values()
    return found


def mpi(ws: Workspace, **changes: Any) -> dict[str, Any]:
    """Return every argument of MpiStep, with `changes`."""
    return {
        "name": "spread",
        "source_directory": source(ws)["source_directory"],
        "script_name": "a.py",
        "arguments": ["--x", 1],
        "compute_target": "local",
        "node_count": 2,
        "process_count_per_node": 2,
        "inputs": [],
        "outputs": [PipelineData("made")],
        "params": {"level": 3},
        "allow_reuse": False,
        "version": "7",
        "hash_paths": ["a.py"],
        "use_gpu": False,
        "use_docker": True,
        "custom_docker_image": None,
        "image_registry_details": None,
        "user_managed": False,
        "conda_packages": None,
        "pip_packages": ["six==1.16.0"],
        "pip_requirements_file_path": None,
        "environment_definition": None,
        "environment_variables": {"MINE": "1"},
        **changes,
    }


def test_an_mpi_step_with_every_argument(ws: Workspace) -> None:
    one = only(ws, MpiStep(**mpi(ws)))
    job = one.job
    assert job["distribution"] == {"nodes": 2, "processes_per_node": 2, "backend": "mpi"}
    assert (job["script"], list(job["arguments"])) == ("a.py", ["--x", "1"])
    assert job["environment_variables"] == {"MINE": "1"}
    assert "six==1.16.0" in str(job["environment"])
    assert set(job["outputs"]) == {"made"}
    assert (one.reuse.allow, one.reuse.version, one.reuse.hash_paths) == (False, "7", ("a.py",))
    assert (dict(one.params), one.title) == ({"level": 3}, "spread")


@pytest.mark.parametrize(
    "missing",
    [
        "name",
        "source_directory",
        "script_name",
        "arguments",
        "compute_target",
        "node_count",
        "process_count_per_node",
    ],
)
def test_each_required_argument_of_an_mpi_step(ws: Workspace, missing: str) -> None:
    with pytest.raises(SpecError, match=f"{missing}: is missing") as caught:
        MpiStep(**mpi(ws, **{missing: None}))
    assert isinstance(caught.value, ValueError)  # as programs of Azure ML catch it
    assert str(caught.value).startswith("MpiStep has 1 problem:")


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("node_count", 0, "not a whole number"),
        ("node_count", "two", "not a whole number"),
        ("node_count", PipelineParameter("n", "two"), "not a whole number"),
        ("process_count_per_node", 1.5, "not a whole number"),
        ("arguments", "--x 1", "not a list"),
        ("inputs", "data", "not a list"),
        ("outputs", "data", "not a list"),
        ("params", ["a"], "not a mapping"),
        ("hash_paths", "a.py", "not a list"),
        ("allow_reuse", "yes", "not True or False"),
        ("version", 7, "not a string"),
        ("nodes", 2, "not an argument of MpiStep"),
        ("environment_definition", "/nowhere/python", "environment_definition"),
        ("environment_definition", 3, "is not an Environment or a path"),
        ("name", 3, "not a string"),
        ("source_directory", 7, "not a string"),
        ("script_name", 7, "not a string"),
        ("compute_target", 7, "not a compute target"),
        ("use_gpu", "yes", "not True or False"),
        ("use_docker", "yes", "not True or False"),
        ("user_managed", "yes", "not True or False"),
        ("custom_docker_image", 3, "not a string"),
        ("image_registry_details", "x", "Give a ContainerRegistry"),
        ("conda_packages", "numpy", "not a list of strings"),
        ("pip_packages", [3], "not a list of strings"),
        ("pip_requirements_file_path", 3, "not a path"),
        ("pip_requirements_file_path", "none.txt", "there is no file"),
        ("environment_variables", "x", "not a mapping"),
    ],
)
def test_each_wrong_argument_of_an_mpi_step(
    ws: Workspace, argument: str, value: Any, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        MpiStep(**mpi(ws, **{argument: value}))
    text = str(caught.value)
    assert f"- {argument}: " in text and words in text


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("source_directory", "/nowhere/src", "'/nowhere/src' does not exist"),
        ("script_name", "none.py", "script: 'none.py' does not exist"),
        ("compute_target", "nowhere", "there is no target 'nowhere'"),
        ("inputs", ["x"], "a str ('x') cannot be"),
        ("outputs", ["x"], "outputs has a str"),
        ("params", {"a b": 1}, "params has the name 'a b'"),
        ("params", {"a": object()}, "params['a'] is a object"),
        ("hash_paths", [3], "hash_paths[0]: 3 is not text"),
        ("environment_variables", {"A B": "1"}, "is not a valid name"),
        ("use_gpu", True, "it needs GPUs"),
    ],
)
def test_mpi_step_problems_on_the_target_are_found_before_submit(
    ws: Workspace, argument: str, value: Any, words: str
) -> None:
    problems = Pipeline(ws, [MpiStep(**mpi(ws, **{argument: value}))]).validate()
    assert len(problems) == 1 and words in problems[0], problems


@pytest.mark.parametrize(
    "other",
    [
        {"use_gpu": True},
        {"custom_docker_image": "image:1"},
        {"conda_packages": ["numpy"]},
        {"pip_packages": ["six==1.16.0"]},
        {"pip_requirements_file_path": "requirements.txt"},
        {"user_managed": True},
        {"environment_variables": {"MINE": "1"}},
    ],
)
def test_an_environment_definition_excludes_its_parts(ws: Workspace, other: dict[str, Any]) -> None:
    (Path(source(ws)["source_directory"]) / "requirements.txt").write_text("six==1.16.0\n")
    alone = {"pip_packages": None, "environment_variables": None, "use_docker": None}
    given = mpi(ws, environment_definition=Environment("e"), **{**alone, **other})
    with pytest.raises(SpecError, match="environment_definition: excludes"):
        MpiStep(**given)
    assert only(ws, MpiStep(**{**given, **dict.fromkeys(other)})).job["script"] == "a.py"


def test_several_nodes_require_a_target_with_several_nodes(ws: Workspace) -> None:
    class Machine:
        name, type = "vm", "RemoteVM"

    with pytest.raises(SpecError, match="RemoteVM has one node"):
        MpiStep(**mpi(ws, compute_target=Machine()))


def test_counts_of_an_mpi_step_may_be_parameters(ws: Workspace) -> None:
    class Mine(MpiStep):
        """A subclass works, unlike that of Azure ML."""

    spec = built(ws, Mine(**mpi(ws, node_count=PipelineParameter("nodes", 2))))
    assert spec.steps["spread"].job["distribution"]["nodes"] == "${{parameters.nodes}}"
    assert spec.parameters["nodes"].default == 2


def test_data_passes_from_step_to_step_in_every_form(ws: Workspace) -> None:
    data, file = PipelineData("data", is_directory=True), PipelineData("file")
    step(ws, arguments=["--out", data, file], outputs=[data, file])
    reads = [data.as_input("again"), file.as_download(), data.as_dataset().as_named_input("named")]
    reader = step(ws, "b", arguments=["--in", *reads], inputs=reads)
    spec = built(ws, reader)  # its producer is found
    assert [*spec.steps] == ["a", "b"]
    made, read = spec.steps["a"].job, spec.steps["b"].job
    variable = "$AZUREML_DATAREFERENCE_"
    assert list(made["arguments"]) == ["--out", f"{variable}data", f"{variable}file"]
    assert made["outputs"]["data"]["is_folder"] and not made["outputs"]["file"]["is_folder"]
    assert {name: (one["source"], one["mode"]) for name, one in read["inputs"].items()} == {
        "again": ("step:a/data", "mount"),
        "file": ("step:a/file", "download"),
        "named": ("step:a/data", "mount"),
    }
    assert [(one.before, one.after) for one in graph_of(spec).edges] == [("a", "b")] * 3


def test_an_output_of_one_step_is_an_input_of_others(ws: Workspace) -> None:
    made = OutputFileDatasetConfig("made", (ws.get_default_datastore(), "made/{run-id}"))
    unnamed = OutputFileDatasetConfig()
    step(ws, arguments=["--out", made.as_upload(), unnamed])
    reads = [made.as_input("again"), made.as_input().as_download("here"), unnamed.as_input("other")]
    spec = built(ws, step(ws, "b", arguments=["--in", *reads]))
    assert [*spec.steps] == ["a", "b"], "its producer is found"
    fields = ("source", "mode", "path_on_compute")
    assert {
        name: tuple(one[field] for field in fields)
        for name, one in spec.steps["b"].job["inputs"].items()
    } == {
        "again": ("step:a/made", "mount", None),
        "made": ("step:a/made", "download", "here"),
        "other": (f"step:a/{unnamed.name}", "mount", None),
    }
    assert list(spec.steps["b"].job["arguments"])[1] == "$AZUREML_DATAREFERENCE_again"
    # As an input in the list alone, too, and in `inputs` as well as in arguments.
    spec = built(ws, step(ws, "b", arguments=[reads[0]], inputs=[reads[0]]))
    assert [*spec.steps["b"].job["inputs"]] == ["again"]
    with pytest.raises(InvalidReference, match="input name"):
        made.as_input("not a name")


def test_an_output_that_several_steps_make_is_refused_as_an_input(ws: Workspace) -> None:
    made = OutputFileDatasetConfig("made")
    makers = [step(ws, name, script_name="a.py", outputs=[made]) for name in ("x", "y")]
    reader = step(ws, "b", inputs=[made.as_input()])
    with pytest.raises(UsageError, match="'x', 'y' all write 'made', which another step reads"):
        built(ws, *makers, reader)
    # Of two pipelines that share the object, each has its own maker.
    spec = built(ws, makers[1], reader)
    assert spec.steps["b"].job["inputs"]["made"]["source"] == "step:y/made"


def test_an_output_that_no_step_makes_is_refused_as_an_input(ws: Workspace) -> None:
    lost = OutputFileDatasetConfig("lost")
    with pytest.raises(UsageError, match="'lost', which no step of the pipeline produces"):
        built(ws, step(ws, inputs=[lost.as_input()]))
    config = ScriptRunConfig(source(ws)["source_directory"], "a.py", [lost.as_input()])
    with pytest.raises(UsageError, match=r"only steps of the pipeline .* can read 'lost'"):
        Experiment(ws, "x").submit(config)


def test_data_that_no_step_makes_is_refused(ws: Workspace) -> None:
    data = PipelineData("data")
    with pytest.raises(UsageError, match="'data', which no step of the pipeline produces"):
        built(ws, step(ws, inputs=[data]))


def test_two_steps_cannot_make_one_object(ws: Workspace) -> None:
    data = PipelineData("data")
    step(ws, outputs=[data])
    with pytest.raises(UsageError, match="both write 'data'"):
        step(ws, "b", outputs=[data])


def test_a_datapath_may_be_a_parameter(ws: Workspace) -> None:
    path = DataPath(ws.get_default_datastore(), "digits")
    given = (PipelineParameter("where", path), DataPathComputeBinding(mode="download"))
    spec = built(ws, step(ws, arguments=["--in", given], inputs=[given]))
    assert spec.parameters["where"].type == "data"
    assert spec.parameters["where"].default == "workspaceblobstore/digits"
    (read,) = spec.steps["a"].job["inputs"].values()
    assert (read["source"], read["mode"]) == ("${{parameters.where}}", "download")


def test_dataset_parameter_may_differ_for_each_run(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "wake_or_start", lambda *_given: False)  # no target is needed
    (ws.opened.path / "numbers.txt").write_text("1")
    store = ws.get_default_datastore()
    for name in ("one", "two"):
        store.upload_files([str(ws.opened.path / "numbers.txt")], target_path=name)
    first = Dataset.File.from_files((store, "one")).register(ws, "first")
    other = Dataset.File.from_files((store, "two"))  # not registered: kept with the run
    parameter = PipelineParameter("numbers", first)
    read = DatasetConsumptionConfig("read", parameter).as_mount()
    pipeline = Pipeline(ws, [step(ws, arguments=["--in", read], inputs=[read])])
    assert pipeline.validate() == []

    def source(**values: Any) -> str:
        run = Experiment(ws, "x").submit(pipeline, pipeline_parameters=values)
        (row,) = ws.opened.store.steps(run.id)
        return ws.opened.store.job(row.job).spec.inputs["read"].source

    assert source() == "dataset:first:1"
    assert source(numbers=other).startswith("saved:sha256:")
    assert source(numbers=DataPath(store, "two")) == "workspaceblobstore/two"


def test_output_of_a_step_may_have_several_readers(ws: Workspace) -> None:
    made = PipelineData("made")
    step(ws, outputs=[made])
    readers = [step(ws, f"reader {n}", script_name="b.py", inputs=[made]) for n in range(3)]
    spec = built(ws, *readers)
    assert [*spec.steps] == ["a", "reader-0", "reader-1", "reader-2"]
    for n in range(3):
        (given,) = spec.steps[f"reader-{n}"].job["inputs"].values()
        assert given["source"] == "step:a/made"


def test_one_name_means_one_parameter(ws: Workspace) -> None:
    first, other = PipelineParameter("n", 1), PipelineParameter("n", 2)
    with pytest.raises(UsageError, match="two PipelineParameters are called 'n'"):
        built(ws, step(ws, arguments=[first, other]))


def test_a_sequence_runs_in_order_with_inner_lists_at_once(ws: Workspace) -> None:
    first, left, right, last = (step(ws, name=f"s{n}", script_name="a.py") for n in range(4))
    spec = built(ws, StepSequence([first, [left, right], last]))
    assert {name: one.after for name, one in spec.steps.items()} == {
        "s0": (),
        "s1": ("s0",),
        "s2": ("s0",),
        "s3": ("s1", "s2"),
    }


def test_steps_of_one_name_get_keys_of_their_own(ws: Workspace) -> None:
    spec = built(ws, step(ws), step(ws))
    assert [*spec.steps] == ["a", "a-2"]
    assert {one.title for one in spec.steps.values()} == {"a"}


def test_a_command_step_takes_data_and_a_configuration(ws: Workspace) -> None:
    data = PipelineData("data")
    one = CommandStep(["cat x >", data], name="shell", outputs=[data], **source(ws))
    assert only(ws, one).job["command"] == 'cat x > "$AZUREML_DATAREFERENCE_data"'
    config = ScriptRunConfig(source(ws)["source_directory"], command="echo 1")
    assert only(ws, CommandStep(runconfig=config, compute_target="local")).job["command"] == (
        "echo 1"
    )
    with pytest.raises(UsageError, match="give a command"):
        CommandStep(runconfig=RunConfiguration())


def test_estimator_step_gets_its_arguments(ws: Workspace) -> None:
    estimator = Estimator(
        source(ws)["source_directory"],
        compute_target="local",
        entry_script="a.py",
        script_params={"--old": 1},
    )
    one = EstimatorStep("est", estimator, ["--new", PipelineParameter("n", 2)])
    assert list(only(ws, one).job["arguments"]) == ["--new", "${{parameters.n}}"]


def test_a_sweep_step_stores_metrics_and_the_best_model(ws: Workspace) -> None:
    from rayjobs.tuning import GridParameterSampling, HyperDriveConfig, PrimaryMetricGoal, choice

    config = HyperDriveConfig(
        run_config=ScriptRunConfig(source(ws)["source_directory"], script="a.py"),
        hyperparameter_sampling=GridParameterSampling({"--x": choice(1, 2)}),
        primary_metric_name="score",
        primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
        max_total_runs=2,
    )
    best = PipelineData("best", training_output=TrainingOutput("Model", model_file="outputs/m.pt"))
    metrics = PipelineData("metrics")
    one = only(ws, HyperDriveStep("search", config, outputs=[best], metrics_output=metrics))
    assert one.sweep is not None
    assert {name: result["what"] for name, result in one.sweep.definition["results"].items()} == {
        "best": "best:outputs/m.pt",
        "metrics": "metrics",
    }
    assert "best" not in one.job.get("outputs", {})
    older = HyperDriveStep("search", hyperdrive_run_config=config)
    assert only(ws, older).sweep is not None
    with pytest.raises(UsageError, match="older name of hyperdrive_config"):
        HyperDriveStep("search", config, hyperdrive_run_config=config)


def test_rerun_program_describes_the_same_steps(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayjobs.tuning import GridParameterSampling, HyperDriveConfig, PrimaryMetricGoal, choice

    store = ws.get_default_datastore()

    def program(files: list[str]) -> dict[str, str]:
        """Return the keys of steps as a new process makes them, once it has uploaded its data."""
        monkeypatch.setattr(outputs, "_UNNAMED", count(1))
        for name in files:
            path = ws.opened.path / name
            path.write_text("1")
            os.utime(path, ns=(next(times), next(times)))
            store.upload_files([str(path)], target_path="in", overwrite=True, show_progress=False)
        data = Dataset.File.from_files((store, "in")).as_named_input("data").as_mount()
        config = HyperDriveConfig(
            run_config=ScriptRunConfig(source(ws)["source_directory"], script="a.py"),
            hyperparameter_sampling=GridParameterSampling({"--x": choice(1, 2)}),
            primary_metric_name="score",
            primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
            max_total_runs=2,
        )
        made = [OutputFileDatasetConfig(), OutputFileDatasetConfig()]
        spec = built(
            ws,
            HyperDriveStep("search", config),
            step(ws, arguments=[*made]),
            step(ws, "b", inputs=[data]),
        )
        packer = Packer(ws.opened, stores=False)
        run = plan(ws.opened, spec, experiment="x", packer=packer)
        assert run.steps[0].sweep is not None
        assert isinstance(run.steps[0].sweep["sampling"]["seed"], int)
        return {one.name: key_of(one.parts) for one in run.steps}

    times = count(1_700_000_000_000_000_000, 1_000_000_000)
    first = program(["one.txt"])
    assert program(["one.txt"]) == first
    assert {name for name, key in program(["two.txt"]).items() if key != first[name]} == {"b"}


def test_unsupported_features_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="rayjobs has no ModuleStep"):
        ModuleStep(module=None)


def test_pipeline_validation_reports_problems_without_submitting(ws: Workspace) -> None:
    assert Pipeline(ws, [step(ws)]).validate() == []
    (problem,) = Pipeline(ws, [step(ws, script_name="gone.py")]).validate()
    assert problem.startswith("steps.a.script")
    assert ws.opened.store.jobs() == []


def test_a_run_of_a_pipeline_takes_no_other_children(ws: Workspace) -> None:
    submitted = submit_pipeline(ws.opened, built(ws, step(ws)), wake=False)
    run = PipelineRun.get(ws, submitted.pipeline.job.id)
    config = ScriptRunConfig(source(ws)["source_directory"], script="a.py")
    calls: tuple[Callable[[], object], ...] = (
        run.child_run,
        lambda: run.create_children(count=2),
        lambda: run.submit_child(config),
    )
    for refused in calls:
        with pytest.raises(UsageError, match="of a pipeline run are its steps"):
            refused()
    assert len(ws.opened.store.jobs()) == 2


def test_endpoint_can_change_its_default_and_name(ws: Workspace) -> None:
    first = Pipeline(ws, [step(ws)]).publish("first")
    second = Pipeline(ws, [step(ws, "b")]).publish("second")
    endpoint = PipelineEndpoint.publish(ws, name="daily", pipeline=first)
    with pytest.raises(UsageError, match="add_default"):
        endpoint.set_default(second)
    endpoint.add(second)
    endpoint.set_default(second)
    assert endpoint.get_default_version() == "1"
    endpoint.set_name("nightly")
    assert endpoint.name == "nightly"
    assert PipelineEndpoint.get(ws, name="nightly").get_pipeline().id == second.id
    with pytest.raises(UsageError, match="has no version latest; it has: 0, 1"):
        endpoint.set_default_version("latest")
    assert [one.name for one in PipelineEndpoint.get_all(ws)] == ["nightly"]
    assert [one.id for one in endpoint.get_all_pipelines()] == [first.id, second.id]
    first.disable()
    assert [one.id for one in endpoint.list_pipelines()] == [second.id]
    assert len(endpoint.list_pipelines(active_only=False)) == 2
    endpoint.archive()
    assert endpoint.status == "Disabled"
    endpoint.reactivate()
    assert endpoint.status == "Active"


def test_handles_have_the_members_of_azure_ml(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "wake_or_start", lambda *_given: False)
    data = PipelineData("made", ws.get_default_datastore())
    assert data.get_env_variable_name() == "AZUREML_DATAREFERENCE_made"
    bound = data.create_input_binding("seen", "download", "/tmp/x", True)
    assert (bound.name, bound.bind_mode, bound.path_on_compute) == ("seen", "download", "/tmp/x")
    assert (bound.data_reference_name, bound.get_bind_object_name()) == ("seen", "made")
    assert data.as_mount("other").name == "other"
    make, use = step(ws, outputs=[data]), step(ws, "b", inputs=[bound])
    use.run_after(make)
    assert use.run_after_steps == [make]
    pipeline = Pipeline(ws, [use])
    published = pipeline.publish("both", continue_on_step_failure=True)
    assert published.get_step_names() == ["a", "b"] and published.total_run_steps == 2
    assert published.continue_on_step_failure and published.workspace is ws
    assert TrainingOutput("Metrics").iteration is TrainingOutput("Metrics").metric is None
    run = Experiment(ws, "x").submit(pipeline)
    assert isinstance(run, PipelineRun)
    (made,) = run.find_step_run("a")
    place = made.get_output_data("made")
    path = f"azureml/{made.id}/made"
    assert (place.datastore_name, place.path_on_datastore) == ("workspaceblobstore", path)
    assert (place.data_reference_name, place.pipeline_run_id) == ("made", run.id)
    assert made.get_output("made").pipeline_run_id == run.id
    assert repr(place) == f"PortDataReference('made', 'workspaceblobstore/{path}')"
    inputs = [place.as_mount("m"), place.as_download("d", "/tmp/y"), place.as_input()]
    job = only(ws, step(ws, inputs=inputs)).job
    assert {name: (one["source"], one["mode"]) for name, one in job["inputs"].items()} == {
        "m": (f"workspaceblobstore/{path}", "mount"),
        "d": (f"workspaceblobstore/{path}", "download"),
        "made": (f"workspaceblobstore/{path}", "mount"),
    }


def test_an_error_names_all_accepted_values() -> None:
    with pytest.raises(UsageError, match="use one of: mount, upload, direct, hdfs"):
        PipelineData("a", output_mode="download")
    with pytest.raises(UsageError, match="use one of: mount, download, direct"):
        data.InputPortBinding("a", bind_mode="upload")
    assert PipelineParameter("_learning rate-1", 1).name == "_learning rate-1"
    with pytest.raises(UsageError, match="underscores, spaces and dashes"):
        PipelineParameter("1st", 1)
