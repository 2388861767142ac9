"""Names that work differently than in Azure, with one phrase each for the reports of a check."""

from __future__ import annotations

# Imported name as ``module.name``, or ``Class.member`` → what happens instead.
SUBSTITUTED: dict[str, str] = {
    "azureml.telemetry.set_diagnostics_collection": "does nothing, since nothing is collected",
    "AbstractAuthentication": "accepted but unused: a workspace needs no login",
    "AmlCompute": "a compute runs its jobs on the target of its name, the mapped one, or `local`",
    "ArmTokenAuthentication": "accepted but unused: a workspace needs no login",
    "AzureCliAuthentication": "accepted but unused: a workspace needs no login",
    "AzureMLTokenAuthentication": "accepted but unused: a workspace needs no login",
    "InteractiveLoginAuthentication": "accepted but unused: a workspace needs no login",
    "MsiAuthentication": "accepted but unused: a workspace needs no login",
    "ServicePrincipalAuthentication": "accepted but unused: a workspace needs no login",
    "TokenAuthentication": "accepted but unused: a workspace needs no login",
    "DockerConfiguration": "used if the environment has an image, else listed at the submit",
    "DEFAULT_CPU_IMAGE": "stands for the target's own Python",
    "DEFAULT_GPU_IMAGE": "stands for the target's own Python",
    "DockerSection.base_image": "run; an Azure ML base image stands for the target's own Python",
    "DockerSection.base_dockerfile": "built on the node, with podman or buildah",
    "DockerSection.enabled": "accepted but unused: a job runs in an image if one is named",
    "CondaDependencies.add_conda_package": "without a channel, replaced by the PyPI package",
    "CondaDependencies.create(conda_packages=)": "without a channel, replaced by PyPI packages",
    "Environment.from_conda_specification": "conda packages without a channel become PyPI ones",
    "Environment.get": "a curated name gives the nearest local environment, with a notice",
    "Estimator(custom_docker_image=)": "run; a base image stands for the target's own Python",
    "Estimator(conda_packages=)": "replaced by the PyPI packages, line by line",
    "PyTorch(conda_packages=)": "replaced by the PyPI packages, line by line",
    "PyTorch(framework_version=)": "the nearest version that this Python supports",
    "TensorFlow(framework_version=)": "the nearest version that this Python supports",
    "Chainer(framework_version=)": "the nearest version that this Python supports",
    "SKLearn(framework_version=)": "the nearest version that this Python supports",
    "RunDetails": "a widget in notebooks, text elsewhere",
    "Workspace.from_config": "opens the workspace of this folder under the config's name and ids",
}
