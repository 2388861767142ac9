"""Ranks in containers communicate: gloo, and MPI with the image's own mpirun, orted and Horovod."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from rayjobs.injob import master_port
from rayjobs.injob.plan import HOROVOD_GLOO
from rayjobs.launch.horovod_gloo import horovod_variables
from rayjobs.spec.model import Distribution, JobSpec
from tests.conformance.hosts import Attempt
from tests.support.containers import image, in_image, needs_containers, python_folders
from tests.support.mpi_hosts import MpiAttempt, needs_horovod, needs_mpi

__all__ = ["image"]
pytestmark = [needs_containers, pytest.mark.timeout(300)]

# The machine's own torch, Horovod and Open MPI, bound into an otherwise empty image.
MACHINE = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/etc") if Path(path).exists()]
REDUCE = """
import os, sys, torch, torch.distributed as dist
assert os.path.exists("/of-the-image"), "not in the image"
dist.init_process_group("gloo")
value = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(value)
print("sum", value.tolist(), flush=True)
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""
HOROVOD = """
import os, torch
import horovod.torch as hvd
assert os.path.exists("/of-the-image"), "not in the image"
hvd.init()
print(hvd.rank(), hvd.size(), hvd.mpi_built(), hvd.allreduce(
    torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum).tolist(), flush=True)
hvd.shutdown()
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "of-the-image").touch()
    return folder


def of_machine(attempt: Attempt, bare: Path) -> Attempt:
    roots = dict.fromkeys([*MACHINE, *python_folders()])
    in_image(attempt, bare, *(one for one in roots if one != "/usr/local"))
    attempt.plan["python"] = sys.executable
    attempt.plan["env"] |= {"PATH": os.environ["PATH"], "GLOO_SOCKET_IFNAME": "lo"}
    return attempt


def test_two_gloo_ranks_of_one_node_reduce(short_path: Path, bare: Path) -> None:
    attempt = of_machine(Attempt.make(short_path, REDUCE, ranks=2, max_duration_s=120), bare)
    descriptor, port = master_port.reserve()
    os.close(descriptor)
    attempt.plan["master_port"] = port
    attempt.plan["env"] |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    record = attempt.start_cold().wait()
    assert record["outcome"] == "completed", (record["reason"], attempt.log())
    for rank in (0, 1):
        assert b"sum [3.0, 3.0, 3.0, 3.0]" in attempt.log(rank)


@needs_horovod
def test_two_gloo_ranks_of_horovod_meet_in_the_image(short_path: Path, bare: Path) -> None:
    attempt = of_machine(Attempt.make(short_path, HOROVOD, ranks=2, max_duration_s=120), bare)
    descriptor, port = master_port.reserve()
    os.close(descriptor)
    attempt.plan["master_port"] = port
    attempt.plan["extras"] = {"kind": HOROVOD_GLOO, "port": port}
    attempt.plan["env"] |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
                            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}  # fmt: skip
    job = JobSpec(script="job.py", distribution=Distribution(processes_per_node=2))
    for rank in (0, 1):
        attempt.plan["ranks"][rank]["env"] = horovod_variables(job, 0, rank)
    record = attempt.start_cold().wait()
    assert record["outcome"] == "completed", (record["reason"], attempt.log())
    for rank in (0, 1):
        assert f"{rank} 2 True [3.0, 3.0, 3.0]".encode() in attempt.log(rank)


def test_horovod_rendezvous_runs_on_the_python_of_the_image(short_path: Path, image: Path) -> None:
    """The node's own Python is not available."""
    descriptor, port = master_port.reserve()
    os.close(descriptor)
    script = f"""
        import urllib.request as web
        address = "http://127.0.0.1:{port}/scope/key"
        web.urlopen(web.Request(address, data=b"value", method="PUT")).read()
        print(web.urlopen(address).read().decode())
    """
    script = textwrap.dedent(script)
    attempt = in_image(Attempt.make(short_path, script, max_duration_s=60), image)
    attempt.plan["master_port"] = port
    attempt.plan["extras"] = {"kind": HOROVOD_GLOO, "port": port}
    record = attempt.start_cold().wait()
    assert record["outcome"] == "completed", (record["reason"], attempt.log())
    assert attempt.log() == b"value\n"


@needs_mpi
@needs_horovod
@pytest.mark.parametrize(("nodes", "processes"), [(1, 2), (2, 1)])
def test_two_mpi_ranks_reduce_by_horovod_and_nothing_is_left(
    short_path: Path, bare: Path, nodes: int, processes: int
) -> None:
    attempt = MpiAttempt.make(
        short_path, HOROVOD, nodes=nodes, processes=processes, max_duration_s=120
    )
    for one in attempt.nodes:
        socket = one.plan["extras"]["socket"]
        of_machine(one, bare)
        one.plan["container"]["binds"].append({"source": socket, "target": socket})
    with attempt.start(None).relayed():
        records = attempt.wait_as_group()
    logs = b"".join(node.log(rank["rank"]) for node in attempt.nodes for rank in node.plan["ranks"])
    assert [record["outcome"] for record in records] == ["completed"] * nodes, (
        records[0]["reason"], logs, attempt.mpi_log(),
    )  # fmt: skip
    for rank in (0, 1):
        assert f"{rank} 2 True [3.0, 3.0, 3.0]".encode() in logs
    attempt.nothing_left()
