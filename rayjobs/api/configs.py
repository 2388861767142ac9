"""Job descriptions in Azure ML v1's terms: ScriptRunConfig, its parts, and the resulting spec.

Signatures: ``azureml.core`` 1.61 (ScriptRunConfig, RunConfiguration, …Configuration).
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rayjobs.api import own_nccl
from rayjobs.api.environment_sections import DEFAULT_SHM_SIZE
from rayjobs.api.notices import notice
from rayjobs.api.placing import place
from rayjobs.core.errors import UsageError
from rayjobs.core.numbers import is_whole
from rayjobs.core.refusing import refuses, sentence_of
from rayjobs.core.text import name_from
from rayjobs.data.arguments import DataArguments, Keep, is_data
from rayjobs.injob.azureml.exceptions import RunConfigurationException
from rayjobs.spec.model import JobSpec
from rayjobs.submit.project import default_target

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace

COMMUNICATORS = ("None", "OpenMpi", "IntelMpi", "Mpi", "Nccl", "Gloo")


class RunConfigurationError(UsageError, RunConfigurationException):
    """A run configuration cannot be used."""


class MpiConfiguration:
    """A job whose processes communicate over MPI."""

    def __init__(self, process_count_per_node: int = 1, node_count: int = 1) -> None:
        self.process_count_per_node = _count("process_count_per_node", process_count_per_node)
        self.node_count = _count("node_count", node_count)

    def __repr__(self) -> str:
        """Return the processes and nodes."""
        return shown(
            self, process_count_per_node=self.process_count_per_node, node_count=self.node_count
        )


class PyTorchConfiguration:
    """A torch.distributed job; `process_count` is the total over all nodes."""

    def __init__(
        self,
        communication_backend: str = "Nccl",
        process_count: int | None = None,
        node_count: int = 1,
    ) -> None:
        backend = str(communication_backend).lower()
        if backend not in ("nccl", "gloo"):
            raise UsageError(
                f"communication_backend is {communication_backend!r}; use 'Nccl' or 'Gloo'"
            )
        self.communication_backend = backend
        self.node_count = _count("node_count", node_count)
        total = self.node_count if process_count is None else process_count
        self.process_count = _count("process_count", total)
        if self.process_count % self.node_count:
            raise UsageError(
                f"process_count is {self.process_count} in total and node_count is "
                f"{self.node_count}: process_count must be a multiple of node_count"
            )

    def __repr__(self) -> str:
        """Return the backend, processes and nodes."""
        return shown(
            self,
            self.communication_backend.capitalize(),
            process_count=self.process_count,
            node_count=self.node_count,
        )


class DockerConfiguration:
    """How a job's image runs; for a job without an image, a notice names the unused settings."""

    def __init__(
        self,
        use_docker: bool = False,
        shared_volumes: bool = True,
        arguments: Sequence[str] | None = None,
        shm_size: str | None = None,
    ) -> None:
        self.use_docker = use_docker
        self.shared_volumes = shared_volumes
        self.arguments = list(arguments or ())
        self.shm_size = shm_size


class TensorflowConfiguration:
    """A job that uses TensorFlow's own strategies. A single worker runs like any script."""

    def __init__(self, worker_count: int = 1, parameter_server_count: int = 1) -> None:
        self.worker_count = _count("worker_count", worker_count)
        if not is_whole(parameter_server_count, at_least=0):
            raise RunConfigurationError(
                f"parameter_server_count is {parameter_server_count!r}; it must be a whole number, "
                f"0 or more"
            )
        self.parameter_server_count = parameter_server_count

    def __repr__(self) -> str:
        """Return the counts."""
        return shown(
            self,
            worker_count=self.worker_count,
            parameter_server_count=self.parameter_server_count,
        )


class AmlComputeConfiguration:
    """``run_config.amlcompute``: the machine for a job that names no compute target.

    Attributes:
        vm_size: Machine size; it determines the CPUs and GPUs of each process.
        vm_priority: ``dedicated`` or ``lowpriority``.
    """

    def __init__(self) -> None:
        self.vm_size: str | None = None
        self.vm_priority: str | None = None


class _Processes:
    """``run_config.mpi``: how many processes each node runs."""

    def __init__(self) -> None:
        self.process_count_per_node = 1


class HistoryConfiguration:
    """``run_config.history``: accepted but unused, since every run's outputs and logs are stored.

    Attributes:
        output_collection, snapshot_project: Always on.
        directories_to_watch: ``logs`` and ``outputs`` are always watched.
    """

    def __init__(self) -> None:
        self.output_collection = True
        self.snapshot_project = True
        self.directories_to_watch = ["logs"]


@refuses("spark", properties=("hdi", "spark"))
@refuses("use MpiConfiguration with Horovod", properties=("tensorflow",))
@refuses("arrays", properties=("paralleltask",))
@refuses(
    "azure",
    properties=(
        "auto_cluster_compute_specification",
        "credential_passthrough",
        "datacaches",
        "kubernetescompute",
        "services",
    ),
)
@refuses(
    "rayjobs packs the source directory into the workspace's own storage",
    properties=("source_directory_data_store",),
)
class RunConfiguration:
    """The settings of a script's run.

    Attributes:
        target: Name of the compute target, or an object with a ``name``.
        environment: An Environment, or the path of an interpreter or virtual environment on the
            target. None, like a new Environment, means the target's own Python.
        cpus_per_process, gpus_per_process, memory_gib_per_process: What each process needs;
            not part of Azure ML, where the machine's size decides. None: a process's share of
            the compute target's machine or, if the machine is unknown, 1 CPU and no GPU.
        use_gpu: True: the job needs its node's GPUs; False: no GPUs; None: the machine decides.
        node_types: Node types of the target that it may run on, by name or machine size.
        spot: True: only on spot nodes; False: only on other nodes; None: on either.
        priority: A higher value runs earlier.
        data_references, data, output_data: Named data that no argument mentions.
    """

    def __init__(
        self,
        script: str | None = None,
        arguments: Sequence[Any] | None = None,
        framework: str | None = None,
        communicator: str | None = None,
        conda_dependencies: Any = None,
        command: str | Sequence[Any] | None = None,
    ) -> None:
        self.script = script
        self.arguments = list(arguments or ())
        self.command = command
        self.framework = framework or "Python"
        self.communicator = communicator or "None"
        self.target: Any = "local"
        from rayjobs.api.environment import DEFAULT_NAME, CondaDependencies, Environment

        self.environment: Any = Environment(DEFAULT_NAME)
        if conda_dependencies is not None:
            if not isinstance(conda_dependencies, CondaDependencies):
                raise UsageError(
                    f"conda_dependencies is a {type(conda_dependencies).__name__}; give "
                    f"CondaDependencies, or set run_config.environment"
                )
            self.environment.name = "conda_dependencies"
            self.environment.python.conda_dependencies = conda_dependencies
        self.environment_variables: dict[str, str] = {}
        self.node_count = 1
        self.mpi = _Processes()
        self.pytorch: PyTorchConfiguration | None = None
        self.max_run_duration_seconds: float | None = None
        self.docker = DockerConfiguration()
        self.history = HistoryConfiguration()
        self.auto_prepare_environment = True
        self.amlcompute = AmlComputeConfiguration()
        self.priority = 0
        self.data_references: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.output_data: dict[str, Any] = {}
        self.cpus_per_process: float | None = None
        self.gpus_per_process: float | None = None
        self.use_gpu: bool | None = None
        self.memory_gib_per_process: float | None = None
        self.node_types: tuple[str, ...] = ()
        self.spot: bool | None = None
        self._is_complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an existing attribute.

        Raises:
            AttributeError: there is no such attribute, or rayjobs does not support it.
        """
        if getattr(self, "_is_complete", False) and name not in self.__dict__:
            found = getattr(type(self), name, None)
            sentence = sentence_of(found)
            if sentence is not None:
                raise AttributeError(f"RunConfiguration.{name} is not part of rayjobs: {sentence}")
            raise AttributeError(
                f"a RunConfiguration has no attribute {name!r}; it has: "
                f"{', '.join(sorted(one for one in self.__dict__ if not one.startswith('_')))}"
            )
        object.__setattr__(self, name, value)

    def save(
        self,
        path: str | Path | None = None,
        name: str | None = None,
        separate_environment_yaml: bool = False,
    ) -> None:
        """Write the configuration to ``.azureml/NAME.runconfig`` below `path`, or to a file.

        Args:
            path: A folder (the working directory), or a file when `name` is None.
            separate_environment_yaml: Write the environment to a separate file next to it.

        Raises:
            UsageError: the file cannot hold one of its settings.
        """
        from rayjobs.api import run_config_file

        run_config_file.save(self, path, name, separate_environment_yaml)

    @staticmethod
    def load(path: str | Path, name: str | None = None) -> RunConfiguration:
        """Read a configuration that `save` or Azure ML wrote.

        Raises:
            NotFoundError: there is no such file.
            RunConfigurationError: it is not a run configuration.
        """
        from rayjobs.api import run_config_file

        return run_config_file.load(path, name)

    @staticmethod
    def delete(path: str | Path, name: str) -> None:
        """Remove a configuration that `save` wrote. Raises NotFoundError."""
        from rayjobs.api import run_config_file

        run_config_file.delete(path, name)

    def distribute(
        self, config: MpiConfiguration | PyTorchConfiguration | TensorflowConfiguration
    ) -> None:
        """Take the nodes, processes and backend from a configuration."""
        if isinstance(config, MpiConfiguration):
            self.communicator = "OpenMpi"
            self.mpi.process_count_per_node = config.process_count_per_node
        elif isinstance(config, TensorflowConfiguration):
            self._distribute_tensorflow(config)
            return
        elif isinstance(config, PyTorchConfiguration):
            self.framework = "PyTorch"
            self.communicator = config.communication_backend.capitalize()
            self.mpi.process_count_per_node = config.process_count // config.node_count
            self.pytorch = config
        else:
            raise UsageError(
                f"distributed_job_config is a {type(config).__name__}; give an MpiConfiguration "
                f"or a PyTorchConfiguration"
            )
        self.node_count = config.node_count

    def _distribute_tensorflow(self, config: TensorflowConfiguration) -> None:
        """Treat a single worker as a plain script.

        Raises:
            RunConfigurationError: it has several workers or parameter servers.
        """
        if config.worker_count > 1 or config.parameter_server_count > 1:
            raise RunConfigurationError(
                f"{config!r} requests workers and parameter servers that find each other "
                f"through TF_CONFIG, which rayjobs does not start; use MpiConfiguration with "
                f"Horovod"
            )
        self.framework, self.communicator, self.node_count = "TensorFlow", "None", 1

    def __repr__(self) -> str:
        """Return the target and the settings that differ from the defaults."""
        return shown(self, **needs_of(self))


def _check_framework(name: str) -> None:
    """Refuse frameworks whose jobs do not start like a script.

    Raises:
        RunConfigurationError: the framework is Spark, or Azure ML does not have it either.
    """
    if str(name).casefold() == "pyspark":
        raise RunConfigurationError(
            f"framework is {name!r}, and rayjobs does not run Spark; read tables with pandas, or "
            f"with Ray Data on the same cluster"
        )
    if str(name).casefold() not in _FRAMEWORKS:
        raise RunConfigurationError(
            f"framework is {name!r}; give Python, PyTorch, TensorFlow or CNTK"
        )


_FRAMEWORKS = ("python", "pytorch", "tensorflow", "cntk")


class ScriptRunConfig:
    """One script (or command) with its requirements; `Experiment.submit` runs it."""

    MAX_DURATION_SECONDS_DEFAULT = 2_592_000

    def __init__(
        self,
        source_directory: str | Path,
        script: str | None = None,
        arguments: Sequence[Any] | None = None,
        run_config: RunConfiguration | None = None,
        compute_target: Any = None,
        environment: Any = None,
        distributed_job_config: MpiConfiguration
        | PyTorchConfiguration
        | TensorflowConfiguration
        | None = None,
        resume_from: Any = None,
        max_run_duration_seconds: float | None = None,
        command: str | Sequence[Any] | None = None,
        docker_runtime_config: DockerConfiguration | None = None,
    ) -> None:
        self.source_directory = str(source_directory)
        if run_config is not None:
            _warn_of_ignored(
                compute_target=compute_target,
                environment=environment,
                distributed_job_config=distributed_job_config,
                docker_runtime_config=docker_runtime_config,
            )
            self.run_config = run_config
        else:
            self.run_config = RunConfiguration()
            self.run_config.target = (
                default_target().name if compute_target is None else compute_target
            )
            if environment is not None:
                self.run_config.environment = environment
            if docker_runtime_config is not None:
                self.run_config.docker = docker_runtime_config
            if distributed_job_config is not None:
                self.run_config.distribute(distributed_job_config)
        if max_run_duration_seconds is not None:
            self.run_config.max_run_duration_seconds = max_run_duration_seconds
        self.script = script if script is not None else self.run_config.script
        self.arguments: list[Any] = list(
            _listed(arguments) if arguments is not None else self.run_config.arguments
        )
        self.command = command if command is not None else self.run_config.command
        self.inputs: list[Any] = []
        self.resume_from = resume_from
        if self.command is not None and (script is not None or arguments):
            raise UsageError("command excludes script and arguments; write them into the command")
        if self.command is None and self.script is None:
            raise UsageError("give a script (or a command) to run")

    def __repr__(self) -> str:
        """Return script, target and requirements, but no variables, which may be secret."""
        entry = {"script": self.script} if self.command is None else {"command": self.command}
        arguments = {"arguments": self.arguments} if self.arguments else {}
        return shown(self, self.source_directory, **entry, **arguments, **needs_of(self.run_config))

    def _warn_of_nccl(self, values: Mapping[str, Any]) -> None:
        entry = values.get("script")
        warning = own_nccl.sentence(
            None if entry is None else Path(values["source_directory"], entry),
            [str(one) for one in values.get("arguments") or [values.get("command") or ""]],
        )
        if warning is not None:
            notice(warning)

    def to_spec(
        self,
        *,
        tags: Mapping[str, str] | None = None,
        keep: Keep | None = None,
        workspace: Workspace | None = None,
    ) -> JobSpec:
        """Return the job's spec.

        Args:
            keep: Stores a dataset that is not registered (``workspace.catalogue.put_manifest``).
            workspace: Resolves the name of the compute target; without one, the name is used
                unchanged.

        Raises:
            CannotBePlacedError: it needs GPUs, and its target has none.
            SpecError: a value is not valid in a spec; lists all problems.
            UsageError: rayjobs does not support one of the settings.
        """
        from rayjobs.spec.file import build_spec

        settings = self.run_config
        _check_framework(settings.framework)
        resume_from = resume_text(self.resume_from)
        distribution = _distribution_of(settings)
        placed = place(
            settings,
            workspace=workspace,
            processes=distribution["processes_per_node"],
            backend=distribution["backend"],
        )
        if placed.backend is not None:
            distribution["backend"] = placed.backend
        if _needs_no_backend(distribution, placed.gpus):
            distribution["backend"] = "none"  # one process has no peers; nccl needs GPUs
        values: dict[str, Any] = {
            "name": name_from(PurePosixPath(self.script or "command").stem, default="job"),
            "source_directory": str(Path(self.source_directory).expanduser().absolute()),
            "environment": _environment_of(settings.environment),
            "container": _container_of(settings),
            "environment_variables": {
                str(key): str(value)
                for variables in (
                    getattr(settings.environment, "environment_variables", {}),
                    settings.environment_variables,
                )
                for key, value in variables.items()
            },
            "distribution": distribution,
            "resources": {
                "cpus": placed.cpus,
                "gpus": placed.gpus,
                "memory_gib": settings.memory_gib_per_process,
                "node_types": placed.node_types,
                "spot": placed.spot,
            },
            "max_duration_s": settings.max_run_duration_seconds or None,
            **_grace_of(settings.environment_variables),
            "priority": settings.priority,
            "target": placed.target,
            "tags": {str(key): str(value) for key, value in (tags or {}).items()},
            "resume_from": resume_from,
        }
        data = DataArguments(keep)
        for name, item in self._data_items():
            data.add(item, name=name)
        if self.command is not None:
            words = [self.command] if isinstance(self.command, str) else self.command
            # The shell would split a path that contains a space.
            values["command"] = " ".join(
                f'"{data.text(word)}"' if is_data(word) else argument_text(word) for word in words
            )
        else:
            values["script"] = self.script
            arguments = [
                data.text(item) if is_data(item) else argument_text(item) for item in self.arguments
            ]
            if resume_from is not None:
                from rayjobs.results.resuming import with_arguments

                arguments = list(with_arguments(arguments))
            values["arguments"] = arguments
        if placed.on_cpus:
            self._warn_of_nccl(values)
        values |= {"inputs": data.inputs, "outputs": data.outputs}
        return build_spec(values)

    def _data_items(self) -> list[tuple[str | None, Any]]:
        """Return the data that no argument names, as (name or None, object)."""
        settings = self.run_config
        named = {**settings.data_references, **settings.data, **settings.output_data}
        return [*((None, item) for item in self.inputs), *named.items()]


def shown(of: object, *first: Any, **named: Any) -> str:
    """Return an object as a constructor call; each argument is cut to 200 characters."""
    arguments = [f"{value!r:.200}" for value in first]
    arguments += [f"{name}={value!r:.200}" for name, value in named.items()]
    return f"{type(of).__name__}({', '.join(arguments)})"


def needs_of(settings: RunConfiguration) -> dict[str, Any]:
    """Return the target of a configuration, and the settings that differ from the defaults."""
    usual = {
        "communicator": "None",
        "node_count": 1,
        "cpus_per_process": None,
        "gpus_per_process": None,
        "use_gpu": None,
        "memory_gib_per_process": None,
        "max_run_duration_seconds": None,
        "priority": 0,
    }
    given = {name: getattr(settings, name) for name in usual}
    environment = settings.environment
    if environment is not None and not getattr(environment, "is_default", False):
        given["environment"], usual["environment"] = environment, None
    given["use_gpu"] = settings.use_gpu or None  # False is not shown: it is an estimator's default
    processes = settings.mpi.process_count_per_node
    return {
        "target": getattr(settings.target, "name", settings.target),
        **{name: value for name, value in given.items() if value != usual[name]},
        **({"process_count_per_node": processes} if processes != 1 else {}),
    }


def argument_text(item: Any) -> str:
    """Return an argument as the script gets it.

    Raises:
        UsageError: it is not a string, a number or a bool.
    """
    if isinstance(item, (str, bool, int, float, Path)):
        return str(item)
    plain = getattr(item, "item", None)  # scalars of numpy
    if callable(plain) and getattr(item, "ndim", 1) == 0:
        return str(plain())
    raise UsageError(
        f"an argument is a {type(item).__name__} ({item!r:.80}); give strings, numbers, bools, or "
        f"data (a DataReference, a named dataset, an OutputFileDatasetConfig)"
    )


# The variable in which Azure ML v1 programs set the grace period of a process.
KILL_TIMEOUT = "AZUREML_RUN_KILL_SIGNAL_TIMEOUT_SEC"


def _grace_of(variables: Mapping[str, Any]) -> dict[str, float]:
    """Return the grace period that a job's variables set, as a field of its spec."""
    text = variables.get(KILL_TIMEOUT)
    if text is None:
        return {}
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise RunConfigurationError(
            f"{KILL_TIMEOUT} is {text!r}; it must be a number of seconds, 0 or more"
        )
    return {"grace_s": seconds}


def resume_text(value: Any) -> str | None:
    """Return `resume_from` in the form of a spec.

    Takes a run (or its id), a path, and a DataPath or DataReference of a datastore.

    Raises:
        UsageError: it is something else.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Path):
        return str(value.expanduser().absolute())
    run_id = getattr(value, "id", None)
    if isinstance(run_id, str) and hasattr(value, "get_status"):
        return run_id
    store = getattr(value, "datastore_name", None)
    if isinstance(store, str) and store and hasattr(value, "path_on_datastore"):
        return f"{store}/{value.path_on_datastore or ''}"
    raise UsageError(
        f"resume_from is a {type(value).__name__}; give a run, its id, a path, or a DataPath"
    )


def target_name(target: Any) -> str:
    """Return a compute target's name, given as text or as an object with a ``name``."""
    name = target if isinstance(target, str) else getattr(target, "name", None)
    if not isinstance(name, str) or not name:
        raise UsageError(f"compute_target is {target!r:.80}; give its name, such as 'local'")
    return name


def _listed(arguments: Any) -> Sequence[Any]:
    return shlex.split(arguments) if isinstance(arguments, str) else list(arguments)


def _count(name: str, value: Any) -> int:
    if not is_whole(value, at_least=1):
        raise UsageError(f"{name} is {value!r}; it must be a whole number, 1 or more")
    return value


def _environment_of(environment: Any) -> str | dict[str, Any] | None:
    if environment is None or isinstance(environment, str):
        return environment
    if isinstance(environment, Path):
        return str(environment)
    from rayjobs.api.environment import Environment

    if isinstance(environment, Environment):
        return environment.to_spec()
    raise UsageError(
        f"environment is a {type(environment).__name__}; give an Environment, the path of an "
        f"interpreter or virtual environment on the target, or None"
    )


def _container_of(settings: RunConfiguration) -> dict[str, Any] | None:
    """Return the container of a run, with its Docker settings; None if it has no image."""
    from rayjobs.api.environment import Environment

    if not isinstance(settings.environment, Environment):
        return None
    made = settings.environment.container()
    if made is not None:
        made["arguments"] += list(settings.docker.arguments)
        if settings.docker.shm_size is not None:
            made["shm_size"] = settings.docker.shm_size
        return made
    of_environment = settings.environment.docker
    sizes = (settings.docker.shm_size, of_environment.shm_size)
    unused = [
        *(f"shm_size={size!r}" for size in sizes if size not in (None, DEFAULT_SHM_SIZE)),
        *settings.docker.arguments,
        *of_environment.arguments,
    ]
    if unused:
        notice(
            f"{', '.join(unused)}: no effect: the job runs without a container and uses the "
            f"machine's own /dev/shm; name an image to use a container"
        )
    return None


def _distribution_of(settings: RunConfiguration) -> dict[str, Any]:
    known = {name.lower(): name for name in COMMUNICATORS}
    communicator = str(settings.communicator or "None").lower()
    if communicator not in known:
        raise UsageError(
            f"communicator is {settings.communicator!r}; use one of: {', '.join(COMMUNICATORS)}"
        )
    nodes = _count("node_count", settings.node_count)
    processes = _count("process_count_per_node", settings.mpi.process_count_per_node)
    backend = "mpi" if communicator.endswith("mpi") else communicator
    return {"nodes": nodes, "processes_per_node": processes, "backend": backend}


def _needs_no_backend(distribution: Mapping[str, Any], gpus: float) -> bool:
    alone = distribution["nodes"] * distribution["processes_per_node"] == 1
    return alone and distribution["backend"] == "nccl" and not gpus


def _warn_of_ignored(**kwargs: Any) -> None:
    ignored = [name for name, value in kwargs.items() if value is not None]
    if ignored:
        warnings.warn(
            f"{', '.join(ignored)}: ignored because a run_config was given; set them in it",
            stacklevel=3,
        )
