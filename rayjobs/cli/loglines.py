"""Shows the logs of several ranks, array members or jobs as one, line by line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rayjobs.cli.exits import Exit
from rayjobs.cli.following import Stages, await_end, detached_text
from rayjobs.cli.jobviews import short_id
from rayjobs.cli.output import print_json_line
from rayjobs.cli.screen import Screen
from rayjobs.cli.settings import Settings
from rayjobs.cli.summary import closing_line
from rayjobs.core.errors import NotFoundError
from rayjobs.jobs.records import Job, JobLine
from rayjobs.results.log_lines import (
    FRESH_S,
    Line,
    Source,
    Wanted,
    follow_lines,
    has_unknown_times,
    read_lines,
)
from rayjobs.results.logs import Logs
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

_TIME_WIDTH = 22


@dataclass(frozen=True)
class View:
    """Which part of the logs is shown, and how.

    Attributes:
        rank: One process; None for all.
        since: From this time on, in seconds of the wall clock.
        grep: Only lines that it finds something in.
    """

    follow: bool
    tail: int | None = None
    rank: int | None = None
    since: float | None = None
    grep: re.Pattern[str] | None = None
    timestamps: bool = False
    raw: bool = False

    @property
    def is_by_line(self) -> bool:
        """Whether lines have to be looked at; otherwise bytes are passed on."""
        return self.since is not None or self.grep is not None or self.timestamps


def show_lines(settings: Settings, workspace: OpenWorkspace, jobs: list[Job], view: View) -> int:
    """Print lines of jobs, of arrays' members and of sweeps' trials; return the exit code."""
    screen = Screen(settings, raw=view.raw)
    wanted = Wanted(view.since, _matcher(view.grep))
    shown = _Shown(settings, workspace, screen, view, several=len(jobs) > 1)
    if view.follow:
        try:
            ended = _follow(settings, workspace, jobs, shown, wanted)
        except KeyboardInterrupt:
            screen.end()
            screen.note("\n".join(detached_text(settings, job) for job in jobs))
            return Exit.INTERRUPTED
        screen.end()
        for job in ended:
            label = f"{short_id(job)}  " if len(ended) > 1 else ""
            screen.note(f"{label}{closing_line(settings, job)}")
        return Exit.DONE
    _read(settings, workspace, jobs, shown, wanted)
    screen.end()
    return Exit.DONE


def follow_ranks(settings: Settings, workspace: OpenWorkspace, job: Job, screen: Screen) -> Job:
    """Show what all ranks of a job print until it has ended; return the job as it ended."""
    shown = _Shown(settings, workspace, screen, View(follow=True), several=False)
    try:
        return _follow(settings, workspace, [job], shown, Wanted(None, _matcher(None)))[0]
    finally:
        screen.end()


def _matcher(grep: re.Pattern[str] | None) -> Callable[[bytes], bool]:
    if grep is None:
        return lambda _data: True
    return lambda data: grep.search(data.decode("utf-8", "replace")) is not None


class _Shown:
    """Makes sources of jobs, and prints their lines."""

    def __init__(
        self,
        settings: Settings,
        workspace: OpenWorkspace,
        screen: Screen,
        view: View,
        *,
        several: bool,
    ) -> None:
        self.view = view
        self.screen = screen
        self._settings = settings
        self._workspace = workspace
        self._several = several
        self._sources: dict[str, Source] = {}
        self._members: dict[str, int] = {}

    def source(self, job: Job) -> Source:
        """Return the logs of a job by itself."""
        world_size = job.spec.distribution.world_size
        label = short_id(job) if self._several else ""
        return self._add(job.id, label, world_size)

    def member(self, parent: Job, member: JobLine) -> Source:
        """Return the logs of a member of an array, or of a sweep's trial."""
        number = member.array_index
        name = member.tags.get("trial", "?") if number is None else str(number)
        if number is not None:
            self._members[member.id] = number
        label = f"{short_id(parent)}[{name}]" if self._several else name
        return self._add(member.id, label, parent.spec.distribution.world_size)

    def _add(self, job_id: str, label: str, world_size: int) -> Source:
        rank = self.view.rank
        source = Source(
            Logs(self._workspace, job_id, fresh_s=FRESH_S if self.view.follow else 0.0),
            label,
            range(world_size) if rank is None else [rank],
            names_ranks=world_size > 1 and rank is None,
        )
        self._sources[job_id] = source
        return source

    def warn_of_times(self, source: Source) -> None:
        """Note that the times of a job's lines are unknown, if times were asked for."""
        if (self.view.since is not None or self.view.timestamps) and has_unknown_times(source):
            what = "all of them are shown" if self.view.since is not None else "none are shown"
            self._settings.note(
                f"{source.job} ran with an earlier rayjobs: the times of its lines are unknown; "
                f"{what}"
            )

    def print(self, lines: Iterable[Line]) -> None:
        """Print lines."""
        for line in lines:
            source = self._sources[line.job]
            if self._settings.as_json:
                self._print_json(source, line)
                continue
            time = f"{_local(line.at)} " if self.view.timestamps else ""
            self.screen.write(time.encode() + source.prefix(line.ranks) + line.data + b"\n")

    def _print_json(self, source: Source, line: Line) -> None:
        one = len(source.ranks) == 1
        data = {
            "job": line.job,
            "name": source.logs.driver_name(source.ranks[0]) if one else None,
            "ranks": line.ranks,
            "attempt": line.attempt,
            "time": None if line.at is None else datetime.fromtimestamp(line.at, UTC),
            "line": line.data.decode("utf-8", "replace"),
        }
        if line.job in self._members:
            data["array_index"] = self._members[line.job]
        print_json_line(data)


def _local(at: float | None) -> str:
    if at is None:
        return "time unknown".ljust(_TIME_WIDTH)
    moment = datetime.fromtimestamp(at, UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:_TIME_WIDTH]


def _read(
    settings: Settings,
    workspace: OpenWorkspace,
    jobs: list[Job],
    shown: _Shown,
    wanted: Wanted,
) -> None:
    """Print what is there, job after job."""
    fold = not shown.view.raw
    for job in jobs:
        if job.kind == "job":
            source = shown.source(job)
            shown.warn_of_times(source)
            shown.print(_last(read_lines(source, wanted, fold=fold), shown.view.tail))
            continue
        is_empty = True
        for member in _members(workspace, job):
            source = shown.member(job, member)
            try:  # a log that is not there is noticed at its first line
                shown.print(_last(read_lines(source, wanted, fold=fold), shown.view.tail))
                is_empty = False
            except NotFoundError:
                continue  # it failed before it printed, or its files were pruned
        if is_empty:
            what = "trial" if job.kind == "sweep" else "member"
            settings.note(f"no {what} of {job.id} has printed anything yet")


def _last(lines: Iterator[Line], tail: int | None) -> Iterable[Line]:
    return lines if tail is None else deque(lines, maxlen=tail)


def _members(workspace: OpenWorkspace, parent: Job) -> Iterator[JobLine]:
    for member in workspace.store.job_lines(JobFilter(parent=parent.id, newest_first=False)):
        if member.placed_at is not None or member.attempt:
            yield member


def _follow(
    settings: Settings,
    workspace: OpenWorkspace,
    jobs: list[Job],
    shown: _Shown,
    wanted: Wanted,
) -> list[Job]:
    """Print what is there, then what comes, until all jobs have ended; return them so."""
    several = len(jobs) > 1
    stages = [
        Stages(workspace, job.id, shown.screen.note, label=f"{short_id(job)}  " * several)
        for job in jobs
    ]
    known: set[str] = set()

    def sources() -> Iterator[Source]:
        for job in jobs:
            if job.kind == "job":
                if job.id not in known:
                    known.add(job.id)
                    yield shown.source(job)
                continue
            for member in _members(workspace, job):
                if member.id not in known:
                    known.add(member.id)
                    yield shown.member(job, member)

    def is_over() -> bool:
        # A job by itself is known from the start; its streams end with it.
        return all(job.kind == "job" or workspace.store.job(job.id).state.is_final for job in jobs)

    tail = shown.view.tail
    past: deque[Line] | None = None if tail is None else deque(maxlen=tail)
    for lines in follow_lines(sources, wanted, is_over=is_over, fold=not shown.view.raw):
        for one in stages:
            one.look()
        if past is None:
            shown.print(lines)
        elif lines:
            past.extend(lines)
        else:  # the first pause: what comes from here on is new
            shown.print(past)
            past = None
    if past is not None:
        shown.print(past)
    return await_end(workspace, [job.id for job in jobs], lambda _text: None)
