"""The options of `submit` as part of a spec: raw texts, validated together with the rest."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from rayjobs.core.errors import CannotBePlacedError, Problem, SpecError
from rayjobs.spec.problems import SHORT_KEYS

Function = TypeVar("Function", bound=Callable[..., Any])

# Option → its path in the spec. One table for help, merge and messages.
PLAIN: Mapping[str, str] = {
    "name": "name",
    "nodes": "distribution.nodes",
    "procs_per_node": "distribution.processes_per_node",
    "backend": "distribution.backend",
    "cpus_per_proc": "resources.cpus",
    "gpus_per_proc": "resources.gpus",
    "memory_per_proc": "resources.memory",
    "max_duration": "max_duration",
    "grace": "grace",
    "stall_timeout": "stall_timeout",
    "log_cap": "log_cap",
    "priority": "priority",
    "array": "array",
    "env": "environment",
    "shm_size": "container.shm_size",
    "resume_from": "resume_from",
    "target": "target",
}
MODES = ("mount", "download", "direct")
OUTPUT_MODES = ("upload", "mount")
BACKENDS = ("none", "gloo", "nccl", "mpi", "horovod-gloo")


def _option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    return click.option(*names, **settings)


# In the order of the help. Numbers are plain texts here: the spec's own check reports all problems
# at once, each with its remedy.
_OPTIONS: Sequence[Callable[[Any], Any]] = (
    _option(
        "-n",
        "--name",
        metavar="NAME",
        help="Name of the job (default: the script's name, numbered).",
    ),
    _option("--nodes", metavar="N", help="Number of nodes [1]."),
    _option("--procs-per-node", metavar="N", help="Processes on each node [1]."),
    _option(
        "--backend",
        metavar="|".join(BACKENDS),
        help="Communication backend between processes [none]; Horovod: mpi or horovod-gloo.",
    ),
    _option("--cpus-per-proc", metavar="N", help="CPUs for each process [1]."),
    _option("--gpus-per-proc", metavar="N", help="GPUs for each process; 0.5 shares one [0]."),
    _option("--memory-per-proc", metavar="SIZE", help="Memory limit of a process, e.g. 8GiB."),
    _option(
        "--node-type",
        multiple=True,
        metavar="NAME|SIZE",
        help="Only on nodes of this type of the target, or of this machine size; repeatable.",
    ),
    _option(
        "--spot/--no-spot",
        default=None,
        help="Only on nodes that the provider may reclaim, or only on others.",
    ),
    _option(
        "--max-duration", metavar="TIME", help="Time limit of an attempt, e.g. 6h; none: no limit."
    ),
    _option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL [10s]."),
    _option(
        "--stall-timeout",
        metavar="TIME",
        help="End an attempt that has produced no output for this long.",
    ),
    _option(
        "--retries",
        multiple=True,
        metavar="N|CLASS=N",
        help="Retries after a failure of the script, or of a class: node_lost=5.",
    ),
    _option(
        "--preemptible",
        is_flag=True,
        default=None,
        help="May be preempted by a job of higher priority.",
    ),
    _option("--priority", metavar="N", help="Jobs of higher priority start earlier [0]."),
    _option(
        "--after",
        multiple=True,
        metavar="JOB[:ok|any]",
        help="Start when JOB (or array, or sweep) has completed; with :any, when it has ended. "
        "Repeatable.",
    ),
    _option(
        "--array",
        metavar="INDICES[%N]",
        help="One job for each of 0-15 or 1,3,8; %4: four at a time. See $RAYJOBS_ARRAY_INDEX.",
    ),
    _option(
        "--env",
        metavar="PATH|FILE",
        help="Python or virtual environment on the target, or a requirements.txt or "
        "environment.yml.",
    ),
    _option(
        "--pip",
        multiple=True,
        metavar="PACKAGE",
        help="A package to add to the job's environment, such as 'numpy>=2'; repeatable.",
    ),
    _option(
        "--image",
        metavar="IMAGE",
        help="Run inside this image: a name, or on the target an archive or a folder.",
    ),
    _option(
        "--dockerfile",
        metavar="FILE",
        help="Run inside the image that this Dockerfile builds on the node.",
    ),
    _option("--shm-size", metavar="SIZE", help="Size of the container's /dev/shm [2g]."),
    _option(
        "--docker-arg",
        multiple=True,
        metavar="ARG",
        help="Another argument of `docker run`, e.g. --volume=/a:/b:ro; repeatable.",
    ),
    _option(
        "--env-var", multiple=True, metavar="K=V", help="An environment variable of the script."
    ),
    _option(
        "--secret",
        multiple=True,
        metavar="NAME=env:VAR|file:PATH",
        help="A secret variable; VAR (RAYJOBS_SECRET_…) is exported here or set by `target "
        "secret`.",
    ),
    _option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=STORE/PATH|dataset:D[:V][:MODE]",
        help="Data for the script; MODE is mount, download or direct. See `rayjobs data`.",
    ),
    _option(
        "--output",
        "outputs",
        multiple=True,
        metavar="NAME[=STORE/PATH[:MODE]]",
        help="A folder stored at the end (:upload), or while the job runs (:mount); :overwrite "
        "replaces stored files.",
    ),
    _option(
        "--resume-from",
        metavar="RUN|PATH",
        help="Continue from a checkpoint; passed on as --resume-from DIR.",
    ),
    _option(
        "--notify",
        multiple=True,
        metavar="[STATE=]URL|MAILBOX",
        help="Whom to notify when it ends; STATE: failed, completed, canceled. Repeatable.",
    ),
    _option("--tag", "tags", multiple=True, metavar="K=V", help="A label; repeatable."),
    _option(
        "--source",
        metavar="DIR",
        help="Folder to pack (default: the script's own; for a command: none).",
    ),
    _option("-c", "--command", metavar="TEXT", help="Shell text to run instead of a script."),
    _option(
        "--target",
        metavar="NAME",
        help="Where to run (default: see `rayjobs target use`).",
    ),
    _option("--cold", is_flag=True, default=None, help="A fresh interpreter for each process."),
    _option(
        "--strict",
        is_flag=True,
        default=None,
        help="Refuse the job if packages of the environment would be substituted.",
    ),
    _option("--log-cap", metavar="SIZE", help="Keep the start and end of a longer log [1GiB]."),
)


def spec_options(function: Function) -> Function:
    """Add the options for what to run, with what, where and for how long."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function


def from_options(
    script: str | None,
    arguments: Sequence[str],
    options: Mapping[str, Any],
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the part of the spec that the options set; options that were not given are left out.

    A script is relative to the working directory. Its folder is the source directory unless
    `--source` names one. Invalid texts are added to `problems`.
    """
    data: dict[str, Any] = {}
    for option, path in PLAIN.items():
        if options.get(option) is not None:
            _put(data, path, options[option])
    for flag in ("preemptible", "cold", "strict"):
        if options.get(flag):
            data[flag] = True
    if options.get("node_type"):
        _put(data, "resources.node_types", list(options["node_type"]))
    if options.get("spot") is not None:
        _put(data, "resources.spot", options["spot"])
    _set_environment(data, options, problems)
    _set_container(data, options)
    if options.get("command") is not None:
        data["command"] = options["command"]
    _set_entry(data, script, options.get("source"))
    if arguments:
        data["arguments"] = list(arguments)
    _set_named(data, options, problems)
    if options.get("notify"):
        data["notify"] = list(options["notify"])
    if options.get("after"):
        data["depends_on"] = [_after(text) for text in options["after"]]
    return data


OVERWRITE = "overwrite"  # may follow an output's path, as its mode may
# Short keys that options set → the fields that problems name.
_FIELDS: Mapping[str, str] = {
    f"{part}.{short}" if part else short: f"{part}.{field}" if part else field
    for part, keys in SHORT_KEYS.items()
    for short, field in keys.items()
}
# Parts of a spec with named entries → the option that adds one.
NAMED: Mapping[str, str] = {
    "inputs": "--input",
    "outputs": "--output",
    "secrets": "--secret",
    "environment_variables": "--env-var",
    "tags": "--tag",
    "retries": "--retries",
}


def named_by_option(
    error: SpecError | CannotBePlacedError,
    options: Mapping[str, Any],
    *,
    only_options: bool = False,
    defaults: Mapping[str, str] | None = None,
) -> SpecError | CannotBePlacedError:
    """Return the error, with its problems named after the options that were typed.

    Args:
        defaults: Fields that a default set, and where the default comes from.
        only_options: There is no job file, so an option can fix every problem.
    """
    typed = _typed(options, only_options=only_options) | dict(defaults or {})
    for short, field in _FIELDS.items():
        if short in typed:
            typed[field] = typed[short]
    if "array" in typed:
        typed |= dict.fromkeys(("array.indices", "array.limit"), typed["array"])
    given = {part: flag for part, flag in NAMED.items() if only_options or options.get(part)}
    for option, part in (("env_var", "environment_variables"), ("secret", "secrets")):
        if options.get(option):
            given[part] = NAMED[part]
    problems = [
        replace(
            problem,
            path=_in_options(problem.path, typed, given),
            message=_in_options(problem.message, typed, {}),
            remedy=_in_options(problem.remedy, typed, {}),
        )
        for problem in error.problems
    ]
    kind = SpecError if isinstance(error, SpecError) else CannotBePlacedError
    renamed = kind(error.headline, problems=problems)
    renamed.__cause__ = error.__cause__
    return renamed


def _typed(options: Mapping[str, Any], *, only_options: bool) -> dict[str, str]:
    """Return the typed option for each path of a spec that an option sets."""
    typed = {
        path: _flag(option)
        for option, path in PLAIN.items()
        if only_options or options.get(option) is not None
    }
    for option in ("image", "dockerfile"):
        if only_options or options.get(option) is not None:
            typed[f"container.{option}"] = _flag(option)
    for option, path in (("after", "depends_on"), ("notify", "notify")):
        if only_options or options.get(option):
            typed[path] = _flag(option)
    if options.get("node_type"):
        typed["resources.node_types"] = "--node-type"
    if options.get("spot") is not None:
        typed["resources.spot"] = "--spot" if options["spot"] else "--no-spot"
    return typed


def _in_options(text: str, typed: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Return a text in which each path of a spec is replaced by what was typed for it."""
    for path, flag in sorted(typed.items(), key=lambda one: -len(one[0])):
        if "." not in path and text != path and not text.startswith(f"{path}["):
            continue  # a plain word, such as target or priority: replace it only as a whole path
        name = re.escape(path)
        # "Set resources.gpus=1 (`--gpus-per-proc 1`)": the text already names the option.
        text = re.sub(rf"(?<![\w.]){name}(?:=\S+)? \((`--[^`]*`)\)", r"\1", text)
        text = re.sub(rf"(?<![\w.]){name}(?![\w]|\.\w)(?:\[\d+\](?:\.\w+)?)?", flag, text)
    for part, flag in given.items():
        text = re.sub(rf"^{part}\.([\w-]+(?: [^.]*)?)(?:\.\w+)*$", rf"{flag} \1", text)
    return text


def _set_named(data: dict[str, Any], options: Mapping[str, Any], problems: list[Problem]) -> None:
    """Set the parts with named entries: variables, tags, secrets, inputs, outputs, retries."""
    readers: Sequence[tuple[str, str, Callable[[str], tuple[str, Any]]]] = (
        ("env_var", "environment_variables", _pair),
        ("tags", "tags", _pair),
        ("secret", "secrets", _secret),
        ("inputs", "inputs", _input),
        ("outputs", "outputs", _output),
        ("retries", "retries", _retry),
    )
    for option, part, read in readers:
        first: dict[str, str] = {}
        for text in options.get(option) or ():
            shown = text.partition("=")[0] if part == "secrets" else text
            try:
                name, value = read(text)
            except ValueError as error:
                problems.append(Problem(_flag(option), f"{shown!r} {error}."))
                continue
            given = data.setdefault(part, {})
            if given.get(name, value) != value:
                both = "twice" if part == "secrets" else f"as {first[name]!r} and as {shown!r}"
                problems.append(Problem(_flag(option), f"{name!r} is given {both}.", "Give one."))
                continue
            given[name] = value
            first[name] = shown


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *parts, last = path.split(".")
    for part in parts:
        data = data.setdefault(part, {})
    data[last] = value


def _set_entry(data: dict[str, Any], script: str | None, source: str | None) -> None:
    if script is None:
        if source is not None:
            data["source_directory"] = str(Path(source).expanduser().absolute())
        return
    path = _absolute(script)
    folder = path.parent if source is None else _absolute(source)
    if source is not None and not path.exists() and (folder / script).is_file():
        path = folder / script  # named by its path in the source directory
    data["source_directory"] = str(folder)
    data["script"] = os.path.relpath(path, folder)


def _set_environment(
    data: dict[str, Any], options: Mapping[str, Any], problems: list[Problem]
) -> None:
    """Set the environment: a path on the target, a local package file, or packages."""
    named, packages = options.get("env"), list(options.get("pip") or ())
    if named is None and not packages:
        return
    from rayjobs.spec import environment as reading

    if named is not None:
        path = Path(named).expanduser()
        # A relative path starts at the current folder; the target works in another folder.
        named = str(path.absolute()) if path.exists() or reading.is_file_name(named) else str(path)
    if not packages:
        data["environment"] = named
    elif named is None:
        data["environment"] = {"pip": packages}
    elif named.endswith(".txt"):
        data["environment"] = {"requirements": named, "pip": packages}
    elif reading.is_file_name(named):
        problems.append(
            Problem("--pip", "does not work with a conda file.", "Write it into that file.")
        )
    else:
        data["environment"] = {"python": named, "pip": packages}


def _set_container(data: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set the image; paths are relative to the working directory."""
    from rayjobs.spec.container_files import anchored_container

    given = {key: options[key] for key in ("image", "dockerfile") if options.get(key) is not None}
    if given:
        _put(
            data,
            "container",
            {**data.get("container", {}), **anchored_container(given, Path.cwd())},
        )
    if options.get("docker_arg"):
        _put(data, "container.arguments", list(options["docker_arg"]))


def _absolute(text: str) -> Path:
    # Do not follow links: a linked script's folder is where the link is, as for Python.
    return Path(os.path.normpath(Path(text).expanduser().absolute()))


def _flag(option: str) -> str:
    names = {"tags": "tag", "inputs": "input", "outputs": "output"}
    return "--" + names.get(option, option).replace("_", "-")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError("has no NAME=; write it as NAME=VALUE")
    return name, value


def _secret(text: str) -> tuple[str, dict[str, str]]:
    name, separator, reference = text.partition("=")
    kind, _, value = reference.partition(":")
    if not separator or not name or kind not in ("env", "file") or not value:
        # The text may be the secret itself, so it is not shown.
        raise ValueError(
            "is not a reference; write NAME=env:RAYJOBS_SECRET_X, or NAME=file:PATH on the target"
        )
    return name, {kind: value}


def _input(text: str) -> tuple[str, dict[str, str]]:
    name, separator, source = text.partition("=")
    if not separator or not name or not source:
        raise ValueError("names no data; write NAME=datastore/path:mount, or NAME=dataset:D:2")
    before, colon, mode = source.rpartition(":")
    if colon and mode in MODES:
        return name, {"source": before, "mode": mode}
    if colon and difflib.get_close_matches(mode, MODES, n=1):
        raise ValueError(f"has the unknown mode {mode!r}; the modes are {', '.join(MODES)}")
    return name, {"source": source}


def _output(text: str) -> tuple[str, dict[str, Any]]:
    name, separator, destination = text.partition("=")
    if not name:
        raise ValueError("has no name; write NAME, or NAME=datastore/path")
    if not separator:
        return name, {}
    found: dict[str, Any] = {}
    while ":" in destination:
        before, _, word = destination.rpartition(":")
        if word in OUTPUT_MODES:
            found["mode"] = word
        elif word == OVERWRITE:
            found["overwrite"] = True
        elif difflib.get_close_matches(word, [*OUTPUT_MODES, *MODES, OVERWRITE], n=1):
            raise ValueError(
                f"ends with {word!r}; the modes of an output are {', '.join(OUTPUT_MODES)}, and "
                f"`:{OVERWRITE}` replaces stored files"
            )
        else:
            break  # a colon in the path
        destination = before
    return name, {"destination": destination, **found}


def _retry(text: str) -> tuple[str, str]:
    name, separator, count = text.partition("=")
    return (name.strip(), count.strip()) if separator else ("user", text.strip())


def _after(text: str) -> dict[str, str]:
    job, separator, when = text.rpartition(":")
    return {"job": job, "when": when} if separator else {"job": text}
