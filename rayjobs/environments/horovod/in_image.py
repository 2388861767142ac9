"""Builds Horovod inside a container image whose Python has torch but no Horovod.

The image does not change: the build is an environment of the node with only Horovod and those of
its requirements that the image lacks. Jobs see it read-only, and find it through ``PYTHONPATH``.
The compiler and headers are the image's own, so the result runs with the image's libraries.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import duration_text
from rayjobs.datastore import credentials
from rayjobs.environments import mpi_checks, settings
from rayjobs.environments.attempt_files import UsedHorovod
from rayjobs.environments.cache import Cache
from rayjobs.environments.horovod import builds, needs, recipe
from rayjobs.environments.inside import Image
from rayjobs.environments.steps import Steps, cannot_be_kept
from rayjobs.environments.work import Work
from rayjobs.injob import container
from rayjobs.injob.lazy_dataclass import dataclass

FORMAT = 1  # increase it when the same Horovod must be built differently
PACKAGES = "packages"
BUILD_TOOLS = ("pip", "setuptools", "wheel", "packaging", "cloudpickle")
INSTEAD = "use an image that has Horovod, or use torch.distributed (backend gloo or nccl)"
# For the image's Python, 3.8 or newer: finds packages and programs without importing any.
_ASK = r"""
import glob, importlib.util, json, os, re, shutil, subprocess, sys, sysconfig
from importlib import metadata

def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return os.path.dirname(places[0]) if places else (spec.origin or "") if spec else ""

def output_of(*words):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True).stdout
    except OSError:
        return ""

def first(names, *patterns):
    places = [one for one in names if one]
    return next((one for one in places
                 if all(glob.glob(os.path.join(one, each)) for each in patterns)), None)

torch = folder("torch")
try:
    with open(os.path.join(torch, "torch", "version.py")) as file:
        for_cuda = re.search(r"^cuda[^=\n]*=\s*['\"]([^'\"]+)", file.read(), re.M)
except OSError:
    for_cuda = None
found = re.search(r"version (\d+)\.(\d+)", output_of("cmake", "--version"))
cuda = first([os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"],
             "include/cuda_runtime.h", "bin/nvcc", "lib*/libcudart.so*")
nccl = [os.environ.get("NCCL_HOME"), cuda, "/usr", "/usr/local"]
nccl = first(nccl, "include/nccl.h", "lib*/libnccl.so*") or first(
    nccl, "include/nccl.h", "lib/*/libnccl.so*")
modules = {"cffi": "cffi", "cloudpickle": "cloudpickle", "packaging": "packaging",
           "psutil": "psutil", "yaml": "pyyaml"}
with open(sys.argv[1], "w") as file:
    json.dump({
        "horovod": folder("horovod"), "torch": torch,
        "torch_version": next((one.version for one in metadata.distributions(name="torch")), ""),
        "for_cuda": for_cuda is not None,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "programs": [one for one in ("g++", "make", "mpicxx", "mpirun") if shutil.which(one)],
        "cmake": [int(one) for one in found.groups()] if found else None,
        "has_headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
        "cuda": cuda, "nccl": nccl,
        "lacks": [modules[one] for one in sorted(modules) if not folder(one)],
    }, file)
"""
_CHECK = """
import horovod.torch as hvd
assert hvd.gloo_built(), "built without Gloo"
"""
# Output of make for a killed compiler; errors of the compiler and the linker.
_KILLED = re.compile(r"^.*\*\*\* \[.*\] Killed", re.MULTILINE)
_WRONG = re.compile(
    r"^.*(?:: (?:fatal )?error: |: undefined reference to|cannot find -l|CMake Error).*"
    r"(?:\n  +\S.*)?",
    re.MULTILINE,
)
_CHECK_MPI = 'assert hvd.mpi_built(), "built without MPI"\n'


@dataclass(frozen=True)
class Asked:
    """A job's request for Horovod in its image.

    Attributes:
        python: The job's Python, as a path in the image.
        variables: The job's variables that determine where its Python looks for packages.
        environment: The folder of the environment that is added to the image; None if none is.
        needs_mpi: Whether MPI starts the ranks.
        on_gpus: Whether the ranks exchange tensors that are on GPUs.
    """

    python: str
    variables: Mapping[str, str]
    environment: Path | None
    needs_mpi: bool
    on_gpus: bool


@dataclass(frozen=True)
class _Seen:
    """The answer of an image's Python to `_ASK`."""

    horovod: str
    torch: str
    torch_version: str
    for_cuda: bool
    python: str
    programs: tuple[str, ...]
    cmake: tuple[int, ...] | None
    has_headers: bool
    cuda: str | None
    nccl: str | None
    lacks: tuple[str, ...]

    @property
    def with_mpi(self) -> bool:
        return "mpicxx" in self.programs and "mpirun" in self.programs

    @property
    def with_gpu(self) -> bool:
        return self.for_cuda and self.cuda is not None and self.nccl is not None


class HorovodInImages:
    """The builds of Horovod for the images of one node. Its methods run on one event loop."""

    def __init__(self, root: Path) -> None:
        """Keep the builds among the node's environments, below `root`."""
        self._cache = Cache(root)
        self._steps = Steps(self._cache)

    async def realise(self, asked: Asked, work: Work) -> Path | None:
        """Return the folder of packages with Horovod for a job; None if its image needs none.

        One attempt builds it; other attempts of the node that need the same build wait.

        Raises:
            PrepareError: class ``environment``: it cannot be built; the message names what the
                image lacks. Other classes: see `Steps.run`.
        """
        image = work.image
        assert image is not None
        work.env = settings.variables(
            credentials.environment(), pip_files=settings.pip_files(os.environ)
        )
        try:
            self._cache.make()
            seen = await self._ask(asked, image, work)
            if not seen.torch or _is_there(seen, asked):
                _require_gpu_operations(seen, asked, image)
                return None
            key = _key(seen, asked, image)
            if asked.needs_mpi and not seen.with_mpi:  # a build without MPI may exist
                _require_tools(seen, asked, image)
            async with self._steps.building(), self._steps.alone(key, work):
                folder = self._cache.folder(key)
                if not self._cache.has_record(key):
                    await self._build(key, seen, asked, image, work)
                self._cache.touch(key)
                UsedHorovod(key, str(folder / PACKAGES)).write(work.paths)
        except OSError as error:
            raise cannot_be_kept(self._cache.root, error) from error
        finally:
            work.close()
        _require_gpu_operations(seen, asked, image, folder / PACKAGES)
        return folder / PACKAGES

    async def _ask(self, asked: Asked, image: Image, work: Work) -> _Seen:
        file = work.paths.tmp / "horovod.json"
        try:
            await self._steps.run(
                [asked.python, "-c", _ASK, str(file)],
                work,
                f"{asked.python} in {image.name} cannot be queried for its torch",
                reads=_environment(asked),
                quietly=True,
                variables=_of_job(asked),
            )
            values = json.loads(file.read_bytes())
        finally:
            file.unlink(missing_ok=True)
        values["programs"], values["lacks"] = tuple(values["programs"]), tuple(values["lacks"])
        return _Seen(**values)

    async def _build(self, key: str, seen: _Seen, asked: Asked, image: Image, work: Work) -> None:
        _require_tools(seen, asked, image)
        began_s = time.monotonic()
        work.tell(
            f"building Horovod {recipe.VERSION} for the torch {seen.torch_version} of "
            f"{image.name}, which takes some minutes",
            {"step": "horovod", "key": key},
        )
        folder = await asyncio.to_thread(self._cache.begin, key)
        try:
            made = folder / "made"
            await self._compile(folder, made / PACKAGES, seen, asked, work)
            took_s = round(time.monotonic() - began_s, 3)
            lock = (
                f"# Horovod for the torch {seen.torch_version} of {image.name}\n"
                f"horovod=={recipe.VERSION}\n"
            )
            record: dict[str, Any] = {
                "key": key, "kind": "horovod", "name": f"Horovod for {image.name}",
                "python": seen.python, "packages": 1, "took_s": took_s,
            }  # fmt: skip
            await asyncio.to_thread(self._cache.finish, key, made, lock, record)
        except PrepareError as error:
            if error.failure_class is not FailureClass.ENVIRONMENT:
                raise
            raise PrepareError(
                f"{image.name} has torch {seen.torch_version} but no Horovod, and Horovod cannot "
                f"be built in it: {error}. {INSTEAD[0].upper()}{INSTEAD[1:]}",
                failure_class=FailureClass.ENVIRONMENT,
                lines=error.lines,
                is_permanent=True,
            ) from error
        finally:
            await asyncio.to_thread(partial(shutil.rmtree, folder, ignore_errors=True))
        text = f"built Horovod {recipe.VERSION} for {image.name} in {duration_text(took_s)}"
        work.log().write(f"{text}: {self._cache.folder(key)}")
        work.tell(text, {"step": "built", "key": key, "took_s": took_s})

    async def _compile(
        self, folder: Path, packages: Path, seen: _Seen, asked: Asked, work: Work
    ) -> None:
        """Compile Horovod in the image, and install it with its requirements into a folder."""
        tools, wheels = folder / "tools", folder / "wheels"
        install = [settings.find_uv(), "pip", "install", "--python", asked.python]
        reads = _environment(asked)
        step = partial(self._steps.run, reads=reads, writes=(folder,))
        wanted = list(BUILD_TOOLS) if _has_cmake(seen) else [*BUILD_TOOLS, _cmake()]
        await step(
            [*install, "--target", str(tools), *wanted],
            work,
            "the build tools cannot be fetched",
        )
        of_job = asked.variables.get("PYTHONPATH")
        path = [str(tools), *([of_job] if of_job else [])]
        variables = {
            **settings.for_pip(work.env),
            **recipe.write(folder, gpu=seen.with_gpu, mpi=seen.with_mpi),
            "PYTHONPATH": ":".join(path),
            "MAKEFLAGS": f"-j{needs.compilers()}",
        }
        if not _has_cmake(seen):
            variables["HOROVOD_CMAKE"] = str(tools / "bin" / "cmake")
        if seen.with_gpu:
            variables |= {"HOROVOD_CUDA_HOME": str(seen.cuda), "HOROVOD_NCCL_HOME": str(seen.nccl)}
        begins = work.log().path.stat().st_size
        with _in_compilers_words(work.log().path, begins):
            await step(
                [asked.python, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-cache-dir",
                 "--no-deps", "--disable-pip-version-check", "-w", str(wheels),
                 f"horovod=={recipe.VERSION}"],
                work, "the compiler fails", variables=variables,
            )  # fmt: skip
        (wheel,) = wheels.glob("horovod-*.whl")
        target = ["--compile-bytecode", "--target", str(packages)]
        await step(
            [*install, *target, "--no-deps", str(wheel)], work, "the wheel cannot be installed"
        )
        if seen.lacks:
            await step(
                [*install, *target, *seen.lacks], work, "Horovod's requirements cannot be installed"
            )
        check = _CHECK + (_CHECK_MPI if seen.with_mpi else "")
        await step(
            [asked.python, "-c", check],
            work,
            "the built Horovod does not work",
            variables=_of_job(asked, packages),
        )


@contextmanager
def _in_compilers_words(log: Path, begins: int) -> Iterator[None]:
    """Make a failure quote the compiler's error: pip's output ends with its own traceback."""
    try:
        yield
    except PrepareError as error:
        if error.failure_class is not FailureClass.ENVIRONMENT:
            raise
        with log.open("rb") as file:
            file.seek(begins)
            text = file.read().decode("utf-8", "replace")
        if found := _KILLED.search(text):
            raise PrepareError(
                f"Horovod's compiler was killed ({found[0].strip()[-200:]}): the node may "
                f"have too little memory",
                failure_class=FailureClass.SYSTEM,
                lines=error.lines,
            ) from error
        if found := _WRONG.search(text):
            raise PrepareError(
                f"the compiler fails: {found[0].strip()[-400:]}",
                failure_class=FailureClass.ENVIRONMENT,
                lines=error.lines,
            ) from error
        raise


def of_attempt(paths: AttemptPaths) -> Path | None:
    """Return the folder of packages with the Horovod that an attempt uses; None if it uses none.

    Raises:
        OSError, ValueError: the attempt's record cannot be read.
    """
    used = UsedHorovod.read(paths)
    return None if used is None else Path(used.packages)


def with_horovod(variables: Mapping[str, str], packages: Path | None) -> dict[str, str]:
    """Return a rank's variables, with the folder of Horovod after the user's own module paths."""
    if packages is None:
        return dict(variables)
    own = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": ":".join([*([own] if own else []), str(packages)])}


def _of_job(asked: Asked, packages: Path | None = None) -> dict[str, str]:
    return with_horovod(asked.variables, packages)


def _environment(asked: Asked) -> tuple[Path, ...]:
    return () if asked.environment is None else (asked.environment,)


def _is_there(seen: _Seen, asked: Asked) -> bool:
    """Whether the job finds a Horovod that was built for the job's torch.

    An environment with its own torch hides the torch for which the image's Horovod was built.
    """
    if not seen.horovod:
        return False
    own = asked.environment
    brings_torch = own is not None and Path(seen.torch).is_relative_to(own)
    return not brings_torch or seen.horovod == seen.torch


def _has_cmake(seen: _Seen) -> bool:
    return seen.cmake is not None and tuple(seen.cmake) >= needs.OLDEST_CMAKE


def _cmake() -> str:
    return f"cmake>={'.'.join(map(str, needs.OLDEST_CMAKE))}"


def _require_tools(seen: _Seen, asked: Asked, image: Image) -> None:
    """Check that an image has the tools that a build needs, except CMake, which is fetched.

    Raises:
        PrepareError: class ``environment``: it lacks some; the message lists all of them and the
            remedy.
    """
    lacks = {name: name for name in ("g++", "make") if name not in seen.programs}
    if not seen.has_headers:
        lacks[f"the headers of its Python {seen.python}"] = "python3-dev"
    if asked.needs_mpi and not seen.with_mpi:
        lacks["the compiler of Open MPI (mpicxx)"] = "libopenmpi-dev"
    if not lacks:
        return
    raise PrepareError(
        f"{image.name} has torch {seen.torch_version} but no Horovod, and Horovod cannot be built "
        f"in it: the image lacks {_listed(list(lacks))}. Install them in the image (for Debian or "
        f"Ubuntu: `RUN apt-get update && apt-get install -y {' '.join(lacks.values())}` in a "
        f"Dockerfile, which `--dockerfile` builds), or {INSTEAD}",
        failure_class=FailureClass.ENVIRONMENT,
        is_permanent=True,
    )


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _require_gpu_operations(
    seen: _Seen, asked: Asked, image: Image, packages: Path | None = None
) -> None:
    """Check that the Horovod of a job on GPUs exchanges tensors there.

    Raises:
        PrepareError: class ``environment``: it was built for the CPU.
    """
    if not asked.on_gpus or not (packages or seen.horovod):
        return
    folder = packages or Path(container.inside(str(image.root), seen.horovod))
    build = builds.of_package(folder / "horovod")
    if build is None or build.has_gpu_operations:
        return
    refusal = mpi_checks.no_gpu_operations(f"of {image.name}")
    raise PrepareError(
        f"ranks are not started: {refusal.message} {refusal.remedy}",
        failure_class=FailureClass.ENVIRONMENT,
        is_permanent=True,
    )


def _key(seen: _Seen, asked: Asked, image: Image) -> str:
    """Return the key of a build; jobs with the same image, Python and environment share it."""
    values = [
        FORMAT, "horovod", recipe.VERSION, recipe.digest(gpu=seen.with_gpu), image.key,
        asked.python, seen.python, seen.torch, seen.torch_version, seen.with_gpu, seen.with_mpi,
        None if asked.environment is None else asked.environment.name,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
