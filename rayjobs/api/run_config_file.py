"""Run configuration files (``.azureml/NAME.runconfig``), in the format of Azure ML's tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayjobs.api.configs import (
    PyTorchConfiguration,
    RunConfiguration,
    RunConfigurationError,
    argument_text,
    target_name,
)
from rayjobs.api.environment import Environment, FrameworkEnvironment
from rayjobs.core.errors import NotFoundError, SpecError, UsageError
from rayjobs.core.files import write_atomic
from rayjobs.core.text import verb
from rayjobs.data.arguments import is_data
from rayjobs.spec.text import parse_yaml, write_yaml

FOLDERS = (".azureml", "aml_config")
SUFFIX = ".runconfig"


def save(
    settings: RunConfiguration,
    path: str | Path | None,
    name: str | None,
    separate_environment: bool,
) -> Path:
    """Write a configuration with its environment variables, as Azure ML does; return the file.

    Raises:
        UsageError: the file cannot hold one of its settings; names them all.
    """
    unsaved = _unsaved(settings)
    if unsaved:
        raise UsageError(
            f"{', '.join(unsaved)} cannot be saved in a run configuration file; set "
            f"{verb(len(unsaved), 'it', 'them')} again after RunConfiguration.load"
        )
    file = _new_file(Path.cwd() if path is None else Path(path), name)
    file.parent.mkdir(parents=True, exist_ok=True)
    values = to_dict(settings)
    if separate_environment and values["environment"] is not None:
        environment_file = file.with_name(f"{file.stem}_environment.yml")
        write_atomic(environment_file, write_yaml(values["environment"]))
        values["environment"] = environment_file.name
    write_atomic(file, write_yaml(values))
    return file


def load(path: str | Path, name: str | None) -> RunConfiguration:
    """Read a configuration.

    Raises:
        NotFoundError: there is no such file.
        RunConfigurationError: it is not a run configuration.
    """
    file = _found(Path(path), name)
    try:
        values = parse_yaml(file.read_text(encoding="utf-8"), str(file))
        if isinstance(values, dict) and isinstance(values.get("environment"), str):
            separate = file.with_name(values["environment"])
            values["environment"] = parse_yaml(separate.read_text(encoding="utf-8"), str(separate))
        if not isinstance(values, dict):
            raise RunConfigurationError(f"{file} contains no `key: value` lines")
        return from_dict(values)
    except (OSError, SpecError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunConfigurationError(f"{file} is not a run configuration: {error}") from error


def delete(path: str | Path, name: str) -> None:
    """Remove a configuration's file. Raises NotFoundError."""
    _found(Path(path), name).unlink()


def _unsaved(settings: RunConfiguration) -> list[str]:
    """Return the names of set attributes for which a file has no place."""
    usual = RunConfiguration()
    found = [name for name in _UNSAVED if getattr(settings, name) != getattr(usual, name)]
    for name in ("arguments", "command"):
        words = getattr(settings, name)
        if isinstance(words, list | tuple) and any(is_data(word) for word in words):
            found.append(name)
    if settings.docker.arguments or settings.docker.shm_size is not None:
        found.append("docker")
    if isinstance(settings.environment, FrameworkEnvironment):
        found.append("environment")
    return found


_UNSAVED = (
    *("data", "data_references", "output_data", "cpus_per_process", "gpus_per_process"),
    *("use_gpu", "memory_gib_per_process", "node_types", "spot"),
)


def _environment_of(settings: RunConfiguration) -> Environment | None:
    """Return the environment; a path becomes an environment that uses this interpreter."""
    given = settings.environment
    if not isinstance(given, str | Path):
        return given if isinstance(given, Environment) else None
    made = Environment("interpreter")
    made.python.user_managed_dependencies = True
    made.python.interpreter_path = str(given)
    return made


def to_dict(settings: RunConfiguration) -> dict[str, Any]:
    """Return the content of a configuration's file."""
    environment = _environment_of(settings)
    command = settings.command
    if command is not None and not isinstance(command, str):
        command = " ".join(argument_text(word) for word in command)  # as a submit does
    return {
        "script": settings.script,
        "arguments": [argument_text(one) for one in settings.arguments],
        "command": command,
        "target": target_name(settings.target),
        "framework": settings.framework,
        "communicator": settings.communicator,
        "nodeCount": settings.node_count,
        "maxRunDurationSeconds": settings.max_run_duration_seconds,
        "priority": settings.priority,
        "environment": None if environment is None else environment.to_dict(),
        "environmentVariables": dict(settings.environment_variables),
        "mpi": {"processCountPerNode": settings.mpi.process_count_per_node},
        "pytorch": None
        if settings.pytorch is None
        else {
            "communicationBackend": settings.pytorch.communication_backend,
            "processCount": settings.pytorch.process_count,
        },
        "amlcompute": {
            "vmSize": settings.amlcompute.vm_size,
            "vmPriority": settings.amlcompute.vm_priority,
        },
    }


def from_dict(values: dict[str, Any]) -> RunConfiguration:
    """Return the configuration for a file's values; unsupported keys are ignored."""
    made = RunConfiguration(
        script=values.get("script"),
        arguments=values.get("arguments") or (),
        framework=values.get("framework"),
        communicator=values.get("communicator"),
        command=values.get("command"),
    )
    made.target = values.get("target") or made.target
    made.node_count = int(values.get("nodeCount") or 1)
    made.max_run_duration_seconds = values.get("maxRunDurationSeconds")
    made.priority = int(values.get("priority") or 0)
    if values.get("environment"):
        made.environment = Environment.from_dict(values["environment"])
    made.environment_variables = {
        str(key): str(value) for key, value in (values.get("environmentVariables") or {}).items()
    }
    made.mpi.process_count_per_node = int((values.get("mpi") or {}).get("processCountPerNode") or 1)
    pytorch = values.get("pytorch") or {}
    if made.framework == "PyTorch" and pytorch.get("communicationBackend"):
        total = pytorch.get("processCount")
        made.pytorch = PyTorchConfiguration(pytorch["communicationBackend"], total, made.node_count)
        made.mpi.process_count_per_node = made.pytorch.process_count // made.node_count
    machine = values.get("amlcompute") or {}
    made.amlcompute.vm_size = machine.get("vmSize")
    made.amlcompute.vm_priority = machine.get("vmPriority")
    return made


def _new_file(path: Path, name: str | None) -> Path:
    if name is None:
        return path
    folder = path if path.name in FOLDERS else path / FOLDERS[0]
    return folder / f"{name.removesuffix(SUFFIX)}{SUFFIX}"


def _found(path: Path, name: str | None) -> Path:
    if name is None:
        candidates = [path]
    else:
        file = f"{name.removesuffix(SUFFIX)}{SUFFIX}"
        candidates = [path / folder / file for folder in ("", *FOLDERS)]
    for one in candidates:
        if one.is_file():
            return one
    raise NotFoundError(f"there is no run configuration {name or ''} in {path}".replace("  ", " "))
