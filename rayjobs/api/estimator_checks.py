"""Checks and conversions of an estimator's arguments."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs.api.configs import argument_text
from rayjobs.api.environment import ContainerRegistry, Environment
from rayjobs.api.notices import notice
from rayjobs.core.errors import Problem, UsageError
from rayjobs.core.numbers import is_whole
from rayjobs.data.arguments import is_data
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.curated import is_base_image

# Azure ML's names for spot machines and others.
PRIORITIES = {"lowpriority": True, "dedicated": False}


def in_source(source: Path, file: str) -> Path:
    """Return a file of the source directory, or else of the program's working directory."""
    path = Path(file).expanduser()
    inside = source.expanduser() / path
    return inside if inside.exists() or not path.exists() else path


def agreed(name: str, given: int, named: int) -> int:
    """Return a count that can be given in two places, each with the default 1.

    Raises:
        UsageError: they contradict each other.
    """
    if 1 not in (given, named) and given != named:
        raise UsageError(
            f"says {name}={named}, and the estimator itself says {name}={given}; give only one of "
            f"them, or the same value twice"
        )
    return max(given, named)


def counts(nodes: Any, processes: Any) -> list[Problem]:
    """Return a problem for each count that is not a whole number, 1 or more."""
    return [
        Problem(name, f"{value!r} is not a whole number, 1 or more.")
        for name, value in (("node_count", nodes), ("process_count_per_node", processes))
        if not is_whole(value, at_least=1)
    ]


def targets(compute_target: Any, vm_size: str | None) -> list[Problem]:
    """Return a problem if neither a target nor a machine size is given.

    With a machine size alone, the job runs on the default target.
    """
    if compute_target is None and vm_size is None:
        return [Problem("compute_target", "is missing.", "Name one, such as 'local'.")]
    return []


def spot(vm_priority: str | None) -> tuple[bool | None, list[Problem]]:
    """Return whether spot nodes are requested, and the problems of the machine priority."""
    if vm_priority is None:
        return None, []
    if str(vm_priority).casefold() not in PRIORITIES:
        known = " or ".join(repr(one) for one in PRIORITIES)
        return None, [
            Problem("vm_priority", f"{vm_priority!r} is not a priority.", f"Give {known}.")
        ]
    return PRIORITIES[str(vm_priority).casefold()], []


def either(*pairs: tuple[str, Any, str, Any]) -> list[Problem]:
    """Return a problem for each parameter whose older name was given with another value."""
    return [
        Problem(name, f"is {value!r}, and {older}, its older name, is {before!r}.", "Give one.")
        for name, value, older, before in pairs
        if value is not None and before is not None and value != before
    ]


def exclusions(
    packages: Mapping[str, Any],
    *,
    conda_file: str | None,
    environment_definition: Any,
    user_managed: bool,
    use_gpu: bool,
    image: Image,
    environment_variables: Mapping[str, str] | None,
) -> list[Problem]:
    """Return the problems of mutually exclusive arguments.

    Source: the checks of MMLBaseEstimator.
    """
    problems = []
    given = [name for name, value in packages.items() if value]
    if environment_definition is not None:
        others = {
            "an image": image.name,
            "use_docker=False": not image.use_docker,
            "use_gpu": use_gpu,
            "user_managed": user_managed,
            "shm_size": image.shm_size,
            "environment_variables": environment_variables,
        }
        excluded = given + [name for name, value in others.items() if value]
        if excluded:
            problems.append(Problem("environment_definition", f"excludes {', '.join(excluded)}."))
    if conda_file and len(given) > 1:
        others_given = [name for name in given if name != "conda_dependencies_file"]
        problems.append(Problem("conda_dependencies_file", f"excludes {', '.join(others_given)}."))
    if user_managed and given:
        problems.append(Problem("user_managed", f"excludes {', '.join(given)}."))
    return [*problems, *image.problems()]


def unsupported(**kwargs: Any) -> list[Problem]:
    """Return a problem for each given argument; rayjobs supports none of them."""
    why = {
        "source_directory_data_store": (
            "rayjobs packs the source directory into the workspace's own storage.",
            "Leave it out; give data as inputs.",
        ),
        "_show_package_warnings": (
            "rayjobs does not compare packages with the script's imports.",
            "Leave it out; the job's first error names a missing package.",
        ),
    }
    return [Problem(name, *why[name]) for name, value in kwargs.items() if value is not None]


def inputs(given: Sequence[Any] | None) -> list[Problem]:
    """Return a problem for each input that is not data."""
    return [
        Problem("inputs", f"{item!r:.80} is not data.", "Give references and named datasets.")
        for item in given or ()
        if not is_data(item)
    ]


def entry_script(
    source: Path, script: str | None, *, validate: bool, show_warnings: bool
) -> list[Problem]:
    """Return a problem if the script is missing or, with `validate`, is not valid Python.

    Args:
        show_warnings: Also print Python's warnings from compiling the script.
    """
    if script is None:
        return [Problem("entry_script", "is missing.", "Name the script to run.")]
    if not (validate or show_warnings):
        return []
    path = source / script
    try:
        text = path.read_bytes()
    except OSError as error:
        return [Problem("entry_script", f"{path} cannot be read: {error.strerror}.")]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            compile(text, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            if validate:
                return [Problem("entry_script", f"{path}, line {error.lineno}: {error.msg}.")]
    for one in found if show_warnings else ():
        notice(f"{path}, line {one.lineno}: {one.message}")
    return []


def duration(seconds: Any) -> list[Problem]:
    """Return a problem if a time limit is not a number of seconds above 0."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is None or (is_number and seconds > 0):
        return []
    what = f"{seconds!r} is not a number of seconds above 0."
    return [Problem("max_run_duration_seconds", what, "Leave it out for no limit.")]


def _shm_problem(size: str) -> Problem | None:
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[bkmgBKMG]?", str(size)):
        return None
    return Problem("shm_size", f"{size!r} is not a size.", "Write e.g. '2g', '512m'.")


@dataclass(frozen=True)
class Image:
    """The image of an estimator, and how it is run.

    Attributes:
        name: The image; None means no image.
        registry: A ContainerRegistry to pull the image from.
        shm_size: Size of /dev/shm, in Docker's notation.
    """

    name: str | None
    registry: Any
    use_docker: bool
    shm_size: str | None

    @property
    def is_own(self) -> bool:
        """Whether it is the user's image, not an Azure ML base image without a framework."""
        return self.name is not None and not is_base_image(self.name)

    def problems(self) -> list[Problem]:
        """Return what is wrong with it."""
        found = []
        if self.name is not None and not self.use_docker:
            found.append(Problem("use_docker", "False excludes a custom image."))
        if self.registry is not None and not isinstance(self.registry, ContainerRegistry):
            kind = type(self.registry).__name__
            found.append(
                Problem("image_registry_details", f"is a {kind}.", "Give a ContainerRegistry.")
            )
        elif self.registry is not None and self.name is None:
            found.append(
                Problem("image_registry_details", "names no image.", "Give custom_docker_image.")
            )
        wrong = None if self.shm_size is None else _shm_problem(self.shm_size)
        return found if wrong is None else [*found, wrong]

    def put_into(self, environment: Environment) -> None:
        """Set this image in an environment; jobs report how they use it."""
        section = environment.docker
        section.enabled = self.use_docker
        if self.name is not None:
            section.base_image = self.name
        if self.registry is not None:
            section.base_image_registry = self.registry
        if self.shm_size is not None:
            section.shm_size = self.shm_size


def arguments(script_params: Mapping[Any, Any], problems: list[Problem]) -> list[Any]:
    """Return the arguments for script parameters; append problems.

    An empty string makes a flag without a value; a parameter that is None is left out; a list gives
    one argument per item. Data objects stay unchanged: their text is only known once the job's
    spec is built. Source: ``_estimator_helper`` of azureml-train-core.
    """
    found = []
    for key, value in script_params.items():
        if value is None:
            continue
        try:
            found.append(key if is_data(key) else argument_text(key))
            if isinstance(value, str) and value == "":
                continue
            for item in value if isinstance(value, (list, tuple)) else (value,):
                found.append(item if is_data(item) else argument_text(item))
        except UsageError as error:
            problems.append(Problem(f"script_params[{key!r:.40}]", str(error)))
    return found
