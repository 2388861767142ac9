"""Decides whether a plan must start its ranks in fresh interpreters, and why."""

from __future__ import annotations

import os
from typing import Collection, Mapping

from rayjobs.injob import rank
from rayjobs.injob.plan import LaunchPlan

# Read only at the start of the process: after a fork, a value that differs from the warm
# interpreter's has no effect. OMP_NUM_THREADS and the like are set by calls.
_AT_START = (
    "LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES", "LC_ALL", "LC_CTYPE", "LANG",
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_",
)  # fmt: skip
_SET_BY_CALL = frozenset({"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
# `rank.begin` applies the last two by calls in a fork.
_HARMLESS = frozenset(
    {"OPENBLAS_THREAD_TIMEOUT", "LANGUAGE", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
)

# Read when the package is imported, so they matter only when it is preloaded.
_AT_IMPORT = {
    "TORCH": "torch",
    "PYTORCH_": "torch",
    "ATEN_": "torch",
    "DNNL_": "torch",
    "ONEDNN_": "torch",
    "MPL": "matplotlib",
    "NUMEXPR_": "numexpr",
    "NUMBA_": "numba",
    "NPY_": "numpy",
    "NUMPY_": "numpy",
    "PANDAS_": "pandas",
    "ARROW_": "pyarrow",
    "TF_": "tensorflow",
}
# Variables of these families that torch reads on first use.
_READ_LATE = ("TORCH_HOME", "TORCH_NCCL_", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST")


def cold_reason(
    plan: LaunchPlan,
    preloaded: Collection[str],
    *,
    started_with: Mapping[str, str] | None = None,
    python: str | None = None,
) -> str | None:
    """Return why the plan cannot run in forks of a warm interpreter; None if it can.

    Args:
        preloaded: top-level names of the modules that the warm interpreter has imported.
        started_with: the environment that the warm interpreter started with; variables that have
            the same value in it are ignored.
        python: the warm interpreter's own executable; None means the plan's.
    """
    if plan.cold:
        return plan.cold
    if plan.kind != "script":
        return "the job runs a command, which starts its own interpreter"
    if python is not None and os.path.abspath(python) != os.path.abspath(plan.python):
        return f"the job requires {plan.python}, but the warm interpreter is {python}"
    if os.path.isdir(plan.script) or plan.script.endswith((".zip", ".pyz", ".egg")):
        return f"{plan.argv[0]} is a folder or an archive, not a script"
    known = dict(started_with or {})
    ours = {os.path.join(plan.injob_path, one) for one in (rank.ON_PATH, rank.MAPPED_ON_PATH)}
    for one in plan.ranks:
        env = plan.rank_env(one, {})
        if set(env.get("PYTHONPATH", "").split(os.pathsep)) <= ours:
            del env["PYTHONPATH"]  # only our own entry, which a fork adds to its path itself
        reason = _variable_reason(env, known, preloaded)
        if reason:
            return reason
    shadow = shadowed_module(os.path.dirname(os.path.realpath(plan.script)), preloaded)
    if shadow:
        return f"{shadow} next to the script replaces a module that is already imported"
    return None


def _variable_reason(
    env: Mapping[str, str], known: Mapping[str, str], preloaded: Collection[str]
) -> str | None:
    for name, value in sorted(env.items()):
        if known.get(name) == value or name in _HARMLESS:
            continue
        if name in _SET_BY_CALL:
            if _is_count(value) and value == env.get("OMP_NUM_THREADS", value):
                continue
            return f"{name}={value} can only be set when the interpreter starts"
        if name.startswith(_AT_START):
            return f"{name} is read when the interpreter starts"
        for prefix, package in _AT_IMPORT.items():
            late = name.startswith(_READ_LATE)
            if name.startswith(prefix) and package in preloaded and not late:
                return f"{name} is read when {package} is imported"
    for name in ("LC_ALL", "LANG", "PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD"):
        if known.get(name) and name not in env:
            return f"the warm interpreter started with {name}, which the job does not set"
    return None


def _is_count(value: str) -> bool:
    return value.isdigit() and int(value) > 0


def shadowed_module(folder: str, preloaded: Collection[str]) -> str | None:
    """The first file or package in `folder` that an import would prefer to a preloaded module."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return None
    for entry in entries:
        name, dot, rest = entry.partition(".")
        if name not in preloaded:
            continue
        is_module = bool(dot) and rest.rpartition(".")[2] in ("py", "pyc", "so")
        if is_module or os.path.isfile(os.path.join(folder, entry, "__init__.py")):
            return entry
    return None
