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
    "DataPath": "datastore",
    "DataPathComputeBinding": "datastore",
    "DataReference": "datastore",
    "Dataset": "datastore",
    "DatasetConsumptionConfig": "datastore",
    "Datastore": "datastore",
    "FileDataset": "datastore",
    "OutputFileDatasetConfig": "datastore",
    "TabularDataset": "datastore",
    # Sweeps live above this package; they are named here, and never imported by it.
    "BanditPolicy": "tuning",
    "BayesianParameterSampling": "tuning",
    "GridParameterSampling": "tuning",
    "HyperDriveConfig": "tuning",
    "HyperDriveRun": "tuning",
    "HyperDriveRunConfig": "tuning",
    "MedianStoppingPolicy": "tuning",
    "NoTerminationPolicy": "tuning",
    "PrimaryMetricGoal": "tuning",
    "RandomParameterSampling": "tuning",
    "TruncationSelectionPolicy": "tuning",
    "choice": "tuning",
    "lognormal": "tuning",
    "loguniform": "tuning",
    "normal": "tuning",
    "qlognormal": "tuning",
    "qloguniform": "tuning",
    "qnormal": "tuning",
    "quniform": "tuning",
    "randint": "tuning",
    "uniform": "tuning",
}

if TYPE_CHECKING:
    from datastore import DataPath as DataPath
    from datastore import DataPathComputeBinding as DataPathComputeBinding
    from datastore import DataReference as DataReference
    from datastore import Dataset as Dataset
    from datastore import DatasetConsumptionConfig as DatasetConsumptionConfig
    from datastore import Datastore as Datastore
    from datastore import FileDataset as FileDataset
    from datastore import OutputFileDatasetConfig as OutputFileDatasetConfig
    from datastore import TabularDataset as TabularDataset
    from rayjobs.configs import MpiConfiguration as MpiConfiguration
    from rayjobs.configs import PyTorchConfiguration as PyTorchConfiguration
    from rayjobs.configs import RunConfiguration as RunConfiguration
    from rayjobs.configs import ScriptRunConfig as ScriptRunConfig
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
