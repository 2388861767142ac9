"""``output:JOB/NAME``: another job's output as the source of an input."""

from __future__ import annotations

OUTPUT = "output:"


def output_source(job_id: str, name: str) -> str:
    """Return the source of an input that reads a job's output."""
    return f"{OUTPUT}{job_id}/{name}"


def output_of(source: str) -> tuple[str, str]:
    """Return the job and output that a source names.

    Raises:
        ValueError: it is not such a source.
    """
    job, separator, name = source.removeprefix(OUTPUT).partition("/")
    if not (source.startswith(OUTPUT) and job and separator and name):
        raise ValueError(f"{source!r} is not {OUTPUT}JOB/NAME")
    return job, name
