"""Sweeps: search spaces, samplers, early termination, the trial table, results and plots.

`state` decides what a sweep does next, `driver` does it; `policies` judge trials, `samplers`
choose their parameters, `tune` is the only part that uses Ray Tune.

Names are imported on first use; nothing here imports Ray, Optuna or matplotlib until it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ == "tuning":
    # In a checkout, this folder can also be imported as `tuning`. That name becomes an alias, so
    # that no module is loaded twice.
    from rayjobs.core.aliases import alias

    alias(__name__)

# name → module that defines it.
_LAZY = {
    "AshaPolicy": "rayjobs.tuning.policies",
    "BanditPolicy": "rayjobs.tuning.policies",
    "BayesianParameterSampling": "rayjobs.tuning.samplers",
    "GridParameterSampling": "rayjobs.tuning.samplers",
    "HyperDriveConfig": "rayjobs.tuning.config",
    "HyperDriveRun": "rayjobs.tuning.runs",
    "HyperDriveRunConfig": "rayjobs.tuning.config",
    "MedianStoppingPolicy": "rayjobs.tuning.policies",
    "NoTerminationPolicy": "rayjobs.tuning.policies",
    "PrimaryMetricGoal": "rayjobs.tuning.goal",
    "RandomParameterSampling": "rayjobs.tuning.samplers",
    "SweepSpec": "rayjobs.tuning.spec",
    "TruncationSelectionPolicy": "rayjobs.tuning.policies",
    "choice": "rayjobs.tuning.expressions",
    "load_sweep": "rayjobs.tuning.sweep_file",
    "submit_sweep": "rayjobs.tuning.submitter",
    "lognormal": "rayjobs.tuning.expressions",
    "loguniform": "rayjobs.tuning.expressions",
    "normal": "rayjobs.tuning.expressions",
    "qlognormal": "rayjobs.tuning.expressions",
    "qloguniform": "rayjobs.tuning.expressions",
    "qnormal": "rayjobs.tuning.expressions",
    "quniform": "rayjobs.tuning.expressions",
    "randint": "rayjobs.tuning.expressions",
    "uniform": "rayjobs.tuning.expressions",
}

__all__ = list(_LAZY)  # for `from … import *`

if TYPE_CHECKING:
    from rayjobs.tuning.config import HyperDriveConfig as HyperDriveConfig
    from rayjobs.tuning.config import HyperDriveRunConfig as HyperDriveRunConfig
    from rayjobs.tuning.expressions import choice as choice
    from rayjobs.tuning.expressions import lognormal as lognormal
    from rayjobs.tuning.expressions import loguniform as loguniform
    from rayjobs.tuning.expressions import normal as normal
    from rayjobs.tuning.expressions import qlognormal as qlognormal
    from rayjobs.tuning.expressions import qloguniform as qloguniform
    from rayjobs.tuning.expressions import qnormal as qnormal
    from rayjobs.tuning.expressions import quniform as quniform
    from rayjobs.tuning.expressions import randint as randint
    from rayjobs.tuning.expressions import uniform as uniform
    from rayjobs.tuning.goal import PrimaryMetricGoal as PrimaryMetricGoal
    from rayjobs.tuning.policies import AshaPolicy as AshaPolicy
    from rayjobs.tuning.policies import BanditPolicy as BanditPolicy
    from rayjobs.tuning.policies import MedianStoppingPolicy as MedianStoppingPolicy
    from rayjobs.tuning.policies import NoTerminationPolicy as NoTerminationPolicy
    from rayjobs.tuning.policies import TruncationSelectionPolicy as TruncationSelectionPolicy
    from rayjobs.tuning.runs import HyperDriveRun as HyperDriveRun
    from rayjobs.tuning.samplers import BayesianParameterSampling as BayesianParameterSampling
    from rayjobs.tuning.samplers import GridParameterSampling as GridParameterSampling
    from rayjobs.tuning.samplers import RandomParameterSampling as RandomParameterSampling
    from rayjobs.tuning.spec import SweepSpec as SweepSpec
    from rayjobs.tuning.submitter import submit_sweep as submit_sweep
    from rayjobs.tuning.sweep_file import load_sweep as load_sweep


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        raise AttributeError(f"module 'rayjobs.tuning' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
