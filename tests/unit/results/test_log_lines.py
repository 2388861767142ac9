"""Logs of several ranks line by line: stored, live, and when each line was printed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rayjobs.core.paths import LOG_TIMES, AttemptPaths
from rayjobs.injob.log_times import LogTimes
from rayjobs.jobs.records import Job
from rayjobs.results import log_times
from rayjobs.results.collect import Publisher
from rayjobs.results.driver_log import marker
from rayjobs.results.log_lines import (
    Line,
    Source,
    Wanted,
    follow_lines,
    has_unknown_times,
    read_lines,
)
from rayjobs.results.log_times import RankTimes
from rayjobs.results.logs import Logs, Part
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import on_node
from tests.unit.results.played import begin, end

DEADLINE_S = 150.0


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "ws") as opened:
        yield opened


@pytest.fixture
def job(workspace: OpenWorkspace) -> Job:
    spec = JobSpec.model_validate(
        {"script": "a.py", "distribution": {"processes_per_node": 2, "backend": "gloo"}}
    )
    job, _ = workspace.store.submit(NewJob(spec=spec, experiment="e", snapshot=None, user="me"))
    return job


def source(workspace: OpenWorkspace, job: Job) -> Source:
    return Source(Logs(workspace, job.id), "", [0, 1], names_ranks=True)


def shown(found: Source, lines: list[Line]) -> list[str]:
    return [(found.prefix(line.ranks) + line.data).decode() for line in lines]


class Follower:
    """Follows a job in a thread, as `logs -f` does."""

    def __init__(self, found: Source, wanted: Wanted | None = None) -> None:
        self.lines: list[Line] = []
        self._given = [found]
        self._wanted = wanted or Wanted()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _sources(self) -> list[Source]:
        given, self._given = self._given, []
        return given

    def _follow(self) -> None:
        for lines in follow_lines(self._sources, self._wanted):
            self.lines += lines

    def until(self, fact: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def ended(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.mark.long
def test_all_ranks_are_followed_as_they_print(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    found = source(workspace, job)
    follower = Follower(found)
    paths = begin(workspace, job, tmp_path / "a1")
    logs = [paths.driver_log(rank) for rank in (0, 1)]
    for rank, log in enumerate(logs):
        log.write_bytes(b"start\nloss %d\n" % rank)
    follower.until(lambda: len(follower.lines) >= 3)
    with logs[1].open("ab") as file:
        file.write(b"of rank 1 alone\nhalf a li")
    follower.until(lambda: any(b"alone" in line.data for line in follower.lines))
    with logs[1].open("ab") as file:
        file.write(b"ne\n")
    with logs[0].open("ab") as file:
        file.write(b"last, without an end")
    end(workspace, job, tmp_path / "a1")
    follower.ended()
    output = shown(found, follower.lines)
    assert "[rank 0] loss 0" in output and "[rank 1] of rank 1 alone" in output
    assert "[rank 0] last, without an end" in output
    by_rank = [[line.data for line in follower.lines if rank in line.ranks] for rank in (0, 1)]
    assert by_rank[0] == [b"start", b"loss 0", b"last, without an end"]
    assert by_rank[1][:3] == [b"start", b"loss 1", b"of rank 1 alone"]
    assert b"".join(by_rank[1][3:]) == b"half a line"


@pytest.mark.long
def test_earlier_output_is_merged(workspace: OpenWorkspace, job: Job, tmp_path: Path) -> None:
    paths = begin(workspace, job, tmp_path / "a1")
    for rank in (0, 1):
        paths.driver_log(rank).write_bytes(b"start\nloss %d\nend\n" % rank)
    found = source(workspace, job)
    expected = ["[ranks 0-1] start", "[rank 0] loss 0", "[rank 1] loss 1", "[ranks 0-1] end"]
    assert shown(found, list(read_lines(found, Wanted()))) == expected
    follower = Follower(found, Wanted(matches=lambda data: b"loss" in data))
    follower.until(lambda: len(follower.lines) == 2)
    end(workspace, job, tmp_path / "a1")
    follower.ended()
    assert shown(found, follower.lines) == expected[1:3]


def test_different_lines_come_in_the_order_of_their_times(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    paths = begin(workspace, job, tmp_path / "a1")
    paths.driver_log(0).write_bytes(b"late\n")
    paths.driver_log(1).write_bytes(b"early\nlater\n")
    paths.log_times.write_bytes(b"100.00 1 6\n200.00 0 5\n300.00 1 12\nnot a note\n\xff 1 2\n")
    found = source(workspace, job)
    lines = list(read_lines(found, Wanted()))
    assert shown(found, lines) == ["[rank 1] early", "[rank 0] late", "[rank 1] later"]
    assert [line.at for line in lines] == [100.0, 200.0, 300.0]
    assert [line.data for line in read_lines(found, Wanted(since=150.0))] == [b"late", b"later"]


def test_the_times_of_a_rank_are_read_once(
    workspace: OpenWorkspace, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = begin(workspace, job, tmp_path / "a1")
    for rank in (0, 1):
        paths.driver_log(rank).write_bytes(b"line\n")
    paths.log_times.write_bytes(b"100.00 0 5\n100.00 1 5\n")
    found = source(workspace, job)
    ranks_read: list[int] = []
    times = found.logs.times

    def noted(rank: int) -> Any:
        ranks_read.append(rank)
        return times(rank)

    monkeypatch.setattr(found.logs, "times", noted)
    assert not has_unknown_times(found)
    assert [line.at for line in read_lines(found, Wanted())] == [100.0]
    assert ranks_read == [0, 1]


class Steady:
    """The logs of a job whose ranks print at every poll, until `is_enough` or a deadline."""

    job_id = "job"

    def __init__(self) -> None:
        self.is_enough = False
        self.is_late = False

    def times(self, rank: int, number: int | None = None) -> RankTimes:
        return RankTimes()

    def follow(self, rank: int, *, poll_s: float) -> Iterator[Part]:
        deadline = time.monotonic() + 10
        while not self.is_enough and not self.is_late:
            self.is_late = time.monotonic() > deadline
            yield Part("log", rank, 1, b"of rank %d\n" % rank)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_are_shown_during_continuous_output(ranks: int) -> None:
    logs = Steady()
    given = [Source(cast(Logs, logs), "", range(ranks), names_ranks=True)]

    def sources() -> list[Source]:
        return [given.pop()] if given else []

    seen: list[bool] = []
    for lines in follow_lines(sources, Wanted()):
        seen.append(bool(lines))
        # Lines, then the mark that the earlier output is complete, then more lines.
        logs.is_enough = logs.is_enough or (seen[0] and False in seen and seen[-1])
    assert logs.is_enough and not logs.is_late


@pytest.mark.long
def test_first_pause_follows_earlier_output(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    paths = begin(workspace, job, tmp_path / "a1")
    for rank in (0, 1):
        paths.driver_log(rank).write_bytes(b"loss %d\n" % rank)
    given = [source(workspace, job)]
    before: list[bytes] = []
    for lines in follow_lines(lambda: [given.pop()] if given else [], Wanted()):
        if not lines:
            break
        before += [line.data for line in lines]
    assert sorted(before) == [b"loss 0", b"loss 1"]


@pytest.mark.parametrize("at", [b"nan", b"inf", b"-inf", b"1e300", b"-1", b"1e11"])
def test_a_note_with_an_impossible_time_is_left_out(at: bytes) -> None:
    assert log_times.parse(b"100.00 0 5\n" + at + b" 0 10\n200.00 0 20\n") == {
        0: [(100.0, 5), (200.0, 20)]
    }


def test_a_host_notes_when_logs_grow(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    paths = AttemptPaths(tmp_path)
    times = LogTimes(str(paths.log_times), 1000.0)
    times.look({0: 10, 1: 0}, 1000.0)
    times.look({0: 20, 1: 5}, 1000.1)  # rank 0's last note is too young
    times.look({0: 20, 1: 5}, 1000.5)
    times.look({0: 30, 1: 5}, 900.0)  # a clock that was set back
    times.look({0: 31, 1: 5}, 900.1, at_end=True)
    assert log_times.of_attempt(paths) == {
        0: [(1000.0, 10), (1000.5, 20), (900.0, 30), (900.1, 31)],
        1: [(1000.1, 5)],
    }
    long_ago = LogTimes(str(tmp_path / "log" / "other"), 0.0)
    long_ago.look({0: 1}, 100_000.0)
    long_ago.look({0: 2}, 100_001.0)  # a day-old attempt gets a note every two seconds
    long_ago.look({0: 3}, 100_003.0)
    assert (tmp_path / "log" / "other").read_text() == "100000.00 0 1\n100003.00 0 3\n"


def test_notes_are_stored_with_the_logs_and_fit_one_whose_middle_was_left_out(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    root = tmp_path / "a1"
    paths = begin(workspace, job, root)
    log = paths.driver_log(0)
    log.write_bytes(b"first\n" + b"\0" * 4000 + b"\nlast\n")
    note = {"version": 1, "holes": [{"offset": 6, "length": 4000}], "dropped_bytes": 4000}
    log.with_name("driver_0.holes.json").write_text(json.dumps(note))
    paths.driver_log(1).write_bytes(b"")
    paths.log_times.write_bytes(b"100.00 0 6\n150.00 0 2000\n200.00 0 4012\n")
    live = Logs(workspace, job.id).times(0)
    end(workspace, job, root)
    root.rename(tmp_path / "gone")
    stored = Logs(workspace, job.id).times(0)
    size = 6 + len(marker(4000)) + 6
    for times in (live, stored):
        assert [times.at(at) for at in (1, 6, size)] == [100.0, 100.0, 200.0]
    assert stored.at(size + 1) == 200.0


def test_notes_of_a_short_attempt_are_not_stored(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    paths.log_times.parent.mkdir()
    paths.log_times.write_bytes(b"100.00 0 6\n101.90 0 7\n")
    assert not log_times.is_worth_storing(paths)
    paths.log_times.write_bytes(b"100.00 0 6\n102.10 0 7\n")
    assert log_times.is_worth_storing(paths)


def test_notes_that_the_job_replaced_by_a_link_are_not_followed(
    workspace: OpenWorkspace, job: Job, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"100.00 0 6\n200.00 0 7\n")
    root = tmp_path / "a1"
    paths = begin(workspace, job, root)
    paths.log_times.symlink_to(secret)
    assert log_times.of_attempt(paths) == {}
    kept: list[str] = []

    def publish(files: object) -> bool:
        kept.extend(one.name for one in files)  # type: ignore[attr-defined]
        return True

    publisher = Publisher(on_node(root, ranks=()), blobs=workspace.blobs, publish=publish)
    assert publisher.finish() == []
    assert LOG_TIMES not in kept
