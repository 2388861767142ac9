"""A node queries the job's interpreter for its Horovod before it starts ranks on GPUs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.environments.horovod import required
from rayjobs.injob.plan import LaunchPlan
from rayjobs.jobs.records import Job
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.node.node import Node
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import open_workspace
from tests.support.attempts import request_of
from tests.support.wheels import make_wheel
from tests.unit.environments.conftest import Builder

SCRIPT = "import torch\nimport horovod.torch as hvd\n"
ON_CPU = {"HOROVOD_CPU_OPERATIONS": "MPI"}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a folder of packages with a Horovod that was built for the CPU."""
    folder = tmp_path / "packages"
    (folder / "horovod" / "torch").mkdir(parents=True)
    # It must be found without an import, which may be slow and works only in a rank.
    (folder / "horovod" / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    built(folder, b"horovod_torch_allreduce_async_torch_cuda_FloatTensor")
    return folder


def built(packages: Path, holds: bytes) -> None:
    """Rebuild its library."""
    (packages / "horovod" / "torch" / "mpi_lib_v2.cpython.so").write_bytes(b"\x7fELF\0" + holds)


def plan_of(
    tmp_path: Path,
    packages: Path | None,
    *,
    node: Node | None = None,
    gpus: tuple[str, ...] = ("0",),
    backend: str = "mpi",
    text: str = SCRIPT,
    **variables: str,
) -> LaunchPlan:
    """Return the plan of the first of two nodes, whose script is in place."""
    if packages is not None:
        variables["PYTHONPATH"] = str(packages)
    spec = JobSpec.model_validate(
        {
            "script": "train.py",
            "distribution": {"nodes": 2, "backend": backend},
            "environment_variables": variables,
        }
    )
    context = AttemptContext(
        job=job_of(tmp_path, spec),
        attempt=1,
        nodes=tuple(
            PlannedNode(
                n, f"n{n}", "127.0.0.1", (node or Node("local", tmp_path)).paths.root, gpus=gpus
            )
            for n in range(2)
        ),
        markers=("m0", "m1"),
        workspace_name="ws",
        workspace_path="",
        python=sys.executable,
    )
    plan = launcher_for(spec).plans(context)[0]
    work = Path(plan.root) / "work"
    work.mkdir(parents=True)
    (work / "train.py").write_text(text)
    return plan


def job_of(tmp_path: Path, spec: JobSpec) -> Job:
    with open_workspace(tmp_path / "ws", create=True) as workspace:
        job, _ = workspace.store.submit(
            NewJob(spec=spec, experiment="test", snapshot=None, user="ada")
        )
        return job


@pytest.mark.parametrize("backend", ["mpi", "horovod-gloo"])
def test_horovod_without_gpu_operations_is_refused_on_the_node(
    tmp_path: Path, packages: Path, backend: str
) -> None:
    with pytest.raises(PrepareError) as caught:
        required.require(plan_of(tmp_path, packages, backend=backend))
    assert caught.value.failure_class == "environment"
    assert f"the Horovod in {packages}/horovod was built without GPU operations" in str(
        caught.value
    )
    assert "Build it with them where" in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": ()},
        {"text": "print('plain MPI')"},
        {"backend": "gloo"},
        ON_CPU,
        {"backend": "horovod-gloo", **ON_CPU},
    ],
)
def test_jobs_without_gpu_operations_are_not_refused(
    tmp_path: Path, packages: Path, more: dict[str, Any]
) -> None:
    required.require(plan_of(tmp_path, packages, **more))


@pytest.mark.parametrize("name", [b"ncclCommInitRank", b"cudaEventRecord"])
def test_a_build_that_takes_gpu_tensors_is_not_refused(
    tmp_path: Path, packages: Path, name: bytes
) -> None:
    built(packages, name)
    required.require(plan_of(tmp_path, packages))


def test_interpreter_is_queried_once_until_a_new_build(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    run = subprocess.run

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    plan = plan_of(tmp_path, packages)
    for _ in range(2):
        with pytest.raises(PrepareError):
            required.require(plan)
    built(packages, b"and now with ncclCommInitRank")
    required.require(plan)
    assert len(calls) == 1


def test_an_interpreter_that_cannot_answer_is_named(tmp_path: Path, packages: Path) -> None:
    plan = plan_of(tmp_path, packages)
    (packages / "sitecustomize.py").write_text("import os; os._exit(3)\n")
    with pytest.raises(
        PrepareError, match="cannot be queried for its Horovod: it exited with code 3"
    ):
        required.require(plan)


def test_refused_job_starts_no_host(tmp_path: Path, packages: Path) -> None:
    node = Node("local", tmp_path)
    plan = plan_of(tmp_path, packages, node=node, backend="horovod-gloo")
    with pytest.raises(PrepareError, match="without GPU operations"):
        asyncio.run(node.launch(request_of(plan, tmp_path / "ws")))
    assert not (Path(plan.root) / "plan.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["mpi", "horovod-gloo"])
def test_environment_with_its_own_torch_is_refused_with_a_foreign_horovod(
    tmp_path: Path, packages: Path, backend: str
) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "torch", "1.9", value="package")
    builder = Builder(tmp_path / "node")
    own, _ = builder.build("--no-index", f"--find-links {wheels}", "torch")
    (site,) = Path(own.python).parents[1].glob("lib/python*/site-packages")
    (site / "torch.py").unlink()
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    plan = replace(plan_of(tmp_path, packages, backend=backend, gpus=()), python=own.python)
    with pytest.raises(PrepareError) as caught:
        required.require(plan)
    message = str(caught.value)
    assert f"has its own torch 1.9, but the Horovod in {packages} was built for" in message
    assert "rayjobs horovod install --env PATH" in message
    assert caught.value.is_permanent
    (packages / "torch").mkdir()
    for path in site.glob("torch*"):
        shutil.rmtree(path)
    required.require(plan)  # the torch found is the one next to Horovod
