"""A step with every argument of MpiStep, on two nodes, on real Ray."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rayjobs.api.environment import Environment
from rayjobs.api.experiment import Experiment
from rayjobs.api.workspace import Workspace
from rayjobs.jobs.records import Job
from rayjobs.pipelines import (
    MpiStep,
    Pipeline,
    PipelineData,
    PipelineParameter,
    PipelineRun,
    PythonScriptStep,
)
from rayjobs.results.logs import Logs
from tests.support.jobs import Jobs
from tests.support.mpi_hosts import needs_mpi
from tests.support.wheels import make_wheel

pytestmark = [pytest.mark.ray, needs_mpi]

MAKE = "import pathlib, sys; pathlib.Path(sys.argv[1], 'n').write_text('7')"
SPREAD = """
import importlib.util, json, os, pathlib, sys
packages = {one: importlib.util.find_spec(one) is not None for one in ("tiny_one", "tiny_two")}
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
given = pathlib.Path(sys.argv[2], "n").read_text()
if rank == 0:
    pathlib.Path(sys.argv[4], "report").write_text("of rank 0")
print(json.dumps({
    "rank": rank, "size": os.environ["OMPI_COMM_WORLD_SIZE"], "node": os.environ["NODE_RANK"],
    "scale": sys.argv[6], "given": given, "level": os.environ["AML_PARAMETER_LEVEL"],
    "mine": os.environ.get("MINE"), **packages,
}))
"""


def test_every_argument_of_an_mpi_step_has_its_effect_on_two_nodes(
    jobs: Jobs, tmp_path: Path
) -> None:
    source = tmp_path / "src"
    one, two = (make_wheel(tmp_path / "wheels", f"tiny-{name}") for name in ("one", "two"))
    source.mkdir()
    (source / "make.py").write_text(MAKE)
    (source / "spread.py").write_text(SPREAD)
    (source / "requirements.txt").write_text(f"{two}\n")
    with closing(Workspace(path=jobs.workspace.path)) as ws:
        arguments: dict[str, Any] = {
            "name": "spread",
            "source_directory": str(source),
            "script_name": "spread.py",
            "compute_target": "local",
            "node_count": PipelineParameter("nodes", 1),
            "process_count_per_node": PipelineParameter("processes", 1),
            "params": {"LEVEL": PipelineParameter("level", "low")},
            "allow_reuse": True,
            "version": "2",
            "hash_paths": ["spread.py"],
            "use_gpu": False,
            "use_docker": False,
            # Both name an image, which has its own environment: see test_containers.
            "custom_docker_image": None,
            "image_registry_details": None,
            "user_managed": False,
            "conda_packages": [],
            "pip_packages": [str(one)],
            "pip_requirements_file_path": "requirements.txt",
            "environment_definition": None,
            "environment_variables": {"MINE": "1"},
        }
        experiment = Experiment(ws, "mpi")
        values = {"scale": 3, "nodes": 2, "processes": 2, "level": "high"}

        def run(**changes: Any) -> PipelineRun:
            made, report = (PipelineData(name, is_directory=True) for name in ("made", "report"))
            make = PythonScriptStep(
                "make.py",
                "make",
                [made],
                "local",
                outputs=[made],
                source_directory=str(source),
                hash_paths=["make.py"],
            )
            scale = PipelineParameter("scale", 1)
            data: dict[str, Any] = {
                "arguments": ["--in", made, "--out", report, "--scale", scale],
                "inputs": [made],
                "outputs": [report],
            }
            pipeline = Pipeline(ws, [make, MpiStep(**{**arguments, **data, **changes})])
            done = experiment.submit(pipeline, pipeline_parameters=values)
            assert isinstance(done, PipelineRun)
            assert done.wait_for_completion(show_output=False) == "Finished"
            return done

        first = run()
        step = first.find_step_run("spread")[0]
        expected: dict[str, Any] = {
            "size": "4",
            "scale": "3",
            "given": "7",
            "level": "high",
            "mine": "1",
        }
        expected |= {"tiny_one": True, "tiny_two": True}
        assert printed(jobs, jobs.store.job(step.id)) == [
            {"rank": rank, "node": str(rank // 2), **expected} for rank in range(4)
        ]
        assert step.get_output_data("report").download(str(tmp_path / "got")) == 1

        # hash_paths, allow_reuse and version decide whether it runs again.
        (source / "make.py").write_text(f"{MAKE}  # does not affect the other step")
        assert [one.is_reused for one in run().get_steps()] == [False, False]  # its input is new
        (source / "other.py").write_text("")
        assert run().find_step_run("spread")[0].is_reused
        assert not run(version="3").find_step_run("spread")[0].is_reused
        assert not run(allow_reuse=False).find_step_run("spread")[0].is_reused

        # With an environment instead of its parts.
        parts = ["use_docker", "image_registry_details", "pip_packages", "environment_variables"]
        parts += ["pip_requirements_file_path", "conda_packages", "user_managed", "use_gpu"]
        environment = Environment("of-its-own")
        environment.environment_variables = {"MINE": "2"}
        other = run(**dict.fromkeys(parts), environment_definition=environment)
        lines = printed(jobs, jobs.store.job(other.find_step_run("spread")[0].id))
        assert [(one["mine"], one["tiny_one"]) for one in lines] == [("2", False)] * 4


def printed(jobs: Jobs, job: Job) -> list[dict[str, Any]]:
    """Return what each rank of a step printed."""
    logs = Logs(jobs.workspace, job.id)
    return [
        json.loads(logs.read(logs.driver_name(rank)).decode().splitlines()[-1])
        for rank in logs.ranks()
    ]
