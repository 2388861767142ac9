"""Unavailable packages are replaced by the closest ones, and listed; nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from rayjobs.spec.curated import PYTORCH_VERSIONS, curated, curated_names, is_base_image, pytorch
from rayjobs.spec.model import Container, JobSpec, Packages
from rayjobs.spec.substitutes import Target, sentences, substitute

INSTALLED = {"torch": "2.15.0", "torchvision": "0.29.2"}


def replaced(
    requested: Packages, *, mentions: frozenset[str] = frozenset(), **known: Any
) -> tuple[Packages | None, list[str]]:
    """Return the environment that is used, and the substitutions as sentences."""
    given = {"python": (3, 11, 7), "version_of": INSTALLED.get, "has_python": lambda _: False}
    target = Target(**{**given, **known})
    spec = substitute(
        JobSpec(script="a.py", environment=requested), target, mentions=mentions.__contains__
    )
    assert not isinstance(spec.environment, str)
    return spec.environment, list(sentences(spec.substitutes))


def test_the_specification_of_an_azure_tutorial() -> None:
    asked = Packages(
        python="3.6.2",
        pip=("azureml-defaults", "torch==1.6.0", "torchvision==0.7.0", "future==0.17.1", "pillow"),
    )
    used, notices = replaced(asked)
    assert used == Packages(base="target", pip=("future==0.17.1", "pillow"))
    assert notices == [
        "instead of Python 3.6.2: Python 3.11.7 (jobs need 3.8 or newer)",
        "instead of azureml-defaults: the target's rayjobs (rayjobs provides Run and the names of "
        "azureml)",
        "instead of torch==1.6.0: torch==2.15.0 (it has no release for Python 3.11)",
        "instead of torchvision==0.7.0: torchvision==0.29.2 (it has no release for Python 3.11)",
    ]


def test_available_packages_are_unchanged() -> None:
    requested = Packages(
        name="mine",
        python=">=3.9",
        pip=(
            "--no-index",
            "torch==2.6.0",
            "numpy<2",
            "scipy~=1.11",
            "./a-1.0.whl",
            "x @ git+https://h/x",
        ),
        constraints=("numpy<1",),
    )
    assert replaced(requested) == (requested, [])
    assert replaced(Packages(python="3.11")) == (Packages(python="3.11"), [])


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("numpy==1.16.2", "numpy>=1.23.2,<2"),
        ("numpy<=1.19", "numpy>=1.23.2,<2"),
        ("scikit-learn==0.22.*", "scikit-learn>=1.1.3,<2"),
        ("numpy~=1.16.0", "numpy>=1.23.2,<2"),
        (
            "pandas[excel]==1.0; sys_platform == 'linux'",
            "pandas[excel]>=1.5.1,<2 ; sys_platform == 'linux'",
        ),
        ("numpy~=1.16", "numpy~=1.16"),
        ("numpy==1.23.*", "numpy==1.23.*"),
        ("numpy==1.23.2", "numpy==1.23.2"),
        ("numpy==1.23.1", "numpy>=1.23.2,<2"),
        ("unknown==0.1", "unknown==0.1"),
    ],
)
def test_the_nearest_release_of_a_package(line: str, used: str) -> None:
    found, notices = replaced(Packages(pip=(line,)))
    assert found is not None
    assert found.pip == (used,)
    assert bool(notices) == (line != used)


def test_python_of_the_target_determines_available_packages() -> None:
    requested = Packages(python="3.9", pip=("torch==1.6.0",))
    used, _ = replaced(requested, has_python=lambda _: True)
    assert used == Packages(python="3.9", pip=("torch>=1.8.0,<2",))
    used, notices = replaced(requested)
    assert used is None  # the target's own
    assert notices[0] == "instead of Python 3.9: Python 3.11.7 (the target has no other)"
    used, notices = replaced(Packages(python="3.11.2", pip=("tqdm",)))
    assert (used, notices) == (
        Packages(pip=("tqdm",)),
        ["instead of Python 3.11.2: Python 3.11.7 (the target's own release of it)"],
    )


def test_horovod_comes_from_the_target() -> None:
    used, notices = replaced(Packages(pip=("horovod==0.19.5", "tqdm")))
    assert used == Packages(base="target", pip=("tqdm",))
    assert notices == [
        "instead of horovod==0.19.5: the target's Horovod (it is built for one release of torch)"
    ]
    assert replaced(Packages(pip=("horovod", "tqdm"))) == (used, [])


def test_packages_of_a_framework_are_installed_where_the_code_mentions_them() -> None:
    packages, if_used = pytorch("1.4")
    requested = Packages(python="3.6.2", pip=packages, if_used=if_used, base="target")
    used, notices = replaced(requested)
    assert used is None
    assert len(notices) == 3
    used, _ = replaced(requested, mentions=frozenset({"tensorboard", "horovod"}))
    assert used == Packages(base="target", pip=("tensorboard>=2.12.0,<3",))
    used, notices = replaced(Packages(pip=(*pytorch(None)[0], "tqdm"), base="target"))
    assert (used, notices) == (Packages(pip=("tqdm",), base="target"), [])


def test_packages_of_conda_without_a_channel_come_from_pip() -> None:
    requested = Packages(conda=("scikit-learn=0.22", "pytorch", "cudatoolkit=10.1", "opencv"))
    used, notices = replaced(requested)
    assert used == Packages(pip=("scikit-learn>=1.1.3,<2", "torch", "opencv-python-headless"))
    assert (
        "instead of opencv (conda): opencv-python-headless (pip) (no channel is named)" in notices
    )
    assert (
        "instead of cudatoolkit=10.1: nothing (conda; the node's drivers and torch bring it)"
        in notices
    )


def test_conda_packages_with_a_channel_stay_if_conda_is_available() -> None:
    requested = Packages(
        conda=("zlib",), channels=("conda-forge",), pip=("azureml-core", "horovod")
    )
    used, notices = replaced(requested)
    assert used == Packages(conda=("zlib",), channels=("conda-forge",))
    assert len(notices) == 2
    used, notices = replaced(Packages(conda=("tqdm",), channels=("own",)), has_conda=False)
    assert used == Packages(pip=("tqdm",))
    assert notices == ["instead of tqdm (conda): tqdm (pip) (no conda on the target)"]
    # A program that pip does not have is left for the check, which refuses it.
    used, _ = replaced(Packages(conda=("ffmpeg",)))
    assert used == Packages(conda=("ffmpeg",))


def test_every_curated_environment_has_an_available_substitute() -> None:
    for name in curated_names():
        found = curated(f"{name.upper()}-GPU")
        assert found is not None
        assert found.gpu
        used, _ = replaced(Packages(python=found.python, pip=("azureml-defaults", *found.pip)))
        assert used is None or used.base == "target"
    assert curated("AzureML-Nonsense") is None
    assert len(PYTORCH_VERSIONS) == 7


def test_a_base_image_of_azure_ml_is_the_targets_own_environment() -> None:
    base = "mcr.microsoft.com/azureml/openmpi3.1.2-cuda10.1-cudnn7-ubuntu18.04"
    target = Target((3, 11, 7), INSTALLED.get, lambda _: False)
    spec = substitute(JobSpec(script="a.py", container=Container(image=base)), target)
    assert spec.container is None
    assert [one.asked for one in spec.substitutes] == [f"image {base}"]
    own = JobSpec(script="a.py", container=Container(image="pytorch/pytorch"))
    assert substitute(own, target) == own


def test_base_images_of_azure_ml() -> None:
    assert is_base_image("mcr.microsoft.com/azureml/openmpi3.1.2-cuda10.1-cudnn7-ubuntu18.04")
    assert is_base_image("azureml/openmpi4.1.0-ubuntu20.04")
    assert not is_base_image("pytorch/pytorch:2.0")


def in_image(requested: Packages, *, strict: bool = False) -> tuple[Any, list[str]]:
    target = Target(python=(3, 11, 7), version_of=INSTALLED.get, has_python=lambda _: False)
    spec = JobSpec(
        script="a.py", environment=requested, container=Container(image="own:1"), strict=strict
    )
    made = substitute(spec, target)
    return made.environment, list(sentences(made.substitutes))


def test_packages_are_added_to_those_of_an_image() -> None:
    used, notices = in_image(
        Packages(python="3.6.2", pip=("azureml-defaults", "torch==1.6.0", "horovod==0.19.5"))
    )
    # The image's Python may well have this release of torch: the target's does not matter.
    assert used == Packages(pip=("torch==1.6.0",))
    assert notices == [
        "instead of Python 3.6.2: the image's own Python (packages are added to it)",
        "instead of azureml-defaults: the target's rayjobs (rayjobs provides Run and the names of "
        "azureml)",
        "instead of horovod==0.19.5: the image's own Horovod, or one built there (it is built "
        "for one release of torch)",
    ]
    of_estimator, notices = in_image(Packages(base="target", pip=("torch==1.6.0", "tqdm")))
    assert of_estimator == Packages(pip=("torch", "tqdm"))
    assert notices == [
        "instead of torch==1.6.0: the image's torch, or the newest (packages are added to the "
        "image)"
    ]
    # Nothing left to install: the image as it is, with the Python that was named.
    assert in_image(Packages(pip=("azureml-sdk",)))[0] is None
    assert in_image(Packages(python="/opt/conda/bin/python"))[0] == "/opt/conda/bin/python"


@pytest.mark.parametrize("python", ["3.10.*", "", "three"])
def test_invalid_version_of_python_is_left_for_the_check_of_the_spec(python: str) -> None:
    requested = Packages(python=python, conda=("numpy",))
    target = Target(
        python=(3, 11, 7),
        version_of=INSTALLED.get,
        has_python=lambda _: False,
        has_conda=True,
    )
    spec = JobSpec(script="a.py", environment=requested, container=Container(image="own:1"))
    environment = substitute(spec, target).environment
    assert isinstance(environment, Packages) and environment.python == python


def test_the_version_of_an_images_python_is_compared_on_the_node_if_strict() -> None:
    requested = Packages(python="3.9", pip=("tqdm",))
    assert in_image(requested, strict=True) == (requested, [])


def test_packages_of_conda_bring_their_own_python_to_an_image() -> None:
    requested = Packages(python="3.6", conda=("zlib",), channels=("own",), pip=("tqdm",))
    used, notices = in_image(requested)
    assert used == Packages(conda=("zlib",), channels=("own",), pip=("tqdm",))
    assert notices == ["instead of Python 3.6: the newest of conda (jobs need 3.8 or newer)"]
