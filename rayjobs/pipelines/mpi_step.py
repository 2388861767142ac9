"""MpiStep: a script as an MPI job of several nodes and processes.

Signature: as in Azure ML's reference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayjobs.api.configs import RunConfiguration
from rayjobs.api.environment import Environment
from rayjobs.api.estimators import Estimator, Mpi
from rayjobs.core.errors import Problem, SpecError
from rayjobs.core.numbers import is_whole
from rayjobs.core.text import counted
from rayjobs.pipelines.data import default_of
from rayjobs.pipelines.steps import ScriptStep, StepBase

# Azure ML targets that only accept single-node jobs; rayjobs targets accept any job that fits.
SINGLE_NODE_TYPES = frozenset(
    {"ComputeInstance", "RemoteVM", "VirtualMachine", "HDInsight", "Local", "LocalTarget"}
)
MPI_OPTIONS = frozenset(
    {
        "environment_variables",
        "use_gpu",
        "use_docker",
        "custom_docker_image",
        "image_registry_details",
        "user_managed",
        "conda_packages",
        "pip_packages",
        "pip_requirements_file_path",
        "environment_definition",
    }
)


class MpiStepError(SpecError, ValueError):
    """Arguments of an MpiStep are missing or wrong; a ValueError, as in Azure ML."""

    def __init__(self, *, problems: Sequence[Problem]) -> None:
        super().__init__(f"MpiStep has {counted(len(problems), 'problem')}", problems=problems)


class MpiStep(ScriptStep):
    """A step that runs a script as an MPI job: `node_count` × `process_count_per_node` processes.

    Args:
        name: The step's name. Required.
        source_directory: Folder with the script. Required.
        script_name: The script, relative to `source_directory`. Required.
        arguments: The script's arguments: strings, data, and parameters. Required.
        compute_target: Its target. Required.
        node_count: Nodes, 1 or more, or a PipelineParameter. Required.
        process_count_per_node: Processes on each node, 1 or more, or a PipelineParameter. Required.
        inputs: Data that it reads.
        outputs: Data that it writes.
        params: Values of the variables ``AML_PARAMETER_<NAME>``.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.
        version: Change it when the step's behavior changes, so that it runs again.
        hash_paths: Only changes of these files count as changes.
        **kwargs: The environment: environment_variables, use_gpu, use_docker,
            custom_docker_image, image_registry_details, user_managed, conda_packages,
            pip_packages, pip_requirements_file_path, environment_definition.

    Raises:
        MpiStepError: an argument is missing or wrong; lists all problems.
    """

    def __init__(
        self,
        name: str | None = None,
        source_directory: str | Path | None = None,
        script_name: str | None = None,
        arguments: Sequence[Any] | None = None,
        compute_target: Any = None,
        node_count: Any = None,
        process_count_per_node: Any = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        allow_reuse: bool = True,
        version: str | None = None,
        hash_paths: Sequence[str] | None = None,
        params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        required = {
            "name": name,
            "source_directory": source_directory,
            "script_name": script_name,
            "arguments": arguments,
            "compute_target": compute_target,
            "node_count": node_count,
            "process_count_per_node": process_count_per_node,
        }
        problems = [
            Problem(key, "is missing.", f"MpiStep needs it: MpiStep({key}=...).")
            for key, value in required.items()
            if value is None
        ]
        problems += [
            Problem(key, "is not an argument of MpiStep.", f"Use: {', '.join(sorted(MPI_OPTIONS))}")
            for key in kwargs
            if key not in MPI_OPTIONS
        ]
        problems += _wrong_values(arguments, node_count, process_count_per_node, compute_target)
        problems += _wrong_lists(
            inputs=inputs, outputs=outputs, hash_paths=hash_paths, params=params
        )
        problems += _wrong_reuse(allow_reuse, version)
        problems += _wrong_names(name, source_directory, script_name, compute_target)
        problems += _wrong_environment(kwargs)
        nodes, processes = default_of(node_count), default_of(process_count_per_node)
        settings = RunConfiguration()
        if not problems:
            is_distributed = nodes * processes > 1 or node_count is not nodes
            is_distributed = is_distributed or process_count_per_node is not processes
            try:
                made = Estimator(
                    str(source_directory),
                    entry_script=str(script_name),
                    compute_target=compute_target,
                    node_count=nodes,
                    process_count_per_node=processes,
                    distributed_training=Mpi(processes) if is_distributed else None,
                    **{key: value for key, value in kwargs.items() if value is not None},
                )
                settings = made.to_script_run_config().run_config
            except SpecError as error:
                problems += [
                    replace(one, path=_OTHER_NAMES.get(one.path, one.path))
                    for one in error.problems
                ]
        if problems:
            raise MpiStepError(problems=problems)
        StepBase.__init__(
            self,
            str(name),
            inputs,
            outputs,
            arguments=arguments,
            allow_reuse=allow_reuse,
            version=version,
            hash_paths=hash_paths,
        )
        self.script_name = str(script_name)
        self.source_directory = str(source_directory)
        self.params = dict(params or {})
        settings = copy.copy(settings)
        settings.mpi = copy.copy(settings.mpi)
        settings.node_count = node_count
        settings.mpi.process_count_per_node = process_count_per_node
        self._settings = settings


def _wrong_values(
    arguments: Any, node_count: Any, process_count_per_node: Any, compute_target: Any
) -> list[Problem]:
    found = []
    if arguments is not None and not isinstance(arguments, list | tuple):
        found.append(
            Problem("arguments", f"{arguments!r:.80} is not a list.", "Give a list of arguments.")
        )
    counts = {"node_count": node_count, "process_count_per_node": process_count_per_node}
    for key, value in counts.items():
        if value is not None and not is_whole(default_of(value), at_least=1):
            found.append(
                Problem(
                    key,
                    f"{default_of(value)!r:.80} is not a whole number, 1 or more.",
                    "Give a number, or a PipelineParameter with such a default.",
                )
            )
    kind = getattr(compute_target, "type", None)
    nodes = default_of(node_count)
    if kind in SINGLE_NODE_TYPES and is_whole(nodes) and nodes > 1:
        found.append(
            Problem(
                "node_count",
                f"is {nodes}, and a target of the type {kind} has one node.",
                "Use AmlCompute, or the name of a target of rayjobs.",
            )
        )
    return found


def _wrong_names(
    name: Any, source_directory: Any, script_name: Any, compute_target: Any
) -> list[Problem]:
    texts = {"name": name, "source_directory": source_directory, "script_name": script_name}
    found = [
        Problem(key, f"{value!r:.80} is not a string.")
        for key, value in texts.items()
        if value is not None and not isinstance(value, str | Path)
    ]
    # A ComputeTarget object always has a type.
    is_target = isinstance(getattr(compute_target, "type", None), str)
    if not (compute_target is None or isinstance(compute_target, str) or is_target):
        found.append(
            Problem(
                "compute_target",
                f"{compute_target!r:.80} is not a compute target.",
                "Give its name, such as 'local', or a ComputeTarget.",
            )
        )
    return found


# Arguments that a step names differently than an estimator: the estimator's name → the step's.
_OTHER_NAMES = {"pip_requirements_file": "pip_requirements_file_path"}
# Each option of the environment: its description and its check.
_FLAG = ("True or False", lambda value: isinstance(value, bool))
_TEXT = ("a string", lambda value: isinstance(value, str))
_PATH = ("a path", lambda value: isinstance(value, str | Path))
_TEXTS = (
    "a list of strings",
    lambda value: isinstance(value, list | tuple) and all(isinstance(one, str) for one in value),
)
_MAPPING = ("a mapping", lambda value: isinstance(value, Mapping))
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "use_gpu": _FLAG,
    "use_docker": _FLAG,
    "user_managed": _FLAG,
    "custom_docker_image": _TEXT,
    "conda_packages": _TEXTS,
    "pip_packages": _TEXTS,
    "pip_requirements_file_path": _PATH,
    "environment_variables": _MAPPING,
    "environment_definition": (
        "an Environment or a path",
        lambda value: isinstance(value, Environment | str | Path),
    ),
}


def _wrong_environment(given: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(key, f"{given[key]!r:.80} is not {words}.")
        for key, (words, is_right) in _KINDS.items()
        if given.get(key) is not None and not is_right(given[key])
    ]


def _wrong_reuse(allow_reuse: Any, version: Any) -> list[Problem]:
    found = []
    if not isinstance(allow_reuse, bool):
        found.append(Problem("allow_reuse", f"{allow_reuse!r:.80} is not True or False."))
    if version is not None and not isinstance(version, str):
        found.append(Problem("version", f"{version!r:.80} is not a string."))
    return found


def _wrong_lists(**kwargs: Any) -> list[Problem]:
    kinds = {"params": Mapping}
    return [
        Problem(key, f"{value!r:.80} is not a {'mapping' if key in kinds else 'list'}.")
        for key, value in kwargs.items()
        if value is not None and not isinstance(value, kinds.get(key, list | tuple))
    ]
