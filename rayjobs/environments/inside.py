"""An image in which an environment is built, on top of the image's Python and packages.

Like jobs, the programs of a build run inside the image, so source archives are built with the
image's compiler and libraries. They see only the parts of the node that they need. The environment
has the same path on the node and in the image, and is read-only for the jobs that use it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rayjobs.environments import settings
from rayjobs.injob import container
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.plan import Bind, ContainerPlan

_NODE_FILES = ("/etc/resolv.conf", "/etc/hosts")
# Settings of uv and credentials of indexes, below the home of the node's user.
_OF_HOME = (".netrc", ".config/uv")
_FILES = ("NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "UV_CONFIG_FILE", "REQUESTS_CA_BUNDLE")
_SYSTEM = ("/etc/uv",)
_LIBRARY = re.compile(r"(?:=>\s+|^\s*)(/\S+) \(0x", re.MULTILINE)
_ASK_S = 60.0
_OWN = frozenset({"PATH", "SHELL", "USER", "LOGNAME", "LD_LIBRARY_PATH"})  # the image's


@dataclass(frozen=True)
class Image:
    """An unpacked image into which packages are installed.

    Attributes:
        name: Its display name.
        key: Identifies it among images.
        root: Its root file system; without `overlay`, the attempt's own copy.
        variables: Its environment variables, including PATH.
        python: Its Python; None if it has none that jobs can use.
        why_no_python: The reason.
        overlay: Whether this node can put a writable layer over it.
        binds: The job's own volumes; a build sees them too, read-only.
    """

    name: str
    key: str
    root: Path
    variables: Mapping[str, str]
    python: str | None
    why_no_python: str = ""
    overlay: bool = True
    binds: tuple[Bind, ...] = ()

    @contextmanager
    def command(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        tmp: Path,
        *,
        read_only: Sequence[Path] = (),
        writable: Sequence[Path] = (),
    ) -> Iterator[list[str]]:
        """Yield the command that runs `arguments` inside the image.

        Args:
            variables: Variables of the program; the image's variables for its programs take
                precedence.
            tmp: A folder of the attempt, visible at the same path.
            read_only: Paths of the node that are visible if they exist.
            writable: Paths of the node that are visible and writable.
        """
        folder = Path(tempfile.mkdtemp(prefix="inside-", dir=tmp))
        try:
            cache = cache_folder(variables)
            cache.mkdir(parents=True, exist_ok=True)
            env = {**variables, "UV_CACHE_DIR": str(cache), "TMPDIR": str(tmp)}
            # Hard links cannot cross mounts, even within one file system.
            env.setdefault("UV_LINK_MODE", "copy")
            env = {name: value for name, value in env.items() if name not in _OWN}
            env = {"HOME": "/root", **env, **{k: v for k, v in self.variables.items() if k in _OWN}}
            for name, value in self.variables.items():
                env.setdefault(name, value)
            shown = [Path(one) for one in _NODE_FILES]
            shown += [*read_only, *_settings(variables), Path(container.__file__).parent]
            binds = [
                *(replace(one, read_only=True) for one in self.binds),
                *(Bind(str(one), str(one), read_only=True, replaces=not one.is_dir())
                  for one in dict.fromkeys(shown) if one.exists() and not self._shows(one)),
                *(Bind(str(one), str(one)) for one in (cache, *writable, tmp)),
            ]  # fmt: skip
            plan = ContainerPlan(
                str(self.root),
                str(folder / "scratch"),
                is_private=not self.overlay,
                shm_bytes=2**28,
                binds=tuple(binds),
            )
            file = folder / "run.json"
            values = {"container": plan.to_json(), "arguments": [*arguments], "env": env}
            file.touch(mode=0o600)
            file.write_text(json.dumps(values))
            yield [sys.executable, "-S", "-E", str(container.__file__), "--run", str(file)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _shows(self, path: Path) -> bool:
        """Whether a volume already shows a path of the node, into which nothing can be mounted."""
        return any(
            one.source == one.target and path.is_relative_to(one.target) for one in self.binds
        )


def portable(program: Path, folder: Path) -> list[str]:
    """Return the command that starts a program of the node in an image with any C library.

    Its loader and libraries are copied to `folder` once and passed as arguments, so that programs
    that it starts, such as the image's Python, still load the image's libraries. Blocks.

    Raises:
        OSError: they cannot be copied.
    """
    info = program.stat()
    libraries = folder / f"{program.name}-{info.st_size}-{info.st_mtime_ns}"
    if not libraries.is_dir():
        output = subprocess.run(
            [str(program)],
            env={"LD_TRACE_LOADED_OBJECTS": "1"},  # Source: ld.so(8)
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        ).stdout
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".libraries-", dir=folder))
        for path in sorted(set(_LIBRARY.findall(output))):
            shutil.copy(os.path.realpath(path), fresh / Path(path).name)
        fresh.chmod(0o755)
        try:
            fresh.rename(libraries)
        except OSError:  # another agent of the node was faster
            shutil.rmtree(fresh, ignore_errors=True)
    else:
        os.utime(libraries)  # marks it as used
    loader = next((one for one in libraries.iterdir() if one.name.startswith("ld-")), None)
    if loader is None:  # it is statically linked
        return [str(program)]
    return [str(loader), "--library-path", str(libraries), str(program)]


def cache_folder(variables: Mapping[str, str]) -> Path:
    """Return uv's cache folder. Source: uv, Cache directory."""
    if named := variables.get("UV_CACHE_DIR"):
        return Path(named)
    base = variables.get("XDG_CACHE_HOME")
    return Path(base or _home(variables) / ".cache") / "uv"


def _settings(variables: Mapping[str, str]) -> list[Path]:
    found = [Path(variables[name]) for name in _FILES if variables.get(name)]
    found += [_home(variables) / one for one in _OF_HOME]
    if config := variables.get("XDG_CONFIG_HOME"):
        found.append(Path(config) / "uv")
    found += settings.local_folders(variables)
    return [*found, *(Path(one) for one in _SYSTEM)]


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - a user may have no home
