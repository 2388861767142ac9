"""Finds an environment's Python on the node, and queries its facts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.environments import settings
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.requirements import LEAST_PYTHON

_ASK = (
    "import json,platform,sys;"
    "print(json.dumps([list(sys.version_info[:3]),platform.python_implementation(),"
    "platform.machine(),sys.platform,platform.libc_ver()]))"
)
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter of this node.

    Attributes:
        platform: The facts that determine which wheels fit: implementation, machine, system, C
            library.
    """

    path: str
    version: tuple[int, int, int]
    platform: str

    @property
    def version_text(self) -> str:
        """The version in the usual notation."""
        return ".".join(map(str, self.version))


def path_of(named: str) -> str:
    """Return the interpreter at a path, which may be a virtual environment.

    Raises:
        PrepareError: class ``environment``: there is none.
    """
    path = Path(named).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    if not os.access(path, os.X_OK):
        raise PrepareError(
            f"the environment {named!r} has no Python interpreter on this node; give the path of "
            f"an existing interpreter or virtual environment",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return str(path)


def variables(path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's variables with an environment's programs first on PATH.

    So ``python`` in a command is the job's Python. This also holds for the target's own Python,
    which may have been started by its path.
    """
    folder = Path(path).parent
    search = environment.get("PATH") or os.environ.get("PATH") or os.defpath
    own = {"PATH": search if str(folder) in search.split(":") else f"{folder}:{search}"}
    if path == sys.executable:
        return {**environment, **own}
    if (folder.parent / "pyvenv.cfg").exists():
        own["VIRTUAL_ENV"] = str(folder.parent)
    if (folder.parent / "conda-meta").is_dir():
        own.pop("VIRTUAL_ENV", None)
        own |= {"CONDA_PREFIX": str(folder.parent), "CONDA_DEFAULT_ENV": str(folder.parent)}
    return {**environment, **own}


_known: dict[tuple[str, int, int], Interpreter] = {}


# In an image, the answer goes to a file and includes the package folders, as `site` sees them.
_ASK_IN_IMAGE = """
import json, platform, sys
found = [one for one in sys.path if one.rstrip("/").endswith(("site-packages", "dist-packages"))]
values = [list(sys.version_info[:3]), platform.python_implementation(), platform.machine(),
          sys.platform, platform.libc_ver(), found]
with open(sys.argv[1], "w") as file:
    json.dump(values, file)
"""


def asking(file: Path) -> list[str]:
    """Return the arguments with which an interpreter in an image writes its facts to a file."""
    return ["-E", "-s", "-c", _ASK_IN_IMAGE, str(file)]


def answered(path: str, output: bytes) -> tuple[Interpreter, tuple[str, ...]]:
    """Return the interpreter and package folders from an answer to `asking`.

    Raises:
        PrepareError: class ``environment``: it is not a Python that jobs can use.
    """
    try:
        values = json.loads(output)
        major, minor, micro = (int(part) for part in values[0])
        folders = tuple(str(one) for one in values[5])
    except (ValueError, TypeError, IndexError) as error:
        raise _no_answer(path) from error
    return _checked(path, (major, minor, micro), values[1:5]), folders


async def ask(path: str) -> Interpreter:
    """Return the facts of the interpreter at `path`, cached until its file changes.

    Raises:
        PrepareError: class ``environment``: it is not a Python that jobs can use.
    """
    stamp = _stamp(path)
    if stamp is not None and stamp in _known:
        return _known[stamp]
    found = await _ask(path)
    if stamp is not None:
        _known[stamp] = found
    return found


def _stamp(path: str) -> tuple[str, int, int] | None:
    try:
        info = Path(path).stat()
    except OSError:
        return None
    return path, info.st_ino, info.st_mtime_ns


async def _ask(path: str) -> Interpreter:
    if path == sys.executable:
        arguments = [path, "-I", "-S", "-c", _ASK]
    else:
        arguments = [path, "-E", "-s", "-S", "-c", _ASK]
    output = b""
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
        values = json.loads(output)
        major, minor, micro = (int(part) for part in values[0])
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise _no_answer(path) from error
    return _checked(path, (major, minor, micro), values[1:])


def _no_answer(path: str) -> PrepareError:
    return PrepareError(
        f"{path} does not answer like a Python interpreter; name another one as the environment",
        failure_class=FailureClass.ENVIRONMENT,
    )


def _checked(path: str, version: tuple[int, int, int], platform: object) -> Interpreter:
    major, minor, micro = version
    if version < LEAST_PYTHON:
        raise PrepareError(
            f"{path} is Python {major}.{minor}.{micro}; jobs need 3.8 or newer. Name another "
            f"interpreter as the environment",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return Interpreter(path, version, json.dumps(platform))


def is_version(python: Interpreter, wanted: str) -> bool:
    """Whether an interpreter matches a version such as 3.11 or >=3.9."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if wanted[0].isdigit():
        wanted = f"=={wanted}" + (".*" if wanted.count(".") < 2 else "")
    try:
        return python.version_text in SpecifierSet(wanted)
    except InvalidSpecifier:
        return False


async def found_by_uv(version: str, env: Mapping[str, str], folder: Path) -> str:
    """Return an interpreter of a version that uv finds on this node, without downloading one.

    Raises:
        PrepareError: class ``environment``: there is none.
    """
    process = await asyncio.create_subprocess_exec(
        *(settings.find_uv(), "python", "find", "--no-project", "--system", version),
        env={**env, "PATH": settings.search_path(env)},
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    found, complaints = await process.communicate()
    path = found.decode().strip()
    if process.returncode or not path:
        output = " ".join(complaints.decode("utf-8", "replace").split())
        raise PrepareError(
            f"there is no Python {version} on this node ({output.removeprefix('error: ')[:200]}); "
            f"install it, or name an interpreter's path",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return path
