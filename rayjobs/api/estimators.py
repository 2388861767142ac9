"""Estimators of Azure ML v1: PyTorch and the plain Estimator, and how their processes talk.

Signatures: ``azureml-train-core`` 1.0.85 to 1.62.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs.api.configs import (
    MpiConfiguration,
    RunConfiguration,
    ScriptRunConfig,
    argument_text,
    needs_of,
    shown,
)
from rayjobs.api.environment import CondaDependencies, Environment, FrameworkEnvironment
from rayjobs.core.errors import NotFoundError, Problem, SpecError, UsageError
from rayjobs.core.numbers import is_whole
from rayjobs.data.arguments import is_data
from rayjobs.spec import requirements
from rayjobs.spec.curated import FRAMEWORK_PYTHON, PYTORCH_VERSIONS, pytorch
from rayjobs.submit.project import default_target

# What Azure ML calls machines that may be taken away, and others.
PRIORITIES = {"lowpriority": True, "dedicated": False}


class Mpi:
    """MPI with a number of processes on each node."""

    backend = "mpi"

    def __init__(self, process_count_per_node: int = 1) -> None:
        self.process_count_per_node = process_count_per_node

    def __repr__(self) -> str:
        """Return the processes of each node."""
        return shown(self, process_count_per_node=self.process_count_per_node)


class Gloo:
    """torch.distributed over Gloo, one process per node."""

    backend = "gloo"

    def __repr__(self) -> str:
        """Return the call that makes one."""
        return shown(self)


class Nccl:
    """torch.distributed over NCCL, one process per node."""

    backend = "nccl"

    def __repr__(self) -> str:
        """Return the call that makes one."""
        return shown(self)


class ParameterServer:
    """Known, and refused: parameter servers are TensorFlow's."""

    backend = "ps"

    def __init__(self, worker_count: int = 1, parameter_server_count: int = 1) -> None:
        self.worker_count = worker_count
        self.parameter_server_count = parameter_server_count


class Estimator:
    """A script with what it needs, checked when it is made."""

    BACKENDS: tuple[str, ...] = ("mpi",)

    def __init__(  # noqa: PLR0913 - the parameters of Azure ML's estimator
        self,
        source_directory: str | Path,
        *,
        compute_target: Any = None,
        vm_size: str | None = None,
        vm_priority: str | None = None,
        entry_script: str | None = None,
        script_params: Mapping[Any, Any] | None = None,
        node_count: int = 1,
        process_count_per_node: int = 1,
        distributed_backend: str | None = None,
        distributed_training: Any = None,
        use_gpu: bool = False,
        use_docker: bool = True,
        custom_docker_base_image: str | None = None,
        custom_docker_image: str | None = None,
        image_registry_details: Any = None,
        user_managed: bool = False,
        conda_packages: Sequence[str] | None = None,
        pip_packages: Sequence[str] | None = None,
        conda_dependencies_file_path: str | None = None,
        pip_requirements_file_path: str | None = None,
        conda_dependencies_file: str | None = None,
        pip_requirements_file: str | None = None,
        environment_variables: Mapping[str, str] | None = None,
        environment_definition: Any = None,
        inputs: Sequence[Any] | None = None,
        source_directory_data_store: Any = None,
        shm_size: str | None = None,
        resume_from: Any = None,
        max_run_duration_seconds: float | None = None,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        """Check what was asked for.

        Raises:
            SpecError: something is wrong, or not supported; all problems at once.
        """
        conda_file = conda_dependencies_file or conda_dependencies_file_path
        pip_file = pip_requirements_file or pip_requirements_file_path
        packages = {
            "conda_packages": conda_packages,
            "pip_packages": pip_packages,
            "conda_dependencies_file": conda_file,
            "pip_requirements_file": pip_file,
        }
        problems = [
            *_counts(node_count, process_count_per_node),
            *_targets(compute_target, vm_size),
            *_exclusions(
                packages,
                conda_file=conda_file,
                environment_definition=environment_definition,
                user_managed=user_managed,
                use_docker=use_docker,
                use_gpu=use_gpu,
                image=custom_docker_image or custom_docker_base_image,
                shm_size=shm_size,
                environment_variables=environment_variables,
            ),
        ]
        spot, wrong = _spot(vm_priority)
        problems += wrong
        nodes, processes, backend = node_count, process_count_per_node, "none"
        try:
            nodes, processes, backend = self._distribution(
                node_count, process_count_per_node, distributed_backend, distributed_training
            )
        except UsageError as error:
            problems.append(Problem("distributed_training", str(error)))
        if entry_script is None:
            problems.append(Problem("entry_script", "is missing.", "Name the script to run."))
        problems += [
            Problem("inputs", f"{item!r:.80} is not data.", "Give references and named datasets.")
            for item in inputs or ()
            if not is_data(item)
        ]
        arguments = _arguments(script_params or {}, problems)
        environment = environment_definition
        if environment is None and not user_managed and not problems:
            environment = self._environment(packages, Path(source_directory), problems)
        if problems:
            raise SpecError(problems=problems)
        settings = RunConfiguration(framework="PyTorch" if backend != "none" else "Python")
        settings.target = default_target().name if compute_target is None else compute_target
        settings.node_count = nodes
        settings.mpi.process_count_per_node = processes
        settings.communicator = {"mpi": "OpenMpi", "none": "None"}.get(backend, backend)
        settings.environment_variables = dict(environment_variables or {})
        if environment is not None:
            settings.environment = environment
        if max_run_duration_seconds is not None:
            settings.max_run_duration_seconds = max_run_duration_seconds
        settings.use_gpu = bool(use_gpu)
        settings.node_types = (vm_size,) if vm_size else ()
        settings.spot = spot
        self.source_directory = str(source_directory)
        self.run_config = settings
        self._script = str(entry_script)
        self._arguments = arguments
        self._inputs = list(inputs or ())
        self._resume_from = resume_from

    def __repr__(self) -> str:
        """Return what runs, where, and what it needs; no variable, since one may be secret."""
        arguments = {"arguments": self._arguments} if self._arguments else {}
        given = {"entry_script": self._script, **arguments, **needs_of(self.run_config)}
        return shown(self, self.source_directory, **given)

    @property
    def entry_script(self) -> str:
        """The script."""
        return self._script

    def to_script_run_config(
        self,
        script_params: Mapping[Any, Any] | None = None,
        inputs: Sequence[Any] | None = None,
    ) -> ScriptRunConfig:
        """Return the same job as a ScriptRunConfig; what is given replaces the estimator's."""
        arguments = self._arguments
        if script_params is not None:
            problems: list[Problem] = []
            arguments = _arguments(script_params, problems)
            if problems:
                raise SpecError(problems=problems)
        config = ScriptRunConfig(
            self.source_directory,
            script=self._script,
            arguments=arguments,
            run_config=self.run_config,
            resume_from=self._resume_from,
        )
        config.inputs = list(self._inputs if inputs is None else inputs)
        return config

    def _framework(self) -> FrameworkEnvironment:
        """Return the environment that packages are added to."""
        return FrameworkEnvironment("estimator")

    def _environment(
        self, packages: Mapping[str, Any], source: Path, problems: list[Problem]
    ) -> Environment | None:
        """Return the framework with an estimator's packages; what cannot be had is a problem.

        Files are relative to the source directory. Source: `_estimator_helper` of
        azureml-train-core. One that is not there is looked for where the program runs.
        """
        name = "pip_requirements_file"
        try:
            if packages["conda_dependencies_file"] is not None:
                name = "conda_dependencies_file"
                file = _in_source(source, packages[name])
                # It replaces the framework's packages.
                return Environment.from_conda_specification("estimator", file)
            made = self._framework()
            wanted = CondaDependencies.create(
                pip_packages=packages["pip_packages"], conda_packages=packages["conda_packages"]
            )
            if packages[name] is not None:
                lines = requirements.read(_in_source(source, packages[name]), field=name)
                wanted.set_pip_requirements([*lines, *wanted.pip_lines])
            made.add(wanted)
            return made
        except SpecError as error:
            problems.extend(error.problems)
        except (NotFoundError, UsageError) as error:
            problems.append(Problem(name, f"{error.message}."))
        return None

    @property
    def conda_dependencies(self) -> CondaDependencies:
        """The packages of the job's environment."""
        environment = self.run_config.environment
        if not isinstance(environment, Environment):
            return CondaDependencies()
        return environment.python.conda_dependencies

    def _distribution(
        self, nodes: int, processes: int, backend: str | None, training: Any
    ) -> tuple[int, int, str]:
        if training is not None and backend is not None:
            raise UsageError("give distributed_backend or distributed_training, not both")
        chosen = None if backend is None else str(backend).lower()
        if isinstance(training, MpiConfiguration):
            chosen = "mpi"
            nodes = _agreed("node_count", nodes, training.node_count)
            processes = _agreed(
                "process_count_per_node", processes, training.process_count_per_node
            )
        elif training is not None:
            chosen = getattr(training, "backend", None)
            if chosen is None:
                raise UsageError(
                    f"is a {type(training).__name__}; give Mpi(), Gloo(), Nccl() or an "
                    f"MpiConfiguration"
                )
            named = getattr(training, "process_count_per_node", 1)
            processes = _agreed("process_count_per_node", processes, named)
        if chosen is not None and chosen not in self.BACKENDS:
            raise UsageError(
                f"the backend {chosen!r} is not supported; use one of: {', '.join(self.BACKENDS)}"
            )
        several = (
            is_whole(nodes, at_least=1)
            and is_whole(processes, at_least=1)
            and nodes * processes > 1
        )
        if chosen is None and several:
            raise UsageError(
                f"{nodes} nodes × {processes} processes need a backend; give "
                f"distributed_training=Mpi() or another"
            )
        return nodes, processes, chosen or "none"


class PyTorch(Estimator):
    """A script that trains with PyTorch."""

    BACKENDS = ("mpi", "gloo", "nccl")
    FRAMEWORK_NAME = "PyTorch"
    DEFAULT_VERSION = "1.4"
    _VERSIONS = PYTORCH_VERSIONS

    def __init__(
        self,
        source_directory: str | Path,
        *,
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        **options: Any,
    ) -> None:
        """Take the options of `Estimator`, and a version.

        A version asks for the torch, torchvision and Horovod of its image. What the target cannot
        have is substituted when the job is submitted, and listed then.
        """
        version = framework_version or self.DEFAULT_VERSION
        if version not in self._VERSIONS:
            raise UsageError(
                f"framework_version is {framework_version!r}; known are {', '.join(self._VERSIONS)}"
            )
        self._asked_version = framework_version
        super().__init__(source_directory, **options)
        self.framework_version = version
        self.run_config.framework = "PyTorch"

    def _framework(self) -> FrameworkEnvironment:
        version = self._asked_version
        packages, if_used = pytorch(version)
        name = f"PyTorch {version}" if version else "PyTorch"
        python = FRAMEWORK_PYTHON if version else None
        return FrameworkEnvironment(name, packages, if_used, python=python)

    @classmethod
    def get_supported_versions(cls) -> list[str]:
        """Return the versions that may be named."""
        return list(cls._VERSIONS)


def _in_source(source: Path, file: str) -> Path:
    path = Path(file).expanduser()
    inside = source.expanduser() / path
    return inside if inside.exists() or not path.exists() else path


def _agreed(name: str, given: int, named: int) -> int:
    """Return a count that may stand in two places, each of which is 1 by default.

    Raises:
        UsageError: they contradict each other.
    """
    if 1 not in (given, named) and given != named:
        raise UsageError(
            f"says {name}={named}, and the estimator itself {name}={given}; give one of them, or "
            f"both the same"
        )
    return max(given, named)


def _counts(nodes: Any, processes: Any) -> list[Problem]:
    return [
        Problem(name, f"{value!r} is not a whole number, 1 or more.")
        for name, value in (("node_count", nodes), ("process_count_per_node", processes))
        if not is_whole(value, at_least=1)
    ]


def _targets(compute_target: Any, vm_size: str | None) -> list[Problem]:
    if compute_target is None and vm_size is None:
        return [Problem("compute_target", "is missing.", "Name one, such as 'local'.")]
    if compute_target is None:
        return [
            Problem(
                "vm_size",
                "says what machine, and not of which target; none is made for one run.",
                "Give the compute_target whose node type has this size.",
            )
        ]
    return []


def _spot(vm_priority: str | None) -> tuple[bool | None, list[Problem]]:
    """Return whether spot nodes are wanted, and what is wrong with a priority of machines."""
    if vm_priority is None:
        return None, []
    if str(vm_priority).casefold() not in PRIORITIES:
        known = " or ".join(repr(one) for one in PRIORITIES)
        return None, [
            Problem("vm_priority", f"{vm_priority!r} is not a priority.", f"Give {known}.")
        ]
    return PRIORITIES[str(vm_priority).casefold()], []


def _exclusions(
    packages: Mapping[str, Any],
    *,
    conda_file: str | None,
    environment_definition: Any,
    user_managed: bool,
    use_docker: bool,
    use_gpu: bool,
    image: str | None,
    shm_size: str | None,
    environment_variables: Mapping[str, str] | None,
) -> list[Problem]:
    """What excludes what. Source: the checks of MMLBaseEstimator."""
    problems = []
    given = [name for name, value in packages.items() if value]
    if environment_definition is not None:
        others = {
            "an image": image,
            "use_gpu": use_gpu,
            "user_managed": user_managed,
            "shm_size": shm_size,
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
    if image is not None:
        problems.append(
            Problem("custom_docker_image", "images are not supported.")
            if use_docker
            else Problem("use_docker", "False excludes a custom image.")
        )
    return problems


def _arguments(script_params: Mapping[Any, Any], problems: list[Problem]) -> list[Any]:
    """Return the arguments for script parameters; an empty text is a bare flag.

    Data objects stay what they are: what they become is known when the job's spec is made.
    """
    arguments = []
    for key, value in script_params.items():
        try:
            arguments.append(key if is_data(key) else argument_text(key))
            if not (isinstance(value, str) and value == ""):
                arguments.append(value if is_data(value) else argument_text(value))
        except UsageError as error:
            problems.append(Problem(f"script_params[{key!r:.40}]", str(error)))
    return arguments
