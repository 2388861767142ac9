"""Makes small packages: wheels, and a source archive whose build waits for permission."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    value: str = "tiny",
    needs: Sequence[str] = (),
) -> Path:
    """Write a pure wheel: a module with ``VALUE``, and a program ``<name>-say`` that prints it."""
    requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": f"VALUE = {value!r}\n\n\ndef main():\n    print(VALUE)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-say = {module}:main\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def make_source_archive(folder: Path, name: str) -> Path:
    """Write a source archive from the time before pyproject.toml, with only a setup.py."""
    module = name.replace("-", "_")
    files = {
        "PKG-INFO": f"Metadata-Version: 1.1\nName: {name}\nVersion: 1.0\n",
        "setup.py": f"from setuptools import setup\n"
        f"setup(name={name!r}, version='1.0', py_modules=[{module!r}])\n",
        f"{module}.py": "VALUE = 'built'\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    _pack(path, f"{name}-1.0", files)
    return path


# A build backend without setuptools, which an isolated build would have to download.
_PROJECT_BACKEND = """
import os, shutil, sys, zipfile

def build_wheel(folder, settings=None, metadata=None):
    name = {module!r} + "-1.0-py3-none-any.whl"
    info = {module!r} + "-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.write({module!r} + ".py")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(info + "WHEEL", tags)
        wheel.writestr(info + "RECORD", "")
    return name
"""


def make_project(folder: Path, name: str, *, value: str = "own") -> Path:
    """Write the folder of a Python project: a module with ``VALUE``."""
    module = name.replace("-", "_")
    folder.mkdir(parents=True)
    (folder / f"{module}.py").write_text(f"VALUE = {value!r}\n")
    (folder / "backend.py").write_text(_PROJECT_BACKEND.format(module=module, name=name))
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        f"[project]\nname = {name!r}\nversion = '1.0'\n"
    )
    return folder


def _pack(path: Path, top: str, files: Mapping[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


# A build backend that waits for permission, and then returns a finished wheel.
_BACKEND = """
import os, shutil, time

def build_wheel(folder, settings=None, metadata=None):
    with open({begun!r}, "a") as file:
        file.write("%d\\n" % os.getpid())
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    shutil.copy({wheel!r}, folder)
    return os.path.basename({wheel!r})
"""


class SlowPackage:
    """A source archive whose build reports its start, and waits for `let_go`."""

    def __init__(self, folder: Path, name: str) -> None:
        wheel = make_wheel(folder / "wheels", name)
        self.name = name
        self._begun, self._go = folder / f"{name}.begun", folder / f"{name}.go"
        files = {
            "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n",
            "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\n"
            f"backend-path = ['.']\n[project]\nname = {name!r}\nversion = '1.0'\n",
            "backend.py": _BACKEND.format(
                begun=str(self._begun), go=str(self._go), wheel=str(wheel)
            ),
        }
        self.path = folder / f"{name}-1.0.tar.gz"
        _pack(self.path, f"{name}-1.0", files)

    def builds(self) -> list[int]:
        """Return the process of every build that has begun."""
        return [int(line) for line in self._begun.read_text().split()] if self.has_begun() else []

    def has_begun(self) -> bool:
        """Whether a build has begun."""
        return self._begun.exists()

    def let_go(self) -> None:
        """Let all builds continue."""
        self._go.touch()
