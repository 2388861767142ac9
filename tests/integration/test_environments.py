"""Jobs in environments made of packages, on real Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.core.paths import BUILD_LOG, ENVIRONMENT_LOCK, home
from rayjobs.environments import listing
from rayjobs.jobs.states import JobState
from rayjobs.node.environments import EVENT
from rayjobs.spec.model import Dependency, Distribution, JobSpec, Packages
from rayjobs.submit.submitting import submit
from tests.support.conda_channel import Channel
from tests.support.jobs import Jobs
from tests.support.wheels import make_project, make_wheel

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SCRIPT = """
import importlib.util, os, subprocess, sys
import tiny_tool
from rayjobs import Run
Run.get_context().log("value", 1.0)
print(tiny_tool.VALUE, importlib.util.find_spec("pydantic"), sys.executable, sys.prefix)
print(subprocess.check_output(["tiny-tool-say"]).decode().strip(), os.environ["VIRTUAL_ENV"])
"""


def test_packages_are_installed_once_and_the_second_job_is_warm(jobs: Jobs, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "tiny-tool", value="from a wheel")
    lines = ("--no-index", f"--find-links {tmp_path}/wheels", "tiny-tool>=1")
    packages = Packages(pip=lines)
    first = jobs.wait(jobs.submit(SCRIPT, environment=packages), JobState.COMPLETED)
    second = jobs.wait(jobs.submit(SCRIPT, environment=packages), JobState.COMPLETED)
    steps = [
        [event.data["step"] for event in jobs.store.events(job.id) if event.kind == EVENT]
        for job in (first, second)
    ]
    assert steps == [["resolve", "build", "built"], ["found"]]
    assert jobs.attempt(second).cold_reason is None
    assert jobs.log(first) == jobs.log(second)
    words = jobs.log(first).decode().split()
    python, prefix = Path(words[-6]), Path(words[-5])
    assert python == prefix / "bin/python"
    assert prefix.parent.name == "environments"
    assert jobs.log(first).decode().splitlines() == [
        f"from a wheel None {python} {prefix}",
        f"from a wheel {prefix}",
    ]
    assert [point.value for point in jobs.store.metrics(second.id)] == [1.0]
    names = [{file.name for file in jobs.store.files(job.id)} for job in (first, second)]
    assert BUILD_LOG in names[0]
    assert BUILD_LOG not in names[1]
    lock = jobs.file(second, ENVIRONMENT_LOCK)
    assert b"tiny-tool==1.0" in lock
    assert b"--hash=sha256:" in lock
    jobs.nothing_left(second)


def test_a_command_finds_the_programs_of_its_environment(jobs: Jobs, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "tiny-command", value="said")
    packages = Packages(pip=(str(wheel),))
    spec = JobSpec(
        command="tiny-command-say; python -c 'import tiny_command as t; print(t.__file__)'",
        environment=packages,
    )
    (tmp_path / "source").mkdir()
    job = submit(jobs.workspace, spec, source=tmp_path / "source", experiment="test").job
    jobs.wait(job, JobState.COMPLETED)
    value, place = jobs.log(job).decode().split()
    assert value == "said"
    assert "/environments/" in place


def test_user_interpreter_is_warm_until_its_packages_change(jobs: Jobs, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", str(venv)]
    subprocess.run(command, check=True, timeout=200)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "numpy.py").write_text(
        "VALUE = 1\n"
    )  # the module that a warm interpreter has imported
    script = "import numpy, sys; print(numpy.VALUE, sys.prefix)"
    for value in (1, 2):
        for _ in range(2):
            job = jobs.wait(jobs.submit(script, environment=str(venv)), JobState.COMPLETED)
            assert jobs.log(job) == f"{value} {venv}\n".encode()
        assert jobs.attempt(job).cold_reason is None
        # As installers do: written under another name first. Its size differs, since bytecode is
        # checked only by the size and the time (in seconds) of its source.
        (packages / "numpy.new").write_text("VALUE = 1 + 1\n")
        (packages / "numpy.new").replace(packages / "numpy.py")


def test_a_job_in_an_environment_of_conda(jobs: Jobs, tmp_path: Path) -> None:
    channel = Channel(tmp_path / "channel")
    channel.add_library("tiny-conda", value="of conda")
    channel.index()
    make_wheel(tmp_path / "wheels", "tiny-pip", needs=["tiny-conda"])
    packages = Packages(
        conda=("tiny-conda",),
        channels=(channel.url,),
        pip=("--no-index", f"--find-links {tmp_path}/wheels", "tiny-pip"),
    )
    script = """
        import os, sys
        import tiny_conda, tiny_pip
        from rayjobs import Run
        Run.get_context().log("value", 2.0)
        print(tiny_conda.VALUE, tiny_pip.VALUE, os.environ["CONDA_PREFIX"] == sys.prefix)
    """
    for _ in range(2):
        job = jobs.wait(jobs.submit(script, environment=packages), JobState.COMPLETED)
        assert jobs.log(job) == b"of conda tiny True\n"
    assert jobs.attempt(job).cold_reason is None
    lock = jobs.file(job, ENVIRONMENT_LOCK)
    assert b"tiny-conda-1.0-0.tar.bz2" in lock
    assert b"tiny-pip==1.0" in lock
    assert [point.value for point in jobs.store.metrics(job.id)] == [2.0]


def test_a_job_cannot_change_its_environment(jobs: Jobs, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "tiny-closed")
    packages = Packages(pip=("--no-index", f"--find-links {tmp_path}/wheels", "tiny-closed"))
    script = """
        import pathlib, tempfile, tiny_closed
        own = pathlib.Path(tiny_closed.__file__)
        for path in (own, own.parent / "new.py"):
            try:
                path.write_text("VALUE = 'changed'")
                print("changed")
            except OSError as error:
                print(error.strerror)
        tempfile.NamedTemporaryFile().close()
        pathlib.Path("outputs/own").write_text("own")
    """
    for _ in range(2):
        job = jobs.wait(jobs.submit(script, environment=packages), JobState.COMPLETED)
        assert jobs.log(job) == b"Read-only file system\n" * 2


def test_a_project_and_a_wheel_travel_with_the_job(jobs: Jobs, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", "own-package")
    wheel = make_wheel(tmp_path / "wheels", "tiny-local")
    packages = Packages(pip=("--no-index", str(project), str(wheel)))
    script = "import own_package, tiny_local; print(own_package.VALUE, tiny_local.VALUE)"
    job = jobs.submit(script, environment=packages)
    wheel.unlink()  # the job has its own
    (project / "own_package.py").write_text("VALUE = 'edited meanwhile'\n")
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.log(job) == b"own tiny\n"
    assert b"${RAYJOBS_SOURCES}/" in jobs.file(job, ENVIRONMENT_LOCK)


def test_horovod_is_available_in_an_environment_of_packages(jobs: Jobs, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "tiny-hvd", value="added")
    packages = Packages(
        python="3.6.2",
        pip=("--no-index", f"--find-links {tmp_path}/wheels", "horovod==0.19.5", "tiny-hvd"),
    )
    script = """
        import horovod.torch as hvd, torch, tiny_hvd
        hvd.init()
        total = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum)
        print(tiny_hvd.VALUE, hvd.size(), total.item())
        hvd.shutdown()
    """
    job = jobs.submit(
        script,
        environment=packages,
        distribution=Distribution(processes_per_node=2, backend="horovod-gloo"),
    )
    assert [one.asked for one in job.spec.substitutes] == ["Python 3.6.2", "horovod==0.19.5"]
    jobs.wait(job, JobState.COMPLETED)
    for rank in range(2):
        log = jobs.file(job, f"azureml-logs/70_driver_log_{rank}.txt")
        assert log.endswith(b"added 2 2.0\n")


def test_an_environment_that_was_pruned_is_built_again_for_a_queued_job(
    jobs: Jobs, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "tiny-pruned")
    packages = Packages(pip=("--no-index", f"--find-links {tmp_path}/wheels", "tiny-pruned"))
    first = jobs.wait(jobs.submit("import tiny_pruned", environment=packages), JobState.COMPLETED)
    jobs.nothing_left(first)
    root = home() / "node"
    go = tmp_path / "go"
    before = jobs.submit(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    )
    after = (Dependency(job=before.id),)
    waiting = jobs.submit("import tiny_pruned; print(1)", environment=packages, depends_on=after)
    jobs.wait(before, JobState.RUNNING)
    (built,) = [one for one in listing.built(root / "environments") if one.packages == 1][:1]
    gone, _ = listing.prune_to_size(root, 0, dry_run=False)
    assert built.key in {one.key for one in gone}
    go.touch()
    jobs.wait(waiting, JobState.COMPLETED)
    assert jobs.log(waiting) == b"1\n"
    steps = [event.data["step"] for event in jobs.store.events(waiting.id) if event.kind == EVENT]
    assert steps == ["build", "built"]
