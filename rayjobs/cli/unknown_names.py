"""Distinguishes a filter that matches no job from one with an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rayjobs.cli.guesses import LIKELY, near
from rayjobs.core.errors import UsageError
from rayjobs.core.text import counted
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store

LISTED_AT_MOST = 10


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the nearest names, else all names.

    Args:
        what: The kind of name, such as ``experiment``.
    """
    names = list(dict.fromkeys(known))
    close = near(name, names, most=3, least=LIKELY)
    if close:
        hint = f"Did you mean {' or '.join(close)}?"
    elif names:
        more = len(names) - LISTED_AT_MOST
        listed = ", ".join(names[:LISTED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
        hint = f"Known: {listed}."
    else:
        hint = f"There is no {what} yet."
    return UsageError(f"there is no {what} {name!r}. {hint}", name=name)


def require_experiment(store: Store, name: str | None) -> None:
    """Check that a job or sweep of this experiment exists.

    Raises:
        UsageError: no such name; the message lists the nearest ones.
    """
    known = dict.fromkeys(job.experiment for job in store.job_lines(JobFilter(members=False)))
    if name is not None and known and name not in known:
        raise unknown("experiment", name, known)


def require_target(store: Store, name: str | None) -> None:
    """Check that this target exists, or that a job was submitted to it.

    Raises:
        UsageError: neither is true; the message lists the nearest names.
    """
    if name is None:
        return
    from rayjobs.target.targets import known_names

    known = dict.fromkeys(known_names())
    known.update(dict.fromkeys(job.target for job in store.job_lines(JobFilter(members=False))))
    if name not in known:
        raise unknown("target", name, known)


def require_tag(store: Store, tag: tuple[str, str] | None) -> str:
    """Check that a job has this tag; return the tag's values unless the given one is among them.

    Raises:
        UsageError: no job has it; the message lists the nearest names.
    """
    if tag is None:
        return ""
    name, value = tag
    jobs = store.job_lines()
    known = dict.fromkeys(key for job in jobs for key in job.tags)
    if not jobs:
        return ""
    if name not in known:
        raise unknown("tag", name, known)
    values = list(dict.fromkeys(job.tags[name] for job in jobs if name in job.tags))
    if value in values:
        return ""
    more = len(values) - LISTED_AT_MOST
    listed = ", ".join(values[:LISTED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
    return f"The values of tag {name!r} are: {listed}."


def require_single_job(store: Store, job: Job, command: str, *, what: str) -> None:
    """Check that a job is not an array or a sweep: their members have the metrics and files.

    Args:
        command: The typed command, for the hint.
        what: What the command shows, such as ``metrics``.

    Raises:
        UsageError: it is one; the message explains how to address a member.
    """
    if job.kind not in ("array", "sweep"):
        return
    tail = job.id.rpartition("_")[2]
    if job.kind == "sweep":
        raise UsageError(
            f"{job.id} is a sweep; its trials have the {what}. `rayjobs sweep best {tail}` names "
            f"the best trial, `rayjobs ls --parent {tail}` lists all; then: rayjobs {command} TRIAL"
        )
    array = job.spec.array
    indices = array.expand() if array is not None else ()
    first = indices[0] if indices else 0
    count = sum(store.member_counts([job.id]).get(job.id, {}).values())
    of = counted(count, "job")
    raise UsageError(
        f"{job.id} is an array of {of}, with the indices {array.indices if array else ''}; its "
        f"members have the {what}. Name one: rayjobs {command} '{tail}[{first}]'. "
        f"`rayjobs ls --parent {tail}` lists them."
    )
