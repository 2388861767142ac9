"""Shows the logs of several ranks, array members, steps or jobs as one, line by line."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from rayjobs.cli.exits import Exit
from rayjobs.cli.following import Stages, await_end, detached_text
from rayjobs.cli.jobviews import short_id
from rayjobs.cli.output import print_json_line
from rayjobs.cli.screen import Screen
from rayjobs.cli.settings import Settings
from rayjobs.cli.summary import closing_line
from rayjobs.core.errors import NotFoundError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job, JobLine, StepRow
from rayjobs.results.log_lines import (
    FRESH_S,
    Line,
    Source,
    Wanted,
    follow_lines,
    has_unknown_times,
    read_lines,
)
from rayjobs.results.logs import Logs, recent
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

_TIME_WIDTH = 22


@dataclass(frozen=True)
class View:
    """Which part of the logs is shown, and how.

    Attributes:
        ranks: Some processes, in order; None for all.
        since: From this time on, in seconds of the wall clock.
        grep: Only lines that it matches.
    """

    follow: bool
    tail: int | None = None
    ranks: tuple[int, ...] | None = None
    since: float | None = None
    grep: re.Pattern[str] | None = None
    timestamps: bool = False
    raw: bool = False

    @property
    def is_of_several(self) -> bool:
        """Whether several processes of a job may be shown."""
        return self.ranks is None or len(self.ranks) > 1

    @property
    def is_by_line(self) -> bool:
        """Whether lines have to be parsed; otherwise bytes are passed through."""
        return self.since is not None or self.grep is not None or self.timestamps


def show_lines(settings: Settings, workspace: OpenWorkspace, jobs: list[Job], view: View) -> int:
    """Print lines of jobs, of arrays' members, sweeps' trials and pipelines' steps."""
    screen = Screen(settings, raw=view.raw)
    wanted = Wanted(view.since, _matcher(view.grep))
    shown = _Shown(settings, workspace, screen, view, several=len(jobs) > 1)
    if view.follow:
        try:
            ended = _follow(settings, workspace, jobs, shown, wanted)
        except KeyboardInterrupt:
            screen.end()
            screen.note("\n".join(detached_text(job) for job in jobs))
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
    """Creates the log sources of jobs, and prints their lines."""

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
        self._steps: dict[str, str] = {}
        self._reused: set[str] = set()

    def sources_of(self, job: Job, known: Collection[str] = ()) -> Iterator[Source]:
        """Return the logs of a job: its own, or those of its members, trials or steps.

        Args:
            known: Jobs whose logs are left out.
        """
        if job.kind == "job":
            if job.id not in known:
                label = short_id(job) if self._several else ""
                yield self._add(job.id, label, job.spec.distribution.world_size)
        elif job.kind == "pipeline":
            for row in self._workspace.store.steps(job.id):
                yield from self._of_step(job, row, known)
        else:
            yield from self._of_members(job, short_id(job) if self._several else "", known)

    def _of_step(self, pipeline: Job, row: StepRow, known: Collection[str]) -> Iterator[Source]:
        label = f"{short_id(pipeline)}[{row.name}]" if self._several else row.name
        store = self._workspace.store
        if row.original is not None:
            # When following, leave out the log of the earlier run.
            if not self.view.follow:
                with contextlib.suppress(NotFoundError):  # it was pruned
                    yield from self._of_one_step(store.job(row.original), label, row.name, known)
            if row.job not in self._reused:
                self._reused.add(row.job)
                self.screen.note(
                    f"{row.name}: reused from {row.original} (rayjobs logs {row.original})"
                )
            return
        yield from self._of_one_step(store.job(row.job), label, row.name, known)

    def _of_one_step(
        self, step: Job, label: str, name: str, known: Collection[str]
    ) -> Iterator[Source]:
        if step.kind != "job":
            yield from self._of_members(step, label, known)
            return
        world_size = step.spec.distribution.world_size
        has_rank = self.view.ranks is None or self.view.ranks[0] < world_size
        if step.attempt and step.id not in known and has_rank:
            self._steps[step.id] = name
            yield self._add(step.id, label, world_size)

    def _of_members(self, parent: Job, label: str, known: Collection[str]) -> Iterator[Source]:
        world_size = parent.spec.distribution.world_size
        for member in _members(self._workspace, parent):
            if member.id in known:
                continue
            number = member.array_index
            name = member.tags.get("trial", "?") if number is None else str(number)
            if number is not None:
                self._members[member.id] = number
            yield self._add(member.id, f"{label}[{name}]" if label else name, world_size)

    def _add(self, job_id: str, label: str, world_size: int) -> Source:
        wanted = range(world_size) if self.view.ranks is None else self.view.ranks
        ranks = [rank for rank in wanted if rank < world_size]
        record = None
        if self.view.follow:
            record = recent(partial(self._workspace.store.job, job_id), FRESH_S)
        source = Source(
            Logs(self._workspace, job_id, record=record),
            label,
            ranks,
            names_ranks=world_size > 1 and self.view.is_of_several,
        )
        self._sources[job_id] = source
        return source

    def warn_of_times(self, source: Source) -> None:
        """Print a note if the times of a job's lines are requested but unknown."""
        if (self.view.since is not None or self.view.timestamps) and has_unknown_times(source):
            what = "all lines are shown" if self.view.since is not None else "no times are shown"
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
        if line.job in self._steps:
            data["step"] = self._steps[line.job]
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
    """Print the existing lines, job after job."""
    fold = not shown.view.raw
    for job in jobs:
        is_empty = True
        for source in shown.sources_of(job):
            if job.kind == "job":
                shown.warn_of_times(source)
            try:  # a missing log is noticed at its first line
                shown.print(_last(read_lines(source, wanted, fold=fold), shown.view.tail))
                is_empty = False
            except NotFoundError:
                if job.kind == "job":
                    raise
                continue  # it failed before it printed, or its files were pruned
        if is_empty:
            what = {"sweep": "trial", "pipeline": "step"}.get(job.kind, "member")
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
    """Print existing and then new lines until all jobs have ended; return the ended jobs."""
    several = len(jobs) > 1
    stages = [
        Stages(workspace, job.id, shown.screen.note, label=f"{short_id(job)}  " * several)
        for job in jobs
    ]
    known: set[str] = set()

    def sources() -> Iterator[Source]:
        for job in jobs:
            for source in shown.sources_of(job, known):
                known.add(source.job)
                yield source

    def is_over() -> bool:
        # A single job is known from the start; its streams end with it.
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
        else:  # the first pause: everything after it is new
            shown.print(past)
            past = None
    if past is not None:
        shown.print(past)
    return await_end(workspace, [job.id for job in jobs], lambda _text: None)
