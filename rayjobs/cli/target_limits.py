"""`rayjobs target limits`: limits of jobs and GPUs, aging, backfill and preemption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

import click

from rayjobs.cli.output import facts, print_json
from rayjobs.cli.params import ParamType
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.text import duration_text

Command = TypeVar("Command", bound=Callable[..., Any])

EPILOG = """\b
Examples:
  rayjobs target limits                              what is in force on `local`
  rayjobs target limits lab --max-gpus-per-user 8
  rayjobs target limits lab --max-jobs none --aging 12h
"""


class Amount(ParamType):
    """A number above 0, or the word none for no limit."""

    name = "amount"

    def __init__(self, convert: Callable[[str], float], kind: str = "number") -> None:
        self._convert = convert
        self._kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the number, or the word."""
        from rayjobs.core.errors import UsageError

        if str(value).lower() == "none":
            return "none"
        try:
            number = self._convert(str(value))
        except (ValueError, UsageError):
            number = 0
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} is not a {self._kind} above 0; give one, or none.", param, ctx)
        return number


def _seconds(text: str) -> float:
    from rayjobs.core.units import parse_duration

    return parse_duration(text)


_OPTIONS = (
    click.option(
        "--max-jobs", type=Amount(int), metavar="N|none", help="Jobs that may run at a time."
    ),
    click.option(
        "--max-jobs-per-user",
        type=Amount(int),
        metavar="N|none",
        help="Jobs of one user that may run at a time.",
    ),
    click.option(
        "--max-gpus-per-user",
        type=Amount(float),
        metavar="N|none",
        help="GPUs that one user's jobs may use together.",
    ),
    click.option(
        "--aging",
        type=Amount(_seconds, "duration"),
        metavar="DURATION|none",
        help="Waiting time worth one level of priority [1d].",
    ),
    click.option(
        "--backfill/--no-backfill",
        default=None,
        help="Whether jobs may start before the head of the queue where that cannot delay it.",
    ),
    click.option(
        "--preemption/--no-preemption",
        default=None,
        help="Whether jobs of higher priority may preempt preemptible jobs.",
    ),
)
_FIELDS = {
    "max_jobs": "jobs",
    "max_jobs_per_user": "jobs_per_user",
    "max_gpus_per_user": "gpus_per_user",
    "aging": "aging_s",
    "backfill": "backfill",
    "preemption": "preemption",
}


def limit_options(command: Command) -> Command:
    """Add the options of the queue's limits to a command; `set_limits` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def set_limits(target: str, given: dict[str, Any]) -> None:
    """Change the given limits of a target; the others stay.

    Raises:
        NotFoundError: no such target.
        UsageError: its limits are damaged, or a given one is invalid.
    """
    from rayjobs.core.paths import home
    from rayjobs.target.limits import load_limits, save_limits

    changes: dict[str, Any] = {
        _FIELDS[name]: None if value == "none" else value
        for name, value in given.items()
        if value is not None
    }
    if changes:
        old = load_limits(target, home=home())
        save_limits(target, replace(old, **changes), home=home())


@click.command(epilog=EPILOG)
@click.argument("name", default="local", metavar="[NAME]")
@limit_options
@json_option
@common_options
@click.pass_obj
def limits(settings: Settings, /, name: str, **kwargs: Any) -> None:
    """Show or change the limits of a target's queue. Running jobs are not affected."""
    from rayjobs.workspace import server_choice

    server_choice.refuse("`rayjobs target limits`")
    from rayjobs.core.paths import home
    from rayjobs.target.limits import load_limits

    set_limits(name, kwargs)
    now = load_limits(name, home=home())
    if settings.as_json:
        print_json({"target": name, **asdict(now)})
        return
    click.echo(
        facts(
            [
                ("Target", name),
                ("Jobs at a time", _or_none(now.jobs)),
                ("Jobs per user", _or_none(now.jobs_per_user)),
                ("GPUs per user", _or_none(now.gpus_per_user)),
                ("Aging", "none" if now.aging_s is None else _level(now.aging_s)),
                ("Backfill", "on" if now.backfill else "off"),
                ("Preemption", "on" if now.preemption else "off"),
            ]
        )
    )


def _level(aging_s: float) -> str:
    return f"{duration_text(aging_s)} of waiting per level of priority"


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
