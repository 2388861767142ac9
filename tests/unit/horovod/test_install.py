"""Installing Horovod: missing parts are named, and a stored wheel is used only where it fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.environments.horovod import install, needs
from rayjobs.environments.horovod.needs import Environment, GpuTools

PYTHON = Path("/env/bin/python")
TORCH = Environment(PYTHON, "2.15.0+cu132", "13.2", "cpython-311-linux-x86_64")
NO_GPU = GpuTools(None, None, ("a full CUDA toolkit", "NCCL"))
GPU = GpuTools(Path("/cuda"), Path("/usr"), ())


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Builds that were made, as (torch, with GPU operations); each leaves a wheel."""
    made: list[tuple[str, bool]] = []

    def build(
        environment: Environment, folder: Path, gpu: GpuTools | None, jobs: object, say: object
    ) -> Path:
        made.append((environment.torch, gpu is not None))
        wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
        wheel.write_bytes(b"wheel")
        return wheel

    monkeypatch.setattr(install, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(install, "_build", build)
    monkeypatch.setattr(install, "_install", lambda *_: None)
    monkeypatch.setattr(needs, "environment_of", lambda _python: TORCH)
    monkeypatch.setattr(needs, "mpi_version", lambda: "4.1")
    monkeypatch.setattr(needs, "gpu_tools", lambda: NO_GPU)
    return made


def test_a_wheel_is_built_once_for_each_torch_mpi_and_kind(
    built: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = install.install(PYTHON)
    again = install.install(PYTHON)
    assert (first.was_built, again.was_built) == (True, False)
    assert first.wheel == again.wheel
    other = Environment(PYTHON, "2.13.0+cpu", None, TORCH.tag)
    monkeypatch.setattr(needs, "environment_of", lambda _python: other)
    assert install.install(PYTHON).was_built
    monkeypatch.setattr(needs, "mpi_version", lambda: "4.2")
    assert install.install(PYTHON).was_built
    assert built == [("2.15.0+cu132", False), ("2.13.0+cpu", False), ("2.13.0+cpu", False)]


def test_gpu_operations_are_built_if_available_unless_disabled(
    built: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "gpu_tools", lambda: GPU)
    assert install.install(PYTHON).has_gpu_operations
    assert not install.install(PYTHON, gpu=False).has_gpu_operations
    assert built == [("2.15.0+cu132", True), ("2.15.0+cu132", False)]


def test_unavailable_gpu_operations_are_refused_with_the_missing_parts(
    built: list[tuple[str, bool]],
) -> None:
    with pytest.raises(PrepareError, match="a full CUDA toolkit; NCCL"):
        install.install(PYTHON, gpu=True)
    assert built == []


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrepareError, match=r"g\+\+, make, cmake.*apt-get install"):
        needs.check_tools()
    with pytest.raises(PrepareError, match="no mpirun"):
        needs.mpi_version()


def test_an_old_cmake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("g++", "make", "mpicxx", "mpirun", "cmake"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho cmake version 3.18.4\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(PrepareError, match=r"CMake is 3\.18, but at least 3\.21 is required"):
        needs.check_tools()


def test_failing_step_quotes_the_relevant_lines(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    command = ["/bin/sh", "-c", "echo fine; echo 'x.cc:3: error: no such thing'; exit 2"]
    with pytest.raises(PrepareError, match=r"(?s)exit code 2.*build\.log.*error: no such thing"):
        install._run(command, {}, log, "Horovod cannot be built")
    assert "fine" in log.read_text()
