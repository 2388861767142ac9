"""Reads what an installed Horovod, or one stored as a wheel, was built for."""

from __future__ import annotations

import mmap
from functools import lru_cache
from pathlib import Path

from rayjobs.injob.lazy_dataclass import dataclass

# The library names one of these only if it was built to exchange tensors on a GPU: with NCCL (or
# AMD's RCCL), or with only CUDA or HIP, where MPI exchanges them.
_GPU = (b"ncclCommInitRank", b"cudaEventRecord", b"hipEventRecord")
_LIBRARY = "torch/mpi_lib_v2*.so"


@dataclass(frozen=True)
class Build:
    """An installed Horovod.

    Attributes:
        library: Its library for PyTorch.
        has_gpu_operations: Whether it exchanges tensors that are on GPUs.
    """

    library: Path
    has_gpu_operations: bool

    @property
    def note(self) -> Path:
        """The file in which `rayjobs horovod install` records its build."""
        return self.library.parents[1] / "rayjobs-build.txt"


def of_interpreter(python: Path) -> Build | None:
    """Return the Horovod of an interpreter's environment, without an import; None if it has none.

    Args:
        python: The interpreter, as ``…/bin/python``.
    """
    prefix = python.absolute().parent.parent  # do not follow the link of a virtual environment
    for packages in sorted(prefix.glob("lib*/python3*/*-packages")):
        build = of_package(packages / "horovod")
        if build is not None:
            return build
    return None


def of_package(folder: Path) -> Build | None:
    """Return the Horovod whose package is in a folder; None if it has no library for PyTorch."""
    for library in sorted(folder.glob(_LIBRARY)):
        changed_ns = library.stat().st_mtime_ns
        return Build(library, _takes_gpu_tensors(library, changed_ns))
    return None


@lru_cache(maxsize=8)
def _takes_gpu_tensors(library: Path, changed_ns: int) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return any(text.find(name) >= 0 for name in _GPU)
