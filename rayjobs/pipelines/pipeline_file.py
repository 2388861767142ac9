"""Reads pipeline files (YAML or JSON), with every problem of a file in one error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayjobs.core.errors import Problem, SpecError
from rayjobs.core.text import counted
from rayjobs.pipelines.graph import graph_of
from rayjobs.pipelines.spec import PipelineError, PipelineSpec, type_of
from rayjobs.spec import components
from rayjobs.spec.components import component_folder
from rayjobs.spec.file import merge
from rayjobs.spec.problems import problem_of
from rayjobs.spec.text import parse_yaml

OWN_KEYS = frozenset({"after", "params", "reuse", "sweep", "title"})
TOP_KEYS = frozenset(
    {
        "name",
        "description",
        "parameters",
        "defaults",
        "source_directory",
        "continue_on_step_failure",
        "steps",
        "version",
    }
)


def load_pipeline(path: str | Path) -> PipelineSpec:
    """Return the pipeline in a YAML or JSON file.

    A relative `source_directory` is taken from the file's folder; without one, the file's folder
    is the source directory of all steps.

    Raises:
        PipelineError: the file cannot be read or is wrong; lists everything with its path.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        why = "there is no such file."
        missing = Problem(str(file), why, "Name a pipeline's YAML file.", is_missing=True)
        raise PipelineError(problems=[missing]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _only(str(file), f"the file cannot be read: {error}.", "") from error
    try:
        data = parse_yaml(text, str(file))
    except SpecError as error:
        raise PipelineError(error.message) from error
    if not isinstance(data, dict):
        raise _only(str(file), f"it holds {type(data).__name__} data.", "Write keys and values.")
    try:
        spec = pipeline_of(data, folder=file.parent)
        graph_of(spec)
    except PipelineError as error:
        raise PipelineError(
            f"{file} has {counted(len(error.problems), 'problem')}", problems=error.problems
        ) from None
    return spec


def pipeline_of(data: Mapping[str, Any], *, folder: Path) -> PipelineSpec:
    """Return the pipeline that a file's data describes.

    Args:
        data: The file's keys and values.
        folder: The base of relative paths.

    Raises:
        PipelineError: something is wrong with it; all problems at once.
    """
    problems = [
        Problem(key, "is not a key of a pipeline file.", f"Use: {', '.join(sorted(TOP_KEYS))}.")
        for key in data
        if key not in TOP_KEYS
    ]
    defaults = data.get("defaults") or {}
    if not isinstance(defaults, Mapping):
        problems.append(Problem("defaults", "is not a mapping.", "Write fields of a job."))
        defaults = {}
    source = folder / Path(str(data.get("source_directory") or ".")).expanduser()
    defaults = {"source_directory": str(source.absolute()), **defaults}
    steps: dict[str, Any] = {}
    given = data.get("steps")
    if not isinstance(given, Mapping) or not given:
        problems.append(Problem("steps", "is missing.", "Write a mapping of names to steps."))
        given = {}
    for name, one in given.items():
        if not isinstance(one, Mapping):
            problems.append(Problem(f"steps.{name}", "is not a mapping.", "Write fields of a job."))
            continue
        component = one.get("component")
        if component is not None and component_folder(component) is None:
            problems.append(
                Problem(
                    f"steps.{name}.component",
                    f"{component!r} is not a component.",
                    components.remedy(),
                )
            )
            continue
        steps[str(name)] = _step(one, defaults, folder)
    values = {key: data[key] for key in ("version", "name", "description") if key in data}
    values["continue_on_step_failure"] = data.get("continue_on_step_failure", False)
    values["parameters"] = {
        str(name): _parameter(one) for name, one in (data.get("parameters") or {}).items()
    }
    values["steps"] = steps
    try:
        spec = PipelineSpec.model_validate(values)
    except ValidationError as error:
        if steps or not problems:
            problems += [problem_of(one) for one in error.errors(include_url=False)]
        raise PipelineError(problems=problems) from None
    if problems:
        raise PipelineError(problems=problems)
    return spec


def _step(one: Mapping[str, Any], defaults: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    own = {key: value for key, value in one.items() if key in OWN_KEYS and value is not None}
    job = {key: value for key, value in one.items() if key not in {*OWN_KEYS, "component"}}
    if one.get("component") is not None:
        job["source_directory"] = component_folder(one["component"])
    elif job.get("source_directory") is not None:
        place = folder / Path(str(job["source_directory"])).expanduser()
        job["source_directory"] = str(place.absolute())
    if isinstance(job.get("outputs"), Mapping):
        job["outputs"] = {key: value or {} for key, value in job["outputs"].items()}
    reuse = own.pop("reuse", None)
    if isinstance(reuse, bool):
        own["reuse"] = {"allow": reuse}
    elif reuse is not None:
        own["reuse"] = reuse
    if isinstance(own.get("after"), str):
        own["after"] = [own["after"]]
    if isinstance(own.get("sweep"), Mapping) and "definition" not in own["sweep"]:
        own["sweep"] = {"definition": dict(own["sweep"])}
    return {"job": merge(defaults, job), **own}


def _parameter(one: Any) -> Any:
    if isinstance(one, Mapping):
        return one
    return {"default": one, "type": "text" if one is None else type_of(one)}


def _only(path: str, message: str, remedy: str) -> PipelineError:
    return PipelineError(problems=[Problem(path, message, remedy)])
