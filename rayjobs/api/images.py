"""Images and registries in Azure ML v1's terms: names that programs use, and what they keep.

Source: ``azureml.core.runconfig`` and ``azureml.core.container_registry`` of azureml-core 1.61.
"""

from __future__ import annotations

# The base images of Azure ML, by which programs ask for "the usual image with CPUs (GPUs)".
DEFAULT_CPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
DEFAULT_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"


class ContainerRegistry:
    """Where an image comes from, and who may read it.

    Attributes:
        address: Host name of the registry.
        username, password: Login, if the image is not public.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        self.username: str | None = None
        self.password: str | None = None

    def __repr__(self) -> str:
        """Return the address; neither user nor password is shown."""
        return f"ContainerRegistry(address={self.address!r})"
