"""Packages on top of an image: installed by the real uv inside it, and used from there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.environments import locks
from rayjobs.environments.inside import Image
from rayjobs.environments.work import Realised
from rayjobs.injob.plan import Bind
from tests.conformance.hosts import NOBODY, python_of_others
from tests.support.conda_channel import Channel
from tests.support.containers import ENV, PYTHON, image, needs_containers
from tests.support.wheels import make_project, make_wheel
from tests.unit.environments.conftest import Builder, Wish

__all__ = ["image"]
pytestmark = [needs_containers, pytest.mark.timeout(300), pytest.mark.long]
SITE = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture(scope="module")
def with_packages(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image whose Python has a package already."""
    root = tmp_path_factory.mktemp("image") / "root"
    shutil.copytree(image, root, symlinks=True)
    (root / SITE / "has_it-1.5.dist-info").mkdir(parents=True)
    (root / SITE / "has_it.py").write_text("VALUE = 'of the image'\n")
    info = root / SITE / "has_it-1.5.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: has-it\nVersion: 1.5\n")
    return root


def in_image(root: Path, **changes: object) -> Image:
    values = {"name": "the image 'made:1'", "key": "made", "root": root, "variables": ENV,
              "python": PYTHON, **changes}  # fmt: skip
    return Image(**values)  # type: ignore[arg-type]


def build(builder: Builder, image: Image, *lines: str, **more: Any) -> tuple[Realised, Wish]:
    wish = builder.wish()
    wish.work.image = image
    return builder.build(*lines, wish=wish, **more)


def output_in(builder: Builder, image: Image, arguments: Sequence[str]) -> str:
    """Return the output of a program in the image, with read-only environments as for jobs."""
    from rayjobs.environments import building

    wish = builder.wish()
    folder = wish.work.paths.tmp
    with image.command(arguments, {}, folder, read_only=[builder.node.environments]) as words:
        log, control = wish.work.log(), wish.work.control
        asyncio.run(
            building.run(words, env={}, cwd=folder, build_log=log, control=control, doing="it")
        )
        log.close()
    return wish.log.partition("\n")[2]


def test_packages_are_added_to_those_of_an_image(
    builder: Builder, with_packages: Path, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "tiny-tool", needs=["has-it>=1"])
    make_wheel(tmp_path / "wheels", "has-it", "2.0", value="newer")
    lines = ["--no-index", f"--find-links {tmp_path}/wheels", "tiny-tool"]
    place = in_image(with_packages)
    found, wish = build(builder, place, *lines)
    assert wish.steps == ["resolve", "build", "built"]
    packages = {one.name: (one.version, one.source) for one in locks.packages(found.lock)}
    # Packages of the image are used and not installed again.
    assert packages == {"tiny-tool": ("1.0", "pip"), "has-it": ("1.5", "image")}
    folder = builder.node.environments / found.key
    code = "import sys, tiny_tool, has_it; print(tiny_tool.VALUE, has_it.VALUE, sys.prefix)"
    assert output_in(builder, place, [found.python, "-c", code]) == f"tiny of the image {folder}\n"
    # Programs of packages start there too, by the image's own shell and Python.
    assert output_in(builder, place, [str(folder / "bin/tiny-tool-say")]) == "tiny\n"
    assert "(in the image 'made:1') $" in wish.log
    again, other = build(builder, place, *lines)
    assert (again.key, again.built, other.log) == (found.key, False, "")
    newer, _ = build(builder, place, *lines, "has-it==2.0")
    assert output_in(builder, place, [newer.python, "-c", code]).startswith("tiny newer ")
    changed, _ = build(builder, in_image(with_packages, key="another"), *lines)
    assert changed.built and changed.key not in (found.key, newer.key)


def test_packages_of_conda_get_their_pip_part_inside_the_image(
    builder: Builder, image: Path, tmp_path: Path
) -> None:
    """The Python of the image is a link to the one of this machine, which a volume provides."""
    channel = Channel(tmp_path / "channel")
    channel.add_library("tiny-conda", value="of conda")
    channel.index()
    make_wheel(tmp_path / "wheels", "tiny-pip", needs=["tiny-conda>=1"], value="of pip")
    volume = Bind(sys.base_prefix, sys.base_prefix)
    place = in_image(image, python=None, why_no_python="it has none", binds=(volume,))
    lines = ["--no-index", f"--find-links {tmp_path}/wheels", "tiny-pip"]
    asked = {"conda": ["tiny-conda"], "channels": [channel.url]}
    found, wish = build(builder, place, *lines, **asked)
    assert wish.steps == ["resolve", "build", "resolve", "built"]
    code = "import os, tiny_conda, tiny_pip; print(tiny_conda.VALUE, tiny_pip.VALUE)"
    assert output_in(builder, place, [found.python, "-c", code]) == "of conda of pip\n"


def test_a_project_is_built_by_the_python_of_the_image(
    builder: Builder, image: Path, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project", "own-tool")
    backend = project / "backend.py"
    mark = "import os\nassert os.path.exists('/etc/os-release')\nprint(open('/etc/os-release')"
    backend.write_text(f"{mark}.read())\n{backend.read_text()}")
    place = in_image(image)
    found, _ = build(builder, place, str(project))
    code = "import own_tool; print(own_tool.VALUE)"
    assert output_in(builder, place, [found.python, "-c", code]) == "own\n"


def test_image_that_cannot_take_packages_reports_the_reason(builder: Builder, image: Path) -> None:
    with pytest.raises(PrepareError, match="there is no python on its PATH") as caught:
        build(builder, in_image(image, python=None, why_no_python="there is no python on its PATH"),
              "tiny")  # fmt: skip
    assert caught.value.is_permanent
    with pytest.raises(PrepareError, match=r"asks for Python 3\.9, but the image 'made:1' has"):
        build(builder, in_image(image), "tiny", python="3.9")


AS_NOBODY = """
import asyncio, json, sys
from pathlib import Path
from rayjobs.core.paths import NodePaths
from rayjobs.environments.building import Control
from rayjobs.environments.inside import Image
from rayjobs.environments.realise import Environments, Work

folder, values, lines = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
node = NodePaths(folder / "node")
paths = node.attempt("job", 1)
paths.tmp.mkdir(parents=True)
work = Work(paths, Control(marker="rj-nobody"), lambda text, data: None)
work.image = Image(**{**values, "root": folder / "root"})
found = asyncio.run(Environments(node.environments, sys.executable).realise({"pip": lines}, work))
print(found.python)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="requires root and setpriv"
)
def test_a_user_without_rights_adds_packages_to_an_image(
    builder: Builder, image: Path, short_path: Path
) -> None:
    folder = short_path / "nobody"
    folder.mkdir()
    shutil.copytree(image, folder / "root", symlinks=True)
    make_wheel(folder / "wheels", "tiny-tool")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    for above in (folder, *folder.parents):
        if above.stat().st_uid == 0 and above.is_relative_to("/tmp/"):
            above.chmod(above.stat().st_mode | 0o011)
    python = python_of_others() or "python3"
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", python]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
           "PYTHONPATH": ":".join([os.getcwd(), sysconfig.get_path("purelib")])}  # fmt: skip
    probe = "import rayjobs.environments.realise; from uv import find_uv_bin; find_uv_bin()"
    if subprocess.run([*words, "-c", probe], env=env, check=False).returncode:
        pytest.skip("another user cannot read this checkout")
    values = {"name": "the image", "key": "made", "variables": ENV, "python": PYTHON}
    lines = ["--no-index", f"--find-links {folder}/wheels", "tiny-tool"]
    done = subprocess.run(
        [*words, "-c", AS_NOBODY, str(folder), json.dumps(values), json.dumps(lines)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    python = done.stdout.strip()
    assert Path(python).lstat().st_uid == NOBODY
    place = in_image(folder / "root")
    code = "import tiny_tool; print(tiny_tool.VALUE)"
    wish = builder.wish()
    shown = [folder / "node/environments"]
    with place.command([python, "-c", code], {}, wish.work.paths.tmp, read_only=shown) as command:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "tiny\n"
