"""ParallelRunStep and its configuration: what is stored, and the error for each wrong argument."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.api.workspace import Workspace
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.datastore import DataPath
from rayjobs.datastore.refs import DataReference
from rayjobs.pipelines import (
    ParallelRunConfig,
    ParallelRunStep,
    Pipeline,
    PipelineData,
    PipelineParameter,
)
from rayjobs.pipelines.planning import Packer, plan
from rayjobs.pipelines.spec import StepSpec


@pytest.fixture
def ws(tmp_path: Path, own_home: Path) -> Iterator[Workspace]:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "score.py").write_text("def run(mini_batch):\n    return mini_batch\n")
    workspace = Workspace.create("ws", path=str(tmp_path / "ws"))
    yield workspace
    workspace.close()


def config(ws: Workspace, **changes: Any) -> ParallelRunConfig:
    return ParallelRunConfig(
        **{
            "environment": None,
            "entry_script": "score.py",
            "source_directory": str(ws.opened.path.parent / "src"),
            "error_threshold": 5,
            "output_action": "append_row",
            "compute_target": "local",
            "node_count": 2,
            **changes,
        }
    )


def images(ws: Workspace) -> DataReference:
    store = ws.get_default_datastore()
    return DataReference(store, "images", path_on_datastore="in")


def step(ws: Workspace, one: ParallelRunConfig, **changes: Any) -> ParallelRunStep:
    values = {"inputs": [images(ws)], "output": PipelineData("scores"), **changes}
    return ParallelRunStep(**{"name": "score-all", "parallel_run_config": one, **values})


def stored(ws: Workspace, one: ParallelRunStep) -> StepSpec:
    (found,) = Pipeline(ws, [one]).to_spec().steps.values()
    return found


def test_every_argument_reaches_the_job(ws: Workspace) -> None:
    size, tries = PipelineParameter("size", 3), PipelineParameter("tries", 2)
    side = DataReference(ws.get_default_datastore(), "labels", path_on_datastore="labels")
    one = config(
        ws,
        process_count_per_node=3,
        mini_batch_size=size,
        append_row_file_name="rows.csv",
        logging_level="DEBUG",
        run_invocation_timeout=20,
        run_max_try=tries,
        allowed_failed_count=1,
        allowed_failed_percent=10,
    )
    found = stored(
        ws, step(ws, one, side_inputs=[side], arguments=["--labels", side], allow_reuse=False)
    )
    assert found.job["distribution"] == {"nodes": 2, "processes_per_node": 3, "backend": "gloo"}
    assert dict(found.job["parallel_run"]) == {
        "inputs": ["images"],
        "output": "scores",
        "error_threshold": 5,
        "output_action": "append_row",
        "run_invocation_timeout_s": 20,
        "run_max_try": "${{parameters.tries}}",
        "allowed_failed_count": 1,
        "allowed_failed_percent": 10,
        "logging_level": "DEBUG",
        "mini_batch_size": "${{parameters.size}}",
        "append_row_file_name": "rows.csv",
    }
    assert set(found.job["inputs"]) == {"images", "labels"} and not found.reuse.allow
    assert list(found.job["arguments"]) == ["--labels", "$AZUREML_DATAREFERENCE_labels"]
    assert found.job["outputs"]["scores"]["is_folder"] is True


def test_values_of_parameters_are_numbers_in_the_job(ws: Workspace) -> None:
    one = config(ws, mini_batch_size=PipelineParameter("size", 3))
    spec = Pipeline(ws, [step(ws, one)]).to_spec()
    store = ws.get_default_datastore()
    (Path(ws.opened.path) / "file").write_text("x")
    store.upload_files([str(Path(ws.opened.path) / "file")], target_path="in")
    run = plan(
        ws.opened,
        spec,
        experiment="dry",
        values={"size": 7},
        packer=Packer(ws.opened, stores=False),
    )
    parallel_run = run.steps[0].spec.parallel_run
    assert parallel_run is not None and parallel_run.mini_batch_size == 7
    assert run.steps[0].parts["parallel_run"]["mini_batch_size"] == 7


def test_one_process_needs_no_backend(ws: Workspace) -> None:
    found = stored(ws, step(ws, config(ws, node_count=1)))
    assert found.job["distribution"]["backend"] == "none"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"entry_script": None}, "entry_script: is missing"),
        ({"error_threshold": None}, "error_threshold: is missing"),
        ({"output_action": None}, "output_action: is missing"),
        ({"compute_target": None}, "compute_target: is missing"),
        ({"node_count": None}, "node_count: is missing"),
        ({"error_threshold": -2}, "error_threshold: -2 is not a whole number, -1 or more"),
        ({"output_action": "append"}, "output_action: 'append' is not valid"),
        ({"node_count": 0}, "node_count: 0 is not a whole number"),
        ({"process_count_per_node": 0}, "process_count_per_node: 0 is not"),
        ({"mini_batch_size": "lots"}, "mini_batch_size: 'lots' is not a size"),
        ({"run_max_try": 0}, "run_max_try: 0 is not"),
        ({"run_invocation_timeout": 0}, "run_invocation_timeout: 0 is not"),
        ({"logging_level": "LOUD"}, "logging_level: 'LOUD' is not valid"),
        ({"allowed_failed_count": -1}, "allowed_failed_count: -1 is not"),
        ({"allowed_failed_percent": 101}, "allowed_failed_percent: 101 is not a number from 0"),
        ({"allowed_failed_percent": "few"}, "allowed_failed_percent: 'few' is not a number"),
        ({"partition_keys": ["a"]}, "partition_keys: is not supported"),
        ({"colour": "red"}, "colour: is not an argument"),
    ],
)
def test_each_wrong_argument_of_a_configuration(
    ws: Workspace, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(SpecError) as caught:
        config(ws, **changes)
    assert [str(one) for one in caught.value.problems if text in str(one)]
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "Score All"}, "the name of a ParallelRunStep"),
        ({"parallel_run_config": None}, "give a ParallelRunConfig"),
        ({"inputs": []}, "at least one input"),
        ({"output": None}, "needs an output"),
        ({"output": DataPath(None, "x")}, "output is a DataPath"),
    ],
)
def test_each_wrong_argument_of_a_step(ws: Workspace, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        step(ws, config(ws), **changes)


def test_job_file_may_use_a_parallel_run_and_is_checked(ws: Workspace) -> None:
    from rayjobs.spec.file import build_spec
    from rayjobs.submit import checks

    parallel_run = {"inputs": ["images"], "output": "rows", "mini_batch_size": "10MB"}
    spec = build_spec({"script": "score.py", "parallel_run": parallel_run})
    found = [str(one) for one in checks.check(spec)]
    assert any("the job has no input 'images'" in one for one in found)
    assert any("the job has no output 'rows'" in one for one in found)
    with pytest.raises(SpecError, match="append_row needs an `output`"):
        build_spec({"script": "score.py", "parallel_run": {"inputs": ["images"]}})
    whole = build_spec(
        {
            "script": "score.py",
            "parallel_run": parallel_run,
            "inputs": {"images": "workspaceblobstore/in"},
            "outputs": {"rows": "workspaceblobstore/out"},
        }
    )
    found = [str(one) for one in checks.check(whole)]
    assert any("parallel_run.mini_batch_size" in one for one in found)


def test_limits_of_failures_that_parameters_set_are_checked(ws: Workspace) -> None:
    one = config(
        ws,
        error_threshold=PipelineParameter("threshold", 5),
        allowed_failed_count=PipelineParameter("bad_batches", 1),
        allowed_failed_percent=PipelineParameter("bad_percent", 10),
    )
    spec = Pipeline(ws, [step(ws, one)]).to_spec()
    (ws.opened.path / "file").write_text("x")
    ws.get_default_datastore().upload_files([str(ws.opened.path / "file")], target_path="in")
    packer = Packer(ws.opened, stores=False)

    def planned(**values: Any) -> Any:
        run = plan(ws.opened, spec, experiment="dry", values=values, packer=packer)
        found = run.steps[0].spec.parallel_run
        assert found is not None
        return found.error_threshold, found.allowed_failed_count, found.allowed_failed_percent

    assert planned() == (5, 1, 10)
    assert planned(threshold=-1, bad_batches=0, bad_percent=100) == (-1, 0, 100)
    with pytest.raises(SpecError) as caught:
        planned(threshold=-2, bad_batches=-1, bad_percent=101)
    at = "steps.score-all.parallel_run"
    for field, parameter in (
        ("error_threshold: -2", "threshold"),
        ("allowed_failed_count: -1", "bad_batches"),
        ("allowed_failed_percent: 101", "bad_percent"),
    ):
        (found,) = [str(one) for one in caught.value.problems if f"{at}.{field}" in str(one)]
        assert found.endswith(f"The parameter '{parameter}' sets it.")
    assert len(caught.value.problems) == 3
    with pytest.raises(SpecError, match="'two' is not of the type 'integer'"):
        planned(bad_batches="two")
    with pytest.raises(SpecError, match="allowed_failed_count: -1 is not a whole number, 0 or"):
        config(ws, allowed_failed_count=PipelineParameter("bad_batches", -1))
    with pytest.raises(SpecError, match="allowed_failed_percent: 101 is not a number from 0"):
        config(ws, allowed_failed_percent=PipelineParameter("bad_percent", 101))
