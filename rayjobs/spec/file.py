"""Spec files: reads and writes YAML or JSON, with short forms, options and old versions."""

from __future__ import annotations

import copy
import numbers
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayjobs.core.errors import NotFoundError, Problem, SpecError, UsageError
from rayjobs.core.numbers import is_whole
from rayjobs.core.text import GIB, MIB, size_text
from rayjobs.core.units import DURATIONS, SIZES, parse_size
from rayjobs.core.units import parse_duration as parse_duration
from rayjobs.spec.container_arguments import parse_shm_size
from rayjobs.spec.container_files import anchored_container
from rayjobs.spec.environment import anchored, resolved
from rayjobs.spec.model import JobSpec, json_schema
from rayjobs.spec.problems import SHORT_KEYS, key_text, problem_of
from rayjobs.spec.text import parse_json, parse_yaml, write_yaml

FILE_LIMIT = 512 * 1024  # bytes
SPEC_VERSION = 1
# Version n → the function that migrates it to version n + 1. JobSpec's version changes with it.
MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_CONVERT: Mapping[str, Callable[[Any], float]] = {
    "max_duration_s": parse_duration,
    "stall_timeout_s": parse_duration,
    "grace_s": parse_duration,
    "log_cap_mib": lambda value: parse_size(value, unit=MIB),
    "memory_gib": lambda value: parse_size(value, unit=GIB),
    "shm_mib": parse_shm_size,
}
_NOTHING = frozenset({"none", "never", "unlimited"})
# Maps whose entries may be a single text: part → the field for the text.
_ONE_TEXT = {"inputs": "source", "outputs": "destination"}


# -- in ----------------------------------------------------------------------------------------


def load_spec_file(path: str | Path, *, example: str = "script: train.py") -> dict[str, Any]:
    """Return the data of a spec file, with only its form checked; ``-`` reads standard input.

    A ``source_directory`` is relative to the file's folder, which is also the default. A file
    ``*.json`` is JSON, any other file YAML (1.2: ``yes`` and ``on`` are text). The error for other
    content shows `example`.

    Raises:
        NotFoundError: there is no such file.
        SpecError: not YAML or JSON, too large or deep, a repeated key, too many aliases.
    """
    if str(path) == "-":
        return load_spec_text(sys.stdin.read(FILE_LIMIT + 1), folder=Path.cwd(), example=example)
    file = Path(path).expanduser()
    if not file.exists():
        raise NotFoundError(f"there is no spec file {file}. Check its name")
    if not file.is_file():
        raise SpecError(f"the spec file {file} is not a plain file")
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_LIMIT + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"the spec file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"the spec file {file} is not UTF-8 text (byte {error.start})") from error
    return load_spec_text(
        text,
        name=str(file),
        folder=file.absolute().parent,
        is_json=file.suffix == ".json",
        example=example,
    )


def load_spec_text(
    text: str,
    *,
    name: str = "the spec",
    folder: Path | None = None,
    is_json: bool = False,
    example: str = "script: train.py",
) -> dict[str, Any]:
    """Return the data of a spec's text; see `load_spec_file`."""
    if len(text) > FILE_LIMIT:
        raise SpecError(f"{name} is larger than {size_text(FILE_LIMIT)}. Put data in files")
    data = parse_json(text, name) if is_json else parse_yaml(text, name)
    if not isinstance(data, dict):
        raise SpecError(f"{name} must contain `key: value` lines, such as `{example}`")
    if folder is not None:
        given = data.get("source_directory")
        if isinstance(given, str):
            data["source_directory"] = str(folder / Path(given).expanduser())
        elif given is None and data.get("script") is not None:
            data["source_directory"] = str(folder)
        if "environment" in data:
            data["environment"] = anchored(data["environment"], folder)
        if "container" in data:
            data["container"] = anchored_container(data["container"], folder)
    return data


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` (from a file) updated with `overrides` (from options); changes neither.

    Mappings are merged key by key; everything else is replaced. A script replaces a command, and
    vice versa.
    """
    below = canonical(base)
    above = canonical(overrides)
    for part, keys in SHORT_KEYS.items():
        over, under = (above, below) if not part else (above.get(part), below.get(part))
        if isinstance(over, dict) and isinstance(under, dict):
            for short, field in keys.items():
                if short in over:  # it replaces the field too; a later check reports an invalid one
                    under.pop(field, None)
    _one_source(below.get("container"), above.get("container"))
    if above.get("script") is not None:
        below.pop("command", None)
    if above.get("command") is not None:
        below.pop("script", None)
    return _merged(below, above)


def _one_source(below: Any, above: Any) -> None:
    """Let an image in `above` replace a Dockerfile in `below`, and vice versa."""
    if isinstance(below, dict) and isinstance(above, dict):
        for given, other in (("image", "dockerfile"), ("dockerfile", "image")):
            if above.get(given) is not None:
                below.pop(other, None)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result


def build_spec(data: Mapping[str, Any]) -> JobSpec:
    """Return the spec that `data` (from a file, options or a program) describes.

    Raises:
        SpecError: the data is wrong; lists all problems with their paths and remedies.
    """
    problems: list[Problem] = []
    migrated = _migrate(dict(data), problems)
    ready = canonical(migrated, problems)
    for entry in ("script", "command"):
        if ready.get(entry) == "":
            ready[entry] = None
    if (ready.get("script") is None) == (ready.get("command") is None):
        both = ready.get("script") is not None
        problems.append(
            Problem(
                "script",
                "cannot be combined with `command`."
                if both
                else "is missing, and so is `command`.",
                "Give exactly one of them, such as `script: train.py`.",
            )
        )
        ready["script"], ready["command"] = "-", None  # reported above; check the rest
    problems.extend(
        Problem(key_text(at), "has bytes that are not UTF-8 text.", "Put such data in a file.")
        for at in _undecodable(ready, ())
    )
    try:
        if "environment" in ready:
            ready["environment"] = resolved(ready["environment"])
    except SpecError as error:
        problems.extend(error.problems or (Problem("environment", f"{error.message}."),))
        ready["environment"] = None
    spec: JobSpec | None = None
    try:
        spec = JobSpec.model_validate(ready)
    except ValidationError as error:
        problems.extend(problem_of(detail) for detail in error.errors(include_url=False))
    if problems or spec is None:
        raise SpecError(problems=sorted(problems, key=lambda one: one.path))
    return spec


def _undecodable(value: Any, at: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the locations of text with lone surrogates (command-line bytes that are not text)."""
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            yield at
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if next(_undecodable(key, at), None) is not None:
                yield at
            yield from _undecodable(inner, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _undecodable(inner, (*at, index))


def canonical(data: Mapping[str, Any], problems: list[Problem] | None = None) -> dict[str, Any]:
    """Return `data` with the spec's own keys and units; does not change `data`.

    Invalid short forms are added to `problems` and removed. Without `problems`, they stay for a
    later call.
    """
    result = copy.deepcopy({**data})
    for part, keys in SHORT_KEYS.items():
        holder = result if not part else result.get(part)
        if isinstance(holder, dict):
            for short, field in keys.items():
                _convert(holder, f"{part}." if part else "", short, field, problems)
    if isinstance(result.get("arguments"), list | tuple):
        result["arguments"] = [_text(value) for value in result["arguments"]]
    for part in ("environment_variables", "tags"):
        if isinstance(result.get(part), dict):
            result[part] = {key: _text(value) for key, value in result[part].items()}
    _write_out(result)
    if problems is not None:
        _check_secrets(result, problems)
    return result


def _write_out(result: dict[str, Any]) -> None:
    """Turn each part that is written as one value into the mapping or list that it stands for."""
    for part, field in _ONE_TEXT.items():
        if isinstance(result.get(part), dict):
            result[part] = {
                key: {field: value} if isinstance(value, str) else value
                for key, value in result[part].items()
            }
    if isinstance(result.get("depends_on"), list | tuple):
        result["depends_on"] = [
            {"job": value} if isinstance(value, str) else value for value in result["depends_on"]
        ]
    if isinstance(result.get("notify"), str):
        result["notify"] = [result["notify"]]
    if isinstance(result.get("container"), str):
        result["container"] = {"image": result["container"]}
    retries = result.get("retries")
    if is_whole(retries):
        result["retries"] = {"user": retries}


def _convert(
    holder: dict[str, Any], prefix: str, short: str, field: str, problems: list[Problem] | None
) -> None:
    if short in holder and field in holder:
        if problems is None:
            return
        del holder[field]
        problems.append(
            Problem(prefix + short, f"cannot be combined with `{field}`.", "Give only one of them.")
        )
    key = short if short in holder else field
    if key not in holder:
        return
    value = holder[key]
    if isinstance(value, str) and value.strip().lower() in _NOTHING:
        value = None
    try:
        converted = None if value is None else _CONVERT[field](value)
    except (UsageError, TypeError) as error:
        if problems is not None:
            del holder[key]
            form = SIZES if field.endswith("ib") else DURATIONS
            message = error.message if isinstance(error, UsageError) else f"{value!r}: {form}"
            problems.append(Problem(prefix + key, f"{message}."))
        return
    del holder[key]
    holder[field] = converted


def _text(value: Any) -> Any:
    """Return numbers and paths as text, as on a command line."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, numbers.Number) else value


def _check_secrets(data: dict[str, Any], problems: list[Problem]) -> None:
    """Turn ``NAME: RAYJOBS_SECRET_X`` into a reference; refuse literal values, never shown."""
    secrets = data.get("secrets")
    if not isinstance(secrets, dict):
        return
    for name, value in list(secrets.items()):
        if isinstance(value, str) and value.startswith("RAYJOBS_SECRET_"):
            secrets[name] = {"env": value}
        elif not isinstance(value, Mapping):
            del secrets[name]
            problems.append(
                Problem(
                    f"secrets.{name}",
                    "is not a reference. Values of secrets are never part of a spec.",
                    f"Set RAYJOBS_SECRET_{str(name).upper()} on the target and write "
                    f"`{name}: {{env: RAYJOBS_SECRET_{str(name).upper()}}}`, or give `file`.",
                )
            )


def _migrate(data: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    version = data.get("version", SPEC_VERSION)
    if not is_whole(version, at_least=1):
        problems.append(Problem("version", f"{version!r} is not a version.", "Write `version: 1`."))
        return {**data, "version": SPEC_VERSION}
    if version > SPEC_VERSION:
        raise SpecError(
            problems=[
                Problem(
                    "version",
                    f"{version} was written for a newer rayjobs; this one reads up to "
                    f"{SPEC_VERSION}.",
                    "Upgrade rayjobs.",
                )
            ]
        )
    while version < SPEC_VERSION:
        data = MIGRATIONS[version](data)
        version += 1
        data["version"] = version
    return data


# -- out ---------------------------------------------------------------------------------------


def dump_spec(spec: JobSpec, *, with_defaults: bool = False) -> str:
    """Return the spec as YAML; loading the YAML gives an equal spec."""
    data = spec.model_dump(mode="json", exclude_defaults=not with_defaults)
    return write_yaml({"version": data.pop("version", SPEC_VERSION), **data})


def editor_schema() -> dict[str, Any]:
    """Return the JSON schema of spec files: the spec's own, plus the short forms."""
    schema = json_schema()
    definitions = schema["$defs"]
    duration = {
        "anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}, {"type": "null"}],
        "examples": ["6h", "30m", "1d12h"],
    }
    size = {
        "anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}, {"type": "null"}],
        "examples": ["8GiB", "512MiB"],
    }
    properties = schema["properties"]
    for short, field in SHORT_KEYS[""].items():
        form = size if field.endswith("_mib") else duration
        properties[short] = {**form, "description": f"The same as `{field}`, with a unit."}
    definitions["Container"]["properties"]["shm_size"] = {
        **size,
        "examples": ["2g", "512m"],
        "description": "Size of /dev/shm, with a unit; the same as `shm_mib`. A number is bytes.",
    }
    definitions["Registry"]["properties"]["password"]["anyOf"].append({"type": "string"})
    properties["container"]["anyOf"].append({"type": "string"})
    definitions["Resources"]["properties"]["memory"] = {
        **size,
        "description": "Memory per process, with a unit; the same as `memory_gib`.",
    }
    _with_files(definitions["Packages"]["properties"])
    scalar = {"type": ["string", "number", "boolean"]}
    properties["arguments"]["items"] = scalar
    for part in ("environment_variables", "tags"):
        properties[part]["additionalProperties"] = scalar
        if "patternProperties" in properties[part]:
            patterns = properties[part]["patternProperties"]
            properties[part]["patternProperties"] = dict.fromkeys(patterns, scalar)
            properties[part]["additionalProperties"] = False
    for part in ("inputs", "outputs", "secrets"):
        for key, value in properties[part].get("patternProperties", {}).items():
            properties[part]["patternProperties"][key] = {"anyOf": [value, {"type": "string"}]}
    items = properties["depends_on"]["items"]
    properties["depends_on"]["items"] = {"anyOf": [items, {"type": "string"}]}
    properties["notify"] = {"anyOf": [properties["notify"], {"type": "string"}]}
    properties["array"] = {
        "anyOf": [{"$ref": "#/$defs/Array"}, {"type": ["string", "integer", "null"]}],
        "examples": ["0-15", "0-15%4", "1,3,8-20:4"],
    }
    properties["retries"] = {
        "anyOf": [{"$ref": "#/$defs/Retries"}, {"type": "integer", "minimum": 0, "maximum": 100}],
        "description": "Retries per failure class; a single number is for the class `user`.",
    }
    schema["description"] = "A rayjobs job: what to run, with what, where and for how long."
    return schema


def _with_files(properties: dict[str, Any]) -> None:
    """Add the environment keys that spec files may have and stored specs do not."""
    properties["pip"] = {"anyOf": [properties["pip"], {"type": "string"}]}
    properties["python"]["anyOf"].append({"type": "number"})  # 3.10 is read as written
    # Everything under `environment` is read as written.
    properties["link_scripts"]["anyOf"] = [
        {"type": properties["link_scripts"].pop("type")},
        {"enum": ["true", "false"]},
    ]
    description = "Requirements file, relative to this file."
    properties["requirements"] = {"type": "string", "description": description}
    properties["conda"] = {
        "anyOf": [properties["conda"], {"type": "string"}],
        "description": "Conda packages, or a conda specification file, relative to this file.",
    }
