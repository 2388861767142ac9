"""Writes docs/reference/: every key of `job.yaml` and `sweep.yaml`, from the models themselves.

`check_docs` fails when a file is not what this writes. A key without a sentence in the docstring of
its model ("Attributes:") is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from files import ROOT

from rayjobs.spec import model as spec
from rayjobs.spec.file import editor_schema
from rayjobs.spec.problems import SHORT_KEYS
from rayjobs.tuning import expressions, policies, samplers
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.spec import Limits, SweepSpec

FOLDER = ROOT / "docs" / "reference"
NOTE = "This page is written by `tools/reference.py` from the models."

JOB = f"""\
# Job files

Every key of `job.yaml`, which `rayjobs submit -f job.yaml` reads.
{NOTE}

```yaml
script: train.py
arguments: [--epochs, 5]
resources: {{gpus: 1, memory: 8GiB}}
max_duration: 6h
retries: 1
inputs:
  data: dataset:digits:2
```

Only `script` (or `command`) is required. Options of `rayjobs submit` override the file. For
completion in an editor, write the JSON schema with `rayjobs schema`. A duration is `30s`, `6h` or
`1d12h`, a size `512MiB` or `8GiB`; an empty default means none.
"""

SWEEP = f"""\
# Sweep files

Every key of `sweep.yaml`, which `rayjobs sweep create -f sweep.yaml` reads.
{NOTE} The [guide](../guides/sweeps.md) says what
each sampling and policy does.

```yaml
name: mnist
job: {{script: train.py}}
sampling:
  type: random
  parameters:
    --lr: {{loguniform: [-9, -2]}}
metric: accuracy
goal: maximize
limits: {{total: 24, concurrent: 4}}
```
"""

NAMES = {"integer": "whole number", "string": "text", "boolean": "true or false"}
UNITS = {"_s": " s", "_mib": " MiB", "_gib": " GiB"}
# Keys of a sweep whose values are not of a plain type.
SWEEP_FORMS = {
    "job": "keys of a [job file](job.md)",
    "sampling": "[a sampling](#sampling)",
    "policy": "[a policy](#policy)",
    "goal": "one of " + ", ".join(f"`{one.value.lower()}`" for one in PrimaryMetricGoal),
    "limits": "[limits](#limits)",
    "resume_from": "list of text",
    "resume_trials": "list of text",
}


def meanings(model: type) -> dict[str, str]:
    """Return the meaning of each attribute from a class's docstring, as Markdown."""
    text = inspect.getdoc(model) or ""
    _, _, attributes = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    for match in re.finditer(
        r"^    (\w+): (.+?)(?=^    \w+: |^\S|\Z)", attributes, re.MULTILINE | re.DOTALL
    ):
        sentence = " ".join(match[2].split()).replace("``", "`").replace("|", "\\|")
        sentence = re.sub(r"(^|[.] )None\b", r"\1Empty", sentence)
        found[match[1]] = sentence.replace("None", "empty")
    return found


def first_sentence(model: type) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(model) or "").splitlines()[0].replace("``", "`").replace("|", "\\|")


def table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """Return a table of keys."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def default_of(name: str, field: Any) -> str:
    """Return a pydantic field's default, as written in a file."""
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or value == () or value == {}:
        return ""
    if isinstance(value, policies.NoTerminationPolicy):
        return "`none`"
    if dataclasses.is_dataclass(value) or isinstance(value, spec.Model):
        return ""
    text = (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return f"`{text}`{unit}"


def form_of(schema: Mapping[str, Any], link: Callable[[str], str]) -> str:
    """Return a description of the values of a JSON schema."""
    if "examples" in schema:
        shown = ", ".join(f"`{one}`" for one in schema["examples"])
        if "anyOf" in schema and any("$ref" in one for one in schema["anyOf"]):
            return f"{shown}, or {form_of(schema['anyOf'][0], link)}"
        return shown
    if "$ref" in schema:
        return link(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    for kind in ("anyOf", "oneOf"):
        if kind in schema:
            forms = [form_of(one, link) for one in schema[kind] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(forms))
    if isinstance(schema.get("type"), list):
        return " or ".join(NAMES.get(one, one) for one in schema["type"] if one != "null")
    if schema.get("type") == "array":
        return f"list of {form_of(schema.get('items', {}), link)}"
    if schema.get("type") == "object":
        inner = next(iter(schema.get("patternProperties", {}).values()), None)
        inner = inner or schema.get("additionalProperties") or {}
        return f"name: {form_of(inner, link)}" if isinstance(inner, Mapping) else "mapping"
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in schema
    ]
    name = NAMES.get(schema.get("type", ""), schema.get("type", "any"))
    return " ".join([name, ", ".join(bounds)]).strip()


def section(
    model: type[spec.Model], properties: Mapping[str, Any], short: Mapping[str, str]
) -> str:
    """Return the table of a model's keys; keys in `short`, with units, replace the fields."""
    texts = meanings(model)
    by_field = {field: key for key, field in short.items()}
    rows = []
    for name, field in model.model_fields.items():
        key = by_field.get(name, name)
        if name not in texts:
            raise SystemExit(f"{model.__name__}: the docstring does not describe {name!r}")
        meaning = texts[name]
        if key != name:
            meaning = re.sub(r" in (seconds|MiB|GiB)\b", "", meaning)
            meaning = meaning.replace("Seconds between", "Time between")
            meaning = meaning.replace("this many seconds", "this time")
            meaning += f" `{name}` takes a number."
        rows.append(
            (f"`{key}`", form_of(properties[key], anchor), default_of(name, field), meaning)
        )
    for key, schema in properties.items():
        if key not in model.model_fields and key not in short:
            rows.append((f"`{key}`", form_of(schema, anchor), "", schema["description"]))
    return table(rows)


# The key of each part of a spec, by the name of its model, which is also that of its schema.
PARTS = {
    "Resources": "resources",
    "Distribution": "distribution",
    "Input": "inputs",
    "Output": "outputs",
    "Registration": "register_as",
    "SecretRef": "secrets",
    "Packages": "environment",
    "Container": "container",
    "Registry": "registry",
    "ParallelRun": "parallel_run",
    "Retries": "retries",
    "Dependency": "depends_on",
    "Array": "array",
    "Substitute": "substitutes",
}
NOTES = {
    "Input": "One entry; text alone, such as `photos/mnist`, is its `source`.",
    "Output": "One entry; text alone is its `destination`.",
    "SecretRef": "One entry; give exactly one of the two. Text alone is the variable.",
    "Packages": "Text alone is the path of an interpreter, environment or requirements file.",
    "Container": "Text alone is its `image`.",
    "Registry": "Below `container`.",
    "Retries": "A number alone is `user`.",
    "Dependency": "One entry; text alone is the job.",
}


def anchor(name: str) -> str:
    """Return a link to the section of a part of a spec."""
    return f"[{PARTS[name]}](#{PARTS[name]})"


def job_text() -> str:
    """Return docs/reference/job.md."""
    schema = editor_schema()
    parts = [
        JOB,
        "## Keys of a job\n\n" + section(spec.JobSpec, schema["properties"], SHORT_KEYS[""]),
    ]
    for name, key in PARTS.items():
        model = getattr(spec, name)
        lines = [f"## {key}", first_sentence(model) + (f" {NOTES[name]}" if name in NOTES else "")]
        short = SHORT_KEYS.get(key, {})
        lines.append(section(model, schema["$defs"][name]["properties"], short))
        parts.append("\n\n".join(lines))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def settings_of(cls: type) -> str:
    """Return the settings of a policy as `name: default`."""
    found = [
        f"`{one.name}` ({one.default:g})"
        if isinstance(one.default, int | float) and not isinstance(one.default, bool)
        else f"`{one.name}`"
        for one in dataclasses.fields(cls)
        if one.name in inspect.signature(cls).parameters
    ]
    return ", ".join(found)


def sweep_text() -> str:
    """Return docs/reference/sweep.md."""
    texts = meanings(SweepSpec)
    rows = []
    for name, field in SweepSpec.model_fields.items():
        if name not in texts:
            raise SystemExit(f"SweepSpec: the docstring does not describe {name!r}")
        form = SWEEP_FORMS.get(name, "`1`" if name == "version" else "text")
        rows.append((f"`{name}`", form, default_of(name, field), texts[name]))
    limits = Limits.model_json_schema()["properties"]
    texts = meanings(Limits)
    limit_rows = [
        (f"`{name}`", form_of(limits[name], anchor), default_of(name, field), texts[name])
        for name, field in Limits.model_fields.items()
    ]
    kinds = [getattr(samplers, name) for name in samplers.__all__ if name.endswith("Sampling")]
    sampling_rows = [
        f"| `{one.kind}` | {', '.join(f'`{name}`' for name in one.known_properties)} "
        f"| {first_sentence(one)} |"
        for one in kinds
        if not inspect.isabstract(one) and hasattr(one, "kind")
    ]
    of_policies = [getattr(policies, name) for name in policies.__all__ if name.endswith("Policy")]
    policy_rows = [
        f"| `{one.kind}` | {settings_of(one)} | {first_sentence(one)} |"
        for one in of_policies
        if hasattr(one, "kind")
    ]
    forms = [
        one
        for _, one in inspect.getmembers(expressions, inspect.isclass)
        if issubclass(one, expressions.Expression)
        and one is not expressions.Expression
        and not inspect.isabstract(one)
    ]
    expression_rows = [
        f"| `{one.name}` | {', '.join(f'`{field.name}`' for field in dataclasses.fields(one))} "
        f"| {first_sentence(one)} |"
        for one in sorted(forms, key=lambda one: str(one.name))
    ]
    head = "| {} | settings (default) | meaning |\n|---|---|---|"
    return (
        "\n\n".join(
            [
                SWEEP.strip(),
                "## Keys of a sweep\n\n" + table(rows),
                "## limits\n\n" + table(limit_rows),
                "## sampling\n\n`type` is one of these; `parameters` maps each parameter to an "
                "[expression](#expressions).\n\n"
                + head.format("type")
                + "\n"
                + "\n".join(sampling_rows),
                "## policy\n\n`type` is one of these.\n\n"
                + head.format("type")
                + "\n"
                + "\n".join(policy_rows),
                "## Expressions\n\nFor example `{uniform: [0, 1]}` or `{choice: [32, 64]}`.\n\n"
                + "| name | takes | a value is |\n|---|---|---|\n"
                + "\n".join(expression_rows),
            ]
        )
        + "\n"
    )


def texts() -> dict[str, str]:
    """Return the required content of each file, by name."""
    return {"job.md": job_text(), "sweep.md": sweep_text()}


def stale() -> list[str]:
    """Return a sentence for each file that does not match the models."""
    found = []
    for name, text in texts().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(f"docs/reference/{name}: is not up to date: run tools/reference.py")
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"written: {', '.join(texts())}")
