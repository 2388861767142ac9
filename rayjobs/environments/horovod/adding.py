"""Builds and installs Horovod on the node for an environment with its own torch.

The target's Horovod is native code for the target's torch, and cannot be used there. The wheel is
kept (`install.cache_folder`), so it is compiled once for each torch, Python and Open MPI of a node.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.environments.horovod import install

TORCH = "torch"
INSTEAD = (
    "Ask for `torch` without a version, so that the target's is used; or use torch.distributed "
    "(backend gloo or nccl); or make a virtual environment with that torch where it can be built, "
    "run `rayjobs horovod install --env PATH`, and submit with `--env PATH`"
)
PROGRAM = Path(install.__file__)

Run = Callable[[list[str], str], Awaitable[None]]
"""Runs a program, its output in the build's log; the text says what it is for."""


def key_with(key: str) -> str:
    """Return the name of the environment that extends another one by Horovod."""
    return hashlib.sha256(f"{key} horovod".encode()).hexdigest()[:32]


async def add(python: Path, run: Run) -> None:
    """Build Horovod for the torch of an interpreter's environment, and install it there.

    Raises:
        PrepareError: class ``environment``: it cannot be built here; names what is missing and the
            ways out. Others as those of `run`.
    """
    try:
        await run([sys.executable, "-I", str(PROGRAM), str(python)], "Horovod cannot be added")
    except PrepareError as error:
        if error.failure_class != "environment":
            raise
        raise PrepareError(
            f"the environment has a torch of its own, and no Horovod for it: {error}. {INSTEAD}",
            failure_class="environment",
            lines=error.lines,
            is_permanent=True,
        ) from error
