"""Checks that the Open MPI that a job needs is installed: mpirun and orted of version 4."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.plan import LaunchPlan

# Version 5 starts ranks with other programs (prterun, prted), which have other settings.
MAJOR = 4
INSTALL = "sudo apt-get install openmpi-bin"
_VERSION_S = 30.0
_VERSION = re.compile(r"\(Open MPI\) (\d+)(\.\S+)?")


def problem(path: str | None) -> str:
    """Return what is wrong with the first Open MPI in a PATH; empty if it is usable."""
    missing = [name for name in ("mpirun", "orted") if shutil.which(name, path=path) is None]
    if missing:
        return f"Open MPI is not installed: no {' and no '.join(missing)} in PATH"
    program = shutil.which("mpirun", path=path)
    assert program is not None
    try:
        return version_problem(program, _version(program))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{program} --version` failed: {error}"


def version_problem(program: str, text: str) -> str:
    """Return what is wrong with an mpirun that prints this version; empty if nothing is."""
    match = _VERSION.search(text)
    if match is None:
        return (
            f"{program} is not Open MPI's: it says {text.splitlines()[0] if text else 'nothing'!r}"
        )
    if int(match[1]) != MAJOR:
        version = f"{match[1]}{match[2] or ''}"
        return f"{program} has version {version}; the launcher supports {MAJOR}"
    return ""


@lru_cache(maxsize=16)
def _version(program: str) -> str:
    """Return what a program prints about its version; an error is not cached.

    Raises:
        OSError: it cannot be started.
        TimeoutExpired: it did not end in time.
    """
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
    )
    return done.stdout + done.stderr


def require(plan: LaunchPlan) -> None:
    """Check that this node has the parts of Open MPI that a host's plan needs.

    Raises:
        PrepareError: class ``environment``: a part is missing or unusable.
    """
    if not plan.is_mpi:
        return
    found = problem(plan.env.get("PATH"))
    if found:
        raise PrepareError(
            f"ranks cannot be started by MPI on node {plan.node} of the job: {found}. Install "
            f"Open MPI {MAJOR} there ({INSTALL}), or use the backend horovod-gloo or gloo",
            failure_class=FailureClass.ENVIRONMENT,
        )
