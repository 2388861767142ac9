"""Horovod is built inside an image that has torch and no Horovod, once for each image."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.environments import listing, settings
from rayjobs.environments.cache import Cache
from rayjobs.environments.horovod import in_image
from rayjobs.environments.horovod.in_image import Asked, HorovodInImages
from rayjobs.environments.inside import Image
from rayjobs.injob.plan import Bind
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.node.node import Node
from rayjobs.protocol.attempts import ContainerRequest
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import open_workspace
from tests.support.attempts import request_of
from tests.support.containers import ENV, PYTHON, image, needs_containers, python_folders
from tests.support.wheels import make_wheel
from tests.unit.environments.conftest import Builder, Wish, builder

__all__ = ["builder", "image"]
pytestmark = [needs_containers, pytest.mark.timeout(300), pytest.mark.long]
PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"usr/local/lib/{PYTHON_NAME}/site-packages"
# Building Horovod takes minutes, so the pip that the build fetches is this program. Everything else
# is real: uv, the image, its Python, and the folder that jobs use.
STAND_IN = """
import os, sys, zipfile
import torch
assert os.path.exists("/of-the-image"), "it is not built in the image"
assert sys.argv[1] == "wheel" and sys.argv[-1] == "horovod==0.28.1", sys.argv
with open(os.path.join(os.path.dirname(os.environ["CMAKE_TOOLCHAIN_FILE"]), "hook.cmake")) as file:
    assert "std=c++20" in file.read()
folder = sys.argv[sys.argv.index("-w") + 1]
print("[ 50%] Building CXX object of torch", torch.__version__, flush=True)
if torch.__version__ == "9.9":
    print("  /x/torch.h:3:10: fatal error: this torch is too new\\n      3 | here")
    sys.exit("error: subprocess-exited-with-error")
if torch.__version__ == "9.8":
    print("  gmake[2]: *** [horovod/x.make:485: x.cc.o] Killed")
    sys.exit("error: subprocess-exited-with-error")
os.makedirs(folder)
with zipfile.ZipFile(folder + "/horovod-0.28.1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("horovod/__init__.py", "")
    has_mpi = "HOROVOD_WITH_MPI" in os.environ
    text = "import torch, yaml\\ndef gloo_built(): return True\\n"
    text += "def mpi_built(): return %r\\nFOR = %r\\n" % (has_mpi, torch.__version__)
    text += "CMAKE = %r\\n" % os.environ.get("HOROVOD_CMAKE", "")
    wheel.writestr("horovod/torch/__init__.py", text)
    wheel.writestr("horovod/torch/mpi_lib_v2.so", "built for the CPU")
    info = "horovod-0.28.1.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: horovod\\nVersion: 0.28.1\\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
    wheel.writestr(info + "RECORD", "")
"""
SAY = (
    "import horovod, horovod.torch as hvd, torch; "
    "print(hvd.FOR, hvd.mpi_built(), hvd.CMAKE, horovod.__file__, torch.__version__)"
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the node's settings name a folder of wheels; no image contains it."""
    wheels = tmp_path / "wheels"
    for name in (*in_image.BUILD_TOOLS, "cffi", "psutil", "pyyaml", "cmake"):
        make_wheel(wheels, name, "4.0")
    _put(wheels / "pip-4.0-py3-none-any.whl", "pip/__main__.py", STAND_IN)
    _put(wheels / "pip-4.0-py3-none-any.whl", "pip/__init__.py", "")
    _put(wheels / "pyyaml-4.0-py3-none-any.whl", "yaml.py", "")
    for name in settings._FOR_PIP:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


def _put(wheel: Path, name: str, text: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {one: archive.read(one) for one in archive.namelist()}
    files = {one: data for one, data in files.items() if one != f"{name.partition('/')[0]}.py"}
    record = next(one for one in files if one.endswith("RECORD"))
    files[name] = text.encode()
    files[record] = "".join(f"{one},,\n" for one in files).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for one, data in files.items():
            archive.writestr(one, data)


def root_of(
    image: Path, folder: Path, *, torch: str | None = "9.1",
    programs: Sequence[str] = ("g++", "make", "mpicxx", "mpirun"), headers: bool = True,
) -> Path:  # fmt: skip
    """Copy the image, with stand-ins for a torch, compilers and headers."""
    shutil.copytree(image, folder, symlinks=True, copy_function=os.link)
    (folder / "of-the-image").touch()
    for name in programs:
        program(folder, name)
    if headers:
        (folder / f"usr/local/include/{PYTHON_NAME}").mkdir(parents=True)
        (folder / f"usr/local/include/{PYTHON_NAME}/Python.h").touch()
    if torch is not None:
        package(folder / SITE, "torch", f"__version__ = {torch!r}\n", torch)
        (folder / SITE / "torch/version.py").write_text("cuda = None\n")
    return folder


def program(root: Path, name: str, text: str = "#!/bin/sh\nexit 3\n") -> None:
    path = root / "usr/bin" / name
    path.write_text(text)
    path.chmod(0o755)


def package(site: Path, name: str, text: str, version: str) -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(text)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def image_of(root: Path, **changes: Any) -> Image:
    values = {"name": "the image 'made:1'", "key": "made", "root": root, "variables": ENV,
              "python": PYTHON, **changes}  # fmt: skip
    return Image(**values)


ASKED = Asked(PYTHON, {}, None, needs_mpi=False, on_gpus=False)


def bring(
    builder: Builder, image: Image, request: Asked = ASKED, wish: Wish | None = None
) -> tuple[Path | None, Wish]:
    """Return the folder with Horovod that a new agent of the node provides, and the attempt."""
    wish = wish or builder.wish()
    wish.work.image = image
    return asyncio.run(HorovodInImages(builder.node.environments).realise(request, wish.work)), wish


def output_in(
    builder: Builder, image: Image, packages: Path, words: Sequence[str],
    variables: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Return the output of a program in the image, run like a job with Horovod."""
    env = in_image.with_horovod(variables or {}, packages)
    folder = builder.wish().work.paths.tmp
    shown = [builder.node.environments]
    with image.command(words, env, folder, read_only=shown) as command:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_horovod_is_built_in_the_image_once_for_each_image(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    root = root_of(image, tmp_path / "root")
    place = image_of(root)
    packages, first = bring(builder, place)
    assert packages is not None
    assert first.steps == ["horovod", "built"]
    assert "[ 50%] Building CXX object of torch 9.1" in first.log
    # The image's own package is still found first.
    program_text = output_in(builder, place, packages, [PYTHON, "-c", SAY]).split()
    assert program_text[:2] == ["9.1", "True"]
    assert program_text[-2:] == [str(packages / "horovod/__init__.py"), "9.1"]
    assert program_text[2].endswith("tools/bin/cmake"), "the image's is missing: it is fetched"
    lacked = {"cffi.py", "cloudpickle.py", "packaging.py", "psutil.py", "yaml.py"}
    assert lacked <= {one.name for one in packages.iterdir()}
    again, second = bring(builder, place)
    assert (again, second.steps) == (packages, [])
    assert not second.work.paths.build_log.exists(), "nothing was built"
    Cache(builder.node.environments).discard(packages.parent.name)
    assert bring(builder, place)[1].steps == ["horovod", "built"], "only a whole one is used"
    other, _ = bring(builder, image_of(root, key="another image"))
    assert other not in (None, packages)
    (one,) = [each for each in listing.built(builder.node.environments)
              if each.key == packages.parent.name]  # fmt: skip
    assert (one.kind, one.name) == ("horovod", "Horovod for the image 'made:1'")
    assert [use.partition("/")[0] for use in one.used_by] == ["job1", "job3", "job4"], one.used_by
    assert listing.prune_unused(builder.node.root, -1, dry_run=False) == []


def test_the_users_own_paths_come_first(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    place = image_of(root_of(image, tmp_path / "root"))
    packages, _ = bring(builder, place)
    assert packages is not None
    own = {"PYTHONPATH": "/own/one:/own/two"}
    assert in_image.with_horovod(own, packages)["PYTHONPATH"] == f"/own/one:/own/two:{packages}"
    assert in_image.with_horovod(own, None) == own
    package(place.root / "own/one", "horovod", "", "0.1")
    request = replace(ASKED, variables=own)
    assert bring(builder, place, request)[0] is None, "the user's own Horovod is the one"


def test_two_concurrent_jobs_build_horovod_once(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    place = image_of(root_of(image, tmp_path / "root"))
    wishes = [builder.wish() for _ in range(3)]
    for one in wishes:
        one.work.image = place

    async def together() -> list[Path | None]:
        node = builder.node.environments
        return list(
            await asyncio.gather(
                *(HorovodInImages(node).realise(ASKED, one.work) for one in wishes)
            )
        )

    found = asyncio.run(together())
    assert len(set(found)) == 1
    assert sorted(one.steps for one in wishes) == [["horovod", "built"], ["wait"], ["wait"]]


def test_an_image_without_torch_or_with_horovod_needs_no_build(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    bare = image_of(root_of(image, tmp_path / "bare", torch=None))
    assert bring(builder, bare)[0] is None
    root = root_of(image, tmp_path / "full")
    package(root / SITE, "horovod", "", "0.28.1")
    found, wish = bring(builder, image_of(root))
    assert (found, wish.steps) == (None, [])


def test_torch_of_an_environment_gets_its_own_horovod(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    """The Horovod of the image was built for the torch of the image, which is hidden then."""
    root = root_of(image, tmp_path / "root")
    package(root / SITE, "horovod", "raise ImportError('of another torch')", "0.28.1")
    place = image_of(root)
    wheel = make_wheel(tmp_path / "wheels", "torch", "9.5")
    _put(wheel, "torch/__init__.py", "__version__ = '9.5'\n")
    wish = builder.wish()
    wish.work.image = place
    added, _ = builder.build("torch==9.5", wish=wish)
    folder = Path(added.python).parents[1]
    asked = replace(ASKED, python=added.python, environment=folder)
    packages, _ = bring(builder, place, asked)
    assert packages is not None
    text = output_in(builder, place, packages, [added.python, "-c", SAY]).split()
    assert (text[0], text[-1]) == ("9.5", "9.5")
    assert bring(builder, place)[0] is None, "without the environment the image's own is used"


def test_missing_parts_of_an_image_are_reported_immediately_with_remedies(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    place = image_of(root_of(image, tmp_path / "root", programs=(), headers=False))
    with pytest.raises(PrepareError) as caught:
        bring(builder, place, replace(ASKED, needs_mpi=True))
    text = str(caught.value)
    version = ".".join(map(str, sys.version_info[:3]))
    assert f"the image lacks g++, make, the headers of its Python {version} and the comp" in text
    assert "apt-get install -y g++ make python3-dev libopenmpi-dev" in text
    assert "use torch.distributed (backend gloo or nccl)" in text
    assert caught.value.is_permanent
    assert caught.value.failure_class == "environment"


def test_gloo_needs_no_mpi_in_the_image(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    place = image_of(root_of(image, tmp_path / "root", programs=("g++", "make")))
    packages, _ = bring(builder, place)
    assert packages is not None
    assert output_in(builder, place, packages, [PYTHON, "-c", SAY]).split()[1] == "False"
    with pytest.raises(PrepareError, match=r"lacks the compiler of Open MPI \(mpicxx\)\. Install"):
        bring(builder, place, replace(ASKED, needs_mpi=True))


def test_failed_build_is_never_used_and_quotes_the_compiler(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    place = image_of(root_of(image, tmp_path / "root", torch="9.9"))
    for _ in range(2):
        with pytest.raises(PrepareError) as caught:
            bring(builder, place)
        assert "has torch 9.9 but no Horovod, and Horovod cannot be built in it" in str(
            caught.value
        )
        assert "the compiler fails: /x/torch.h:3:10: fatal error: this torch is too" in str(
            caught.value
        )
        assert caught.value.is_permanent
    assert list((builder.node.environments / "building").iterdir()) == []
    assert listing.built(builder.node.environments) == []


def test_killed_compiler_is_not_an_image_failure(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    with pytest.raises(PrepareError, match=r"killed .*x.cc.o. Killed.*too little memory") as caught:
        bring(builder, image_of(root_of(image, tmp_path / "root", torch="9.8")))
    assert caught.value.failure_class == "system"
    assert not caught.value.is_permanent


def test_full_disk_is_a_storage_failure(
    builder: Builder, image: Path, index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Cache, "finish", full)
    with pytest.raises(PrepareError, match="No space left on device") as caught:
        bring(builder, image_of(root_of(image, tmp_path / "root")))
    assert caught.value.failure_class == "storage"


def test_gpus_need_a_build_with_gpu_operations(
    builder: Builder, image: Path, index: None, tmp_path: Path
) -> None:
    place = image_of(root_of(image, tmp_path / "root"))
    with pytest.raises(PrepareError, match="Horovod of the image 'made:1' was built without GPU"):
        bring(builder, place, replace(ASKED, on_gpus=True))


def test_node_builds_horovod_before_the_ranks_start_and_exposes_it(
    image: Path, index: None, tmp_path: Path
) -> None:
    root = root_of(image, tmp_path / "root")
    node = Node("local", tmp_path / "home")
    fields = {"script": "train.py", "environment_variables": {"PYTHONPATH": "/own"},
             "distribution": {"processes_per_node": 2, "backend": "horovod-gloo"}}  # fmt: skip
    spec = JobSpec.model_validate(fields)
    with open_workspace(tmp_path / "ws", create=True) as workspace:
        new = NewJob(spec=spec, experiment="test", snapshot=None, user="ada")
        job, _ = workspace.store.submit(new)
        assert workspace.store.start(job.id, attempt=0, allocation="a") is not None
        context = AttemptContext(
            job=job, attempt=1, nodes=(PlannedNode(0, "n0", "127.0.0.1", node.paths.root),),
            markers=("m0",), workspace_name="ws", workspace_path=str(workspace.path),
        )  # fmt: skip
        plan = launcher_for(spec).plans(context)[0]
        wanted = ContainerRequest(image=f"dir:{root}")
        request = request_of(plan, workspace.path, container=wanted)
        prepared = asyncio.run(node.prepare(request))
        launched, _ = node._node_plan(request)
        steps = [one.data["step"] for one in workspace.store.events(job.id)
                 if one.kind == "environment"]  # fmt: skip
        assert prepared.facts is not None and prepared.facts.packages is not None
        packages = json.loads(workspace.store.catalogue.manifest(prepared.facts.packages))
    assert steps == ["image", "horovod", "built"]
    assert ["horovod", "0.28.1"] in packages
    (folder,) = node.paths.environments.glob("*/packages")
    assert launched.env["PYTHONPATH"] == f"/own:{folder}"
    assert launched.container is not None
    assert Bind(str(folder), str(folder), read_only=True) in launched.container.binds


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_horovod_is_really_compiled_in_an_image(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has the machine's own files; its Python has torch and no Horovod."""
    torch = pytest.importorskip("torch")
    root = tmp_path / "root"
    root.mkdir()
    (root / "of-the-image").touch()
    made = tmp_path / "python"
    venv.create(made, symlinks=True, with_pip=False)
    (site,) = made.glob("lib/python*/site-packages")
    for one in Path(torch.__file__).parents[1].iterdir():
        if not one.name.startswith(("horovod", "_", "distutils")) and one.suffix != ".pth":
            (site / one.name).symlink_to(one)
    folders = [one for one in ("/usr", "/lib", "/lib64", "/bin", "/etc") if Path(one).exists()]
    folders += [one for one in python_folders() if one not in ("/usr", "/usr/local")]
    binds = tuple(Bind(one, one) for one in dict.fromkeys([*folders, str(made)]))
    variables = {"PATH": os.environ["PATH"]}
    python = str(made / "bin/python")
    place = image_of(root, python=python, variables=variables, binds=binds)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    request = replace(ASKED, python=python, needs_mpi=True)
    packages, wish = bring(builder, place, request)
    assert packages is not None
    code = (
        "import torch, horovod.torch as hvd; hvd.init(); print(torch.__version__, hvd.mpi_built(), "
        "hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
    )
    words = output_in(builder, place, packages, [python, "-c", code]).split()
    assert words[-3:] == [torch.__version__, "True", "1.0"], wish.log[-2000:]
    assert "[ 90%]" in wish.log
