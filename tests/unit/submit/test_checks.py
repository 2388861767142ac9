"""What is refused at submit beyond the form of a spec, and what is only warned of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import CannotBePlacedError, SpecError
from rayjobs.policy.capacity import Capacity, NodeShape
from rayjobs.spec.file import build_spec
from rayjobs.spec.model import JobSpec
from rayjobs.submit.checks import check, refuse, warnings


def spec(**data: Any) -> JobSpec:
    if "command" not in data:
        data.setdefault("script", "train.py")
    return build_spec(data)


def problems_of(one: JobSpec, **options: Any) -> dict[str, str]:
    return {problem.path: str(problem) for problem in check(one, **options)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(")  # a syntax error is not checked at submit
    (folder / "pkg" / "run.py").touch()
    (tmp_path / "outside.py").touch()
    return folder


@pytest.mark.parametrize("script", ["train.py", "./train.py", "pkg/run.py", "pkg/../train.py"])
def test_a_script_that_is_there_is_accepted_even_with_a_syntax_error(
    source: Path, script: str
) -> None:
    assert problems_of(spec(script=script), source=source) == {}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("tarin.py", "Did you mean `train.py`?"),
        ("pkg/rum.py", "Did you mean `run.py`?"),
        ("train", "Did you mean `train.py`?"),
        ("nix.py", "There are: link.py, train.py"),
        ("train.yaml", "There are: link.py, train.py"),
        ("other/x.py", "There are: link.py, train.py"),
        ("train.py/x", "does not exist"),
        ("pkg", "is a folder"),
        ("../outside.py", "outside"),
        ("pkg/../../outside.py", "outside"),
        ("link.py", "outside"),
        ("/etc/passwd", "outside"),
        ("pipe", "not a plain file"),
        (" ", "is empty"),
        ("loop", "cannot be read"),
    ],
)
def test_a_script_that_cannot_be_run_is_refused_with_a_hint(
    source: Path, script: str, message: str
) -> None:
    (source / "link.py").symlink_to("../outside.py")
    (source / "loop").symlink_to("loop")
    os.mkfifo(source / "pipe")
    found = check(spec(script=script), source=source)
    assert any(message in str(problem) for problem in found), found


def test_an_absolute_script_inside_is_named_as_it_should_be(source: Path) -> None:
    found = problems_of(spec(script=str(source / "train.py")), source=source)
    assert "Write `train.py`." in found["script"]


def test_a_source_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "does not exist" in problems_of(spec(), source=tmp_path / "no")["source_directory"]


def test_several_processes_without_a_backend_are_refused_with_a_remedy() -> None:
    found = problems_of(spec(distribution={"processes_per_node": 2}))
    assert "gloo" in found["distribution.backend"]
    assert problems_of(spec(distribution={"processes_per_node": 2, "backend": "gloo"})) == {}


def test_nccl_needs_gpus_and_a_command_runs_once_per_node() -> None:
    assert "gloo" in problems_of(spec(distribution={"backend": "nccl"}))["distribution.backend"]
    many = {"processes_per_node": 2, "backend": "gloo"}
    assert problems_of(spec(command="ls", distribution=many)).keys() == {
        "distribution.processes_per_node"
    }


def test_nccl_needs_a_whole_gpu_for_each_process() -> None:
    shape = {"processes_per_node": 4, "backend": "nccl"}
    found = problems_of(spec(resources={"gpus": 0.5}, distribution=shape))
    assert "4 processes per node × 0.5 are 2 GPUs" in found["resources.gpus"]
    assert "--gpus-per-proc 1" in found["resources.gpus"]
    assert problems_of(spec(resources={"gpus": 1}, distribution=shape)) == {}
    assert problems_of(spec(resources={"gpus": 0.5}, distribution={"backend": "nccl"})) == {}


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", "horovod-gloo"])
def test_idle_gpus_of_a_distributed_job_are_reported(backend: str) -> None:
    shape = {"nodes": 2, "processes_per_node": 2, "backend": backend}
    (warning,) = warnings(spec(resources={"gpus": 2}, distribution=shape))
    assert warning.startswith("2 processes per node for 4 GPUs")
    assert "`--procs-per-node 4 --gpus-per-proc 1`" in warning
    assert warnings(spec(resources={"gpus": 1}, distribution=shape)) == []


def test_idle_gpus_of_one_process_are_reported() -> None:
    (warning,) = warnings(spec(resources={"gpus": 2}))
    assert warning.startswith("1 process per node for 2 GPUs")
    assert "--procs-per-node 2 --gpus-per-proc 1 --backend nccl" in warning
    # A command may start torchrun.
    assert warnings(spec(command="torchrun train.py", resources={"gpus": 2})) == []


@pytest.mark.parametrize(
    ("gpus", "processes", "is_right"),
    [
        (0, 4, True), (0.5, 1, True), (0.5, 2, True), (0.5, 4, True), (1, 3, True), (8, 1, True),
        (0.1, 10, True), (0.3, 3, True), (1.5, 1, False), (1.5, 2, False), (0.5, 3, False),
        (0.7, 2, False), (0.00001, 1, False),
    ],
)  # fmt: skip
def test_gpus_per_node_are_whole_or_a_fraction_of_one(
    gpus: float, processes: int, is_right: bool
) -> None:
    shape = {"processes_per_node": processes, "backend": "gloo"}
    found = problems_of(spec(resources={"gpus": gpus}, distribution=shape))
    assert (found == {}) is is_right, found


def test_the_suggested_share_of_a_gpu_is_accepted() -> None:
    shape = {"processes_per_node": 5, "backend": "gloo"}
    text = problems_of(spec(resources={"gpus": 0.5}, distribution=shape))["resources.gpus"]
    share = float(text.rpartition("=")[2].rstrip("."))
    assert problems_of(spec(resources={"gpus": share}, distribution=shape)) == {}


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "RAYJOBS_RUN_ID", "AZUREML_RUN_ID",
             "OMPI_COMM_WORLD_RANK", "AZ_BATCH_MASTER_NODE"],
)  # fmt: skip
def test_variables_that_the_queue_sets_are_refused(name: str) -> None:
    assert f"environment_variables.{name}" in problems_of(spec(environment_variables={name: "1"}))
    assert f"secrets.{name}" in problems_of(spec(secrets={name: {"file": "/x"}}))


@pytest.mark.parametrize("devices", ["0", "1,0", "GPU-1"])
def test_a_job_does_not_choose_its_gpus(devices: str) -> None:
    chosen = problems_of(spec(environment_variables={"CUDA_VISIBLE_DEVICES": devices}))
    assert chosen.keys() == {"environment_variables.CUDA_VISIBLE_DEVICES"}


def test_other_variables_are_the_jobs_own() -> None:
    mine = {"AZUREML_COMPUTE_USE_COMMON_RUNTIME": "true", "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    assert problems_of(spec(environment_variables=mine)) == {}
    both = spec(environment_variables={"A": "1"}, secrets={"A": {"file": "/x"}})
    assert problems_of(both).keys() == {"secrets.A"}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"arguments": ["a", "b\0c"]}, "arguments[1]"),
        ({"environment_variables": {"A": "\0"}}, "environment_variables.A"),
        ({"script": "a\0.py"}, "script"),
        ({"command": "ls\0"}, "command"),
        ({"inputs": {"a": "nowhere"}}, "inputs.a.source"),
        ({"inputs": {"a": "store/../x"}}, "inputs.a.source"),
        ({"inputs": {"a": "http://169.254.169.254/x"}}, "inputs.a.source"),
        ({"inputs": {"a": "dataset:"}}, "inputs.a.source"),
        ({"inputs": {"a": "dataset:x:y:z"}}, "inputs.a.source"),
        ({"inputs": {"a": {"source": "s/x", "path_on_compute": "../x"}}},
         "inputs.a.path_on_compute"),
        ({"inputs": {"a": "s/x", "A": "s/y"}}, "inputs.A"),
        ({"inputs": {"a": "s/x"}, "outputs": {"a": "s/y"}}, "outputs.a"),
        ({"outputs": {"a": "/abs"}}, "outputs.a.destination"),
        ({"depends_on": ["j1", "j1"]}, "depends_on[1].job"),
        ({"depends_on": ["me"]}, "depends_on[0].job"),
        ({"arguments": ["x"] * 10_001}, "arguments"),
        ({"arguments": ["x" * 1_100_000]}, "arguments"),
        ({"tags": {"a": "x" * 5_000}}, "tags.a"),
        ({"tags": {f"t{n}": "x" for n in range(201)}}, "tags"),
        ({"display_name": "x" * 2_100_000}, ""),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
@pytest.mark.long
def test_a_wrong_value_is_refused_with_its_place(data: dict[str, Any], path: str) -> None:
    assert path in problems_of(spec(**data), job_id="me")


def test_bare_input_name_error_lists_its_possible_meanings() -> None:
    (problem,) = check(build_spec({"command": "true", "inputs": {"a": "pets"}}))
    assert problem.path == "inputs.a.source"
    assert "dataset:pets" in problem.remedy and "pets/" in problem.remedy


@pytest.mark.parametrize(
    "argument",
    [
        "; touch /tmp/pwn",
        "$(id)",
        "a\nb",
        "--flag=",
        "-",
        "",
        "x" * 200_000,
        "🚀",
        "--token-count=3",
    ],
)
def test_unusual_arguments_are_passed_through(argument: str) -> None:
    assert problems_of(spec(arguments=[argument])) == {}
    assert warnings(spec(arguments=[argument])) == []


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"arguments": ["--password", "hunter2"]}, "--password"),
        ({"arguments": ["--api-key=hunter2"]}, "--api-key"),
        ({"arguments": ["x", "ghp_" + "hunter2abc" * 3 + "abcdef"]}, "arguments[1]"),
        (
            {"environment_variables": {"DB_PASSWORD": "hunter2"}},
            "environment_variables.DB_PASSWORD",
        ),
        ({"environment_variables": {"WANDB_API_KEY": "hunter2"}}, "WANDB_API_KEY"),
    ],
)
def test_likely_secret_causes_a_warning_without_its_value(data: dict[str, Any], named: str) -> None:
    (warning,) = warnings(spec(**data))
    assert named in warning
    assert "hunter2" not in warning


def test_secrets_by_reference_cause_no_warning() -> None:
    secrets = {"DB_PASSWORD": {"env": "RAYJOBS_SECRET_DB"}}
    arguments = ["--password", "$DB_PASSWORD", "--password-file", "/x"]
    assert warnings(spec(arguments=arguments, secrets=secrets)) == []


def test_a_variable_that_the_job_does_not_have_is_named() -> None:
    (warning,) = warnings(spec(arguments=["--lr", "$LEARNING_RATE", "${OTHER}"]))
    assert "$LEARNING_RATE, $OTHER, which the job does not have" in warning
    data = {"inputs": {"digits": {"source": "dataset:digits"}}}
    (warning,) = warnings(spec(arguments=["$AZUREML_DATAREFERENCE_digit"], **data))
    assert "did you mean $AZUREML_DATAREFERENCE_digits?" in warning
    known = ["$AZUREML_DATAREFERENCE_digits", "$digits", "$RANK", "$HOME", "$RAYJOBS_OUTPUTS", "$X"]
    assert warnings(spec(arguments=known, environment_variables={"X": "1"}, **data)) == []


def test_shell_script_as_script_causes_a_warning() -> None:
    assert "command" in warnings(spec(script="run.sh"))[0]


def test_wrong_specs_and_unplaceable_ones_have_different_errors(source: Path) -> None:
    capacity = Capacity(nodes=(NodeShape(2),), max_nodes=1, shares_machine=True)
    right, large = spec(), spec(resources={"gpus": 1000})
    unreadable = spec(script="no.py", resources={"gpus": 1000})
    refuse(right, check(right, source=source), capacity)
    with pytest.raises(CannotBePlacedError, match="1000 GPUs") as caught:
        refuse(large, check(large, source=source), capacity)
    assert caught.value.exit_code == 4
    with pytest.raises(SpecError) as wrong:
        refuse(unreadable, check(unreadable, source=source), capacity)
    assert {problem.path for problem in wrong.value.problems} == {"script", "resources.gpus"}
