"""Kinds of values that options take: durations, names with values, job ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic from click 8.2 on

MOST_COMPLETED = 200


class Duration(ParamType):
    """Seconds from ``90``, ``45s``, ``30m``, ``6h``, ``1d12h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return seconds."""
        from rayjobs.errors import UsageError
        from rayjobs.units import parse_duration

        try:
            return parse_duration(value)
        except UsageError as error:
            self.fail(f"{error.message}.", param, ctx)


class JobId(ParamType):
    """A job as people name it; completes the ids of the workspace, newest first."""

    name = "job"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text; the store finds the job."""
        text = str(value).strip()
        if not text:
            self.fail("a job's id may not be empty.", param, ctx)
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return ids that begin with `incomplete`, or whose random tail does."""
        from rayjobs.cli.settings import Settings
        from rayjobs.errors import RayjobsError

        settings = ctx.find_object(Settings) or Settings()
        try:
            with settings.open() as workspace:
                jobs = workspace.store.job_lines(limit=MOST_COMPLETED, members=False)
        except RayjobsError:
            return []  # a shell that completes is no place for errors
        found = []
        for job in jobs:
            tail = job.id.rpartition("_")[2]
            text = f"{job.state} {job.display_name or job.name}"
            if job.id.startswith(incomplete):
                found.append(CompletionItem(job.id, help=text))
            elif tail.startswith(incomplete):
                found.append(CompletionItem(tail, help=text))
        return found


def pairs(values: Sequence[str], *, option: str, example: str) -> dict[str, str]:
    """Return ``K=V`` texts as a mapping; a later one wins, and V may be empty.

    Raises:
        UsageError: one of them has no name or no ``=``.
    """
    found = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{option} {text!r}: write it as NAME=VALUE, e.g. {example}")
        found[name] = value
    return found
