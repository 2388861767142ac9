"""Builds and installs Horovod on the node for an environment with its own torch.

The target's Horovod is native code for the target's torch, so such an environment cannot use it.
The wheel is stored (`install.cache_folder`), so each node compiles it only once for each torch,
Python and Open MPI.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.environments.horovod import install

TORCH = "torch"
INSTEAD = (
    "Request `torch` without a version to get the target's; or use torch.distributed (backend gloo "
    "or nccl); or create a virtual environment with that torch where Horovod can be built, run "
    "`rayjobs horovod install --env PATH` there, and submit with `--env PATH`"
)
PROGRAM = Path(install.__file__)

Run = Callable[[list[str], str], Awaitable[None]]
"""Runs a program and writes its output to the build log; the text describes a failure."""


def key_with(key: str) -> str:
    """Return the key of an environment that adds Horovod to the one with this key."""
    return hashlib.sha256(f"{key} horovod".encode()).hexdigest()[:32]


async def add(python: Path, run: Run) -> None:
    """Build Horovod for the torch of an interpreter's environment, and install it there.

    Raises:
        PrepareError: class ``environment``: it cannot be built here; the message names what is
            missing and the remedies. Other classes: see `run`.
    """
    try:
        await run([sys.executable, "-I", str(PROGRAM), str(python)], "Horovod cannot be added")
    except PrepareError as error:
        if error.failure_class is not FailureClass.ENVIRONMENT:
            raise
        raise PrepareError(
            f"the environment has its own torch, and Horovod cannot be built for it: {error}. "
            f"{INSTEAD}",
            failure_class=FailureClass.ENVIRONMENT,
            lines=error.lines,
            is_permanent=True,
        ) from error
