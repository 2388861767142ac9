"""Horovod is built for the torch of an environment, once for each torch."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.environments import locks
from rayjobs.environments.horovod import adding
from rayjobs.environments.work import Realised
from tests.support.wheels import make_wheel
from tests.unit.environments.conftest import Builder, Wish, builder

__all__ = ["builder"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
# Building Horovod takes minutes, so this stand-in writes a small wheel. Everything else is real.
STAND_IN = """
import sys, time, zipfile
from pathlib import Path
from rayjobs.environments.horovod import install

def build(environment, folder, gpu, jobs, say):
    with open({counts!r}, "a") as file:
        file.write(environment.torch + "\\n")
    say("compiling: 50 %")
    until_s = time.monotonic() + {meets_s}  # the other one is here, or waits for this one
    while time.monotonic() < until_s and not other_is_here():
        time.sleep(0.02)
    made = folder / "horovod-0.28.1-py3-none-any.whl"
    info = "horovod-0.28.1.dist-info/"
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr("horovod/__init__.py", "")
        text = "def mpi_built():\\n    return True\\ngloo_built = mpi_built\\n"
        wheel.writestr("horovod/torch/__init__.py", text + f"FOR = {{environment.torch!r}}\\n")
        about = "Metadata-Version: 2.1\\nName: horovod\\nVersion: 0.28.1\\n"
        wheel.writestr(info + "METADATA", about)
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return made

def other_is_here():
    waits = Path({counts!r} + ".waits").exists()
    return waits or len(Path({counts!r}).read_text().splitlines()) > 1

def say(text):
    if "another process builds it" in text:
        Path({counts!r} + ".waits").touch()
    print(text, flush=True)

install._say = say
install._build = build
install._HAS = ""
install.needs.mpi_version = lambda: "4.1"
install.cache_folder = lambda: Path({cache!r})
sys.exit(install.main(sys.argv[1:]))
"""
ASK = "import horovod.torch, torch; print(horovod.torch.FOR, horovod.__file__, torch.__file__)"


@pytest.fixture
def index(tmp_path: Path) -> list[str]:
    """Requirement lines for a stand-in torch, a module of a few lines."""
    for version in ("9.1", "9.2"):
        wheel = make_wheel(tmp_path / "wheels", "torch", version)
        _set_version(wheel, version)
    return ["--no-index", f"--find-links {tmp_path}/wheels"]


def _set_version(wheel: Path, version: str) -> None:
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    files["torch.py"] = (
        f"__version__ = '{version}'\nclass version:\n    cuda = None\ndef main(): pass\n"
    )
    record = next(name for name in files if name.endswith("RECORD"))
    files[record] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the build; return the file in which each build writes a line."""
    program, log = tmp_path / "program.py", tmp_path / "counts"
    write_program(program, log)
    monkeypatch.setattr(adding, "PROGRAM", program)
    return log


def write_program(program: Path, log: Path, *, meets_s: float = 0.0) -> None:
    """Write the stand-in; with `meets_s`, a build waits this long for a second one."""
    cache = str(program.parent / "kept")
    program.write_text(STAND_IN.format(counts=str(log), cache=cache, meets_s=meets_s))


def wish(builder: Builder) -> Wish:
    found = builder.wish()
    found.work.uses_horovod = True
    return found


def build(builder: Builder, *lines: str, **more: Any) -> tuple[Realised, Wish]:
    return builder.build(*lines, wish=wish(builder), **more)


def test_horovod_is_built_once_for_the_torch_of_its_environments(
    builder: Builder, index: list[str], counts: Path, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "tiny-tool")
    found, first = build(builder, *index, "torch==9.1")
    output = subprocess.check_output([found.python, "-c", ASK], text=True).split()
    assert output[0] == "9.1"
    site = str(builder.node.environments / found.key)
    assert output[1].startswith(site)
    assert output[2].startswith(site)
    assert first.steps == ["resolve", "build", "horovod", "built"]
    assert "compiling: 50 %" in first.log
    other, _ = build(builder, *index, "torch==9.1", "tiny-tool")
    assert other.key != found.key
    build(builder, *index, "torch==9.2")
    assert counts.read_text().splitlines() == ["9.1", "9.2"]
    # The same packages for a job without Horovod are another environment; a second job finds it.
    plain, _ = builder.build(*index, "torch==9.1")
    assert plain.key != found.key
    again, second = build(builder, *index, "torch==9.1")
    assert (again.key, again.built, second.steps) == (found.key, False, [])


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        ("torch==2.13.0+cpu \\", True),
        ("torch @ file:///wheels/torch-2.13.0-py3-none-any.whl", True),
        ("/wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl \\", True),
        ("# of the target: torch==2.15.0", False),
        ("torchvision==0.20", False),
        ("torch==2.13.0\nhorovod==0.28.1", False),
    ],
)
def test_torch_is_found_for_every_form_of_request(line: str, is_own: bool) -> None:
    assert locks.needs_horovod(f"# Packages\n{line}\n") is is_own


def test_two_environments_at_once_build_horovod_once(
    builder: Builder, index: list[str], counts: Path, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "tiny-tool")
    write_program(tmp_path / "program.py", counts, meets_s=60)
    wishes = [wish(builder) for _ in range(2)]

    async def both() -> list[Realised]:
        asked = [{"pip": [*index, "torch==9.1"]}, {"pip": [*index, "torch==9.1", "tiny-tool"]}]
        return list(
            await asyncio.gather(
                *(
                    builder.environments().realise(one, each.work)
                    for one, each in zip(asked, wishes, strict=True)
                )
            )
        )

    found = asyncio.run(both())
    assert len({one.key for one in found}) == 2
    assert counts.read_text().splitlines() == ["9.1"]


def test_packages_of_conda_with_a_torch_get_horovod(
    builder: Builder, index: list[str], counts: Path, tmp_path: Path
) -> None:
    from tests.support.conda_channel import Channel

    channel = Channel(tmp_path / "channel").index()
    found, _ = build(builder, *index, "torch==9.1", conda=["python"], channels=[channel.url])
    output = subprocess.check_output([found.python, "-c", ASK], text=True)
    assert output.startswith("9.1 ")
    assert counts.read_text().splitlines() == ["9.1"]


def test_job_is_refused_with_missing_parts_and_remedies_if_horovod_cannot_be_built(
    builder: Builder, index: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    (programs / "mpirun").chmod(0o755)
    (programs / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(PrepareError) as caught:
        build(builder, *index, "torch==9.1")
    message = str(caught.value)
    assert "has its own torch, and Horovod cannot be built for it" in message
    assert "cmake" in message
    assert "Request `torch` without a version" in message
    assert caught.value.is_permanent
    assert not [one for one in builder.node.environments.iterdir() if len(one.name) == 32]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_horovod_is_really_built_for_another_torch(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [Path(one) for one in os.environ.get("PIP_FIND_LINKS", "").split()]
    found = [one for folder in wheels for one in folder.glob("torch-2.13.0+cpu-*.whl")]
    if not found:
        pytest.skip("no wheel of torch 2.13.0+cpu in a folder of PIP_FIND_LINKS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    made, first = build(builder, str(found[0]), base="target")
    code = (
        "import torch, horovod.torch as hvd; hvd.init(); "
        "print(torch.__version__, hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
    )
    output = subprocess.check_output([made.python, "-c", code], text=True, cwd=tmp_path)
    assert output.split() == ["2.13.0+cpu", "1.0"], first.log[-2000:]
    assert "compiling: 90 %" in first.log
    assert sys.prefix not in made.python
