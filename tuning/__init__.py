"""Sweeps: search spaces, samplers, early termination, the trial table, results and plots.

Names are imported on first use; nothing here imports Ray, Optuna, matplotlib or plotly until
it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# name → module that defines it.
_LAZY = {
    "AshaPolicy": "tuning.policies",
    "BanditPolicy": "tuning.policies",
    "BayesianParameterSampling": "tuning.samplers",
    "GridParameterSampling": "tuning.samplers",
    "HyperDriveConfig": "tuning.config",
    "HyperDriveRun": "tuning.runs",
    "HyperDriveRunConfig": "tuning.config",
    "MedianStoppingPolicy": "tuning.policies",
    "NoTerminationPolicy": "tuning.policies",
    "PrimaryMetricGoal": "tuning.goal",
    "RandomParameterSampling": "tuning.samplers",
    "SweepSpec": "tuning.spec",
    "TruncationSelectionPolicy": "tuning.policies",
    "choice": "tuning.expressions",
    "load_sweep": "tuning.sweep_file",
    "submit_sweep": "tuning.submitter",
    "lognormal": "tuning.expressions",
    "loguniform": "tuning.expressions",
    "normal": "tuning.expressions",
    "qlognormal": "tuning.expressions",
    "qloguniform": "tuning.expressions",
    "qnormal": "tuning.expressions",
    "quniform": "tuning.expressions",
    "randint": "tuning.expressions",
    "uniform": "tuning.expressions",
}

if TYPE_CHECKING:
    from tuning.config import HyperDriveConfig as HyperDriveConfig
    from tuning.config import HyperDriveRunConfig as HyperDriveRunConfig
    from tuning.expressions import choice as choice
    from tuning.expressions import lognormal as lognormal
    from tuning.expressions import loguniform as loguniform
    from tuning.expressions import normal as normal
    from tuning.expressions import qlognormal as qlognormal
    from tuning.expressions import qloguniform as qloguniform
    from tuning.expressions import qnormal as qnormal
    from tuning.expressions import quniform as quniform
    from tuning.expressions import randint as randint
    from tuning.expressions import uniform as uniform
    from tuning.goal import PrimaryMetricGoal as PrimaryMetricGoal
    from tuning.policies import AshaPolicy as AshaPolicy
    from tuning.policies import BanditPolicy as BanditPolicy
    from tuning.policies import MedianStoppingPolicy as MedianStoppingPolicy
    from tuning.policies import NoTerminationPolicy as NoTerminationPolicy
    from tuning.policies import TruncationSelectionPolicy as TruncationSelectionPolicy
    from tuning.runs import HyperDriveRun as HyperDriveRun
    from tuning.samplers import BayesianParameterSampling as BayesianParameterSampling
    from tuning.samplers import GridParameterSampling as GridParameterSampling
    from tuning.samplers import RandomParameterSampling as RandomParameterSampling
    from tuning.spec import SweepSpec as SweepSpec
    from tuning.submitter import submit_sweep as submit_sweep
    from tuning.sweep_file import load_sweep as load_sweep


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        raise AttributeError(f"module 'tuning' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
