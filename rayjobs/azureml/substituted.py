"""What works in another way than on Azure: one sentence each, for reports before anything runs."""

from __future__ import annotations

# ``module.name`` of what is imported, or ``Class.member`` → what happens instead.
SUBSTITUTED: dict[str, str] = {
    "azureml.telemetry.set_diagnostics_collection": "does nothing: nothing is collected",
    "AmlCompute": "a compute runs its jobs on the target of its name, the mapped one, or `local`",
    "ArmTokenAuthentication": "taken and not used: a workspace needs no login",
    "AzureCliAuthentication": "taken and not used: a workspace needs no login",
    "InteractiveLoginAuthentication": "taken and not used: a workspace needs no login",
    "MsiAuthentication": "taken and not used: a workspace needs no login",
    "ServicePrincipalAuthentication": "taken and not used: a workspace needs no login",
    "TokenAuthentication": "taken and not used: a workspace needs no login",
    "DockerConfiguration": "used where the target runs containers, else listed at the submit",
    "DEFAULT_CPU_IMAGE": "stands for the target's own Python",
    "DEFAULT_GPU_IMAGE": "stands for the target's own Python",
    "DockerSection.base_image": "run where the target runs containers, else substituted",
    "DockerSection.base_dockerfile": "built where the target runs containers, else substituted",
    "DockerSection.enabled": "used where the target runs containers, else listed at the submit",
    "CondaDependencies.add_conda_package": "replaced by the package of PyPI, line by line",
    "CondaDependencies.create(conda_packages=)": "replaced by the packages of PyPI, line by line",
    "Environment.from_conda_specification": "conda packages are replaced by those of PyPI",
    "Environment.get": "a curated name gives the nearest local environment, which is said",
    "Estimator(custom_docker_image=)": "run where the target runs containers, else substituted",
    "Estimator(conda_packages=)": "replaced by the packages of PyPI, line by line",
    "PyTorch(conda_packages=)": "replaced by the packages of PyPI, line by line",
    "PyTorch(framework_version=)": "the nearest version that this Python can have",
    "TensorFlow(framework_version=)": "the nearest version that this Python can have",
    "Chainer(framework_version=)": "the nearest version that this Python can have",
    "SKLearn(framework_version=)": "the nearest version that this Python can have",
    "RunDetails": "a widget in notebooks, text elsewhere",
    "Workspace.from_config": "opens the workspace of this folder under the config's name and ids",
}
