"""`rayjobs logs`: what a job printed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.jobviews import short_id
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json, print_json_line
from rayjobs.cli.settings import Settings, common_options, job_argument, json_option, quiet_option
from rayjobs.records import Job
from rayjobs.terminal import plain_text

if TYPE_CHECKING:
    from rayjobs.workspace_files import OpenWorkspace

EPILOG = """\b
Examples:
  rayjobs logs 1f3c
  rayjobs logs -f 1f3c             until the job ends
  rayjobs logs -n 50 1f3c          the last 50 lines
  rayjobs logs --rank 3 1f3c
  rayjobs logs --rank all 1f3c     what several print alike is shown once
  rayjobs logs --failed 1f3c       the lines that matter of a failed job
  rayjobs logs 1f3c logs/train.txt
  rayjobs logs '1f3c[3]'           a member of an array; 1f3c alone prints all members
  rayjobs logs 1f3c > out.bin      byte for byte
"""


@click.command(epilog=EPILOG)
@job_argument
@click.argument("name", required=False, metavar="[FILE]")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="The last N lines only.")
@click.option("--rank", metavar="N|all", help="Of this process [0]; all: of all, equal lines once.")
@click.option("--failed", is_flag=True, help="Only the lines that tell why it failed.")
@click.option("--list", "list_names", is_flag=True, help="List the logs there are.")
@click.option("--raw", is_flag=True, help="Bytes unchanged, ranks unmerged; may garble it.")
@quiet_option("No stages on stderr.")
@json_option
@common_options
@click.pass_obj
def logs(
    settings: Settings,
    job: str,
    name: str | None,
    follow: bool,
    tail: int | None,
    rank: str | None,
    failed: bool,
    list_names: bool,
    raw: bool,
) -> int:
    """Print what a job printed, byte for byte.

    On a terminal escape sequences that are no colours are left out, and bytes that are no text
    are replaced. FILE is one of the names that --list prints.
    """
    if sum((follow, failed, list_names)) > 1:
        raise click.UsageError("give one of --follow, --failed and --list.")
    if name is not None and (rank is not None or follow):
        raise click.UsageError("FILE does not go together with --rank and --follow.")
    number = _rank(rank)
    if number is None and follow:
        raise click.UsageError("--follow shows one process; name it by --rank N.")
    from rayjobs.cli.screen import Screen
    from rayjobs.driverlog import last_lines
    from rayjobs.logs import Logs

    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        if found.kind == "array":
            return _array(
                settings,
                workspace,
                found,
                options=(follow, name, list_names, number),
                failed=failed,
                tail=tail,
                raw=raw,
            )
        of_job = Logs(workspace, found.id)
        if failed:
            return _print_failed(settings, found)
        if list_names:
            names = of_job.names()
            print_json(names) if settings.as_json else click.echo("\n".join(names), nl=bool(names))
            return Exit.DONE
        _check_rank(found, number)
        screen = Screen(settings, raw=raw)
        if follow and not settings.as_json:
            from rayjobs.cli.following import detached_text, follow_logs

            try:
                follow_logs(workspace, found.id, screen, rank=number or 0, tail=tail)
            except KeyboardInterrupt:
                screen.note(detached_text(settings, found))
                return Exit.INTERRUPTED
            return Exit.DONE
        chosen = name if name is not None or number is None else of_job.driver_name(number)
        if follow:
            parts: Iterable[bytes] = (part.data for part in of_job.follow(number or 0))
        elif tail is not None and number is not None:
            parts = [of_job.tail(chosen, lines=tail)]
        else:
            parts = of_job.merged(fold=not raw) if number is None else of_job.chunks(chosen)
            if tail is not None and number is None:
                parts = [last_lines(parts, tail)]
        if settings.as_json:
            for line in _lines(parts):
                print_json_line({"job": found.id, "name": chosen, "line": line})
            return Exit.DONE
        for part in parts:
            screen.write(part)
        screen.end()
    return Exit.DONE


def _array(
    settings: Settings,
    workspace: OpenWorkspace,
    array: Job,
    *,
    options: tuple[bool, str | None, bool, int | None],
    failed: bool,
    tail: int | None,
    raw: bool,
) -> int:
    """Print what all members printed; what is about one log alone asks for a member."""
    from rayjobs.cli.arraylogs import print_array, print_failed

    follow, name, list_names, rank = options
    if follow or name is not None or list_names or rank is None:
        raise click.UsageError(
            f"{array.id} is an array; --follow, --list, --rank all and FILE are about one job: "
            f"name a member, such as '{short_id(array)}[0]'."
        )
    if failed:
        print_failed(settings, workspace, array)
    else:
        _check_rank(array, rank)
        print_array(settings, workspace, array, rank=rank, tail=tail, raw=raw)
    return Exit.DONE


def _rank(text: str | None) -> int | None:
    """Return the rank, None for all."""
    if text is None:
        return 0
    if text == "all":
        return None
    if not text.isdigit():
        raise click.UsageError(f"--rank {text!r}: give a number from 0, or `all`.")
    return int(text)


def _check_rank(job: Job, rank: int | None) -> None:
    world_size = job.spec.distribution.world_size
    if rank is not None and rank >= world_size:
        from rayjobs.errors import NotFoundError

        last = world_size - 1
        raise NotFoundError(
            f"job {job.id} has no rank {rank}; its ranks are 0{f' to {last}' if last else ' alone'}"
        )


def _print_failed(settings: Settings, job: Job) -> int:
    failure = job.failure
    if settings.as_json:
        print_json(failure.to_dict() if failure else None)
        return Exit.DONE
    if failure is None:
        settings.note(f"{job.id} has not failed: it is {job.state}")
        return Exit.DONE
    where = f", rank {failure.rank}" if failure.rank is not None else ""
    settings.note(f"{job.id} failed ({failure.failure_class}{where}): {failure.message}")
    for line in failure.lines:
        click.echo(plain_text(line) if sys.stdout.isatty() else line)
    return Exit.DONE


def _lines(parts: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
