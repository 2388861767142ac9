"""``output:JOB/NAME``: an output of another job as the source of an input."""

from __future__ import annotations

OUTPUT = "output:"


def output_source(job_id: str, name: str) -> str:
    """Return the source of an input that reads an output of a job."""
    return f"{OUTPUT}{job_id}/{name}"


def output_of(source: str) -> tuple[str, str]:
    """Return job and output that a source names.

    Raises:
        ValueError: it names none.
    """
    job, separator, name = source.removeprefix(OUTPUT).partition("/")
    if not (source.startswith(OUTPUT) and job and separator and name):
        raise ValueError(f"{source!r} is not {OUTPUT}JOB/NAME")
    return job, name
