"""One script in every kind of environment, as a user types it; writes the result table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayjobs import CondaDependencies, Environment, Experiment, ScriptRunConfig, Workspace
from rayjobs.core.paths import BUILD_LOG
from rayjobs.jobs.states import JobState
from rayjobs.launch import openmpi
from rayjobs.submit.attaching import wait
from rayjobs.workspace.folder import OpenWorkspace, locate, open_workspace
from tests.support.conda_channel import VERSION, Channel
from tests.support.containers import image, needs_containers, newer_python, python_folders
from tests.support.images import oci_folder, tar_of
from tests.support.local_target import LocalTarget
from tests.support.terminal import DEADLINE_S, PROGRAM
from tests.support.wheels import make_wheel

__all__ = ["image", "newer_python"]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), needs_containers]

TABLE = Path(__file__).parents[2] / "build" / "environments.md"
SCRIPT = """
import json, os, sys
from rayjobs import Run

names = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE")
size = int(next((os.environ[one] for one in names if os.environ.get(one)), 1))
total = None
if size > 1:
    import torch, torch.distributed as dist
    if os.environ.get("RANK") and not os.environ.get("HOROVOD_SIZE"):
        dist.init_process_group("gloo")
        value = torch.ones(1) * (dist.get_rank() + 1)
        dist.all_reduce(value)
        total = int(value)
        dist.destroy_process_group()
    else:
        import horovod.torch as hvd
        hvd.init()
        total = int(hvd.allreduce(torch.ones(1) * (hvd.rank() + 1), op=hvd.Sum))
        hvd.shutdown()
tools = []
for name in ("tiny_pip", "tiny_conda"):
    try:
        tools.append(__import__(name).VALUE)
    except ImportError:
        pass
Run.get_context().log("size", size)
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2], "has": tools, "ranks": size, "sum": total,
    "image": os.path.exists("/of-the-image") or os.environ.get("FROM_THE_IMAGE") == "yes",
}), flush=True)
os._exit(0) if size > 1 else None
"""
MINOR = "{}.{}".format(*sys.version_info[:2])


@dataclass
class Row:
    """A kind of environment, how a user requests it, and what the script must see there."""

    kind: str
    words: list[str]
    python: str = MINOR
    has: tuple[str, ...] = ()
    ranks: int = 1
    image: bool = False
    job: str = ""
    seen: str = ""


@pytest.fixture
def project(
    local_target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    yield folder
    with open_workspace(locate()) as workspace:
        unfinished = [job.id for job in workspace.store.jobs() if not job.state.is_final]
        for job_id in unfinished:
            workspace.store.request_cancel(job_id)
        for job_id in unfinished:
            assert wait(workspace, job_id, timeout_s=DEADLINE_S).state.is_final


def of_machine(folder: Path) -> list[str]:
    """Return the words for an image that has torch, Open MPI and Horovod: the machine's own."""
    folder.mkdir()
    (folder / "of-the-image").touch()
    roots = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/etc") if Path(path).exists()]
    roots += [one for one in python_folders() if one not in ("/usr", "/usr/local")]
    volumes = [f"--docker-arg=--volume={one}:{one}:ro" for one in dict.fromkeys(roots)]
    path = f"--env-var=PATH={os.environ['PATH']}"
    return ["--image", f"dir:{folder}", *volumes, path, "--env", sys.executable]


def rows(project: Path, tmp_path: Path, image: Path, newer_python: Path) -> list[Row]:
    make_wheel(tmp_path / "wheels", "tiny-pip", value="pip")
    source = ["--pip=--no-index", f"--pip=--find-links {tmp_path}/wheels"]
    channel = Channel(tmp_path / "channel")
    channel.add_library("tiny-conda", value="conda")
    channel.index()
    lines = ["--no-index", f"--find-links {tmp_path}/wheels", "tiny-pip"]
    (project / "requirements.txt").write_text("\n".join(lines))
    (project / "environment.yml").write_text(
        f"channels: [{channel.url}]\ndependencies: [tiny-conda, {{pip: {json.dumps(lines)}}}]\n"
    )
    oci = oci_folder(tmp_path / "oci", [tar_of(image)])
    torch_image = of_machine(tmp_path / "machine")
    of_conda = ".".join(VERSION.split(".")[:2])
    found = [
        Row("the target's Python", []),
        Row("packages of pip", [*source, "--pip", "tiny-pip"], has=("pip",)),
        Row("a requirements file", ["--env", "requirements.txt"], has=("pip",)),
        Row("conda, with a pip part", ["--env", "environment.yml"], of_conda, ("pip", "conda")),
        Row("a container image", ["--image", str(oci)], image=True),
        Row("packages on an image", ["--image", str(oci), *source, "--pip", "tiny-pip"],
            has=("pip",), image=True),
        Row("conda, with a pip part, on an image",
            [*torch_image[:-2], "--env", "environment.yml"], of_conda, ("pip", "conda"),
            image=True),
        Row("an image, 2 gloo ranks",
            [*torch_image, "--procs-per-node", "2", "--backend", "gloo"], ranks=2, image=True),
        Row("Python 3.13 from an image", ["--image", f"dir:{newer_python}"], "3.13"),
    ]  # fmt: skip
    if not openmpi.problem(os.environ.get("PATH")):
        words = [*torch_image, "--procs-per-node", "2", "--backend", "mpi"]
        found.append(Row("an image, 2 MPI ranks", words, ranks=2, image=True))
        words = [*torch_image, "--procs-per-node", "2", "--backend", "horovod-gloo"]
        found.append(Row("an image, 2 Horovod ranks", words, ranks=2, image=True))
    return found


def ended(workspace: OpenWorkspace, row: Row) -> str:
    """Wait for a job's end; return the durations of its environment and its run, as a cell."""
    done = wait(workspace, row.job, timeout_s=DEADLINE_S)
    logs: dict[str, bytes] = {}
    for file in workspace.store.files(row.job):
        if file.name.startswith("azureml-logs/"):
            with workspace.blobs.open(file.blob) as stream:
                logs[file.name] = stream.read()
    assert done.state is JobState.COMPLETED, (row.kind, done.reason, logs)
    printed = [
        json.loads(line)
        for name, text in sorted(logs.items())
        if "driver_log" in name
        for line in text.splitlines()
        if line.startswith(b"{")
    ]
    expected = {"python": row.python, "has": list(row.has), "ranks": row.ranks,
                "sum": 3 if row.ranks == 2 else None}  # fmt: skip
    assert len(printed) == row.ranks, (row.kind, logs)
    for one in printed:
        assert one["image"] == row.image or "3.13" in row.kind, row.kind
        assert {name: one[name] for name in expected} == expected, row.kind
    assert done.started_at is not None and done.ended_at is not None
    built = "built" if BUILD_LOG in logs else "-"
    took_s = (done.ended_at - done.started_at).total_seconds()
    return f"{built} | {took_s:.1f} s"


def test_one_script_runs_in_every_kind_of_environment(
    project: Path, tmp_path: Path, image: Path, newer_python: Path
) -> None:
    everything = rows(project, tmp_path, image, newer_python)
    for row in everything:
        words = [str(PROGRAM), "submit", "-q", "-d", *row.words, "train.py"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, (row.kind, done.stderr)
        row.job = done.stdout.strip()
    cells = {}
    with open_workspace(locate()) as workspace:
        for row in everything:
            cells[row.kind] = ended(workspace, row)
    text = [f"# One script in every kind of environment\n\n{time.strftime('%Y-%m-%d')}\n"]
    text += ["| environment | Python | packages | ranks | environment or image | attempt |"]
    text += ["|---|---|---|---|---|---|"]
    for row in everything:
        has = ", ".join(row.has) or "-"
        text.append(f"| {row.kind} | {row.python} | {has} | {row.ranks} | {cells[row.kind]} |")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(text) + "\n")


def test_conda_dependencies_are_added_to_a_base_image(
    project: Path, tmp_path: Path, image: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheels", "tiny-pip", value="pip")
    environment = Environment("on-an-image")
    environment.docker.base_image = str(oci_folder(tmp_path / "oci", [tar_of(image)]))
    environment.python.conda_dependencies = CondaDependencies.create(pip_packages=[str(wheel)])
    config = ScriptRunConfig(str(project), "train.py", environment=environment)
    with open_workspace(locate(), create=True) as workspace:
        run = Experiment(Workspace(path=locate()), "api").submit(config)
        ended(workspace, Row("the Python API", [], has=("pip",), image=True, job=run.id))
