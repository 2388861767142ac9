"""`rayjobs logs`: print or follow the logs of jobs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json, print_json_line
from rayjobs.cli.params import JobId, Since
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.core.paths import EARLIER_LOGS
from rayjobs.core.terminal import one_line, plain_text
from rayjobs.core.text import counted
from rayjobs.jobs.records import Job

if TYPE_CHECKING:
    from rayjobs.cli.loglines import View
    from rayjobs.cli.screen import Screen
    from rayjobs.results.logs import Logs
    from rayjobs.workspace.folder import OpenWorkspace

EPILOG = """\b
Examples:
  rayjobs logs 1f3c
  rayjobs logs -f 1f3c             follow until the job ends
  rayjobs logs -f sweep-7 9c2e     follow several jobs
  rayjobs logs -n 50 1f3c          the last 50 lines
  rayjobs logs --rank 3 1f3c       one process of several; --rank 0,4-7: five of them
  rayjobs logs --since 10m -t 1f3c
  rayjobs logs --grep 'loss|lr' 1f3c
  rayjobs logs --failed 1f3c       the lines about the failure
  rayjobs logs 1f3c logs/train.txt
  rayjobs logs '1f3c[3]'           a member of an array; 1f3c alone prints all members
  rayjobs logs digits              all steps of a pipeline, each line after its step's name
  rayjobs logs 1f3c > out.bin      byte for byte (one process)
"""


@click.command(epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, type=JobId(), metavar="JOB... [FILE]")
@click.option("-f", "--follow", is_flag=True, help="Follow until the jobs end.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="The last N lines only.")
@click.option("--since", type=Since(), metavar="TIME", help="Lines since a time: 10m, 14:30.")
@click.option("--grep", metavar="REGEX", help="Only lines that match.")
@click.option("-t", "--timestamps", is_flag=True, help="Print when each line was printed.")
@click.option("--rank", metavar="N,N-N|all", help="Only these processes, merged [all].")
@click.option("--failed", is_flag=True, help="Only the lines about the failure.")
@click.option("--list", "list_names", is_flag=True, help="List available logs.")
@click.option("--raw", is_flag=True, help="Print raw bytes; may garble the terminal.")
@quiet_option("No stages on stderr.")
@json_option
@common_options
@click.pass_obj
def logs(
    settings: Settings,
    names: tuple[str, ...],
    follow: bool,
    tail: int | None,
    since: float | None,
    grep: str | None,
    timestamps: bool,
    rank: str | None,
    failed: bool,
    list_names: bool,
    raw: bool,
) -> int:
    """Print the logs of jobs.

    Several processes, array members, steps or jobs are merged: each line names its process, and
    lines that several processes of a job print are shown once. The log of a single process is
    printed unchanged; on a terminal, escape sequences other than colors are removed. FILE is one
    of the names that --list prints. Times (-t, --since) are exact to half a second.

    With -f, the last line on stderr says how each job ended. The exit code is then 0 however the
    jobs ended, and 130 after Ctrl-C; `rayjobs wait` exits with their result.
    """
    from rayjobs.cli import loglines

    if sum((follow, failed, list_names)) > 1:
        raise click.UsageError("give one of --follow, --failed and --list.")
    jobs, file = _jobs_and_file(names)
    view = loglines.View(follow, tail, _ranks(rank), since, _pattern(grep), timestamps, raw)
    if file is not None and (rank is not None or follow or since is not None or timestamps):
        raise click.UsageError(
            "FILE cannot be combined with --rank, --follow, --since or --timestamps."
        )
    if len(jobs) > 1 and (failed or list_names):
        raise click.UsageError("--failed and --list are about one job; name one.")
    with settings.open() as workspace:
        named = (newest_named(settings, workspace.store, job) for job in dict.fromkeys(jobs))
        found = [_original(settings, workspace, job) for job in named]
        if failed:
            return _print_failed(settings, workspace, found[0])
        if list_names or file is not None:
            return _print_file(settings, workspace, found[0], file, view)
        for job in found:
            _check_ranks(job, view.ranks)
        only = found[0] if len(found) == 1 and found[0].kind == "job" else None
        if only is not None and not view.is_by_line:
            world_size = only.spec.distribution.world_size
            if (world_size == 1 or not view.is_of_several) and not settings.as_json:
                return _print_bytes(settings, workspace, only, view)
        return loglines.show_lines(settings, workspace, found, view)


def _jobs_and_file(names: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Split the arguments: names of files contain a folder, names of jobs do not."""
    jobs = [name for name in names if "/" not in name]
    files = [name for name in names if "/" in name]
    if not jobs or len(files) > 1 or (files and len(jobs) > 1):
        raise click.UsageError("give the names of jobs, or one job and one of its files.")
    return jobs, files[0] if files else None


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise click.UsageError(f"--grep {text!r} is not a regular expression: {error}.") from None


def _ranks(text: str | None) -> tuple[int, ...] | None:
    """Return the ranks in order, None for all."""
    if text is None or text == "all":
        return None
    found: set[int] = set()
    for part in text.split(","):
        read = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if read is None:
            raise click.UsageError(
                f"--rank {text!r}: give numbers from 0 (`2`, `0,3`, `0-7`), or `all`."
            )
        first, last = int(read[1]), int(read[2] or read[1])
        if last < first:
            raise click.UsageError(f"--rank {text!r}: {part.strip()} ends before it begins.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _original(settings: Settings, workspace: OpenWorkspace, job: Job) -> Job:
    """Return the job whose logs are shown: for a reused step the original, else the job itself."""
    if job.attempt or not job.state.is_final:
        return job
    step = workspace.store.step_of(job.id)
    if step is None or step.original is None:
        return job
    settings.note(f"step {step.name!r} was not run: these are the logs of {step.original}")
    return workspace.store.job(step.original)


def _check_ranks(job: Job, ranks: tuple[int, ...] | None) -> None:
    world_size = job.spec.distribution.world_size
    # The steps of a pipeline may have any number of processes.
    if ranks is not None and ranks[-1] >= world_size and job.kind != "pipeline":
        from rayjobs.core.errors import NotFoundError

        last = world_size - 1
        its = f"its ranks are 0 to {last}" if last else "its only rank is 0"
        raise NotFoundError(f"job {job.id} has no rank {ranks[-1]}; {its}")


def _print_bytes(settings: Settings, workspace: OpenWorkspace, job: Job, view: View) -> int:
    """Print the log of one process byte for byte."""
    from rayjobs.cli.screen import Screen
    from rayjobs.results.logs import Logs

    screen = Screen(settings, raw=view.raw)
    rank = 0 if view.ranks is None else view.ranks[0]
    if view.follow:
        from rayjobs.cli.following import Shown, detached_text, follow_logs, where_it_is
        from rayjobs.cli.summary import closing_line

        try:
            shown = Shown()
            ended = where_it_is(
                workspace,
                lambda at: follow_logs(at, job.id, screen, rank=rank, tail=view.tail, shown=shown),
                screen.note,
            )
        except KeyboardInterrupt:
            screen.note(detached_text(job))
            return Exit.INTERRUPTED
        screen.note(closing_line(settings, ended))
        return Exit.DONE
    of_job = Logs(workspace, job.id)
    name = of_job.driver_name(rank)
    _name_earlier(screen, of_job, job)
    if view.tail is not None:
        screen.write(of_job.tail(name, lines=view.tail))
    else:
        for part in of_job.chunks(name):
            screen.write(part)
    screen.end()
    return Exit.DONE


def _name_earlier(screen: Screen, logs: Logs, job: Job) -> None:
    """Print a note if earlier attempts have logs too, and how to read them."""
    if job.attempt < 2:
        return
    earlier = [name for name in logs.names() if name.startswith(EARLIER_LOGS)]
    if earlier:
        newest = max(earlier, key=lambda name: int(name[len(EARLIER_LOGS) :].partition("/")[0]))
        screen.note(
            f"this is attempt {job.attempt}; earlier attempts have "
            f"{counted(len(earlier), 'log')}: rayjobs logs {job.id} {newest}"
        )


def _print_file(
    settings: Settings, workspace: OpenWorkspace, job: Job, file: str | None, view: View
) -> int:
    """Print one file among a job's logs, or list their names."""
    from rayjobs.cli.screen import Screen
    from rayjobs.results.driver_log import last_lines
    from rayjobs.results.logs import Logs

    if job.kind != "job":
        parts_are = {"sweep": "trials", "pipeline": "steps"}.get(job.kind, "members")
        raise click.UsageError(
            f"{job.id} is {'an array' if job.kind == 'array' else f'a {job.kind}'}; --list and "
            f"FILE are about one job: name one of its {parts_are}, as "
            f"`rayjobs ls --parent {job.id}` lists them."
        )
    of_job = Logs(workspace, job.id)
    if file is None:
        names = of_job.names()
        if settings.as_json:
            print_json(names)
        else:
            click.echo("\n".join(map(one_line, names)), nl=bool(names))
        return Exit.DONE
    parts: Iterable[bytes] = of_job.chunks(file)
    if view.grep is not None:
        grep = view.grep
        lines = (line + b"\n" for line in _byte_lines(parts) if grep.search(_text(line)))
        parts = lines
    if view.tail is not None:
        parts = [last_lines(iter(parts), view.tail)]
    if settings.as_json:
        for line in _byte_lines(parts):
            print_json_line({"job": job.id, "name": file, "line": _text(line)})
        return Exit.DONE
    screen = Screen(settings, raw=view.raw)
    for part in parts:
        screen.write(part)
    screen.end()
    return Exit.DONE


def _print_failed(settings: Settings, workspace: OpenWorkspace, job: Job) -> int:
    if job.kind == "array":
        from rayjobs.cli.arraylogs import print_failed

        print_failed(settings, workspace, job)
        return Exit.DONE
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


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _byte_lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    from rayjobs.results.merged_logs import split

    return split(iter(parts))
