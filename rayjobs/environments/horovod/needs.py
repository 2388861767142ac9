"""Checks a machine and an environment for the requirements of a Horovod build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.lazy_dataclass import dataclass

OLDEST_CMAKE = (3, 21)  # the first version that reads CMAKE_TOOLCHAIN_FILE from the environment
_ASK_S = 120.0
_COMPILER_KIB = 2_200_000  # memory of one compiler, because of torch's headers
_FACTS = """
import json, sys, sysconfig
import torch
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda,
                  "python": sys.implementation.cache_tag, "platform": sysconfig.get_platform()}))
"""
# The program of each requirement, and its Debian package.
_PROGRAMS = {"g++": "g++", "make": "make", "cmake": "cmake", "mpicxx": "libopenmpi-dev",
             "mpirun": "openmpi-bin"}  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """An environment that Horovod is built for.

    Attributes:
        python: Its interpreter.
        torch: The version of its PyTorch, with the name of the build.
        cuda: The CUDA version of that build; None for a build for the CPU.
        tag: Python's version and the platform.
    """

    python: Path
    torch: str
    cuda: str | None
    tag: str


def environment_of(python: Path) -> Environment:
    """Query an interpreter's packages.

    Raises:
        PrepareError: it cannot be run, or has no PyTorch.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _FACTS],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PrepareError(
            f"the interpreter {python} cannot be run: {error}",
            failure_class=FailureClass.ENVIRONMENT,
        ) from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise PrepareError(
            f"the environment of {python} has no PyTorch that can be imported ({last[0]}). Install "
            f"torch there first",
            failure_class=FailureClass.ENVIRONMENT,
        )
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    tag = f"{facts['python']}-{facts['platform']}"
    return Environment(python, str(facts["torch"]), facts["cuda"], tag)


def compilers() -> int:
    """Return how many compilers may run at a time: one per CPU, if the memory suffices."""
    cpus = len(os.sched_getaffinity(0))
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return cpus
    return cpus if found is None else max(1, min(cpus, int(found[1]) // _COMPILER_KIB))


def mpi_version() -> str:
    """Return the version of Open MPI; a wheel works only with the one that it was built for.

    Raises:
        PrepareError: there is no mpirun, or it is not Open MPI's.
    """
    if shutil.which("mpirun") is None:
        raise PrepareError(
            "Horovod needs Open MPI, but this machine has no mpirun. Install it: sudo apt-get "
            "install openmpi-bin libopenmpi-dev",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return _version("mpirun", r"\(Open MPI\) (\d+)\.(\d+)")


def check_tools() -> None:
    """Check the requirements of a build.

    Raises:
        PrepareError: something is missing or too old; the message lists everything, with the
            command that installs it.
    """
    missing = {name: package for name, package in _PROGRAMS.items() if shutil.which(name) is None}
    if missing:
        raise PrepareError(
            f"Horovod cannot be built here: {', '.join(missing)} not found. Install them: sudo "
            f"apt-get install {' '.join(sorted(set(missing.values())))}",
            failure_class=FailureClass.ENVIRONMENT,
        )
    found = _version("cmake", r"version (\d+)\.(\d+)")
    cmake = tuple(int(part) for part in found.split("."))
    if cmake < OLDEST_CMAKE:
        oldest = ".".join(map(str, OLDEST_CMAKE))
        raise PrepareError(
            f"Horovod cannot be built here: CMake is {found}, but at least {oldest} is required. "
            f"Install a newer one: pip install cmake",
            failure_class=FailureClass.ENVIRONMENT,
        )


def _version(program: str, pattern: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = re.search(pattern, done.stdout)
    if match is None:
        output = (done.stdout + done.stderr).strip()[:80]
        raise PrepareError(
            f"Horovod cannot be built here: `{program} --version` prints {output!r}, which has no "
            f"version in the expected form",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return ".".join(match.groups())


@dataclass(frozen=True)
class GpuTools:
    """The locations of the CUDA toolkit and NCCL; `missing` lists the absent ones."""

    cuda: Path | None
    nccl: Path | None
    missing: tuple[str, ...]


def gpu_tools() -> GpuTools:
    """Look for a full CUDA toolkit and NCCL's headers and library."""
    wanted = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    cuda = next((Path(one) for one in wanted if one and _is_toolkit(Path(one))), None)
    roots = [os.environ.get("NCCL_HOME"), str(cuda) if cuda else None, "/usr", "/usr/local"]
    nccl = next((Path(one) for one in roots if one and _is_nccl(Path(one))), None)
    missing = []
    if cuda is None:
        missing.append("a full CUDA toolkit (nvcc, headers, libcudart; named by CUDA_HOME)")
    if nccl is None:
        missing.append("NCCL (nccl.h and libnccl.so; named by NCCL_HOME)")
    return GpuTools(cuda, nccl, tuple(missing))


def _is_toolkit(folder: Path) -> bool:
    has_headers = (folder / "include" / "cuda_runtime.h").is_file()
    has_compiler = os.access(folder / "bin" / "nvcc", os.X_OK)
    return has_headers and has_compiler and any(folder.glob("lib*/libcudart.so*"))


def _is_nccl(folder: Path) -> bool:
    has_library = any(folder.glob("lib*/libnccl.so*")) or any(folder.glob("lib/*/libnccl.so*"))
    return (folder / "include" / "nccl.h").is_file() and has_library
