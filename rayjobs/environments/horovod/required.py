"""Checks on the node that the Horovod of a job's interpreter supports what the job requests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import AttemptPaths
from rayjobs.environments import mpi_checks
from rayjobs.environments.cache import RECORD
from rayjobs.environments.horovod import adding, builds, imported
from rayjobs.injob.plan import HOROVOD_GLOO, MPI, LaunchPlan

# Finds Horovod without importing it, wherever the interpreter looks for packages.
_ASK = """
import importlib.util
spec = importlib.util.find_spec("horovod")
places = spec.submodule_search_locations if spec else None
print(list(places)[0] if places else "")
"""
_ASK_TORCH = """
import importlib.util, os
from importlib import metadata
for name in ("horovod", "torch"):
    spec = importlib.util.find_spec(name)
    print(os.path.dirname(list(spec.submodule_search_locations)[0]) if spec else "")
print(next((one.version for one in metadata.distributions(name="torch")), ""))
"""
_ASK_S = 60.0
# Cached answers of interpreters, keyed by everything that they depend on.
_found: dict[tuple[str | None, ...], Path] = {}
MATTERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE")
_HOME = "HOME"


def require(plan: LaunchPlan) -> None:
    """Check that Horovod was built for the job's torch, and for GPUs if the job needs them.

    A submit can check only its own machine. A missing Horovod is not an error here, since the
    script may not need it.

    Raises:
        PrepareError: class ``environment``: Horovod does not fit.
    """
    extras, env = plan.extras, plan.env
    if extras is None or extras.kind not in (MPI, HOROVOD_GLOO):
        return
    kind = extras.kind
    if (Path(plan.python).parents[1] / RECORD).exists() and _uses_it(plan, kind):
        _require_its_torch(plan)
    if not exchanges_on_gpus(plan) or not _uses_it(plan, kind):
        return
    build = _build(plan.python, env)
    if build is not None and not build.has_gpu_operations:
        refusal = mpi_checks.no_gpu_operations(f"in {build.library.parents[1]}")
        raise PrepareError(
            f"ranks are not started on node {plan.node} of the job: {refusal.message} "
            f"{refusal.remedy}",
            failure_class=FailureClass.ENVIRONMENT,
        )


def exchanges_on_gpus(plan: LaunchPlan) -> bool:
    """Whether the ranks have GPUs and did not choose to exchange tensors on the CPU."""
    if not plan.env.get("CUDA_VISIBLE_DEVICES"):
        return False
    # For horovod-gloo, the launcher sets the variable itself.
    extras = plan.extras
    if extras is not None and extras.kind == HOROVOD_GLOO:
        return not extras.on_cpu
    return not plan.env.get(mpi_checks.ON_CPU)


def is_wanted(plan: LaunchPlan) -> bool:
    """Whether a job's script uses Horovod, judged by its plan and the source of its modules."""
    kind = None if plan.extras is None else plan.extras.kind
    if kind != MPI:
        return kind == HOROVOD_GLOO
    work = AttemptPaths(Path(plan.root)).work
    return bool(plan.argv) and imported.imports_horovod(work / plan.argv[0], work)


def _uses_it(plan: LaunchPlan, kind: str) -> bool:
    script = plan.argv[0] if plan.argv else None
    work = AttemptPaths(Path(plan.root)).work
    return kind == HOROVOD_GLOO or (script is not None and mpi_checks.names_horovod(work / script))


def _require_its_torch(plan: LaunchPlan) -> None:
    """Check that an environment built by rayjobs does not combine its torch with a foreign Horovod.

    Horovod is native code for one build of torch: the one that is installed next to it.
    """
    horovod, torch, *version = [*_answer(plan.python, plan.env, _ASK_TORCH), "", ""][:3]
    if not horovod or not torch or horovod == torch:
        return
    raise PrepareError(
        f"ranks are not started on node {plan.node} of the job: its environment has its own torch "
        f"{''.join(version)}, but the Horovod in {horovod} was built for the torch there. "
        f"{adding.INSTEAD}",
        failure_class=FailureClass.ENVIRONMENT,
        is_permanent=True,
    )


def _build(python: str, env: Mapping[str, str]) -> builds.Build | None:
    key = (python, *(env.get(name) for name in (*MATTERS, _HOME)))
    known = _found.get(key)
    # It may have been rebuilt, which its file's time shows, or removed in the meantime.
    build = None if known is None else builds.of_package(known)
    if build is not None:
        return build
    folder = _ask(python, env)
    if folder is None:
        return None
    _found[key] = folder
    return builds.of_package(folder)


def _ask(python: str, env: Mapping[str, str]) -> Path | None:
    """Return the folder of an interpreter's Horovod; None if it has none."""
    found = (_answer(python, env, _ASK) or [""])[-1]
    return Path(found) if found else None


def _answer(python: str, env: Mapping[str, str], code: str) -> list[str]:
    try:
        done = subprocess.run(
            [python, "-c", code],
            env=dict(env),
            cwd=os.sep,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PrepareError(
            f"{python} cannot be queried for its Horovod: {error}",
            failure_class=FailureClass.ENVIRONMENT,
        ) from error
    if done.returncode:
        output = done.stderr.strip().splitlines()[-1:] or [f"it exited with code {done.returncode}"]
        raise PrepareError(
            f"{python} cannot be queried for its Horovod: {output[0]}",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return done.stdout.splitlines()
