"""A job of Horovod on GPUs that its environment cannot serve fails before its ranks start."""

from __future__ import annotations

import sys

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Distribution, Resources
from tests.support.jobs import Jobs

pytestmark = pytest.mark.ray


def test_horovod_without_gpu_operations_fails_as_environment(jobs: Jobs) -> None:
    package = jobs.folder / "packages" / "horovod" / "torch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "mpi_lib_v2.so").write_bytes(b"\x7fELF of a build for the CPU")
    # The submit does not check an environment of the job: the node does.
    job = jobs.submit(
        "import horovod.torch\nprint('a rank has started', flush=True)\n",
        distribution=Distribution(nodes=1, processes_per_node=2, backend="horovod-gloo"),
        resources=Resources(gpus=1),
        environment=sys.executable,
        environment_variables={"PYTHONPATH": str(package.parents[1])},
    )
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert str(done.failure.failure_class) == "environment"
    assert "built without GPU operations" in done.failure.message
    assert "Build it with them where" in done.failure.message
