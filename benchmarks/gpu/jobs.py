"""GPUs in jobs: with the warm interpreter, with nccl, after a crash, in a container."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.head import Head, until

REPORTS = """
import json, os, sys
def report(**facts):
    with open(sys.argv[1] + ".part", "w") as file:
        json.dump(facts, file)
    os.replace(sys.argv[1] + ".part", sys.argv[1])
"""
WARM = (
    REPORTS
    + """
import torch
before = torch.cuda.is_initialized()
device = torch.zeros(1, device="cuda").device if torch.cuda.is_available() else "none"
report(initialized_by_the_warm_interpreter=before, available=torch.cuda.is_available(),
       device=str(device), visible=os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
       parent=open("/proc/%d/comm" % os.getppid()).read().strip())
"""
)
NCCL = (
    REPORTS
    + """
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[2])
value = torch.ones(1, device="cuda" if sys.argv[2] == "nccl" else "cpu")
dist.all_reduce(value)
report(backend=dist.get_backend(), world=dist.get_world_size(), sum=value.item())
dist.destroy_process_group()
"""
)
FILLS = (
    REPORTS
    + """
import signal, torch
blocks = []
if torch.cuda.is_available():
    free, total = torch.cuda.mem_get_info()
    blocks.append(torch.empty(int(free * 0.6), dtype=torch.uint8, device="cuda"))
    report(free_before=free, total=total)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    blocks.append(torch.empty(total, dtype=torch.uint8, device="cuda"))
report(free_before=0, total=0)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
raise MemoryError("there is no GPU, so nothing was allocated")
"""
)
CONTAINER = (
    REPORTS
    + """
import glob, shutil, subprocess
program = shutil.which("nvidia-smi")
report(devices=sorted(glob.glob("/dev/nvidia*")), nvidia_smi=bool(program))
"""
)


@dataclass(frozen=True)
class Shown:
    """One property, and whether jobs have shown it.

    Attributes:
        name: The property.
        is_so: Whether it holds; None if this was not shown.
        detail: Figures, or the reason.
    """

    name: str
    is_so: bool | None
    detail: str


def show(head: Head, *, has_gpu: bool, image: str | None) -> list[Shown]:
    """Run all jobs. Without a GPU they run on CPUs, which only shows that they run at all."""
    resources = {"gpus": 1} if has_gpu else {}
    found = [_warm(head, resources, has_gpu), _nccl(head, resources, has_gpu)]
    found += [_freed(head, resources, has_gpu, how) for how in ("kill", "oom")]
    found.append(_container(head, resources, has_gpu, image))
    found.append(_horovod(has_gpu))
    return found


def _facts(
    head: Head, text: str, resources: Mapping[str, Any], *words: str, **more: Any
) -> dict[str, Any]:
    path = Path(str(head.folder / f"facts-{len(list(head.folder.glob('facts-*')))}"))
    job = head.submit(head.source(text), str(path), *words, resources=dict(resources), **more)
    until(lambda: head.workspace.store.job(job.id).state.is_final, job.id)
    if not path.exists():
        return {"failed": head.workspace.store.job(job.id).reason}
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def _shown(name: str, has_gpu: bool, facts: Mapping[str, Any], check: Callable[..., bool]) -> Shown:
    detail = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items())
    is_so = None if not has_gpu else "failed" not in facts and check(facts)
    return Shown(name, is_so, detail)


def _warm(head: Head, resources: Mapping[str, Any], has_gpu: bool) -> Shown:
    facts = _facts(head, WARM, resources)
    return _shown(
        "CUDA in jobs of the warm interpreter: a context only in ranks, the device's number",
        has_gpu,
        facts,
        lambda one: (
            one["available"] and not one["initialized_by_the_warm_interpreter"]
            and one["device"] == "cuda:0"
        ),
    )  # fmt: skip


def _nccl(head: Head, resources: Mapping[str, Any], has_gpu: bool) -> Shown:
    backend = "nccl" if has_gpu else "gloo"
    facts = _facts(head, NCCL, resources, backend, distribution={"backend": backend})
    return _shown("nccl with one rank", has_gpu, facts, lambda one: one["sum"] == 1.0)


def _freed(head: Head, resources: Mapping[str, Any], has_gpu: bool, how: str) -> Shown:
    before = _facts(head, FILLS, resources, how)
    after = _facts(head, FILLS, resources, how)
    facts = {
        "free before": before.get("free_before"),
        "free for the next job": after.get("free_before"),
    }
    what = "kill -9" if how == "kill" else "out of memory"
    return _shown(
        f"GPU memory is free after {what}, before the next job starts",
        has_gpu,
        facts,
        lambda one: one["free for the next job"] >= 0.99 * one["free before"],
    )


def _container(head: Head, resources: Mapping[str, Any], has_gpu: bool, image: str | None) -> Shown:
    name = "`/dev/nvidia*` inside a container"
    if image is None:
        return Shown(name, None, "no image was given (--image)")
    facts = _facts(head, CONTAINER, resources, container={"image": image})
    return _shown(name, has_gpu, facts, lambda one: len(one["devices"]) > 0)


def _horovod(has_gpu: bool) -> Shown:
    name = "Horovod with GPU operations"
    if not has_gpu or shutil.which("nvcc") is None:
        return Shown(name, None, "a GPU or the CUDA toolkit (nvcc) is missing")
    import horovod.torch as hvd

    is_built = bool(hvd.nccl_built())
    return Shown(name, is_built, "this build has NCCL" if is_built else "this build has no NCCL")
