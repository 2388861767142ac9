"""The named frameworks, curated environments and base images that Azure ML ships.

Each has a table of what the name stood for in Azure ML; `rayjobs.spec.substitutes` decides what is
used instead. Sources: the reference of ``azureml.train.dnn.PyTorch`` (framework versions), the list
of curated environments of Azure ML v1, ``Azure/AzureML-Containers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Curated:
    """A named environment that Azure ML ships.

    Attributes:
        python: The version of Python.
        pip: Requirements.
        gpu: Its image has CUDA.
    """

    python: str
    pip: tuple[str, ...]
    gpu: bool = False


# Version of the estimator → torch, torchvision, horovod of its image.
_TORCH: Mapping[str, tuple[str, str, str]] = {
    "1.0": ("1.0", "0.4.1", "0.18.1"),
    "1.1": ("1.1", "0.4.1", "0.18.1"),
    "1.2": ("1.2", "0.4.1", "0.18.1"),
    "1.3": ("1.3.1", "0.4.1", "0.18.1"),
    "1.4": ("1.4.0", "0.5.0", "0.18.1"),
    "1.5": ("1.5.0", "0.6.0", "0.19.1"),
    "1.6": ("1.6.0", "0.7.0", "0.19.5"),
}
PYTORCH_VERSIONS = tuple(_TORCH)
FRAMEWORK_PYTHON = "3.6.2"
# In every image of the PyTorch estimator, in addition to torch.
_COMPANIONS = ("tensorboard==1.14", "future==0.17.1")


def pytorch(version: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the PyTorch estimator's requirements, and those that only some scripts use.

    Args:
        version: One of `PYTORCH_VERSIONS`; None means any version.
    """
    if version is None:
        names = [line.partition("==")[0] for line in _COMPANIONS]
        return ("torch", "torchvision"), ("horovod", *names)
    torch, vision, horovod = _TORCH[version]
    return (f"torch=={torch}", f"torchvision=={vision}"), (f"horovod=={horovod}", *_COMPANIONS)


def _torch(python: str, torch: str, vision: str, *more: str, gpu: bool = False) -> Curated:
    return Curated(python, (f"torch=={torch}", f"torchvision=={vision}", *more), gpu)


_SCIENCE = ("scikit-learn", "pandas", "numpy", "scipy", "matplotlib", "joblib")
# Name in lower case, without `-cpu` or `-gpu` at its end → the installed packages.
_CURATED: Mapping[str, Curated] = {
    "azureml-minimal": Curated("3.6.2", ()),
    "azureml-tutorial": Curated("3.6.2", ("matplotlib", "scikit-learn", "pandas", "numpy")),
    "azureml-scikit-learn-0.20.3": Curated("3.6.2", ("scikit-learn==0.20.3", "scipy", "joblib")),
    "azureml-sklearn-0.24-ubuntu18.04-py37": Curated("3.7", ("scikit-learn==0.24.1", *_SCIENCE)),
    "azureml-sklearn-1.0-ubuntu20.04-py38": Curated("3.8", ("scikit-learn==1.0.2", *_SCIENCE)),
    "azureml-pytorch-1.0": _torch("3.6.2", "1.0", "0.2.1", "horovod==0.16.1"),
    "azureml-pytorch-1.1": _torch("3.6.2", "1.1", "0.2.1", "horovod==0.16.1"),
    "azureml-pytorch-1.2": _torch("3.6.2", "1.2", "0.4.0", "horovod==0.16.1"),
    "azureml-pytorch-1.3": _torch("3.6.2", "1.3", "0.4.1", "horovod==0.18.1"),
    "azureml-pytorch-1.4": _torch("3.6.2", "1.4.0", "0.5.0", "horovod==0.18.1"),
    "azureml-pytorch-1.5": _torch("3.6.2", "1.5.0", "0.5.0", "horovod==0.19.1"),
    "azureml-pytorch-1.6": _torch(
        "3.6.2", "1.6.0", "0.5.0", "horovod==0.19.5", "tensorboard==1.14.0", "future==0.17.1"
    ),
    "azureml-pytorch-1.7-ubuntu18.04-py37-cuda11": _torch(
        "3.7", "1.7.0", "0.8.1", "horovod==0.21.3", gpu=True
    ),
    "azureml-pytorch-1.9-ubuntu18.04-py37-cuda11": _torch(
        "3.7", "1.9.0", "0.10.0", "horovod==0.22.1", gpu=True
    ),
    "azureml-pytorch-1.10-ubuntu18.04-py38-cuda11": _torch("3.8", "1.10.0", "0.11.1", gpu=True),
    "azureml-acpt-pytorch-1.11-py38-cuda11.3": _torch("3.8", "1.11.0", "0.12.0", "tqdm", gpu=True),
    "azureml-acpt-pytorch-1.12-py38-cuda11.6": _torch("3.8", "1.12.0", "0.13.0", "tqdm", gpu=True),
    "azureml-acpt-pytorch-1.13-cuda11.7": _torch("3.8", "1.13.1", "0.14.1", "tqdm", gpu=True),
    "azureml-acpt-pytorch-2.0-cuda11.7": _torch("3.8", "2.0.1", "0.15.2", "tqdm", gpu=True),
    "azureml-acpt-pytorch-2.2-cuda12.1": _torch("3.10", "2.2.2", "0.17.2", "tqdm", gpu=True),
}
_PROCESSOR = re.compile(r"-(cpu|gpu)$")
_BASE_IMAGES = re.compile(r"(?:https?://)?mcr\.microsoft\.com/azureml/.+|azureml/.+")


def curated(name: str) -> Curated | None:
    """Return the content of a curated environment; None if the name is unknown.

    Case does not matter; a name with `-cpu` or `-gpu` at its end has the same packages.
    """
    plain = name.lower()
    found = _CURATED.get(_PROCESSOR.sub("", plain))
    if found is None:
        return None
    return Curated(found.python, found.pip, found.gpu or plain.endswith("-gpu"))


def curated_names() -> list[str]:
    """Return the names that `curated` knows, in lower case."""
    return sorted(_CURATED)


def is_base_image(image: str) -> bool:
    """Whether an image is an Azure ML base image (drivers, MPI and conda, but no job packages)."""
    return _BASE_IMAGES.fullmatch(image.strip()) is not None
