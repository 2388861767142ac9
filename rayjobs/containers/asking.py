"""Queries an unpacked image: its variables, programs, Python and packages."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import duration_text
from rayjobs.environments.building import POLL_S, Control
from rayjobs.environments.packages_probe import PROBE
from rayjobs.injob import container
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.plan import Bind, ContainerPlan
from rayjobs.spec.requirements import LEAST_PYTHON

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ASK_S = 60.0
_NAMES = ("python", "python3")
# The first line of the answer is enough: a minimal Python may not be able to list its packages.
_ASK = """
import json, sys
print(json.dumps([list(sys.version_info[:3]), sys.implementation.name]))
sys.stdout.flush()
"""


@dataclass(frozen=True)
class ImageFacts(Message):
    """The facts of an image.

    Attributes:
        python: Path of its Python in the image; None if it has none that jobs can use.
        python_version: Its version.
        facts: The output of `rayjobs.environments.packages_probe.PROBE`; empty if unknown.
        why: Why it has no Python.
    """

    python: str | None = None
    python_version: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    why: str = ""


def variables_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of an image's configuration."""
    pairs = (str(one).partition("=") for one in config.get("Env") or ())
    return {name: value for name, separator, value in pairs if separator}


def find(
    root: Path, variables: Mapping[str, str], name: str, binds: Sequence[Bind] = ()
) -> str | None:
    """Return the path of a program on an image's PATH.

    Args:
        binds: Paths of the node that are visible in the image and may contain the program.
    """
    for folder in variables.get("PATH", DEFAULT_PATH).split(":"):
        path = f"{folder.rstrip('/')}/{name}"
        if not path.startswith("/"):
            continue
        at = Path(container.inside(str(root), path))
        for bind in binds:
            if path.startswith(f"{bind.target}/"):
                at = Path(bind.source + path.removeprefix(bind.target))
        if at.is_file() and os.access(at, os.X_OK):
            return path
    return None


async def ask(
    root: Path,
    variables: Mapping[str, str],
    paths: AttemptPaths,
    control: Control,
    *,
    named: str | None = None,
    overlay: bool = True,
    binds: Sequence[Bind] = (),
) -> ImageFacts:
    """Return the facts of an image's Python; see `run_in` for other arguments and errors.

    Args:
        named: Its path in the image; None: the first Python on its PATH that jobs can use.
    """
    seen: list[str] = []
    candidates = [named] if named else [find(root, variables, name) for name in _NAMES]
    for path in dict.fromkeys(candidates):
        if path is None:
            continue
        output = await run_in(root, variables, [path, "-I", "-c", _ASK + PROBE], paths,
                            control, overlay=overlay, binds=binds)  # fmt: skip
        lines = output.splitlines()
        try:
            version, implementation = json.loads(lines[0])
            found = tuple(int(part) for part in version)
        except (IndexError, ValueError, TypeError):
            seen.append(f"{path} does not answer ({output.strip()[-200:] or 'no output'})")
            continue
        text = ".".join(map(str, found))
        if found < LEAST_PYTHON:
            seen.append(f"{path} is Python {text}, and jobs need 3.8 or newer")
            continue
        return ImageFacts(path, text, _facts(lines[1:]) or {"python": text, "implementation":
                                                        implementation})  # fmt: skip
    return ImageFacts(why="; ".join(seen) or "there is no python on its PATH")


def _facts(lines: Sequence[str]) -> dict[str, object]:
    try:
        found = json.loads(lines[0])
    except (IndexError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


async def run_in(
    root: Path,
    variables: Mapping[str, str],
    arguments: Sequence[str],
    paths: AttemptPaths,
    control: Control,
    *,
    overlay: bool = True,
    binds: Sequence[Bind] = (),
) -> str:
    """Run a program in an image, outside any attempt; return its output and error output.

    Args:
        root: The image; without `overlay`, the attempt's own copy of it.
        control: Cancels it.
        binds: Paths of the node that are visible in it.
        overlay: Whether this node can put a writable layer over the image; else `root` is changed.

    Raises:
        PrepareError: class ``environment``: it does not end in time; see also `Control.check`.
    """
    folder = Path(tempfile.mkdtemp(prefix="ask-", dir=paths.tmp))
    try:
        plan = ContainerPlan(
            str(root),
            str(folder / "scratch"),
            is_private=not overlay,
            shm_bytes=2**26,
            binds=tuple(binds),
        )
        own = {"PATH": DEFAULT_PATH, "HOME": "/root"}
        env = {**own, **variables, "PYTHONDONTWRITEBYTECODE": "1"}
        file = folder / "run.json"
        file.write_text(
            json.dumps({"container": plan.to_json(), "arguments": [*arguments], "env": env})
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-E", str(container.__file__), "--run", str(file)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/",
        )
        talking = asyncio.ensure_future(process.communicate())
        until_s = asyncio.get_running_loop().time() + ASK_S
        try:
            while not talking.done():
                await asyncio.wait({talking}, timeout=POLL_S)
                if talking.done():
                    break
                control.check()
                if asyncio.get_running_loop().time() >= until_s:
                    raise PrepareError(
                        f"{arguments[0]} in the image does not answer within "
                        f"{duration_text(ASK_S)}",
                        failure_class=FailureClass.ENVIRONMENT,
                    )
        except BaseException:
            process.kill()  # the container's init then ends all processes in the image
            await process.wait()
            talking.cancel()
            raise
        output, _ = talking.result()
        return output.decode("utf-8", "replace")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
