"""Reads and writes sweep files, with every problem of a file in one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayjobs.core.errors import Problem, SpecError
from rayjobs.core.text import counted
from rayjobs.spec import components
from rayjobs.spec.text import parse_yaml
from rayjobs.spec.text import write_yaml as dump_yaml
from rayjobs.tuning.errors import SweepError, problem
from rayjobs.tuning.spec import SweepSpec, parse_sweep


def load_sweep(path: str | Path) -> SweepSpec:
    """Return the sweep in a YAML or JSON file.

    A relative ``job.source_directory`` is relative to the file's folder; without one, the file's
    folder is the source directory. ``job.component`` names code that comes with rayjobs.

    Raises:
        SweepError: the file cannot be read or is wrong; lists everything with path and remedy.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise problem(
            str(file),
            "there is no such file.",
            "Give the path of a sweep's YAML file.",
            is_missing=True,
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise problem(str(file), f"the file cannot be read: {exc}.", "") from exc
    data = read_yaml(text, where=str(file))
    job = data.get("job")
    if isinstance(job, dict):
        data["job"] = job = _with_source(job, file.parent)
    try:
        return parse_sweep(data, where=str(file))
    except SweepError as error:
        if not isinstance(job, dict):
            raise
        from rayjobs.tuning.submitter import job_problems  # only before an error

        problems = [*error.problems, *job_problems(data["job"])]
        message = f"{file} has {counted(len(problems), 'problem')}"
        raise SweepError(message, problems=problems) from None


def _with_source(job: dict[str, Any], base: Path) -> dict[str, Any]:
    if "component" not in job:
        folder = Path(str(job.get("source_directory") or "."))
        return {**job, "source_directory": str((base / folder).absolute())}
    name = job["component"]
    source = components.component_folder(name)
    if source is None:
        raise problem("job.component", f"{name!r} is not a component.", components.remedy())
    return {**{k: one for k, one in job.items() if k != "component"}, "source_directory": source}


def read_yaml(text: str, *, where: str = "the sweep") -> dict[str, Any]:
    """Return the mapping in a YAML text.

    Raises:
        SweepError: it is not YAML, not a mapping, or has a key twice; the message has line and
            column.
    """
    try:
        data = parse_yaml(text, where)
    except SpecError as error:
        raise SweepError(error.message) from error
    if not isinstance(data, dict):
        raise SweepError(
            f"{where} is not a sweep",
            problems=[
                Problem("", f"it contains {type(data).__name__} data.", "Write keys and values.")
            ],
        )
    return data


def write_yaml(spec: SweepSpec) -> str:
    """Return the sweep as YAML that `load_sweep` reads back, including defaults."""
    return dump_yaml(spec.model_dump(mode="json"))
