"""Builds Horovod once for an environment's PyTorch, stores the wheel, and installs it.

As a program (`python -I install.py PYTHON`), this is a step of an environment's build, and prints
its progress.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked, locked_if_free, write_atomic
from rayjobs.environments import settings
from rayjobs.environments.horovod import builds, needs, recipe
from rayjobs.environments.settings import find_uv
from rayjobs.injob.lazy_dataclass import dataclass

DEPENDENCIES = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4.0")
_BUILD_TOOLS = ("pip", "setuptools", "wheel", "packaging", "cloudpickle")
_PERCENT = re.compile(r"\[\s*(\d+)%\]")
_LINES_TO_QUOTE = 8
_HAS = "import cffi, cloudpickle, packaging, psutil, yaml"
_CHECK = """
import horovod.torch as hvd
assert hvd.mpi_built(), "built without MPI"
assert hvd.gloo_built(), "built without Gloo"
"""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Installed:
    """The result of an install.

    Attributes:
        wheel: The wheel that was installed, in the cache.
        was_built: Whether this call built it.
        has_gpu_operations: Whether it exchanges tensors that are on GPUs.
    """

    wheel: Path
    was_built: bool
    has_gpu_operations: bool


def cache_folder() -> Path:
    """Return the folder of wheels. All checkouts share it."""
    import platformdirs  # most agents never build a wheel

    return Path(platformdirs.user_cache_path("rayjobs")) / "horovod"


def install(
    python: Path, *, gpu: bool | None = None, jobs: int | None = None, say: Say = lambda _text: None
) -> Installed:
    """Install Horovod into the environment of an interpreter; build it if there is no wheel yet.

    Args:
        gpu: Whether to include GPU operations (NCCL); None: if PyTorch is a build for CUDA, and
            the full CUDA toolkit and NCCL are found.
        jobs: How many compilers may run at a time; None: see `needs.compilers`.
        say: Called with a line about each stage.

    Raises:
        PrepareError: something is missing, or the build failed; the message names the remedy.
    """
    say(f"checking {python}")
    environment = needs.environment_of(python)
    mpi = needs.mpi_version()
    tools = needs.gpu_tools()
    with_gpu = _decide_gpu(gpu, environment, tools)
    folder = cache_folder() / _key(environment, mpi, gpu=with_gpu)
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder, say):
        wheel = _kept(folder)
        was_built = wheel is None
        if wheel is None:
            wheel = _build(environment, folder, tools if with_gpu else None, jobs, say)
        else:
            say(f"using the wheel of an earlier build: {wheel}")
        say("installing the wheel")
        _install(environment, wheel, folder / "install.log")
        _note_build(environment, gpu=with_gpu)
    return Installed(wheel, was_built, with_gpu)


def _decide_gpu(gpu: bool | None, environment: needs.Environment, tools: needs.GpuTools) -> bool:
    if gpu is None:
        return environment.cuda is not None and not tools.missing
    if gpu and environment.cuda is None:
        raise PrepareError(
            f"GPU operations need a PyTorch for CUDA, but {environment.torch} is for the CPU",
            failure_class=FailureClass.ENVIRONMENT,
        )
    if gpu and tools.missing:
        raise PrepareError(
            f"Horovod cannot be built with GPU operations here; missing: "
            f"{'; '.join(tools.missing)}. Install them, or leave out --gpu",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return gpu


def _key(environment: needs.Environment, mpi: str, *, gpu: bool) -> str:
    kind = "nccl" if gpu else "cpu"
    return (
        f"{recipe.VERSION}-torch-{environment.torch}-{environment.tag}-openmpi-{mpi}-{kind}-"
        f"{recipe.digest(gpu=gpu)}"
    )


def _kept(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


@contextmanager
def _only_one(folder: Path, say: Say) -> Iterator[None]:
    lock = folder / ".lock"
    with locked_if_free(lock) as is_free:
        if is_free:
            yield
            return
    say("another process builds it; waiting")
    with locked(lock):
        yield


def _build(
    environment: needs.Environment,
    folder: Path,
    gpu: needs.GpuTools | None,
    jobs: int | None,
    say: Say,
) -> Path:
    needs.check_tools()
    log = folder / "build.log"
    say(f"building Horovod {recipe.VERSION} for torch {environment.torch} (log: {log})")
    with tempfile.TemporaryDirectory(prefix="rayjobs-horovod-") as name:
        work = Path(name)
        tools = work / "tools"
        _run(
            [find_uv(), "pip", "install", "--quiet", "--python", str(environment.python),
             "--target", str(tools), *_BUILD_TOOLS],
            {}, log, "the build tools cannot be fetched",
        )  # fmt: skip
        variables = recipe.write(work, gpu=gpu is not None) | {
            "PYTHONPATH": str(tools),
            "MAKEFLAGS": f"-j{jobs or needs.compilers()}",
        }
        if gpu is not None:
            variables |= {"HOROVOD_CUDA_HOME": str(gpu.cuda), "HOROVOD_NCCL_HOME": str(gpu.nccl)}
        _run(
            [str(environment.python), "-m", "pip", "wheel", "-v", "--no-build-isolation",
             "--no-cache-dir", "--no-deps", "--disable-pip-version-check",
             "-w", str(work / "made"), f"horovod=={recipe.VERSION}"],
            variables, log, "Horovod cannot be built", say=say,
        )  # fmt: skip
        (made,) = (work / "made").glob("horovod-*.whl")
        # Atomically: the build folder may be on another file system.
        kept = folder / made.name
        write_atomic(kept, made.read_bytes())
    return kept


def _install(environment: needs.Environment, wheel: Path, log: Path) -> None:
    python = str(environment.python)
    _run(
        [find_uv(), "pip", "install", "--quiet", "--python", python, "--no-deps",
         "--reinstall-package", "horovod", str(wheel)],
        {}, log, "the wheel cannot be installed",
    )  # fmt: skip
    # The installer does not see packages that an environment uses from another one.
    if subprocess.run([python, "-c", _HAS], capture_output=True, cwd="/", check=False).returncode:
        _run(
            [find_uv(), "pip", "install", "--quiet", "--python", python, *DEPENDENCIES],
            {}, log, "Horovod's requirements cannot be installed",
        )  # fmt: skip
    _run([python, "-c", _CHECK], {}, log, f"the installed Horovod does not work; {wheel} is bad")


def _note_build(environment: needs.Environment, *, gpu: bool) -> None:
    build = builds.of_interpreter(environment.python)
    if build is not None:
        build.note.write_text(_made_for(environment, gpu=gpu))


def _made_for(environment: needs.Environment, *, gpu: bool) -> str:
    return f"{environment.torch} {environment.tag} {recipe.VERSION} {recipe.digest(gpu=gpu)}\n"


def is_current(python: Path) -> bool:
    """Return whether an environment has a Horovod that works and was built for its PyTorch.

    Raises:
        PrepareError: the environment has no PyTorch.
    """
    build = builds.of_interpreter(python)
    if build is None or not build.note.is_file():
        return False
    environment = needs.environment_of(python)
    if build.note.read_text() != _made_for(environment, gpu=build.has_gpu_operations):
        return False
    done = subprocess.run([str(python), "-c", _CHECK], capture_output=True, cwd="/", check=False)
    return done.returncode == 0


def _run(
    command: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    failure: str,
    *,
    say: Say | None = None,
) -> None:
    """Run a step, and write its output to the log.

    Raises:
        PrepareError: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**settings.for_pip(environment), **environment}
    command = settings.of_uv_pip(command, environment)
    last: list[str] = []
    printed = -1
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        with subprocess.Popen(
            command,
            env=environment | dict(variables),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                last = [*last, line.rstrip()][-_LINES_TO_QUOTE * 4 :]
                match = _PERCENT.search(line)
                if say is not None and match is not None and int(match[1]) // 10 > printed:
                    printed = int(match[1]) // 10
                    say(f"compiling: {printed * 10} %")
        code = process.returncode
    if code:
        telling = [line for line in last if "error" in line.lower()] or last
        quoted = "\n  ".join(line.strip() for line in telling[-_LINES_TO_QUOTE:])
        raise PrepareError(
            f"{failure} (exit code {code}). See {log}; it ends with:\n  {quoted}",
            failure_class=FailureClass.ENVIRONMENT,
        )


def default_python() -> Path:
    """Return the interpreter that runs rayjobs."""
    return Path(sys.executable)


def main(arguments: Sequence[str]) -> int:
    """Run the program; if it fails, the last lines of its output say why."""
    try:
        install(Path(arguments[0]), say=_say)
    except (PrepareError, OSError) as error:
        _say(f"error: {error}")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
