"""Jobs of two ranks from submit to last line, with torch.distributed and Horovod.

The peers are the launchers that people start by hand: torchrun and mpirun.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, median
from benchmarks.head import Head, until, written_time

_TIME = """
if {rank} == 0:
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(repr(time.time()))
    os.replace(sys.argv[1] + ".part", sys.argv[1])
"""
DDP = (
    """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
"""
    + _TIME.format(rank="dist.get_rank()")
    + """
dist.barrier()
dist.destroy_process_group()
"""
)
HOROVOD = (
    """
import os, sys, time
import torch
import horovod.torch as hvd
from torch import nn
hvd.init()
torch.manual_seed(0)
model = nn.Linear(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
"""
    + _TIME.format(rank="hvd.rank()")
    + """
hvd.shutdown()
"""
)
PEER_S = 300.0


def measure_ddp(head: Head, *, rounds: int) -> list[Figure]:
    """Measure 2 ranks of gloo; the peer is torchrun. Rounds alternate."""
    peer = [*_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ours, theirs = _measure(head, DDP, "gloo", peer, rounds)
    figures = [
        Figure(
            "2 ranks, 10 DDP steps, submit → last line",
            "s", median(ours), median(theirs), "torchrun", most=0.4, faster=15,
        )
    ]  # fmt: skip
    source = head.source(DDP)
    # Two nodes, compared with one node in the same run.
    apart = [_ours(head, source, "gloo", f"apart-{n}", nodes=2) for n in range(rounds)]
    figures.append(
        Figure(
            "the same on 2 nodes",
            "s", median(apart), median(ours), "1 node", slower=1.0, plus=0.2,
        )
    )  # fmt: skip
    return figures


def measure_horovod(head: Head, *, rounds: int) -> list[Figure]:
    """Measure 2 ranks of Horovod over MPI; the peer is mpirun. Rounds alternate."""
    peer = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    ours, theirs = _measure(head, HOROVOD, "mpi", [*peer, *_python()], rounds)
    return [
        Figure(
            "Horovod, 2 ranks over MPI, submit → end of 5 steps",
            "s", median(ours), median(theirs), "mpirun", faster=2,
        )
    ]  # fmt: skip


def _python() -> list[str]:
    return [sys.executable]


def _measure(
    head: Head, text: str, backend: str, peer: list[str], rounds: int
) -> tuple[list[float], list[float]]:
    source = head.source(text)
    _ours(head, source, backend, f"{backend}-first", nodes=1)  # the first job warms the target up
    ours, theirs = [], []
    for number in range(rounds):
        ours += [_ours(head, source, backend, f"{backend}-{number}-{n}", nodes=1) for n in (0, 1)]
        theirs.append(_theirs(head, source, peer, f"peer-{backend}-{number}"))
    return ours, theirs


def _ours(head: Head, source: Path, backend: str, name: str, *, nodes: int) -> float:
    output = head.folder / name
    shape: dict[str, Any] = {
        "nodes": nodes,
        "processes_per_node": 2 // nodes,
        "backend": backend,
    }
    began = time.time()
    job = head.submit(source, str(output), distribution=shape)
    seconds = written_time(output) - began
    head.wait([job])
    return seconds


def _theirs(head: Head, source: Path, command: list[str], name: str) -> float:
    output = head.folder / name
    began = time.time()
    with (head.folder / f"{name}.log").open("wb") as log:
        done = subprocess.run(
            [*command, str(source / "train.py"), str(output)],
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=PEER_S,
            check=False,
        )
    until(lambda: output.exists() or done.returncode, f"{command[0]} ends")
    if done.returncode and not output.exists():
        raise SystemExit(f"{' '.join(command)} failed: see {log.name}")
    return written_time(output) - began
