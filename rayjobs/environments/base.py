"""The packages of the target's own Python or of an image, to which an environment may add others.

An environment on such a base sees the base's packages through a ``.pth`` file, and contains only
the packages that it adds or replaces. The resolver sees the base as stand-ins: wheels with the
metadata of the installed packages, so that it keeps their versions and does not query an index for
them. The build of a source archive may install a stand-in, whose ``.pth`` file leads to the real
package.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from rayjobs.injob import container
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.requirements import name_of

FORMAT = 3  # increased when the format of stand-ins changes
PATH_FILE = "rayjobs_target.pth"
_PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
_PLAIN_VERSION = re.compile(r"[0-9][0-9A-Za-z.!]*(\+[0-9A-Za-z.]+)?")
_WHEEL = "Wheel-Version: 1.0\nGenerator: rayjobs\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Base:
    """The packages installed in the Python of the target or of an image.

    Attributes:
        folders: Its package folders, with the paths that the Python itself uses.
        versions: Version by name.
        root: The image's root file system on the node; "" for the target's own.
    """

    folders: tuple[str, ...]
    versions: Mapping[str, str]
    root: str = ""

    @property
    def paths(self) -> list[str]:
        """The paths of the folders on the node."""
        if not self.root:
            return list(self.folders)
        return [container.inside(self.root, folder) for folder in self.folders]

    @property
    def owner(self) -> str:
        """The owner of the packages, for comments in a lock."""
        return "image" if self.root else "target"

    def digest(self) -> str:
        """Return a fingerprint of all packages and folders."""
        values = json.dumps([FORMAT, self.folders, sorted(self.versions.items())])
        return hashlib.sha256(values.encode()).hexdigest()

    def preferences(self) -> str:
        """Return the installed versions as the lines of a lock, which the resolver prefers."""
        return "".join(
            f"{name}=={version}\n"
            for name, version in sorted(self.versions.items())
            # pip does not accept versions in a distribution's own scheme.
            if _PLAIN_VERSION.fullmatch(version)
        )

    def without_own(self, lock: str) -> tuple[str, list[str]]:
        """Return a lock without the packages that are already installed, and those packages."""
        kept: list[str] = []
        own: list[str] = []
        is_own = False
        for line in lock.splitlines():
            found = _PINNED.match(line)
            if found is not None:
                name = name_of(found[1])
                is_own = self.versions.get(name) == found[2]
                if is_own:
                    own.append(f"{name}=={found[2]}")
            elif not line.startswith((" ", "\t")):
                is_own = False
            if not is_own:
                kept.append(line)
        return "".join(f"{line}\n" for line in kept), own

    def open_to(self, venv: Path) -> None:
        """Make these packages visible in a virtual environment, after its own."""
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / PATH_FILE).write_text(self.path_lines())

    def path_lines(self) -> str:
        """Return the text of a ``.pth`` file that leads to these packages."""
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in self.folders]
        return "".join(lines)


def installed() -> Base:
    """Return the packages installed in this process's own Python."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    stamps = tuple(Path(folder).stat().st_mtime_ns for folder in folders)
    return _installed(tuple(folders), stamps)


@lru_cache(maxsize=2)
def _installed(folders: tuple[str, ...], stamps: tuple[int, ...]) -> Base:
    """Return the packages in folders; `stamps` change with each package."""
    return of(folders)


def of(folders: Sequence[str], root: str = "") -> Base:
    """Return the packages in folders; an image's folders are below its `root`."""
    bare = Base(tuple(folders), {}, root)
    return replace(bare, versions={name: one.version for name, one in _found(bare.paths)})


def wheels(base: Base, root: Path) -> Path:
    """Return a folder with a stand-in for each package of the base, created once. Blocks."""
    folder = root / base.digest()[:32]
    if folder.is_dir():
        os.utime(folder)  # marks it as used
        return folder
    fresh = root / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    path_lines = base.path_lines()
    for name, one in _found(base.paths):
        text = one.read_text("METADATA") or one.read_text("PKG-INFO")
        if text:
            # Entry points make build backends discoverable.
            entry_points = one.read_text("entry_points.txt") or ""
            _write(fresh, name.replace("-", "_"), one.version, text, entry_points, path_lines)
    try:
        fresh.rename(folder)
    except OSError:  # another agent of the node was faster
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _found(folders: list[str]) -> Iterator[tuple[str, metadata.Distribution]]:
    seen = set()
    for one in metadata.distributions(path=folders):
        name = name_of(one.metadata["Name"] or "")
        if name and one.version and name not in seen:
            seen.add(name)
            yield name, one


def _write(
    folder: Path, module: str, version: str, text: str, entry_points: str, path_lines: str
) -> None:
    info = f"{module}-{version}.dist-info"
    files = {
        f"_rayjobs_target_{module}.pth": path_lines,
        f"{info}/METADATA": text,
        f"{info}/WHEEL": _WHEEL,
        f"{info}/entry_points.txt": entry_points,
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, content)
