"""Estimators of Azure ML v1, and how their processes communicate.

Signatures: ``azureml-train-core`` 1.0.85 to 1.62.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs.api import estimator_checks as checks
from rayjobs.api.conda_dependencies import CondaDependencies
from rayjobs.api.configs import (
    MpiConfiguration,
    RunConfiguration,
    ScriptRunConfig,
    needs_of,
    shown,
)
from rayjobs.api.environment import Environment, FrameworkEnvironment
from rayjobs.api.notices import notice
from rayjobs.core.errors import NotFoundError, Problem, SpecError, UsageError
from rayjobs.core.numbers import is_whole
from rayjobs.injob.azureml.exceptions import TrainingException
from rayjobs.spec import requirements
from rayjobs.spec.curated import FRAMEWORK_PYTHON, PYTORCH_VERSIONS, pytorch
from rayjobs.submit.project import default_target


class EstimatorError(SpecError, TrainingException):
    """An estimator's arguments are wrong; `problems` lists all problems."""


class EstimatorUsageError(UsageError, TrainingException):
    """An estimator cannot be created in this way."""


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
        """Return the constructor call."""
        return shown(self)


class Nccl:
    """torch.distributed over NCCL, one process per node."""

    backend = "nccl"

    def __repr__(self) -> str:
        """Return the constructor call."""
        return shown(self)


class ParameterServer:
    """Recognized but refused: rayjobs does not start parameter servers."""

    backend = "ps"

    def __init__(self, worker_count: int = 1, parameter_server_count: int = 1) -> None:
        self.worker_count = worker_count
        self.parameter_server_count = parameter_server_count


class Estimator:
    """A script with its requirements, checked at construction."""

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
        """Check the arguments.

        Raises:
            EstimatorError: something is wrong or not supported; lists all problems.
        """
        conda_file = conda_dependencies_file or conda_dependencies_file_path
        packages = {
            "conda_packages": conda_packages,
            "pip_packages": pip_packages,
            "conda_dependencies_file": conda_file,
            "pip_requirements_file": pip_requirements_file or pip_requirements_file_path,
        }
        image = checks.Image(
            name=custom_docker_image or custom_docker_base_image,
            registry=image_registry_details,
            use_docker=use_docker,
            shm_size=shm_size,
        )
        source = Path(source_directory)
        spot, problems = checks.spot(vm_priority)
        problems += [
            *checks.either(
                (
                    "conda_dependencies_file",
                    conda_dependencies_file,
                    "conda_dependencies_file_path",
                    conda_dependencies_file_path,
                ),
                (
                    "pip_requirements_file",
                    pip_requirements_file,
                    "pip_requirements_file_path",
                    pip_requirements_file_path,
                ),
                (
                    "custom_docker_image",
                    custom_docker_image,
                    "custom_docker_base_image",
                    custom_docker_base_image,
                ),
            ),
            *checks.counts(node_count, process_count_per_node),
            *checks.targets(compute_target, vm_size),
            *checks.exclusions(
                packages,
                conda_file=conda_file,
                environment_definition=environment_definition,
                user_managed=user_managed,
                use_gpu=use_gpu,
                image=image,
                environment_variables=environment_variables,
            ),
            *checks.unsupported(
                source_directory_data_store=source_directory_data_store,
                _show_package_warnings=_show_package_warnings or None,
            ),
            *checks.inputs(inputs),
            *checks.duration(max_run_duration_seconds),
            *checks.entry_script(
                source,
                entry_script,
                validate=not _disable_validation,
                show_warnings=_show_lint_warnings,
            ),
        ]
        nodes, processes, backend = node_count, process_count_per_node, "none"
        try:
            nodes, processes, backend = self._distribution(
                node_count, process_count_per_node, distributed_backend, distributed_training
            )
        except UsageError as error:
            problems.append(Problem("distributed_training", str(error)))
        arguments = checks.arguments(script_params or {}, problems)
        environment = environment_definition
        if environment is None and not problems:
            # An image to which no packages are added has its own framework.
            is_complete = image.is_own and not any(packages.values())
            environment = self._environment(
                packages, source, problems, user_managed=user_managed or is_complete
            )
        if problems:
            raise EstimatorError(problems=problems)
        if isinstance(environment, Environment) and environment_definition is None:
            image.put_into(environment)
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
        # With an explicit environment, the machine's size determines the GPUs.
        settings.use_gpu = None if environment_definition is not None else bool(use_gpu)
        settings.amlcompute.vm_size = vm_size
        settings.amlcompute.vm_priority = vm_priority
        if compute_target is not None:
            settings.node_types = (vm_size,) if vm_size else ()
            settings.spot = spot
        self.source_directory = str(source_directory)
        self.run_config = settings
        self._script = str(entry_script)
        self._arguments = arguments
        self._inputs = list(inputs or ())
        self._resume_from = resume_from

    def __repr__(self) -> str:
        """Return script, target and requirements, but no variables, which may be secret."""
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
        """Return the same job as a ScriptRunConfig; the arguments here replace the estimator's."""
        arguments = self._arguments
        if script_params is not None:
            problems: list[Problem] = []
            arguments = checks.arguments(script_params, problems)
            if problems:
                raise EstimatorError(problems=problems)
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
        """Return the environment to which packages are added."""
        return FrameworkEnvironment("estimator")

    def _environment(
        self,
        packages: Mapping[str, Any],
        source: Path,
        problems: list[Problem],
        *,
        user_managed: bool,
    ) -> Environment | None:
        """Return the framework's environment with the estimator's packages; append problems.

        Files are relative to the source directory or, if they are not there, to the program's
        working directory. Source: `_estimator_helper` of azureml-train-core.
        """
        if user_managed:
            made = Environment("estimator")
            made.python.user_managed_dependencies = True
            return made
        name = "pip_requirements_file"
        try:
            if packages["conda_dependencies_file"] is not None:
                name = "conda_dependencies_file"
                file = checks.in_source(source, packages[name])
                # The file replaces the framework's packages.
                return Environment.from_conda_specification("estimator", file)
            framework = self._framework()
            wanted = CondaDependencies.create(
                pip_packages=packages["pip_packages"], conda_packages=packages["conda_packages"]
            )
            if packages[name] is not None:
                lines = requirements.read(checks.in_source(source, packages[name]), field=name)
                wanted.set_pip_requirements([*lines, *wanted.pip_lines])
            framework.add(wanted)
            return framework
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
            nodes = checks.agreed("node_count", nodes, training.node_count)
            processes = checks.agreed(
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
            processes = checks.agreed("process_count_per_node", processes, named)
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


class _FrameworkEstimator(Estimator):
    """An estimator of a framework with versions; curated images list its packages."""

    FRAMEWORK_NAME = ""
    DEFAULT_VERSION = ""
    _VERSIONS: tuple[str, ...] = ()
    _PACKAGES: tuple[str, ...] = ()

    def _take_version(self, framework_version: str | None, optimized_mode: bool) -> None:
        """Check the framework's version, before everything else.

        Raises:
            EstimatorUsageError: Azure ML never had this version.
        """
        version = framework_version or self.DEFAULT_VERSION
        if version not in self._VERSIONS:
            known = ", ".join(self._VERSIONS)
            raise EstimatorUsageError(
                f"framework_version is {framework_version!r}; give one of: {known}"
            )
        if optimized_mode:
            notice(
                "_enable_optimized_mode has no effect: each environment is built once per node "
                "and reused"
            )
        self._requested_version = framework_version
        self.framework_version = version

    def _framework(self) -> FrameworkEnvironment:
        version = self._requested_version
        if version is None:
            return FrameworkEnvironment(self.FRAMEWORK_NAME, self._PACKAGES)
        first, *more = self._PACKAGES
        name = f"{self.FRAMEWORK_NAME} {version}"
        packages = (f"{first}=={version}", *more)
        return FrameworkEnvironment(name, packages, python=FRAMEWORK_PYTHON)

    @classmethod
    def get_supported_versions(cls) -> list[str]:
        """Return the versions that `framework_version` may name."""
        return list(cls._VERSIONS)


class PyTorch(_FrameworkEstimator):
    """A script that trains with PyTorch."""

    BACKENDS = ("mpi", "gloo", "nccl")
    FRAMEWORK_NAME = "PyTorch"
    DEFAULT_VERSION = "1.4"
    _VERSIONS = PYTORCH_VERSIONS

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
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        """Accept the parameters of `Estimator`, and a framework version.

        A version requests the packages of its curated image. The submit substitutes those that the
        target cannot provide, and lists the substitutes.

        Raises:
            EstimatorError: something is wrong or not supported; lists all problems.
            EstimatorUsageError: Azure ML never had this version.
        """
        self._take_version(framework_version, _enable_optimized_mode)
        super().__init__(**_given(locals(), *_OF_VERSION))
        self.run_config.framework = "PyTorch"

    def _framework(self) -> FrameworkEnvironment:
        version = self._requested_version
        packages, if_used = pytorch(version)
        name = f"PyTorch {version}" if version else "PyTorch"
        python = FRAMEWORK_PYTHON if version else None
        return FrameworkEnvironment(name, packages, if_used, python=python)


class TensorFlow(_FrameworkEstimator):
    """A script that trains with TensorFlow."""

    BACKENDS = ("mpi",)
    FRAMEWORK_NAME = "TensorFlow"
    DEFAULT_VERSION = "1.13"
    _VERSIONS = ("1.10", "1.12", "1.13", "2.0", "2.1", "2.2")
    _PACKAGES = ("tensorflow",)

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
        worker_count: int = 1,
        parameter_server_count: int = 1,
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
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        """Accept the parameters of `Estimator`, and a framework version.

        A version requests the packages of its curated image. The submit substitutes those that the
        target cannot provide, and lists the substitutes.

        Raises:
            EstimatorError: something is wrong or not supported; lists all problems.
            EstimatorUsageError: Azure ML never had this version.
        """
        self._take_version(framework_version, _enable_optimized_mode)
        if worker_count != 1 or parameter_server_count != 1:
            raise EstimatorError(
                problems=[
                    Problem(
                        "worker_count, parameter_server_count",
                        "ask for parameter servers, which rayjobs does not start.",
                        "Use distributed_training=Mpi() with Horovod.",
                    )
                ]
            )
        super().__init__(**_given(locals(), *_OF_VERSION, *_OF_SERVERS))


class Chainer(_FrameworkEstimator):
    """A script that trains with Chainer."""

    BACKENDS = ("mpi",)
    FRAMEWORK_NAME = "Chainer"
    DEFAULT_VERSION = "5.1.0"
    _VERSIONS = ("5.1.0", "7.0.0")
    _PACKAGES = ("chainer",)

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
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        """Accept the parameters of `Estimator`, and a framework version.

        A version requests the packages of its curated image. The submit substitutes those that the
        target cannot provide, and lists the substitutes.

        Raises:
            EstimatorError: something is wrong or not supported; lists all problems.
            EstimatorUsageError: Azure ML never had this version.
        """
        self._take_version(framework_version, _enable_optimized_mode)
        super().__init__(**_given(locals(), *_OF_VERSION))


class SKLearn(_FrameworkEstimator):
    """A script that trains with scikit-learn, in one process."""

    BACKENDS = ()
    FRAMEWORK_NAME = "SKLearn"
    DEFAULT_VERSION = "0.20.3"
    _VERSIONS = ("0.20.3",)
    _PACKAGES = ("scikit-learn", "scipy", "joblib")

    def __init__(  # noqa: PLR0913 - the parameters of Azure ML's estimator
        self,
        source_directory: str | Path,
        *,
        compute_target: Any = None,
        vm_size: str | None = None,
        vm_priority: str | None = None,
        entry_script: str | None = None,
        script_params: Mapping[Any, Any] | None = None,
        use_docker: bool = True,
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
        shm_size: str | None = None,
        resume_from: Any = None,
        max_run_duration_seconds: float | None = None,
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        """Accept the parameters of `Estimator`, and a framework version.

        A version requests the packages of its curated image. The submit substitutes those that the
        target cannot provide, and lists the substitutes.

        Raises:
            EstimatorError: something is wrong or not supported; lists all problems.
            EstimatorUsageError: Azure ML never had this version.
        """
        self._take_version(framework_version, _enable_optimized_mode)
        super().__init__(**_given(locals(), *_OF_VERSION))


_OF_VERSION = ("framework_version", "_enable_optimized_mode")
_OF_SERVERS = ("worker_count", "parameter_server_count")


def _given(names: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """Return a constructor's parameters, without `self`, the class and the names in `own`."""
    left_out = {"self", "__class__", *own}
    return {name: value for name, value in names.items() if name not in left_out}
