"""The stored and file form of a pipeline: parameters, and steps that pass data.

``${{parameters.NAME}}`` stands for a parameter's value anywhere in a step. An input whose source is
``step:STEP/OUTPUT`` reads an output of another step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rayjobs.core.errors import Problem, SpecError
from rayjobs.core.text import counted
from rayjobs.spec.model import JOB_NAME, Model
from rayjobs.spec.problems import problem_of

STEP = "step:"
PARAMETER_NAME = r"^[A-Za-z_][A-Za-z0-9_-]*$"
PLACEHOLDER = re.compile(r"\$\{\{\s*parameters\.([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
PARAMETER_VARIABLE = "AML_PARAMETER_"

Scalar = bool | int | float | str
ParameterType = Literal["text", "integer", "number", "boolean", "data"]


class PipelineError(SpecError):
    """A pipeline is wrong; `problems` lists all problems."""

    def __init__(self, message: str = "", *, problems: Sequence[Problem] = ()) -> None:
        text = message or f"the pipeline has {counted(len(problems), 'problem')}"
        super().__init__(text, problems=problems)


class Parameter(Model):
    """A value that each run may set.

    Attributes:
        default: The default value; None: each run must set it.
        type: The type of its values: ``data`` is the source of an input, as in a job file.
    """

    default: Scalar | None = None
    type: ParameterType = "text"


class Reuse(Model):
    """When a step reuses the results of an earlier run.

    Attributes:
        allow: Whether reuse is allowed.
        version: Change it when the step's behavior changes, so that it runs again.
        hash_paths: Files and folders, relative to the source directory, whose content is compared;
            empty: everything that is packed.
    """

    allow: bool = True
    version: str | None = None
    hash_paths: tuple[str, ...] = ()


class SweepPart(Model):
    """The sweep settings of a step.

    Attributes:
        definition: The sweep's own definition without its job, as in a sweep file. Its `results`
            are outputs of the step.
    """

    definition: Mapping[str, Any]


class StepSpec(Model):
    """One step.

    Attributes:
        job: Its job, with the fields of a job file; any text may contain placeholders.
        after: Names of steps that must complete first, in addition to those whose outputs it reads.
        params: Values of the variables ``AML_PARAMETER_<NAME>``.
        reuse: When results of an earlier run are reused.
        sweep: Makes the step a sweep over its job; None: it only runs the job.
        title: Its name for users; None: its key in the pipeline.
        snapshot: Digest of its packed code, once it is packed.
        facts: Facts about its code, recorded when it was packed.
        hashed: Digest of its `hash_paths` when it was packed.
        pipeline_outputs: Output → its name as an output of the whole pipeline.
    """

    job: Mapping[str, Any]
    after: tuple[str, ...] = ()
    params: Mapping[str, Any] = Field(default_factory=dict)
    reuse: Reuse = Reuse()
    sweep: SweepPart | None = None
    title: str | None = None
    snapshot: str | None = None
    facts: Mapping[str, str] = Field(default_factory=dict)
    hashed: str | None = None
    pipeline_outputs: Mapping[str, str] = Field(default_factory=dict)


class PipelineSpec(Model):
    """A pipeline.

    Attributes:
        version: Version of this format.
        name: Its name. Explanations compare steps in pipelines of the same name.
        description: A description for users.
        parameters: The values that each run may set.
        steps: Steps by name, in display order.
        continue_on_step_failure: After a failure, run the steps that do not need the failed one.
        file: The file that it was read from, on the submitter's machine; it is not stored.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=JOB_NAME)] = "pipeline"
    description: str = ""
    parameters: Mapping[Annotated[str, Field(pattern=PARAMETER_NAME)], Parameter] = Field(
        default_factory=dict
    )
    steps: Mapping[Annotated[str, Field(pattern=JOB_NAME)], StepSpec] = Field(min_length=1)
    continue_on_step_failure: bool = False
    file: str | None = Field(default=None, exclude=True)


def outputs_of(step: StepSpec) -> dict[str, Any]:
    """Return the outputs of a step, including those that a sweep stores at its end."""
    found = dict(step.job.get("outputs") or {})
    if step.sweep is not None:
        found |= dict(step.sweep.definition.get("results") or {})
    return found


def read_pipeline(values: Mapping[str, Any]) -> PipelineSpec:
    """Return the pipeline for stored data.

    Raises:
        PipelineError: the data does not describe a pipeline.
    """
    try:
        return PipelineSpec.model_validate(dict(values))
    except ValidationError as error:
        problems = [problem_of(detail) for detail in error.errors(include_url=False)]
        raise PipelineError(problems=problems) from None


def step_source(step: str, output: str) -> str:
    """Return the source of an input that reads an output of another step."""
    return f"{STEP}{step}/{output}"


def step_sources(step: StepSpec) -> Iterator[tuple[str, str, str]]:
    """Yield input, step and output of each input of a step that reads another step."""
    inputs = step.job.get("inputs") or {}
    for name, one in inputs.items():
        source = one.get("source") if isinstance(one, Mapping) else one
        if isinstance(source, str) and source.startswith(STEP):
            producer, _, output = source.removeprefix(STEP).partition("/")
            yield str(name), producer, output


def parameters_in(value: Any) -> Iterator[str]:
    """Yield the names of the parameters that appear anywhere in `value`."""
    if isinstance(value, str):
        yield from (match.group(1) for match in PLACEHOLDER.finditer(value))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from parameters_in(key)
            yield from parameters_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from parameters_in(one)


def texts_in(
    value: Any, at: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield each string in `value` with its place: the keys and indices that lead to it."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from texts_in(one, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from texts_in(one, (*at, index))


def with_values(value: Any, values: Mapping[str, Any]) -> Any:
    """Return `value` with each placeholder replaced by its parameter's value.

    A string that is only a placeholder becomes the value itself, with its type.
    """
    if isinstance(value, str):
        whole = PLACEHOLDER.fullmatch(value.strip())
        if whole is not None and whole.group(1) in values:
            return values[whole.group(1)]
        return PLACEHOLDER.sub(lambda match: str(values.get(match.group(1), match.group(0))), value)
    if isinstance(value, Mapping):
        return {with_values(key, values): with_values(one, values) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_values(one, values) for one in value]
    return value


def variable_of(parameter: str) -> str:
    """Return the environment variable of one of a step's `params`."""
    return PARAMETER_VARIABLE + re.sub(r"\W", "_", parameter)


def chosen_values(spec: PipelineSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter for one run.

    Raises:
        PipelineError: a value is missing, has the wrong type, or is for an unknown parameter.
    """
    problems = [
        Problem(
            f"parameters.{name}",
            "is not a parameter of the pipeline.",
            f"It has: {', '.join(spec.parameters) or 'none'}.",
        )
        for name in given
        if name not in spec.parameters
    ]
    values: dict[str, Any] = {}
    for name, parameter in spec.parameters.items():
        value = given.get(name, parameter.default)
        if value is None:
            problems.append(
                Problem(f"parameters.{name}", "has no value.", f"Give one: -p {name}=VALUE.")
            )
            continue
        try:
            values[name] = _typed(value, parameter.type)
        except ValueError:
            problems.append(
                Problem(
                    f"parameters.{name}",
                    f"{value!r:.80} is not of the type {parameter.type!r}.",
                    f"Its default is {parameter.default!r:.80}.",
                )
            )
    if problems:
        raise PipelineError(problems=problems)
    return values


def type_of(value: Any) -> ParameterType:
    """Return the type of a parameter with this default."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "text"


def has_type(value: Any, kind: str) -> bool:
    """Whether a parameter of a type may have a value."""
    try:
        _typed(value, kind)
    except ValueError:
        return False
    return True


def _typed(value: Any, kind: str) -> Scalar:
    if kind == "boolean":
        words = {"true": True, "1": True, "false": False, "0": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise ValueError(value)
    if kind == "integer":
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError(value)
        return int(value)
    if kind == "number":
        if isinstance(value, bool):
            raise ValueError(value)
        return value if isinstance(value, int | float) else float(value)
    if isinstance(value, bool | int | float | str):
        return str(value)
    raise ValueError(value)
