"""The nearest available substitutes for parts of an environment that are not available.

Programs for Azure ML v1 request Python 3.6, torch 1.6 and packages of a service that is gone. The
rules here replace such a request with the nearest equivalent on the target. The result lists each
substitution; with `strict`, the job is refused instead.

Only what is not available is replaced: a Python that the target does not have or on which jobs
cannot run, a version that was never published for the Python in use, conda packages without a
channel or without conda, Horovod (which must be built for the installed torch), and packages and
base images of Azure ML itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec import conda, requirements
from rayjobs.spec.curated import is_base_image
from rayjobs.spec.model import JobSpec, Packages, Substitute

# The oldest release with wheels for each version of CPython on Linux x86-64. Source: the files of
# each release on PyPI.
_MINORS = ((3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13))


def _since(*versions: str) -> dict[tuple[int, int], str]:
    return dict(zip(_MINORS, versions, strict=True))


_FIRST: Mapping[str, Mapping[tuple[int, int], str]] = {
    "torch": _since("1.4.0", "1.8.0", "1.11.0", "2.0.0", "2.2.0", "2.6.0"),
    "torchvision": _since("0.5.0", "0.9.0", "0.12.0", "0.15.1", "0.17.0", "0.21.0"),
    "torchaudio": _since("0.4.0", "0.8.0", "0.11.0", "2.0.1", "2.2.0", "2.6.0"),
    "tensorflow": _since("2.2.0", "2.5.0", "2.8.0", "2.12.0", "2.16.1", "2.20.0"),
    "numpy": _since("1.17.3", "1.19.3", "1.21.3", "1.23.2", "1.26.0", "2.1.0"),
    "scipy": _since("1.4.0", "1.5.4", "1.7.2", "1.9.2", "1.11.2", "1.14.1"),
    "pandas": _since("1.0.0", "1.1.3", "1.3.4", "1.5.1", "2.1.1", "2.2.3"),
    "scikit-learn": _since("0.22", "0.24.0", "1.0.2", "1.1.3", "1.3.1", "1.5.2"),
    "matplotlib": _since("3.2.0", "3.3.3", "3.5.0", "3.6.0", "3.8.0", "3.9.2"),
    "pillow": _since("6.2.1", "8.0.0", "8.4.0", "9.3.0", "10.1.0", "11.0.0"),
    "h5py": _since("2.10.0", "3.1.0", "3.6.0", "3.8.0", "3.10.0", "3.12.1"),
    # Pure Python, but older releases import modules that newer versions of Python removed.
    "tensorboard": dict.fromkeys([(3, 10), (3, 11), (3, 12), (3, 13)], "2.12.0"),
    "future": {(3, 12): "1.0.0", (3, 13): "1.0.0"},
}
# If an old release of these packages is not available, the target's own release is used: jobs start
# warm with it, and Horovod is built for it.
_FROM_TARGET = frozenset({"torch", "torchvision", "torchaudio"})
# Conda package → pip package, if the names differ. Source: conda-forge's own mapping of names.
_OF_PIP: Mapping[str, str] = {
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "tensorflow-base": "tensorflow",
    "opencv": "opencv-python-headless",
    "py-opencv": "opencv-python-headless",
    "matplotlib-base": "matplotlib",
    "py-xgboost": "xgboost",
    "py-lightgbm": "lightgbm",
    "msgpack-python": "msgpack",
    "pytables": "tables",
    "tensorboardx": "tensorboardX",
}
_OF_ONE_TORCH = "it is built for one release of torch"
_DRIVERS = "the node's drivers and torch bring it"
_NODE_HAS: Mapping[str, str] = {
    **dict.fromkeys(
        ("cudatoolkit", "cudnn", "nccl", "cuda", "pytorch-cuda", "cuda-toolkit"), _DRIVERS
    ),
    **dict.fromkeys(("openmpi", "mpi", "mpich"), "the node's Open MPI is used"),
    **dict.fromkeys(("cpuonly", "nomkl", "blas", "mkl", "libblas"), "wheels bring their own"),
}
# Conda packages that pip cannot provide.
_OF_CONDA_ALONE = frozenset(
    {"gcc", "gxx", "gcc_linux-64", "gxx_linux-64", "compilers", "git", "ffmpeg", "r-base"}
    | {"openjdk", "nodejs", "gdal", "libgdal", "graphviz", "make", "libgcc", "boost"}
)
_PINNED = re.compile(
    r"([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*(={2,3}|~=|<=|<)\s*([0-9][^\s,;]*)\s*(;.*)?"
)
_AZUREML = re.compile(r"azureml(?:-[a-z0-9-]+)?")
_WITH_AZUREML = "rayjobs provides Run and the names of azureml"
_ACCELERATED = {"tensorflow-gpu": "tensorflow", "tensorflow-cpu": "tensorflow"}


@dataclass(frozen=True)
class Target:
    """What the submit knows about a target's own Python.

    Attributes:
        python: Its version.
        version_of: Returns the installed version of a package; None: unknown.
        has_python: Returns whether another version of Python can be used there; True if unknown.
        has_conda: Whether conda packages can be installed there; True if unknown.
    """

    python: tuple[int, int, int]
    version_of: Callable[[str], str | None]
    has_python: Callable[[str], bool]
    has_conda: bool = True

    @property
    def python_text(self) -> str:
        """The version in the usual notation."""
        return ".".join(map(str, self.python))


@dataclass
class _Made:
    """An environment under construction."""

    pip: list[str] = field(default_factory=list)
    base: str | None = None
    substitutes: list[Substitute] = field(default_factory=list)

    def use(self, asked: str, used: str, reason: str) -> None:
        self.substitutes.append(Substitute(asked=asked, used=used, reason=reason))


def substitute(
    spec: JobSpec, target: Target, *, mentions: Callable[[str], bool] = lambda _name: False
) -> JobSpec:
    """Return a spec whose environment is available, with the replacements in `substitutes`.

    Args:
        mentions: Returns whether the job's code mentions a package of a framework.
    """
    spec = _without_base_image(spec)
    request = spec.environment
    if not isinstance(request, Packages):
        return spec
    if spec.container is not None:
        return _in_image(spec, request, target, mentions)
    made = _Made(base=request.base)
    python, own = _python(request, target, made)
    version = target.python[:2] if own else _minor(python or "")
    found, kept = _conda(request, target, made)
    own = own and not kept  # a conda Python has none of the target's packages
    wanted = [*found, *request.pip]
    wanted += [line for line in request.if_used if mentions(requirements.name_of(line))]
    for line in wanted:
        _line(line, version, target, made, is_own=own, keeps_base=request.base is not None)
    if not own:
        made.base = None  # packages for one version of Python do not work with another
    environment: Packages | None = None  # the target's own
    if made.base is None or any(not line.startswith("-") for line in made.pip):
        changes = {"python": python, "pip": tuple(made.pip), "base": made.base, "if_used": ()}
        changes |= {"conda": kept, "channels": request.channels if kept else ()}
        if made.base is not None:
            changes["python"] = None
        environment = request.model_copy(update=changes)
    return spec.model_copy(
        update={
            "environment": environment,
            "substitutes": (*spec.substitutes, *made.substitutes),
        }
    )


def _in_image(
    spec: JobSpec, request: Packages, target: Target, mentions: Callable[[str], bool]
) -> JobSpec:
    """Return a spec whose packages are added to an image, whose content is unknown here."""
    made = _Made()
    found, kept = _conda(request, target, made)
    python = request.python
    is_path = python is not None and "/" in python
    is_version = python is not None and requirements.is_version(python)
    if kept:
        too_old = is_version and _is_too_old(python or "")
        if too_old:
            made.use(f"Python {python}", "the newest of conda", "jobs need 3.8 or newer")
        python = None if too_old else python
    elif is_version and not spec.strict:  # otherwise, the node compares it with the image's
        made.use(f"Python {python}", "the image's own Python", "packages are added to it")
        python = None
    of_framework = request.base is not None
    if_used = [line for line in request.if_used if mentions(requirements.name_of(line))]
    for line in [*found, *request.pip, *if_used]:
        name = requirements.name_of(line)
        plain = not (line.startswith("-") or requirements.is_file(line) or "://" in line)
        if plain and _AZUREML.fullmatch(name):
            made.use(line, "the target's rayjobs", _WITH_AZUREML)
        elif plain and name == "horovod":
            made.use(line, "the image's own Horovod, or one built there", _OF_ONE_TORCH)
        elif plain and of_framework and name in _FROM_TARGET and _PINNED.fullmatch(line.strip()):
            made.use(line, f"the image's {name}, or the newest", "packages are added to the image")
            made.pip.append(name)
        else:
            made.pip.append(line)
    environment: Packages | str | None = python if is_path else None
    if kept or any(not line.startswith("-") for line in made.pip):
        channels = request.channels if kept else ()
        changes = {"python": python, "pip": tuple(made.pip), "base": None, "if_used": ()}
        changes |= {"conda": kept, "channels": channels}
        environment = request.model_copy(update=changes)
    found_ones = (*spec.substitutes, *made.substitutes)
    return spec.model_copy(update={"environment": environment, "substitutes": found_ones})


def _is_too_old(python: str) -> bool:
    numbers = tuple(int(part) for part in python.split(".")) if python[0].isdigit() else ()
    return bool(numbers) and numbers < requirements.LEAST_PYTHON[: len(numbers)]


def _without_base_image(spec: JobSpec) -> JobSpec:
    """Return a spec without an Azure ML base image, which has nothing that a target lacks."""
    image = None if spec.container is None else spec.container.image
    if image is None or not is_base_image(image):
        return spec
    used = Substitute(
        asked=f"image {image}",
        used="the target's own environment",
        reason="a base image of Azure ML: drivers, MPI and conda",
    )
    changes = {"container": None, "substitutes": (*spec.substitutes, used)}
    return spec.model_copy(update=changes)


def _python(request: Packages, target: Target, made: _Made) -> tuple[str | None, bool]:
    """Return the Python to use, and whether it is the target's own version."""
    python = request.python
    if python is None:
        return None, True
    if "/" in python or not requirements.is_version(python):
        return python, False
    if not python[0].isdigit():
        return python, False
    numbers = tuple(int(part) for part in python.split("."))
    if numbers == target.python[: len(numbers)]:
        return python, True
    reason = ""
    if numbers < requirements.LEAST_PYTHON[: len(numbers)]:
        reason = "jobs need 3.8 or newer"
    elif numbers[:2] == target.python[:2]:
        reason = "the target's own release of it"
    elif not target.has_python(python):
        reason = "the target has no other"
    if not reason:
        return python, False
    made.use(f"Python {python}", f"Python {target.python_text}", reason)
    return None, True


def _conda(request: Packages, target: Target, made: _Made) -> tuple[list[str], tuple[str, ...]]:
    """Return the conda packages that pip installs, and those that conda must install."""
    if request.conda and request.channels and target.has_conda:
        return [], request.conda
    reason = "no channel is named" if not request.channels else "no conda on the target"
    lines, kept = [], []
    for package in request.conda:
        name = conda.name_of(package)
        known = _OF_PIP.get(name, name)
        if name in _NODE_HAS:
            made.use(package, "", f"conda; {_NODE_HAS[name]}")
        elif name in _OF_CONDA_ALONE:
            kept.append(package)
        else:
            lines.append(conda.as_requirement(package, known))
            made.use(f"{package} (conda)", f"{lines[-1]} (pip)", reason)
    return lines, tuple(kept)


def _minor(python: str) -> tuple[int, int] | None:
    parts = python.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def _line(
    line: str,
    version: tuple[int, int] | None,
    target: Target,
    made: _Made,
    *,
    is_own: bool,
    keeps_base: bool,
) -> None:
    """Add a requirement, or its nearest substitute."""
    name = requirements.name_of(line)
    if line.startswith("-") or requirements.is_file(line) or "://" in line:
        made.pip.append(line)
        return
    if _AZUREML.fullmatch(name):
        made.base = "target"
        made.use(line, "the target's rayjobs", _WITH_AZUREML)
        return
    if name == "horovod":
        if is_own:
            made.base = "target"
            if line.strip() != name:
                made.use(line, "the target's Horovod", _OF_ONE_TORCH)
            return
        made.use(line, "", "no Horovod can be built for another Python than the target's")
        return
    found = _PINNED.fullmatch(line.strip())
    if name in _ACCELERATED:
        plain = line.replace(line.strip()[: len(name)], _ACCELERATED[name], 1)
        made.use(line, plain, "one package serves CPUs and GPUs now")
        _line(plain, version, target, made, is_own=is_own, keeps_base=keeps_base)
        return
    if found is None:
        if keeps_base and is_own and name in _FROM_TARGET and line.strip().lower() == name:
            return  # the target already has it
        made.pip.append(line)
        return
    first = _FIRST.get(name, {}).get(version) if version else None
    if first is None or not _is_older(found, first):
        made.pip.append(line)
        return
    marker = f" {found[5]}" if found[5] else ""
    text = ".".join(map(str, version or ()))
    reason = f"it has no release for Python {text}"
    if is_own and name in _FROM_TARGET:
        made.base = "target"
        installed = target.version_of(name)
        made.use(line, f"{name}=={installed}" if installed else f"the target's {name}", reason)
        return
    below = int(first.split(".", 1)[0]) + 1
    nearest = f"{found[1]}{found[2] or ''}>={first},<{below}"
    made.use(line, nearest, reason)
    made.pip.append(nearest + marker)


def _is_older(found: re.Match[str], first: str) -> bool:
    """Whether a requirement's newest version is older than the first available one."""
    operator, wanted = found[3], found[4].removesuffix(".*")
    numbers, least = _numbers(wanted), _numbers(first)
    if not numbers:
        return False
    if operator == "<":
        return numbers <= least
    if operator == "~=" and len(numbers) > 1:
        # ~=1.6.0 allows any 1.6, and ~=1.6 any 1, so the last part does not count.
        kept = numbers[:-1]
        return kept < least[: len(kept)]
    return numbers < least[: len(numbers)] or (
        len(numbers) < len(least)
        and numbers == least[: len(numbers)]
        and _padded_older(found, least)
    )


def _padded_older(found: re.Match[str], least: Sequence[int]) -> bool:
    """Whether ``==2.0`` is older than a first version such as 2.0.1; ``==2.0.*`` is not."""
    if found[4].endswith(".*"):
        return False
    return any(least[len(_numbers(found[4])) :])


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def sentences(substitutes: Sequence[Substitute]) -> Iterator[str]:
    """Yield each substitution as a readable sentence."""
    for one in substitutes:
        yield f"instead of {one.asked}: {one.used or 'nothing'}" + (
            f" ({one.reason})" if one.reason else ""
        )
