"""Checks of a spec beyond its form: against its files, its target and the rules.

A script with a syntax error is not refused, since the target's Python may differ. It fails when it
runs, without a retry.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rayjobs.core.errors import CannotBePlacedError, PrepareError, Problem, SpecError
from rayjobs.policy.capacity import GRAIN, Capacity, fits_ever
from rayjobs.snapshots.secrets_found import holds_secret, is_sensitive_word
from rayjobs.spec import requirements
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.spec.sources import OUTPUT

SPEC_LIMIT = 2 * 1024**2  # bytes of a spec as JSON
ARGUMENTS_LIMIT = 1024**2  # bytes of all arguments
COUNT_LIMITS = {
    "arguments": 10_000,
    "environment_variables": 1_000,
    "secrets": 200,
    "inputs": 200,
    "outputs": 200,
    "tags": 200,
    "depends_on": 1_000,
}
TAG_LIMIT = 4_096  # characters of a tag's name or value

# Variables in arguments, as a rank expands them (`rayjobs.injob.plan.expand`).
REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)
OWN_PREFIXES = ("RAYJOBS_", "AZUREML_", "AML_PARAMETER_", "AZ_BATCH", "OMPI_", "HOROVOD_")
MORE_VARIABLES = ("TMPDIR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "PWD")

# Set by the queue in every rank (docs: what a rank sees).
RESERVED = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "AZUREML_RUN_ID",
        "AZ_BATCHAI_PYTORCH_INIT_METHOD",
        "AZ_BATCHAI_TASK_INDEX",
        "AZ_BATCH_MASTER_NODE",
    }
)
RESERVED_PREFIXES = (
    "RAYJOBS_",
    "OMPI_COMM_WORLD_",
    "AZUREML_ARM_",
    "AZUREML_DATAREFERENCE_",
)
_DATASET = re.compile(r"dataset:[^:/\s][^:\s]*(:[^:\s]+)?")
_FIELD = re.compile(r"\{([^{}]*)\}")
OUTPUT_FIELDS = ("run-id", "output-name")
_SAVED = re.compile(r"saved:sha256:[0-9a-f]{64}")
_STORED_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/.*")


def refuse(spec: JobSpec, problems: Sequence[Problem], capacity: Capacity | None) -> None:
    """Raise with all problems at once if a spec has problems or can never be placed.

    Args:
        spec: The spec.
        problems: The findings of `check` and other checks.
        capacity: The target's capacity; None skips the check whether the job can be placed.

    Raises:
        SpecError: something is wrong with the spec (what cannot be placed is listed too).
        CannotBePlacedError: the spec is right, but the target can never hold the job.
    """
    unplaced = fits_ever(spec, capacity) if capacity is not None else []
    if problems:
        raise SpecError(problems=[*problems, *unplaced])
    if unplaced:
        headline = f"the job can never be placed on the target {spec.target!r}"
        raise CannotBePlacedError(headline, problems=unplaced)


def check(spec: JobSpec, *, source: Path | None = None, job_id: str | None = None) -> list[Problem]:
    """Return all problems of a spec that do not depend on its target.

    Args:
        spec: The spec.
        source: The source directory on this machine; None leaves its files unchecked.
        job_id: The job's own id, if it is known.
    """
    return [
        *entry_problems(spec, source),
        *_distribution(spec),
        *_parallel_run(spec),
        *_gpus(spec),
        *_text(spec),
        *_variables(spec),
        *_environment(spec),
        *_container(spec),
        *_data(spec),
        *_dependencies(spec, job_id),
        *_limits(spec),
    ]


def warnings(spec: JobSpec) -> list[str]:
    """Return warnings about allowed but probably unintended values, without possible secrets."""
    found = []
    suspects = []
    for index, argument in enumerate(spec.arguments):
        option, has_value, value = argument.partition("=")
        following = spec.arguments[index + 1 : index + 2]
        takes_next = not has_value and bool(following) and not following[0].startswith("-")
        given = value if has_value else (following[0] if takes_next else "")
        is_option = option.startswith("-") and is_sensitive_word(option.lstrip("-"))
        if is_option and given and not given.startswith("$"):
            suspects.append(option)
        elif holds_secret(argument.encode()):
            suspects.append(f"arguments[{index}]")
    if spec.command is not None and holds_secret(spec.command.encode()):
        suspects.append("command")
    suspects.extend(
        f"environment_variables.{name}"
        for name, value in spec.environment_variables.items()
        if value and (is_sensitive_word(name) or holds_secret(value.encode()))
    )
    if suspects:
        found.append(
            f"looks like a secret: {', '.join(suspects)}. Arguments and variables are stored "
            f"with the job, readable by everyone who can read the queue; put the value in "
            f"RAYJOBS_SECRET_… on the target and name it under `secrets`, then use $NAME"
        )
    if spec.script is not None and spec.script.endswith((".sh", ".bash", ".ipynb")):
        found.append(
            f"{spec.script} is run by Python, like every `script`. Use `command` for a shell "
            f"script, and convert a notebook first"
        )
    found.extend(_idle_gpus(spec))
    found.extend(_unset_variables(spec))
    ray = [name for name in spec.environment_variables if name.startswith("RAY_")]
    if ray:
        found.append(f"{', '.join(ray)}: these configure Ray, and a rank is not a Ray process")
    return found


def _unset_variables(spec: JobSpec) -> list[str]:
    """Warn about variables in the arguments that the job will not have; images have their own."""
    from rayjobs.launch.plan import INHERITED, INHERITED_PREFIXES, input_variables

    if spec.container is not None:
        return []
    known = {*spec.environment_variables, *spec.secrets, *RESERVED, *INHERITED, *MORE_VARIABLES}
    for name in (*spec.inputs, *spec.outputs):
        known |= input_variables(name, "").keys()
    named = [match for one in spec.arguments for match in REFERENCE.findall(one)]
    unset = []
    for name in dict.fromkeys(plain or braced for plain, braced in named):
        is_ours = name.startswith((*INHERITED_PREFIXES, *OWN_PREFIXES))
        if name not in known and (not is_ours or name.startswith("AZUREML_DATAREFERENCE_")):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            unset.append(f"${name}" + (f" (did you mean ${near[0]}?)" if near else ""))
    if not unset:
        return []
    these = "it" if len(unset) == 1 else "them"
    return [
        f"the arguments name {', '.join(unset)}, which the job does not have, so the script gets "
        f"the text unchanged. Set {these} with `--env-var NAME=VALUE`, or "
        f"leave out the quotes, so that your shell expands {these}"
    ]


# -- the entry script ----------------------------------------------------------------------------


def entry_problems(spec: JobSpec, source: Path | None) -> Iterator[Problem]:
    """Find what is wrong with a job's source directory, and with its script there."""
    if source is not None and not source.is_dir():
        exists = source.exists()
        yield Problem(
            "source_directory",
            f"{str(source)!r} {'is not a folder' if exists else 'does not exist'}.",
            "Give the folder of your code.",
            is_missing=not exists,
        )
        return
    script = spec.script
    if script is None or "\0" in script:
        return  # a NUL is reported with the other texts
    normal = os.path.normpath(script)
    if normal == ".." or normal.startswith("../"):
        yield Problem(
            "script",
            f"{script!r} is outside the source directory.",
            "Give a script inside it, or a source_directory further up.",
        )
        return
    if source is None:
        if normal.startswith("/"):
            yield Problem(
                "script", f"{script!r} is absolute.", "Give it relative to the source directory."
            )
        return
    yield from _script_file(script, source)


def _script_file(script: str, source: Path) -> Iterator[Problem]:
    root = Path(os.path.realpath(source))
    path = root / script
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        meant = _near_script(path) or _scripts(root)
        yield Problem("script", f"{script!r} does not exist in {source}.", meant, is_missing=True)
        return
    except OSError as error:
        yield Problem("script", f"{script!r} cannot be read ({error.strerror}).", "Check the path.")
        return
    if not path.resolve().is_relative_to(root):
        yield Problem(
            "script",
            f"{script!r} is outside the source directory {source}.",
            "Give a script inside it, or a source_directory further up.",
        )
    elif Path(script).is_absolute():
        inside = path.relative_to(root) if path.is_relative_to(root) else path.name
        yield Problem("script", f"{script!r} is absolute.", f"Write `{inside}`.")
    elif stat.S_ISDIR(mode):
        yield Problem("script", f"{script!r} is a folder.", "Give a Python file in it.")
    elif not stat.S_ISREG(mode):
        yield Problem("script", f"{script!r} is not a plain file.", "Give a Python file.")
    elif not os.access(path, os.R_OK):
        yield Problem("script", f"{script!r} cannot be read.", "Make it readable to you.")


def _near_script(path: Path) -> str:
    """Return a question that suggests the script with the most similar name, if there is one.

    Compares the stems of files with the same suffix: `nix.py` does not resemble `ex.py`. A name
    without a suffix is compared with Python files.
    """
    suffix = path.suffix or ".py"
    stems = [one.stem for one in sorted(path.parent.glob(f"*{suffix}")) if one.is_file()]
    found = difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.6)
    return f"Did you mean `{found[0]}{suffix}`?" if found else ""


def _scripts(root: Path) -> str:
    names = sorted(path.name for path in root.glob("*.py"))[:8]
    return f"There are: {', '.join(names)}." if names else "The folder has no Python file."


# -- processes, GPUs and texts --------------------------------------------------------------------


def _idle_gpus(spec: JobSpec) -> Iterator[str]:
    """Yield a warning if processes have more GPUs than one process normally uses."""
    shape, gpus = spec.distribution, spec.resources.gpus
    # A command may start one process per GPU itself.
    if spec.script is None or gpus <= 1:
        return
    processes, per_node = shape.processes_per_node, _even(gpus * shape.processes_per_node)
    backend = "" if shape.backend != "none" else " --backend nccl"
    yield (
        f"{processes} process{'es' if processes > 1 else ''} per node for {per_node:g} GPUs: a "
        f"process normally uses one GPU, and the others stay idle. `--procs-per-node {per_node:g} "
        f"--gpus-per-proc 1{backend}` starts one process for each GPU. Ignore this if the script "
        f"itself spreads its model over its GPUs"
    )


def _parallel_run(spec: JobSpec) -> Iterator[Problem]:
    run = spec.parallel_run
    if run is None:
        return
    if spec.script is None:
        yield Problem("parallel_run", "is for a `script`.", "Name the script that has run().")
    if spec.distribution.backend in ("mpi", "horovod-gloo"):
        yield Problem(
            "distribution.backend",
            f"{spec.distribution.backend}: the processes of a parallel run work independently.",
            "Use gloo, or none for one process.",
        )
    for index, name in enumerate(run.inputs):
        if name not in spec.inputs:
            yield Problem(
                f"parallel_run.inputs[{index}]",
                f"the job has no input {name!r}.",
                f"It has: {', '.join(spec.inputs) or 'none'}.",
            )
        elif spec.inputs[name].mode != "direct" and not str(run.mini_batch_size or 1).isdigit():
            yield Problem(
                "parallel_run.mini_batch_size",
                f"{run.mini_batch_size!r}, but the input {name!r} has files.",
                "Give the number of files of a mini-batch.",
            )
    if run.output is not None and run.output not in spec.outputs:
        yield Problem(
            "parallel_run.output",
            f"the job has no output {run.output!r}.",
            f"It has: {', '.join(spec.outputs) or 'none'}.",
        )


def _distribution(spec: JobSpec) -> Iterator[Problem]:
    shape = spec.distribution
    if spec.command is not None and shape.processes_per_node > 1:
        yield Problem(
            "distribution.processes_per_node",
            f"{shape.processes_per_node} processes, but a `command` is run once per node.",
            "Use `script`, or one process per node.",
        )
    elif shape.backend == "none" and shape.world_size > 1:
        yield Problem(
            "distribution.backend",
            f"none, with {shape.nodes} × {shape.processes_per_node} processes: the processes "
            f"could not find each other.",
            "Choose gloo (CPU) or nccl (GPU) (`--backend`); for independent runs submit several "
            "jobs.",
        )
    gpus = spec.resources.gpus
    if shape.backend == "nccl" and gpus == 0:
        yield Problem(
            "distribution.backend",
            "nccl works between GPUs, and the job requests none.",
            "Set resources.gpus (`--gpus-per-proc 1`), or use gloo.",
        )
    elif shape.backend == "nccl" and gpus < 1 and shape.world_size > 1:
        yield Problem(
            "resources.gpus",
            f"{shape.processes_per_node} processes per node × {gpus:g} are "
            f"{_even(gpus * shape.processes_per_node):g} GPUs per node: nccl needs a whole GPU "
            f"for each process.",
            "Set resources.gpus=1 (`--gpus-per-proc 1`) with one process for each GPU, or use "
            "gloo, whose processes may share one.",
        )


def _gpus(spec: JobSpec) -> Iterator[Problem]:
    gpus, processes = spec.resources.gpus, spec.distribution.processes_per_node
    per_node = _even(gpus * processes)
    if gpus > 1 and not gpus.is_integer():
        yield Problem(
            "resources.gpus",
            f"{gpus:g} GPUs per process: a process has whole GPUs, or a part of one.",
            f"Write {int(gpus)} or {int(gpus) + 1}, or a number below 1.",
        )
    elif 0 < gpus < 1 / GRAIN:
        yield Problem(
            "resources.gpus",
            f"{gpus:g} is less than the smallest part that Ray can assign.",
            f"The smallest part is {1 / GRAIN:g}.",
        )
    elif per_node > 1 and not per_node.is_integer():
        yield Problem(
            "resources.gpus",
            f"{processes} processes × {gpus:g} are {per_node:g} GPUs per node: a node "
            f"provides whole GPUs, or a part of one.",
            f"Change the number of processes or of GPUs so that the product is whole or at "
            f"most 1, e.g. resources.gpus={_near_share(processes, per_node):g}.",
        )


def _even(amount: float) -> float:
    return round(amount, 6)


def _near_share(processes: int, per_node: float) -> float:
    """Return the nearest GPUs per process, in four decimals, that make whole GPUs per node."""
    for whole in (int(per_node) + 1, int(per_node), 1):
        share = whole / processes
        if round(share, 4) * processes == whole:
            return round(share, 4)
    return 1.0


def _text(spec: JobSpec) -> Iterator[Problem]:
    texts: list[tuple[str, str | None]] = [
        ("script", spec.script),
        ("command", spec.command),
        ("source_directory", spec.source_directory),
        ("environment", spec.environment if isinstance(spec.environment, str) else None),
        ("resume_from", spec.resume_from),
        ("display_name", spec.display_name),
    ]
    texts += [(f"arguments[{at}]", value) for at, value in enumerate(spec.arguments)]
    for part in ("environment_variables", "tags"):
        texts += [(f"{part}.{key}", value) for key, value in getattr(spec, part).items()]
    texts += [("tags", key) for key in spec.tags]
    for path, value in texts:
        if value is not None and "\0" in value:
            yield Problem(path, "has a NUL byte, which no process can be given.", "Remove it.")
    for entry in ("script", "command"):
        value = getattr(spec, entry)
        if value is not None and not value.strip():
            yield Problem(entry, "is empty.", "Name a script or command to run.")


def _environment(spec: JobSpec) -> Iterator[Problem]:
    if isinstance(spec.environment, Packages):
        packages = spec.environment
        yield from requirements.problems(packages.pip, packages.python)
        yield from requirements.problems_of_constraints(packages.constraints)
        yield from _conda(packages)


def _conda(packages: Packages) -> Iterator[Problem]:
    path = "environment.conda"
    if packages.conda and not packages.channels:
        shown = ", ".join(packages.conda[:8])
        yield Problem(
            path,
            f"no channel is named for {shown}.",
            "Name a channel, such as `channels: [conda-forge]`.",
        )
    if packages.conda and packages.python is not None and "/" in packages.python:
        yield Problem(
            path,
            f"conda packages cannot be installed for {packages.python}: conda brings its own "
            f"Python.",
            "Name a version of Python, or none.",
        )
    for channel in packages.channels:
        yield from requirements.problems_of_address(channel, "environment.channels")


def _container(spec: JobSpec) -> Iterator[Problem]:
    if spec.container is None:
        return
    image = spec.container.image
    if image is not None and ("\0" in image or image != image.strip()):
        yield Problem("container.image", f"{image!r} is not the name of an image.", "Check it.")


def image_here(spec: JobSpec) -> Iterator[Problem]:
    """Report missing files of the job's image if this machine runs the job."""
    image = None if spec.container is None else spec.container.image
    if image is None or any(_container(spec)):
        return
    from rayjobs.containers import reference

    try:
        reference.parse(image)
    except PrepareError as error:
        yield Problem("container.image", str(error), "")


def interpreter_here(spec: JobSpec) -> Iterator[Problem]:
    """Report a missing interpreter if this machine runs the job."""
    named = None if spec.container is not None else spec.environment
    if isinstance(named, Packages):
        named = named.python
        if named is not None and requirements.is_version(named):
            return
    if named is None:
        return
    from rayjobs.environments import interpreter

    try:
        interpreter.path_of(named)
    except PrepareError:
        path = Path(named).expanduser()
        what = "has no bin/python" if path.is_dir() else "is not an executable file or a folder"
        yield Problem(
            "environment",
            f"{named!r} {what} on this machine, where the target {spec.target!r} runs.",
            "Name a Python interpreter or a virtual environment, or leave it out.",
        )


def _is_reserved(name: str) -> bool:
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def _variables(spec: JobSpec) -> Iterator[Problem]:
    for part in ("environment_variables", "secrets"):
        for name in getattr(spec, part):
            if _is_reserved(name):
                yield Problem(
                    f"{part}.{name}",
                    "is set by the queue for every process.",
                    "Choose another name.",
                )
    for name in sorted(spec.environment_variables.keys() & spec.secrets.keys()):
        yield Problem(
            f"secrets.{name}", "is also in environment_variables.", "Keep one of the two."
        )
    devices = spec.environment_variables.get("CUDA_VISIBLE_DEVICES", "")
    if devices not in ("", "-1"):
        yield Problem(
            "environment_variables.CUDA_VISIBLE_DEVICES",
            f"{devices!r}: which GPUs a job has is decided where it is placed.",
            "Remove it, and set resources.gpus.",
        )


# -- data and dependencies -----------------------------------------------------------------------


def _data(spec: JobSpec) -> Iterator[Problem]:
    spelled = Counter(name.upper() for name in [*spec.inputs, *spec.outputs])
    for part in ("inputs", "outputs"):
        for name in getattr(spec, part):
            if spelled[name.upper()] > 1:
                yield Problem(
                    f"{part}.{name}",
                    "is also the name of another input or output (case is ignored).",
                    "Give each its own name; they become environment variables.",
                )
    for name, one in spec.inputs.items():
        yield from _source(f"inputs.{name}.source", one.source)
        yield from _check_data_path(f"inputs.{name}", one.path_on_compute)
    for name, output in spec.outputs.items():
        yield from _in_datastore(f"outputs.{name}.destination", output.destination)
        yield from _check_data_path(f"outputs.{name}", output.path_on_compute)
        for field in _FIELD.findall(output.destination):
            if field not in OUTPUT_FIELDS:
                yield Problem(
                    f"outputs.{name}.destination",
                    f"{output.destination!r} has the field {{{field}}}.",
                    "Only {run-id} and {output-name} are filled in.",
                )


def _source(path: str, source: str) -> Iterator[Problem]:
    if source.startswith(OUTPUT):
        return  # `rayjobs.data.pins` looks for its job in the workspace
    if source.startswith("dataset:"):
        if _DATASET.fullmatch(source) is None:
            remedy = "Write dataset:NAME or dataset:NAME:3."
            yield Problem(path, f"{source!r} is not a dataset.", remedy)
    elif source.startswith("saved:"):
        if _SAVED.fullmatch(source) is None:
            yield Problem(path, f"{source!r} is not a digest.", "Name a registered dataset.")
    else:
        yield from _in_datastore(path, source, is_input=True)


def _check_data_path(path: str, text: str | None) -> Iterator[Problem]:
    if text is not None and (not text or "\0" in text or ".." in text.split("/")):
        yield Problem(
            f"{path}.path_on_compute",
            f"{text!r} is not a valid path.",
            "Give a path without `..`, or leave it out.",
        )


def _in_datastore(path: str, text: str, *, is_input: bool = False) -> Iterator[Problem]:
    if _STORED_PATH.fullmatch(text) is None or "\0" in text or ".." in text.split("/"):
        remedy = "Write datastore/path, such as workspaceblobstore/digits."
        local = Path(text).resolve().name if text and "\0" not in text else ""
        if is_input and local and Path(text).exists():
            remedy = (
                f"It is a path of this machine: store it first (`rayjobs data put {text} "
                f"workspaceblobstore/{local}`), and use workspaceblobstore/{local}."
            )
        elif is_input and "/" not in text and _DATASET.fullmatch(f"dataset:{text}") is not None:
            remedy += f" A dataset of that name is dataset:{text}, a whole datastore {text}/."
        yield Problem(path, f"{text!r} is not a path in a datastore.", remedy)


def _dependencies(spec: JobSpec, job_id: str | None) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, dependency in enumerate(spec.depends_on):
        path = f"depends_on[{index}].job"
        if job_id is not None and dependency.job == job_id:
            yield Problem(path, "is this job itself; it would wait forever.", "Remove it.")
        elif dependency.job in seen:
            yield Problem(path, f"{dependency.job!r} appears twice.", "Keep one of the two.")
        seen.add(dependency.job)


# -- sizes and counts ----------------------------------------------------------------------------


def _limits(spec: JobSpec) -> Iterator[Problem]:
    for part, most in COUNT_LIMITS.items():
        count = len(getattr(spec, part))
        if count > most:
            yield Problem(part, f"{count:,} entries; {most:,} are allowed.", "Put data in files.")
    for key, value in spec.tags.items():
        if len(key) > TAG_LIMIT or len(value) > TAG_LIMIT:
            yield Problem(
                f"tags.{key[:40]}",
                f"is longer than {TAG_LIMIT:,} characters.",
                "Store long texts as files of the run.",
            )
    size = sum(len(argument.encode()) + 1 for argument in spec.arguments)
    if size > ARGUMENTS_LIMIT:
        yield Problem("arguments", f"{size:,} bytes in all; 1 MiB is allowed.", "Use a file.")
    size = len(spec.to_json().encode())
    if size > SPEC_LIMIT:
        yield Problem("", f"the spec has {size:,} bytes; 2 MiB are allowed.", "Use files.")
