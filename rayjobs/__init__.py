"""The Azure ML v1 training workflow on any Ray cluster, with a queue that tells the truth.

Names are imported on first use, so that ``import rayjobs`` stays cheap and, inside a job,
needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

# name → module that defines it. Inside a job only `rayjobs.injob` is ever imported.
_LAZY = {
    "__version__": "rayjobs.core.version",
    "Run": "rayjobs.api.run_context",
    "Workspace": "rayjobs.api.workspace",
    "Experiment": "rayjobs.api.experiment",
    "ScriptRunConfig": "rayjobs.api.configs",
    "RunConfiguration": "rayjobs.api.configs",
    "DockerConfiguration": "rayjobs.api.configs",
    "MpiConfiguration": "rayjobs.api.configs",
    "PyTorchConfiguration": "rayjobs.api.configs",
    "TensorflowConfiguration": "rayjobs.api.configs",
    "AmlCompute": "rayjobs.api.compute",
    "ComputeTarget": "rayjobs.api.compute",
    "InteractiveLoginAuthentication": "rayjobs.azureml.authentication",
    "MsiAuthentication": "rayjobs.azureml.authentication",
    "ServicePrincipalAuthentication": "rayjobs.azureml.authentication",
    "CondaDependencies": "rayjobs.api.environment",
    "ContainerRegistry": "rayjobs.api.environment",
    "Environment": "rayjobs.api.environment",
    "PyTorch": "rayjobs.api.estimators",
    "Chainer": "rayjobs.api.estimators",
    "Estimator": "rayjobs.api.estimators",
    "SKLearn": "rayjobs.api.estimators",
    "TensorFlow": "rayjobs.api.estimators",
    "Gloo": "rayjobs.api.estimators",
    "Mpi": "rayjobs.api.estimators",
    "Nccl": "rayjobs.api.estimators",
    "JobSpec": "rayjobs.spec.model",
    "Model": "rayjobs.api.model",
    "RunDetails": "rayjobs.api.widgets",
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
    # So do pipelines.
    "CommandStep": "rayjobs.pipelines",
    "EstimatorStep": "rayjobs.pipelines",
    "HyperDriveStep": "rayjobs.pipelines",
    "HyperDriveStepRun": "rayjobs.pipelines",
    "MpiStep": "rayjobs.pipelines",
    "PipelineEndpoint": "rayjobs.pipelines",
    "PublishedPipeline": "rayjobs.pipelines",
    "InputPortBinding": "rayjobs.pipelines",
    "Pipeline": "rayjobs.pipelines",
    "PipelineData": "rayjobs.pipelines",
    "PipelineDataset": "rayjobs.pipelines",
    "PipelineParameter": "rayjobs.pipelines",
    "PipelineRun": "rayjobs.pipelines",
    "ParallelRunConfig": "rayjobs.pipelines",
    "ParallelRunStep": "rayjobs.pipelines",
    "PythonScriptStep": "rayjobs.pipelines",
    "Schedule": "rayjobs.pipelines",
    "ScheduleRecurrence": "rayjobs.pipelines",
    "StepRun": "rayjobs.pipelines",
    "StepSequence": "rayjobs.pipelines",
    "TrainingOutput": "rayjobs.pipelines",
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

# For `from rayjobs import *`, which must not change a script's own version.
__all__ = [name for name in _LAZY if name != "__version__"]

_CLUSTERS = "rayjobs runs on Ray clusters; use AmlCompute, or attach one by `rayjobs target create`"
_SERVING = "rayjobs trains and registers models; download one with Model.download and serve it"
# Names of azureml.core and azureml.train that have no class here → what to use, in one sentence.
# They can be imported, as with `import azureml`; who uses one is told this.
_INSTEAD = {
    "AciWebservice": _SERVING,
    "AksWebservice": _SERVING,
    "AutoMLConfig": "write the script, and sweep its parameters with HyperDriveConfig",
    "ComputeInstance": _CLUSTERS,
    "Image": _SERVING,
    "InferenceConfig": _SERVING,
    "Keyvault": "use `rayjobs target secret set`, and name the secret in JobSpec(secrets=...)",
    "LocalWebservice": _SERVING,
    "RemoteCompute": _CLUSTERS,
    "ScriptRun": "Experiment.submit returns a Run; use Run",
    "Webservice": _SERVING,
}

if TYPE_CHECKING:
    from rayjobs.api.compute import AmlCompute as AmlCompute
    from rayjobs.api.compute import ComputeTarget as ComputeTarget
    from rayjobs.api.configs import DockerConfiguration as DockerConfiguration
    from rayjobs.api.configs import MpiConfiguration as MpiConfiguration
    from rayjobs.api.configs import PyTorchConfiguration as PyTorchConfiguration
    from rayjobs.api.configs import RunConfiguration as RunConfiguration
    from rayjobs.api.configs import ScriptRunConfig as ScriptRunConfig
    from rayjobs.api.configs import TensorflowConfiguration as TensorflowConfiguration
    from rayjobs.api.environment import CondaDependencies as CondaDependencies
    from rayjobs.api.environment import ContainerRegistry as ContainerRegistry
    from rayjobs.api.environment import Environment as Environment
    from rayjobs.api.estimators import Chainer as Chainer
    from rayjobs.api.estimators import Estimator as Estimator
    from rayjobs.api.estimators import Gloo as Gloo
    from rayjobs.api.estimators import Mpi as Mpi
    from rayjobs.api.estimators import Nccl as Nccl
    from rayjobs.api.estimators import PyTorch as PyTorch
    from rayjobs.api.estimators import SKLearn as SKLearn
    from rayjobs.api.estimators import TensorFlow as TensorFlow
    from rayjobs.api.experiment import Experiment as Experiment
    from rayjobs.api.model import Model as Model
    from rayjobs.api.run_context import Run as Run
    from rayjobs.api.widgets import RunDetails as RunDetails
    from rayjobs.api.workspace import Workspace as Workspace
    from rayjobs.core.version import __version__ as __version__
    from rayjobs.datastore import DataPath as DataPath
    from rayjobs.datastore import DataPathComputeBinding as DataPathComputeBinding
    from rayjobs.datastore import DataReference as DataReference
    from rayjobs.datastore import Dataset as Dataset
    from rayjobs.datastore import DatasetConsumptionConfig as DatasetConsumptionConfig
    from rayjobs.datastore import Datastore as Datastore
    from rayjobs.datastore import FileDataset as FileDataset
    from rayjobs.datastore import OutputFileDatasetConfig as OutputFileDatasetConfig
    from rayjobs.datastore import TabularDataset as TabularDataset
    from rayjobs.spec.model import JobSpec as JobSpec


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        if name in _INSTEAD:
            from rayjobs.injob.azureml.finder import refused

            return refused("rayjobs", name, _INSTEAD[name])
        raise AttributeError(_why_absent(name))
    if name == "checkpoint":
        return importlib.import_module("rayjobs.injob.checkpoint")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def _why_absent(name: str) -> str:
    text = f"module 'rayjobs' has no attribute {name!r}"
    if name.startswith("_"):
        return text
    import difflib

    near = difflib.get_close_matches(name, _LAZY, n=1)
    return f"{text}. Did you mean {near[0]!r}?" if near else text


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


class _MovedFinder:
    """Finds modules by old names. The last finder: asked only for what is nowhere else."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("rayjobs."):
            return None
        from rayjobs.core.aliases import find_moved

        return find_moved(name)


sys.meta_path.append(_MovedFinder)
