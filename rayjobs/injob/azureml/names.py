"""Every module and name of ``azureml`` that rayjobs knows: its replacement, or why it is refused.

One table: the import finder, ``rayjobs azureml check`` and the migration guide read it. Values are
``module:attribute``; one that begins with ``-`` names the sentence (see `SENTENCES`) that refuses
any use of the name.

Source: AZURE_V1's import paths, compared with azureml-core 1.61 and the 1.62 wheels of azureml-*.
"""

from __future__ import annotations

from typing import Dict, Optional, Tuple

# The value of `azureml.core.VERSION`: the SDK that these names come from.
SDK_VERSION = "1.61.0"

# Why a name is refused, and the closest alternative.
SENTENCES: Dict[str, str] = {
    "pipelines": "this part of pipelines is not supported yet; the steps and runs of "
    "azureml.pipeline.core and azureml.pipeline.steps are",
    "drafts": "rayjobs has no drafts; build a Pipeline and publish it",
    "R": "rayjobs has no R step; use CommandStep with Rscript",
    "parameter servers": "rayjobs does not start parameter servers; use Mpi() with Horovod",
    "modules": "rayjobs has no modules; use PythonScriptStep with the script and its folder",
    "serving": "rayjobs trains and registers models; download one with Model.download, or `rayjobs "
    "model download`, and serve it with the tool of your choice",
    "automl": "rayjobs does not choose models; write the training script, and search its "
    "parameters with HyperDriveConfig",
    "compute": "rayjobs runs on Ray clusters; use AmlCompute, or attach a cluster with `rayjobs "
    "target create`",
    "spark": "rayjobs does not run Spark; read tables with pandas, or with Ray Data on the same "
    "cluster",
    "secrets": "use `rayjobs target secret set`, and name the secret in JobSpec(secrets=...)",
    "interpret": "rayjobs does not explain models; use the library `interpret` in your script",
    "opendatasets": "rayjobs has no catalogue of open data; read the files by URL with "
    "Dataset.File.from_files or Dataset.Tabular.from_delimited_files",
    "drift": "rayjobs does not watch deployed models; log what you compare as metrics of a run",
    "internal": "this is an internal part of the SDK; use the public class that the program needs",
    "arrays": "submit a job array: `rayjobs submit --array 0-15`, or JobSpec(array=...)",
    "azure": "this manages Azure resources, which rayjobs does not need",
    "old datasets": "Azure ML itself has removed this dataset API of 2018; use Dataset.Tabular, "
    "or Dataset.File",
}

_RUN = "rayjobs.api.run_context:Run"
_CONFIGS = "rayjobs.api.configs:"
_ENVIRONMENT = "rayjobs.api.environment:"
_ESTIMATORS = "rayjobs.api.estimators:"
_COMPUTE = "rayjobs.api.compute:"
_DATA = "rayjobs.datastore:"
_AUTH = "rayjobs.azureml.authentication:"
_EXCEPTIONS = "rayjobs.injob.azureml.exceptions:"
_PIPELINES = "rayjobs.pipelines:"
_TUNING = "rayjobs.tuning:"
_VERSION = "rayjobs.injob.azureml.names:SDK_VERSION"


def _same(prefix: str, *names: str) -> Dict[str, str]:
    return {name: prefix + name for name in names}


def _refused(why: str, *names: str) -> Dict[str, str]:
    return dict.fromkeys(names, "-" + why)


_DEFAULT_IMAGES = _same("rayjobs.api.environment:", "DEFAULT_CPU_IMAGE", "DEFAULT_GPU_IMAGE")
_EXPRESSIONS = _same(
    _TUNING,
    "choice",
    "randint",
    "uniform",
    "quniform",
    "loguniform",
    "qloguniform",
    "normal",
    "qnormal",
    "lognormal",
    "qlognormal",
)
_POLICIES = _same(
    _TUNING,
    "BanditPolicy",
    "MedianStoppingPolicy",
    "NoTerminationPolicy",
    "TruncationSelectionPolicy",
)
_SAMPLINGS = _same(
    _TUNING, "BayesianParameterSampling", "GridParameterSampling", "RandomParameterSampling"
)
_SWEEPS = _same(_TUNING, "HyperDriveConfig", "HyperDriveRunConfig", "PrimaryMetricGoal")
_COMPUTE_NAMES = {
    **_same(_COMPUTE, "AmlCompute", "ComputeTarget"),
    **_refused(
        "compute",
        "AdlaCompute",
        "BatchCompute",
        "ComputeInstance",
        "DataFactoryCompute",
        "DatabricksCompute",
        "DsvmCompute",
        "HDInsightCompute",
        "KubernetesCompute",
        "KustoCompute",
        "RemoteCompute",
        "SynapseCompute",
    ),
    **_refused("serving", "AksCompute"),
}
_ALL_EXCEPTIONS = _same(
    _EXCEPTIONS,
    "ActivityCanceledException",
    "ActivityFailedException",
    "AuthenticationException",
    "AzureMLAggregatedException",
    "AzureMLException",
    "ComputeTargetException",
    "DatasetTimestampMissingError",
    "DiscoveryUrlNotFoundException",
    "ExperimentExecutionException",
    "ModelNotFoundException",
    "ModelPathNotFoundException",
    "ParallelRunException",
    "ProjectSystemException",
    "RunConfigurationException",
    "RunEnvironmentException",
    "ServiceException",
    "SnapshotException",
    "TrainingException",
    "UserErrorException",
    "WebserviceException",
    "WorkspaceException",
    "WorkspacePrivateEndpointException",
)
_WEBSERVICES = _refused(
    "serving",
    "AciServiceDeploymentConfiguration",
    "AciWebservice",
    "AksEndpoint",
    "AksServiceDeploymentConfiguration",
    "AksWebservice",
    "LocalWebservice",
    "LocalWebserviceDeploymentConfiguration",
    "Webservice",
)
_STORAGE = {
    **_same(_DATA, "Datastore"),
    **dict.fromkeys(
        ("AzureBlobDatastore", "AzureFileDatastore", "AbstractAzureStorageDatastore"),
        _DATA + "Datastore",
    ),
}

# Module → its names. A module is importable if it or one of its submodules is listed here.
MODULES: Dict[str, Dict[str, str]] = {
    "azureml": {},
    "azureml.core": {
        "CondaDependencies": "rayjobs.api.conda_dependencies:CondaDependencies",
        "Dataset": _DATA + "Dataset",
        "Datastore": _DATA + "Datastore",
        "Environment": _ENVIRONMENT + "Environment",
        "Experiment": "rayjobs.api.experiment:Experiment",
        "Model": "rayjobs.api.model:Model",
        "Run": _RUN,
        "RunConfiguration": _CONFIGS + "RunConfiguration",
        "ScriptRun": "rayjobs.api.run:JobRun",
        "ScriptRunConfig": _CONFIGS + "ScriptRunConfig",
        "VERSION": _VERSION,
        "Workspace": "rayjobs.api.workspace:Workspace",
        "ComputeTarget": _COMPUTE + "ComputeTarget",
        "__version__": _VERSION,
        **_refused("azure", "ContainerImage", "Image", "LinkedService", "PrivateEndPoint"),
        **_refused("azure", "PrivateEndPointConfig", "SynapseWorkspaceLinkedServiceConfiguration"),
        **_refused("secrets", "Keyvault"),
        **_refused("serving", "Webservice"),
    },
    "azureml.core.authentication": _same(
        _AUTH,
        "AbstractAuthentication",
        "ArmTokenAuthentication",
        "AzureCliAuthentication",
        "AzureMLTokenAuthentication",
        "InteractiveLoginAuthentication",
        "MsiAuthentication",
        "ServicePrincipalAuthentication",
        "TokenAuthentication",
    ),
    "azureml.core.compute": {
        **_COMPUTE_NAMES,
        "ComputeTargetException": _EXCEPTIONS + "ComputeTargetException",
    },
    "azureml.core.compute.amlcompute": _same(
        _COMPUTE, "AmlCompute", "AmlComputeProvisioningConfiguration", "AmlComputeStatus"
    ),
    "azureml.core.compute.compute": _same(_COMPUTE, "ComputeTarget"),
    "azureml.core.compute_target": {
        "ComputeTargetException": _EXCEPTIONS + "ComputeTargetException",
        **_same(_COMPUTE, "AmlCompute", "ComputeTarget"),
        "LocalTarget": "-compute",
    },
    "azureml.core.conda_dependencies": _same(_ENVIRONMENT, "CondaDependencies"),
    "azureml.core.container_registry": {
        "ContainerRegistry": "rayjobs.api.environment:ContainerRegistry"
    },
    "azureml.core.databricks": _refused(
        "spark", "DatabricksCluster", "DatabricksSection", "PyPiLibrary", "MavenLibrary"
    ),
    "azureml.core.dataset": _same(_DATA, "Dataset"),
    "azureml.core.datastore": _same(_DATA, "Datastore"),
    "azureml.core.environment": {
        **_same(_ENVIRONMENT, "CondaDependencies", "DockerSection", "Environment", "PythonSection"),
        **_DEFAULT_IMAGES,
        "ContainerRegistry": "rayjobs.api.environment:ContainerRegistry",
        **_refused("spark", "DatabricksSection", "SparkPackage", "SparkSection"),
    },
    "azureml.core.experiment": {"Experiment": "rayjobs.api.experiment:Experiment"},
    "azureml.core.image": _refused("serving", "ContainerImage", "Image", "ImageConfig"),
    "azureml.core.keyvault": _refused("secrets", "Keyvault"),
    "azureml.core.linked_service": _refused(
        "azure", "LinkedService", "SynapseWorkspaceLinkedServiceConfiguration"
    ),
    "azureml.core.model": {
        "Model": "rayjobs.api.model:Model",
        "Dataset": _DATA + "Dataset",
        "Environment": _ENVIRONMENT + "Environment",
        **_refused("serving", "InferenceConfig", "ModelPackage"),
    },
    "azureml.core.profile": _refused("serving", "ModelProfile"),
    "azureml.core.resource_configuration": {
        "ResourceConfiguration": "rayjobs.azureml.compat:ResourceConfiguration"
    },
    "azureml.core.run": {
        "Run": _RUN,
        "_OfflineRun": "rayjobs.injob.offline:OfflineRun",
        "_SubmittedRun": "rayjobs.injob.submitted:SubmittedRun",
        "get_run": "rayjobs.azureml.compat:get_run",
    },
    "azureml.core.runconfig": {
        **_same(
            _CONFIGS,
            "DockerConfiguration",
            "MpiConfiguration",
            "PyTorchConfiguration",
            "RunConfiguration",
            "TensorflowConfiguration",
        ),
        **_same(_ENVIRONMENT, "CondaDependencies", "Environment"),
        **_DEFAULT_IMAGES,
        "ContainerRegistry": "rayjobs.api.environment:ContainerRegistry",
        "DataReferenceConfiguration": "rayjobs.datastore.refs:DataReferenceConfiguration",
        **_refused("arrays", "ParallelTaskConfiguration"),
        **_refused("spark", "HdiConfiguration", "SparkConfiguration"),
        **_refused("spark", "EggLibrary", "JarLibrary", "MavenLibrary", "PyPiLibrary"),
    },
    "azureml.core.script_run": {"ScriptRun": "rayjobs.api.run:JobRun"},
    "azureml.core.script_run_config": {
        **_same(_CONFIGS, "ScriptRunConfig"),
        "get_run_config_from_script_run": "-internal",
    },
    "azureml.core.webservice": _WEBSERVICES,
    "azureml.core.workspace": {"Workspace": "rayjobs.api.workspace:Workspace"},
    "azureml.data": {
        **_same(_DATA, "FileDataset", "OutputFileDatasetConfig", "TabularDataset"),
        "DataType": "rayjobs.azureml.compat:DataType",
        **_refused("azure", "LinkFileOutputDatasetConfig", "LinkTabularOutputDatasetConfig"),
    },
    "azureml.data.abstract_dataset": _same(_DATA, "Dataset"),
    "azureml.data.abstract_datastore": {"AbstractDatastore": _DATA + "Datastore"},
    "azureml.data.azure_storage_datastore": _STORAGE,
    "azureml.data.data_reference": _same(_DATA, "DataReference"),
    "azureml.data.datapath": _same(_DATA, "DataPath", "DataPathComputeBinding"),
    "azureml.data.dataset_consumption_config": _same(_DATA, "DatasetConsumptionConfig"),
    "azureml.data.dataset_factory": {
        "TabularDatasetFactory": "rayjobs.azureml.compat:TabularDatasetFactory",
        "FileDatasetFactory": "rayjobs.azureml.compat:FileDatasetFactory",
        "DataType": "rayjobs.azureml.compat:DataType",
    },
    "azureml.data.file_dataset": _same(_DATA, "FileDataset"),
    "azureml.data.output_dataset_config": {
        **_same(_DATA, "OutputFileDatasetConfig"),
        **_refused("azure", "LinkFileOutputDatasetConfig", "LinkTabularOutputDatasetConfig"),
    },
    "azureml.data.sql_data_reference": _refused("azure", "SqlDataReference"),
    "azureml.data.tabular_dataset": _same(_DATA, "TabularDataset"),
    "azureml.exceptions": _ALL_EXCEPTIONS,
    "azureml.telemetry": {
        "set_diagnostics_collection": "rayjobs.azureml.telemetry:set_diagnostics_collection",
        "get_telemetry_log_handler": "rayjobs.azureml.telemetry:get_telemetry_log_handler",
        "is_diagnostics_collection_info_available": (
            "rayjobs.azureml.telemetry:is_diagnostics_collection_info_available"
        ),
        "UserErrorException": _EXCEPTIONS + "UserErrorException",
    },
    "azureml.mlflow": {
        **_same(
            "rayjobs.azureml.mlflow_names:",
            "get_mlflow_tracking_uri",
            "get_portal_url",
            "register_model",
        ),
        "VERSION": _VERSION,
        "__version__": _VERSION,
    },
    "azureml.opendatasets": {
        "MNIST": "rayjobs.azureml.opendatasets:MNIST",
        **_refused("opendatasets", "Diabetes", "NoaaIsdWeather", "NycTlcGreen", "NycTlcYellow"),
        **_refused("opendatasets", "OjSalesSimulated", "PublicHolidays"),
    },
    "azureml.tensorboard": _same("rayjobs.azureml.tensorboard:", "Tensorboard"),
    "azureml.tensorboard.export": _same("rayjobs.azureml.tensorboard:", "export_to_tensorboard"),
    "azureml.train": {},
    "azureml.train.dnn": {
        **_same(_ESTIMATORS, "Chainer", "Gloo", "Mpi", "Nccl", "PyTorch", "TensorFlow"),
        **_refused("parameter servers", "ParameterServer"),
    },
    "azureml.train.estimator": {
        "Estimator": _ESTIMATORS + "Estimator",
        "MMLBaseEstimator": _ESTIMATORS + "Estimator",
        "Mpi": _ESTIMATORS + "Mpi",
    },
    "azureml.train.hyperdrive": {
        **_EXPRESSIONS,
        **_POLICIES,
        **_SAMPLINGS,
        **_SWEEPS,
        "EarlyTerminationPolicy": "rayjobs.tuning.policies:Policy",
        "HyperDriveRun": _TUNING + "HyperDriveRun",
        "HyperParameterSampling": "rayjobs.tuning.samplers:Sampling",
    },
    "azureml.train.hyperdrive.exceptions": _same(
        _EXCEPTIONS,
        "HyperDriveConfigException",
        "HyperDriveException",
        "HyperDriveNotImplementedException",
        "HyperDriveRehydrateException",
        "HyperDriveScenarioNotSupportedException",
        "HyperDriveServiceException",
    ),
    "azureml.train.hyperdrive.parameter_expressions": _EXPRESSIONS,
    "azureml.train.hyperdrive.policy": {
        **_POLICIES,
        "EarlyTerminationPolicy": "rayjobs.tuning.policies:Policy",
    },
    "azureml.train.hyperdrive.run": {
        "HyperDriveRun": _TUNING + "HyperDriveRun",
        "PrimaryMetricGoal": _TUNING + "PrimaryMetricGoal",
    },
    "azureml.train.hyperdrive.runconfig": _SWEEPS,
    "azureml.train.hyperdrive.sampling": {
        **_SAMPLINGS,
        "HyperParameterSampling": "rayjobs.tuning.samplers:Sampling",
    },
    "azureml.train.sklearn": _same(_ESTIMATORS, "SKLearn"),
    "azureml.contrib.pipeline.steps": _same(_PIPELINES, "ParallelRunConfig", "ParallelRunStep"),
    "azureml.pipeline.core": {
        **_same(
            _PIPELINES,
            "InputPortBinding",
            "Pipeline",
            "PipelineData",
            "PipelineDataset",
            "PipelineParameter",
            "PipelineRun",
            "PipelineStep",
            "PortDataReference",
            "StepRun",
            "StepRunOutput",
            "StepSequence",
            "TrainingOutput",
        ),
        **_refused("modules", "Module", "ModuleVersion"),
        **_refused("drafts", "PipelineDraft"),
        **_same(_PIPELINES, "PipelineEndpoint", "PublishedPipeline"),
        **_same(_PIPELINES, "Schedule", "ScheduleRecurrence", "TimeZone"),
    },
    "azureml.pipeline.core.builder": _same(
        _PIPELINES, "PipelineData", "PipelineStep", "StepSequence"
    ),
    "azureml.pipeline.core.graph": _same(
        _PIPELINES,
        "InputPortBinding",
        "PipelineDataset",
        "PipelineParameter",
        "PortDataReference",
        "TrainingOutput",
    ),
    "azureml.pipeline.core.pipeline": _same(_PIPELINES, "Pipeline"),
    "azureml.pipeline.core.pipeline_endpoint": _same(_PIPELINES, "PipelineEndpoint"),
    "azureml.pipeline.core.schedule": _same(
        _PIPELINES, "Schedule", "ScheduleRecurrence", "TimeZone"
    ),
    "azureml.pipeline.core.run": _same(
        _PIPELINES, "PipelineRun", "PortDataReference", "StepRun", "StepRunOutput"
    ),
    "azureml.pipeline.steps": {
        **_same(
            _PIPELINES,
            "CommandStep",
            "EstimatorStep",
            "HyperDriveStep",
            "HyperDriveStepRun",
            "MpiStep",
            "ParallelRunConfig",
            "ParallelRunStep",
            "PythonScriptStep",
        ),
        **_refused("automl", "AutoMLStep", "AutoMLStepRun"),
        **_refused("compute", "AdlaStep", "AzureBatchStep", "DatabricksStep", "KustoStep"),
        **_refused("azure", "DataTransferStep"),
        **_refused("modules", "ModuleStep"),
        **_refused("spark", "HDISynapseSparkStep", "SynapseSparkStep"),
        **_refused("R", "RScriptStep"),
    },
    "azureml.pipeline.steps.parallel_run_config": _same(_PIPELINES, "ParallelRunConfig"),
    "azureml.pipeline.steps.parallel_run_step": _same(_PIPELINES, "ParallelRunStep"),
    "azureml.pipeline.steps.mpi_step": _same(_PIPELINES, "MpiStep"),
    "azureml.pipeline.steps.python_script_step": _same(_PIPELINES, "PythonScriptStep"),
    "azureml.widgets": {"RunDetails": "rayjobs.api.widgets:RunDetails"},
}

# Packages that are not provided at all: this sentence refuses every name below them. The longest
# prefix counts.
PACKAGES: Dict[str, str] = {
    "azureml.accel": "serving",
    "azureml.automl": "automl",
    "azureml.contrib": "azure",
    "azureml.contrib.automl": "automl",
    "azureml.contrib.pipeline": "pipelines",
    "azureml.contrib.services": "serving",
    "azureml.core.image": "serving",
    "azureml.core.webservice": "serving",
    "azureml.datadrift": "drift",
    "azureml.dataprep": "internal",
    "azureml.explain": "interpret",
    "azureml.interpret": "interpret",
    "azureml.opendatasets": "opendatasets",
    "azureml.pipeline": "pipelines",
    "azureml.train.automl": "automl",
    "azureml._base_sdk_common": "internal",
    "azureml._common": "internal",
    "azureml._restclient": "internal",
}


def refusal(module: str) -> Optional[str]:
    """Return the key of the sentence for a module that is not provided at all; None: unknown."""
    parts = module.split(".")
    for end in range(len(parts), 1, -1):
        why = PACKAGES.get(".".join(parts[:end]))
        if why is not None:
            return why
    return None


def is_module(name: str) -> bool:
    """Return whether ``import name`` works: it or one of its submodules is listed."""
    below = name + "."
    known = name in MODULES or any(one.startswith(below) for one in MODULES)
    return known or refusal(name) is not None or any(one.startswith(below) for one in PACKAGES)


def provided(module: str, name: str) -> Tuple[str, str]:
    """Return ``("by", "module:attribute")``, ``("refused", key)`` or ``("unknown", "")``.

    The key is that of the sentence in `SENTENCES`.
    """
    value = MODULES.get(module, {}).get(name)
    if value is not None and not value.startswith("-"):
        return "by", value
    why = value[1:] if value is not None else None
    if why is None and module not in MODULES:
        why = refusal(module)
    return ("refused", why) if why is not None else ("unknown", "")
