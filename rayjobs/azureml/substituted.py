"""Names that work differently than in Azure, with one phrase each for the reports of a check."""

from __future__ import annotations

# Imported name as ``module.name``, or ``Class.member`` → what happens instead.
SUBSTITUTED: dict[str, str] = {
    "azureml.telemetry.set_diagnostics_collection": "does nothing, since nothing is collected",
    "AmlCompute": "a compute runs its jobs on the target of its name, the mapped one, or `local`",
    "ArmTokenAuthentication": "accepted but unused: a workspace needs no login",
    "AzureCliAuthentication": "accepted but unused: a workspace needs no login",
    "InteractiveLoginAuthentication": "accepted but unused: a workspace needs no login",
    "MsiAuthentication": "accepted but unused: a workspace needs no login",
    "ServicePrincipalAuthentication": "accepted but unused: a workspace needs no login",
    "TokenAuthentication": "accepted but unused: a workspace needs no login",
    "DockerConfiguration": "used where the target runs containers, else listed at the submit",
    "DEFAULT_CPU_IMAGE": "stands for the target's own Python",
    "DEFAULT_GPU_IMAGE": "stands for the target's own Python",
    "DockerSection.base_image": "run where the target runs containers, else substituted",
    "DockerSection.base_dockerfile": "built where the target runs containers, else substituted",
    "DockerSection.enabled": "used where the target runs containers, else listed at the submit",
    "CondaDependencies.add_conda_package": "replaced by the PyPI package, line by line",
    "CondaDependencies.create(conda_packages=)": "replaced by the PyPI packages, line by line",
    "Environment.from_conda_specification": "conda packages are replaced by PyPI packages",
    "Environment.get": "a curated name gives the nearest local environment, with a notice",
    "Estimator(custom_docker_image=)": "run where the target runs containers, else substituted",
    "Estimator(conda_packages=)": "replaced by the PyPI packages, line by line",
    "PyTorch(conda_packages=)": "replaced by the PyPI packages, line by line",
    "PyTorch(framework_version=)": "the nearest version that this Python supports",
    "TensorFlow(framework_version=)": "the nearest version that this Python supports",
    "Chainer(framework_version=)": "the nearest version that this Python supports",
    "SKLearn(framework_version=)": "the nearest version that this Python supports",
    "RunDetails": "a widget in notebooks, text elsewhere",
    "Workspace.from_config": "opens the workspace of this folder under the config's name and ids",
}
