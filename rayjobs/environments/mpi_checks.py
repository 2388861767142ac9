"""Checks whether the software of MPI and Horovod jobs is installed and supports the request."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from rayjobs.core.errors import Problem
from rayjobs.spec.model import JobSpec

# Also matches a later name of an import: ``import torch, horovod.torch as hvd``.
_HOROVOD = re.compile(
    rb"^\s*(?:from\s+|import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*)horovod\b", re.MULTILINE
)
_MOST_BYTES = 4 * 2**20
ON_CPU = "HOROVOD_CPU_OPERATIONS"


def check(spec: JobSpec, *, source: Path | None, is_here: bool) -> list[Problem]:
    """Return the problems of a job with the backend ``mpi`` or ``horovod-gloo``.

    Args:
        source: The source directory; None: it is unknown whether the script uses Horovod.
        is_here: The job will run on this machine, so missing software is known. Elsewhere, or in
            an environment of its own, the node refuses the job before ranks start
            (`openmpi.require`, `horovod.required`).
    """
    backend, gpus = spec.distribution.backend, spec.resources.gpus
    uses_horovod = backend == "horovod-gloo" or imports_horovod(spec, source)
    problems: list[Problem] = []
    if is_here and backend == "mpi":
        from rayjobs.launch import openmpi

        found = openmpi.problem(os.environ.get("PATH"))
        if found:
            problems.append(
                Problem(
                    "distribution.backend",
                    f"mpi: {found} on this machine.",
                    f"Install Open MPI {openmpi.MAJOR} ({openmpi.INSTALL}), or use horovod-gloo "
                    f"or gloo.",
                )
            )
    # Adding packages to the target's own environment does not change whether it has Horovod.
    added_to = getattr(spec.environment, "base", None)
    if uses_horovod and is_here and (spec.environment is None or added_to == "target"):
        from rayjobs.environments.horovod import builds

        build = builds.of_interpreter(Path(sys.executable))
        if build is None:
            problems.append(
                Problem(
                    "distribution.backend",
                    "the script uses Horovod, which is not installed in the target's environment.",
                    "Run `rayjobs horovod install`, which builds it for this PyTorch.",
                )
            )
        elif gpus > 0 and not build.has_gpu_operations and not keeps_to_cpu(spec):
            problems.append(no_gpu_operations())
    return problems


def imports_horovod(spec: JobSpec, source: Path | None) -> bool:
    """Return whether the entry script itself seems to import Horovod."""
    if spec.script is None or source is None:
        return False
    return names_horovod(source / spec.script)


def names_horovod(script: Path) -> bool:
    """Return whether the text of a script imports Horovod; False if it cannot be read."""
    try:
        with script.open("rb") as file:
            return _HOROVOD.search(file.read(_MOST_BYTES)) is not None
    except OSError:
        return False


def keeps_to_cpu(spec: JobSpec) -> bool:
    """Return whether the job declares that it communicates on the CPU."""
    return bool(spec.environment_variables.get(ON_CPU))


def no_gpu_operations(which: str = "of the target's environment") -> Problem:
    """Return the refusal of GPUs for a Horovod that only exchanges CPU tensors."""
    return Problem(
        "distribution.backend",
        f"the script uses Horovod on GPUs, and the Horovod {which} was built without GPU "
        f"operations: it refuses tensors on a GPU.",
        "Build it with them where the full CUDA toolkit and NCCL are installed "
        "(`rayjobs horovod install --gpu`), or use torch.distributed (`--backend nccl`). If the "
        "script exchanges its gradients on the CPU, set HOROVOD_CPU_OPERATIONS=MPI.",
    )
