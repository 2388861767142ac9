"""The Azure ML v1 training workflow on any Ray cluster, with a queue that tells the truth.

Names are imported on first use, so that ``import rayjobs`` stays cheap and, inside a job,
needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name → module that defines it. Inside a job only `rayjobs.injob` is ever imported.
_LAZY = {
    "Run": "rayjobs.run_context",
    "Workspace": "rayjobs.workspace",
    "Experiment": "rayjobs.experiment",
    "ScriptRunConfig": "rayjobs.configs",
    "RunConfiguration": "rayjobs.configs",
    "MpiConfiguration": "rayjobs.configs",
    "PyTorchConfiguration": "rayjobs.configs",
    "CondaDependencies": "rayjobs.environments.definitions",
    "Environment": "rayjobs.environments.definitions",
    "PyTorch": "rayjobs.estimators",
    "Estimator": "rayjobs.estimators",
    "Gloo": "rayjobs.estimators",
    "Mpi": "rayjobs.estimators",
    "Nccl": "rayjobs.estimators",
    "JobSpec": "rayjobs.spec",
    "Model": "rayjobs.models",
    "checkpoint": "rayjobs.injob",
    "DataPath": "rayjobs.datastore",
    "DataPathComputeBinding": "rayjobs.datastore",
    "DataReference": "rayjobs.datastore",
    "Dataset": "rayjobs.datastore",
    "DatasetConsumptionConfig": "rayjobs.datastore",
    "Datastore": "rayjobs.datastore",
    "FileDataset": "rayjobs.datastore",
    "OutputFileDatasetConfig": "rayjobs.datastore",
    "TabularDataset": "rayjobs.datastore",
    # Sweeps live above this package; they are named here, and never imported by it.
    "BanditPolicy": "rayjobs.tuning",
    "BayesianParameterSampling": "rayjobs.tuning",
    "GridParameterSampling": "rayjobs.tuning",
    "HyperDriveConfig": "rayjobs.tuning",
    "HyperDriveRun": "rayjobs.tuning",
    "HyperDriveRunConfig": "rayjobs.tuning",
    "MedianStoppingPolicy": "rayjobs.tuning",
    "NoTerminationPolicy": "rayjobs.tuning",
    "PrimaryMetricGoal": "rayjobs.tuning",
    "RandomParameterSampling": "rayjobs.tuning",
    "TruncationSelectionPolicy": "rayjobs.tuning",
    "choice": "rayjobs.tuning",
    "lognormal": "rayjobs.tuning",
    "loguniform": "rayjobs.tuning",
    "normal": "rayjobs.tuning",
    "qlognormal": "rayjobs.tuning",
    "qloguniform": "rayjobs.tuning",
    "qnormal": "rayjobs.tuning",
    "quniform": "rayjobs.tuning",
    "randint": "rayjobs.tuning",
    "uniform": "rayjobs.tuning",
}

if TYPE_CHECKING:
    from rayjobs.configs import MpiConfiguration as MpiConfiguration
    from rayjobs.configs import PyTorchConfiguration as PyTorchConfiguration
    from rayjobs.configs import RunConfiguration as RunConfiguration
    from rayjobs.configs import ScriptRunConfig as ScriptRunConfig
    from rayjobs.datastore import DataPath as DataPath
    from rayjobs.datastore import DataPathComputeBinding as DataPathComputeBinding
    from rayjobs.datastore import DataReference as DataReference
    from rayjobs.datastore import Dataset as Dataset
    from rayjobs.datastore import DatasetConsumptionConfig as DatasetConsumptionConfig
    from rayjobs.datastore import Datastore as Datastore
    from rayjobs.datastore import FileDataset as FileDataset
    from rayjobs.datastore import OutputFileDatasetConfig as OutputFileDatasetConfig
    from rayjobs.datastore import TabularDataset as TabularDataset
    from rayjobs.environments.definitions import CondaDependencies as CondaDependencies
    from rayjobs.environments.definitions import Environment as Environment
    from rayjobs.estimators import Estimator as Estimator
    from rayjobs.estimators import Gloo as Gloo
    from rayjobs.estimators import Mpi as Mpi
    from rayjobs.estimators import Nccl as Nccl
    from rayjobs.estimators import PyTorch as PyTorch
    from rayjobs.experiment import Experiment as Experiment
    from rayjobs.models import Model as Model
    from rayjobs.run_context import Run as Run
    from rayjobs.spec import JobSpec as JobSpec
    from rayjobs.workspace import Workspace as Workspace


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        raise AttributeError(f"module 'rayjobs' has no attribute {name!r}")
    if name == "checkpoint":
        return importlib.import_module("rayjobs.injob.checkpoint")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
