"""Reads pipeline files (YAML or JSON); one error lists all problems of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayjobs.core.errors import NotFoundError, Problem, SpecError
from rayjobs.core.text import counted
from rayjobs.pipelines.graph import looked_at
from rayjobs.pipelines.planning import OWN_KEYS, below, file_problems, readable
from rayjobs.pipelines.spec import (
    STEP,
    Parameter,
    PipelineError,
    PipelineSpec,
    Reuse,
    has_type,
    texts_in,
    type_of,
    with_values,
)
from rayjobs.spec import components
from rayjobs.spec.components import component_folder
from rayjobs.spec.container_files import anchored_container
from rayjobs.spec.environment import anchored
from rayjobs.spec.file import load_spec_file, merge
from rayjobs.spec.problems import key_text, near, problem_of
from rayjobs.spec.sources import output_source

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
# Fields of a step with the names that form the graph.
NAMED_FIELDS = ("inputs", "outputs", "params")


def load_pipeline(path: str | Path) -> PipelineSpec:
    """Return the pipeline in a YAML or JSON file; ``-`` reads standard input.

    A `source_directory` is relative to the file's folder, which is also the default source
    directory of all steps.

    Raises:
        PipelineError: the file cannot be read or is wrong; lists all problems with their paths.
    """
    is_piped = str(path) == "-"
    file = Path("standard input") if is_piped else Path(path).expanduser()
    try:
        data = load_spec_file(path, example="steps: {train: {script: train.py}}")
    except NotFoundError:
        why = "there is no such file."
        missing = Problem(str(path), why, "Name a pipeline's YAML file.", is_missing=True)
        raise PipelineError(problems=[missing]) from None
    except SpecError as error:
        raise PipelineError(error.message) from error
    try:
        spec = pipeline_of(data, folder=Path.cwd() if is_piped else file.parent)
    except PipelineError as error:
        raise PipelineError(
            f"{file} has {counted(len(error.problems), 'problem')}", problems=error.problems
        ) from None
    return spec if is_piped else spec.model_copy(update={"file": str(file.absolute())})


def pipeline_of(data: Mapping[str, Any], *, folder: Path) -> PipelineSpec:
    """Return the pipeline that a file's data describes.

    Args:
        data: The file's keys and values.
        folder: The base of relative paths.

    Raises:
        PipelineError: something is wrong with it; lists all problems.
    """
    return _Reading(data, folder).result()


class _Reading:
    """One pass over a file's data, which collects problems and continues."""

    def __init__(self, data: Mapping[str, Any], folder: Path) -> None:
        self.data = data
        self.folder = folder
        self.problems: list[Problem] = []
        self.has_form = True  # whether a graph can be read from all steps

    def result(self) -> PipelineSpec:
        """Return the pipeline.

        Raises:
            PipelineError: with all problems.
        """
        for key in self.data:
            if key not in TOP_KEYS:
                remedy = near(str(key), sorted(TOP_KEYS)) or f"Use: {', '.join(sorted(TOP_KEYS))}."
                self._note(str(key), "is not a key of a pipeline file.", remedy)
        parameters = self._parameters()
        steps = self._steps()
        values = {
            key: self.data[key] for key in ("version", "name", "description") if key in self.data
        }
        values["continue_on_step_failure"] = self.data.get("continue_on_step_failure", False)
        spec: PipelineSpec | None = None
        try:
            spec = PipelineSpec.model_validate({**values, "parameters": parameters, "steps": steps})
        except ValidationError as error:
            known = {one.path for one in self.problems}
            found = [problem_of(one) for one in error.errors(include_url=False)]
            # Without a readable step, "steps" is too short; the cause is already reported.
            self.problems += [
                one for one in found if one.path not in known and (steps or one.path != "steps")
            ]
        if spec is not None and not self.problems:
            return spec  # `plan` finds the other problems of all steps together
        defaults = {name: one.get("default") for name, one in parameters.items()}
        defaults = {name: value for name, value in defaults.items() if value is not None}
        for name, step in steps.items():
            self.problems += _job_problems(name, step, defaults)
        if spec is not None and self.has_form:
            self.problems += looked_at(spec)[2]
        raise PipelineError(problems=self.problems)

    def _note(self, path: str, message: str, remedy: str = "") -> None:
        self.problems.append(Problem(path, message, remedy))

    # -- parameters ----------------------------------------------------------------------------
    def _parameters(self) -> dict[str, Any]:
        given = self.data.get("parameters") or {}
        if not isinstance(given, Mapping):
            self._note("parameters", "is not a mapping.", "Write lines such as `epochs: 3`.")
            return {}
        found: dict[str, Any] = {}
        for name, one in given.items():
            path = f"parameters.{name}"
            if not isinstance(one, Mapping):
                if isinstance(one, list | tuple):
                    self._note(path, f"{one!r:.80} is not a single value.", "Write its default.")
                    continue
                found[str(name)] = {"default": one, "type": "text" if one is None else type_of(one)}
                continue
            if self._has_own_keys(path, one, Parameter.model_fields):
                typed = {"type": type_of(one["default"])} if "default" in one else {}
                found[str(name)] = {**typed, **one}
                self._check_default(path, found[str(name)])
        return found

    def _check_default(self, path: str, one: Mapping[str, Any]) -> None:
        default, kind = one.get("default"), one.get("type", "text")
        if default is not None and not has_type(default, kind):
            self._note(f"{path}.default", f"{default!r:.80} is not of the type {kind!r}.")

    # -- steps ---------------------------------------------------------------------------------
    def _steps(self) -> dict[str, Any]:
        defaults = self.data.get("defaults") or {}
        if not isinstance(defaults, Mapping):
            self._note("defaults", "is not a mapping.", "Write fields of a job.")
            defaults = {}
        source = self.data.get("source_directory")
        if source is not None and not isinstance(source, str):
            self._note("source_directory", f"{source!r:.80} is not a path.", "Write a folder.")
            source = None
        directory = self.folder / Path(source or ".").expanduser()
        defaults = {
            "source_directory": str(directory.absolute()),
            **self._anchored("defaults", defaults),
        }
        given = self.data.get("steps")
        if not isinstance(given, Mapping) or not given:
            self._note("steps", "is missing.", "Write a mapping of names to steps.")
            given = {}
        steps: dict[str, Any] = {}
        for name, one in given.items():
            step = self._step(f"steps.{name}", one, defaults)
            if step is None:
                self.has_form = False
            else:
                steps[str(name)] = step
        return steps

    def _step(self, path: str, one: Any, defaults: Mapping[str, Any]) -> dict[str, Any] | None:
        if not isinstance(one, Mapping):
            self._note(path, "is not a mapping.", "Write fields of a job.")
            return None
        if (component := one.get("component")) is not None and component_folder(component) is None:
            self._note(
                f"{path}.component", f"{component!r} is not a component.", components.remedy()
            )
            return None
        own = {key: value for key, value in one.items() if key in OWN_KEYS and value is not None}
        job = {key: value for key, value in one.items() if key not in {*OWN_KEYS, "component"}}
        for key in NAMED_FIELDS:
            held = own if key in own else job
            if held.get(key) is not None and not isinstance(held[key], Mapping):
                given, remedy = held.pop(key), "Write `name: …` lines."
                self._note(f"{path}.{key}", f"{given!r:.80} is not a mapping.", remedy)
                self.has_form = False
        if isinstance(own.get("after"), str):
            own["after"] = [own["after"]]
        after = own.get("after", [])
        if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
            del own["after"]
            self._note(
                f"{path}.after", f"{after!r:.80} is not a list of steps.", "Write their names."
            )
            self.has_form = False
        self._own_part(path, own, "reuse")
        self._own_part(path, own, "sweep")
        if component is not None:
            job["source_directory"] = component_folder(component)
        if isinstance(job.get("outputs"), Mapping):
            job["outputs"] = {key: value or {} for key, value in job["outputs"].items()}
        whole = merge(defaults, self._anchored(path, job))
        self._check_hash_paths(path, own.get("reuse") or {}, whole.get("source_directory"))
        return {"job": whole, **own}

    def _check_hash_paths(self, path: str, reuse: Mapping[str, Any], source: Any) -> None:
        folder = Path(source) if isinstance(source, str) else None
        if folder is None or not folder.is_dir():
            return
        for index, one in enumerate(reuse.get("hash_paths") or ()):
            if isinstance(one, str) and not (folder / one).exists():
                self._note(
                    f"{path}.reuse.hash_paths[{index}]",
                    f"{one!r} does not exist in {folder}.",
                    "Name files and folders of the source directory.",
                )

    def _own_part(self, path: str, own: dict[str, Any], key: str) -> None:
        """Convert `reuse` or `sweep` to its stored form, or note its problems."""
        given = own.get(key)
        if given is None:
            return
        if key == "reuse" and isinstance(given, bool):
            own[key] = {"allow": given}
        elif not isinstance(given, Mapping):
            form = "true, false or a mapping" if key == "reuse" else "a mapping"
            self._note(f"{path}.{key}", f"{given!r:.80} is not {form}.")
            del own[key]
        elif key == "reuse":
            if not self._has_own_keys(f"{path}.{key}", given, Reuse.model_fields):
                del own[key]
        elif "definition" not in given:
            own[key] = {"definition": dict(given)}

    def _has_own_keys(self, path: str, given: Mapping[Any, Any], known: Mapping[str, Any]) -> bool:
        unknown = [str(key) for key in given if key not in known]
        for key in unknown:
            remedy = near(key, [*known]) or f"Use: {', '.join(known)}."
            self.problems.append(
                Problem(f"{path}.{key}", "is not a known key.", remedy, is_unknown_key=True)
            )
        return not unknown

    def _anchored(self, path: str, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a job, with relative paths resolved from the file's folder."""
        found = dict(job)
        if isinstance(found.get("source_directory"), str):
            directory = self.folder / Path(found["source_directory"]).expanduser()
            found["source_directory"] = str(directory.absolute())
        if "environment" in found:
            found["environment"] = anchored(found["environment"], self.folder)
        if "container" in found:
            try:
                found["container"] = anchored_container(found["container"], self.folder)
            except (NotFoundError, SpecError) as error:
                self._note(f"{path}.container", f"{error.message}.")
        return found


def _job_problems(
    name: str, step: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[Problem]:
    """Find the problems of a step's job that do not depend on a workspace or a target.

    Values that each run sets are not known yet; the submit checks what depends on them.
    """
    job = with_values(dict(step["job"]), values)
    job.setdefault("name", "step")  # its key has been checked
    job["inputs"] = {key: _as_stored(one) for key, one in (job.get("inputs") or {}).items()}
    job["outputs"] = {
        key: {"destination": "store/path", **one} if isinstance(one, Mapping) else one
        for key, one in (job.get("outputs") or {}).items()
    }
    found = []
    if job.pop("depends_on", None):
        found.append(Problem("depends_on", "is not for steps.", "Use `after`."))
    try:
        readable(job)
    except SpecError as error:
        found += error.problems
    found += file_problems(job)
    unknown = [key_text(at) for at, text in texts_in(job) if "${{" in text]
    for one in found:
        if not any(_is_due_to(one, path) for path in unknown):
            yield below(name, one)


def _is_due_to(problem: Problem, path: str) -> bool:
    """Whether a problem may disappear once the value at a path is known."""
    if _is_at(path, problem.path):
        return True
    # A file that is not found is a problem of the part of the job that names it.
    return problem.is_missing and _is_at(problem.path, path)


def _is_at(path: str, inner: str) -> bool:
    """Whether `inner` is a path or leads to something below it."""
    return inner == path or inner.startswith((f"{path}.", f"{path}["))


def _as_stored(one: Any) -> Any:
    """Return an input with a valid source for a job: a step's output has no job yet."""
    source = one.get("source") if isinstance(one, Mapping) else one
    if not isinstance(source, str) or not source.startswith((STEP, "${{")):
        return one
    stored = output_source("job", "output")
    return {**one, "source": stored} if isinstance(one, Mapping) else stored
