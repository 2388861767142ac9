"""Runs a job again: the same code and spec, with changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import Problem, SpecError, UsageError
from rayjobs.jobs.records import INTERACTIVE

if TYPE_CHECKING:
    from rayjobs.submit.submitting import Submitted
    from rayjobs.workspace.folder import OpenWorkspace


def rerun(
    workspace: OpenWorkspace,
    job_id: str,
    *,
    settings: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    new_code: bool = False,
    idempotency_key: str | None = None,
    wake: bool = True,
) -> Submitted:
    """Submit a new job with a job's spec and code.

    A member of an array becomes an array of one; dependencies are dropped.

    Args:
        job_id: Any reference to the job.
        settings: Texts ``KEY=VALUE``: a key of job files (dots go deeper), or an option of the
            script (``--lr=0.1``), which is replaced among its arguments, or added.
        arguments: New script arguments; None keeps the job's.
        changes: Fields of the spec that differ, such as ``{"name": "again"}``.
        new_code: Pack the source directory as it is now, instead of the job's snapshot.
        wake: Wake the target, or start it in the background if it does not run.

    Raises:
        NotFoundError: there is no such job, or its snapshot was pruned.
        UsageError: it is a sweep, a pipeline run or an interactive run, or `new_code` is set and it
            has no source directory.
        SpecError: a setting is wrong; all problems at once.
    """
    from rayjobs.spec.file import build_spec, merge
    from rayjobs.submit.submitting import Entry, submit

    job = workspace.store.find(job_id)
    if job.kind == "sweep":
        raise UsageError(
            f"{job.id} is a sweep. Create it again from its file: rayjobs sweep create -f FILE; "
            f"or run one of its trials again"
        )
    if job.kind == "pipeline":
        raise UsageError(
            f"{job.id} is a pipeline run, which runs nothing itself. `rayjobs pipeline resume "
            f"{job.id}` continues it if it has failed; `rayjobs pipeline run` runs a pipeline"
        )
    if job.kind == INTERACTIVE:
        raise UsageError(
            f"{job.id} is an interactive run, which rayjobs did not start. Run its program again, "
            f"or submit a script"
        )
    if new_code and job.spec.source_directory is None:
        raise UsageError(f"{job.id} has no source directory, so there is no newer code to pack")
    # Displayed names must differ, so the new job gets its own: train-2 for train-1.
    values = {**job.spec.model_dump(mode="json"), "depends_on": [], "display_name": None}
    if arguments is not None:
        values["arguments"] = list(arguments)
    if job.array_index is not None and job.spec.array is not None:
        # Its script relies on index and count, so both stay as in the array.
        count = job.spec.array.count or len(job.spec.array.expand())
        values["array"] = {"indices": str(job.array_index), "limit": None, "count": count}
    given, values["arguments"] = _read(settings, values["arguments"])
    spec = build_spec(merge(merge(values, given), changes or {}))
    source = Path(job.spec.source_directory) if new_code and job.spec.source_directory else None
    return submit(
        workspace,
        spec,
        source=source,
        experiment=job.experiment,
        code_of=None if new_code else job,
        entry=Entry(idempotency_key=idempotency_key, is_numbered="name" not in (changes or {})),
        wake=wake,
    )


def _read(settings: Sequence[str], arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings' changes to the spec, and the script's updated arguments."""
    given: dict[str, Any] = {}
    changed = list(arguments)
    problems = []
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator or not key.strip("-. "):
            problems.append(
                Problem(
                    "--set",
                    f"{text!r} has no KEY=.",
                    "Write --set resources.gpus=1, or --set --lr=0.1 for the script's own option.",
                )
            )
        elif not value and not key.startswith("-"):
            problems.append(
                Problem(
                    "--set",
                    f"{text!r} has no value.",
                    f"Write --set {key}=VALUE, or --set --{key}=VALUE for the script's own option; "
                    f"--set --{key}= sets that option to an empty value.",
                )
            )
        elif key.startswith("-"):
            changed = with_argument(changed, key, value)
        elif f"--{key}" in {one.partition("=")[0] for one in arguments} and not _is_key(key):
            problems.append(
                Problem(
                    "--set",
                    f"{key!r} is an option of the script, not a key of a job.",
                    f"Write --set --{key}={value}.",
                )
            )
        elif not _is_key(key):
            problems.append(
                Problem(
                    "--set",
                    f"{key!r} is not a key of a job.",
                    f"Write --set --{key}={value} for an option of the script; `rayjobs schema` "
                    f"lists the keys of a job.",
                )
            )
        else:
            _put(given, key.split("."), _value(value))
    if problems:
        raise SpecError(problems=problems)
    return given, changed


def with_argument(arguments: Sequence[str], option: str, value: str) -> list[str]:
    """Return a script's arguments with one option's value replaced, or added at the end.

    The last occurrence counts, as for argparse; ``--lr 0.1`` and ``--lr=0.1`` keep their form.
    """
    changed = list(arguments)
    for at in range(len(changed) - 1, -1, -1):
        if changed[at].startswith(f"{option}="):
            changed[at] = f"{option}={value}"
            return changed
        if changed[at] == option and at + 1 < len(changed):
            changed[at + 1] = value
            return changed
    return [*changed, option, value]


def _is_key(key: str) -> bool:
    from rayjobs.spec.model import JobSpec
    from rayjobs.spec.problems import SHORT_KEYS

    top = key.partition(".")[0]
    return top in JobSpec.model_fields or top in SHORT_KEYS[""]


def _put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parts, last = path
    for part in parts:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = data[part] = {}
        data = inner
    data[last] = value


def _value(text: str) -> Any:
    """Parse a list or mapping written as JSON; return any other text unchanged."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
