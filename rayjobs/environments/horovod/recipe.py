"""The recipe that compiles Horovod 0.28.1 for a current PyTorch, as files for CMake.

It contains no part of Horovod: CMake gets a toolchain file, which hooks into Horovod's own build
and edits pip's temporary copy of one source file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

VERSION = "0.28.1"  # the last release

# Read at the end of `project(horovod)`. Not CMAKE_PROJECT_INCLUDE: the bundled gloo's own
# project() would run it again, and the replaced find_package would call itself forever.
_TOOLCHAIN = 'set(CMAKE_PROJECT_horovod_INCLUDE "{hook}")\n'

# The headers of current PyTorch need C++20; Horovod asks for C++14 and strips -std from CXXFLAGS.
_STANDARD = 'set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++20")\n'

# A PyTorch for CUDA and any nvcc make Horovod require a whole toolkit, even for CPU only.
_NO_CUDA = """\
macro(find_package name)
  _find_package(${name} ${ARGN})
  if("${name}" STREQUAL "Pytorch")
    set(Pytorch_CUDA FALSE)
    list(FILTER Pytorch_LIBRARIES EXCLUDE REGEX "(cudart|_cuda)[^/]*$|NOTFOUND$")
  endif()
endmacro()
"""

_CUDA_STANDARD = "set(CMAKE_CUDA_STANDARD 20)\n"

# Process sets ignore HOROVOD_GLOO_IFACE and use the address to which the host name resolves: on
# several nodes, the ranks then look for each other on their own loopback.
_GLOO_INTERFACE = """\
set(_file "${PROJECT_SOURCE_DIR}/horovod/common/gloo/gloo_context.cc")
file(READ "${_file}" _text)
set(_before "assert(global_context.IsEnabled());")
set(_line "gloo_iface_ = global_context.gloo_iface_;")
string(FIND "${_text}" "${_before}" _at)
if(_at EQUAL -1)
  message(FATAL_ERROR "rayjobs: ${_file} is not what the recipe was written for")
endif()
string(REPLACE "${_before}" "${_before}\\n  ${_line}" _text "${_text}")
file(WRITE "${_file}" "${_text}")
"""


def hook(*, gpu: bool) -> str:
    """Return the CMake code that runs inside Horovod's project."""
    return _STANDARD + (_CUDA_STANDARD if gpu else _NO_CUDA) + _GLOO_INTERFACE


def digest(*, gpu: bool) -> str:
    """Return a short digest of the recipe: wheels of another recipe are not used."""
    return hashlib.sha256(hook(gpu=gpu).encode()).hexdigest()[:8]


def write(folder: Path, *, gpu: bool, mpi: bool = True) -> dict[str, str]:
    """Write the files of the recipe; return the variables that point the build to them."""
    hook_file, toolchain = folder / "hook.cmake", folder / "toolchain.cmake"
    hook_file.write_text(hook(gpu=gpu))
    toolchain.write_text(_TOOLCHAIN.format(hook=hook_file))
    return {
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the bundled gloo's minimum
        "HOROVOD_WITH_PYTORCH": "1",
        f"HOROVOD_WITH{'' if mpi else 'OUT'}_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        **({"HOROVOD_GPU_OPERATIONS": "NCCL"} if gpu else {}),
    }
