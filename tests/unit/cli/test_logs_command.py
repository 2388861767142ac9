"""`rayjobs logs`: bytes, parts, ranks, several jobs, times, and following them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import cast

import pytest

from rayjobs.cli.logs import _name_earlier
from rayjobs.cli.screen import Screen
from rayjobs.cli.settings import Settings
from rayjobs.cli.submit import stay
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.results.logs import Logs
from rayjobs.submit.submitting import Submitted
from tests.unit.cli.conftest import LOG, Queue, Terminal


def test_logs_are_byte_exact_without_a_terminal(
    queue: Queue, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from rayjobs.cli.main import run

    job = queue.completed()
    assert run(["logs", job.id]) == 0
    assert capfdbinary.readouterr() == (LOG, b"")
    assert run(["logs", "-f", job.id]) == 0
    assert capfdbinary.readouterr() == (LOG, b"Completed\n")
    assert run(["logs", "-n", "1", "-f", job.id]) == 0
    assert capfdbinary.readouterr() == (b"three, without an end", b"Completed\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-n", "1"), "three, without an end"),
        (("-n", "0"), ""),
        (("--list",), "azureml-logs/70_driver_log.txt\n"),
        (("user_logs/std_log.txt", "-n", "1"), "three, without an end"),
    ],
)
def test_logs_in_part(
    options: tuple[str, ...], expected: str, queue: Queue, terminal: Terminal
) -> None:
    job = queue.completed()
    done = terminal.type("logs", job.id, *options)
    assert (done.code, done.out) == (0, expected)


def test_newest_earlier_log_is_named(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    for attempt in (2, 10):
        queue.store_file(job, f"azureml-logs/attempt-{attempt}/70_driver_log.txt", b"earlier\n")
    ended = replace(queue.finish(job), attempt=11)
    messages: list[str] = []
    screen = cast("Screen", SimpleNamespace(note=messages.append))
    _name_earlier(screen, Logs(queue.workspace, job.id), ended)
    assert messages[0].endswith(f"rayjobs logs {job.id} azureml-logs/attempt-10/70_driver_log.txt")


@pytest.mark.long
def test_logs_of_each_rank_are_distinguished(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit(distribution={"processes_per_node": 2, "backend": "gloo"}))
    for rank in (0, 1):
        name = f"azureml-logs/70_driver_log_{rank}.txt"
        queue.store_file(job, name, f"from {rank}\n".encode())
    queue.finish(job)
    assert terminal.type("logs", job.id, "--rank", "1").out == "from 1\n"
    both = "[rank 0] from 0\n[rank 1] from 1\n"
    assert terminal.type("logs", job.id, "--rank", "all").out == both
    assert terminal.type("logs", job.id).out == both
    assert terminal.type("logs", "-f", job.id).out == both
    assert terminal.type("logs", "-f", "--rank", "1", job.id).out == "from 1\n"
    assert terminal.type("logs", "--grep", "m 1$", job.id).out == "[rank 1] from 1\n"
    assert terminal.type("logs", "--grep", "(", job.id).code == 2
    (first, _) = map(json.loads, terminal.type("logs", "--json", job.id).out.splitlines())
    assert (first["ranks"], first["line"], first["attempt"]) == ([0], "from 0", 1)
    last = terminal.type("logs", job.id, "--rank", "all", "-n", "1").out
    assert last == "[rank 1] from 1\n"
    for some in ("0,1", "0-1", "1,0", "1, 0-1"):
        assert terminal.type("logs", job.id, "--rank", some).out == both
    assert terminal.type("logs", job.id, "--rank", "1,1").out == "from 1\n"
    assert terminal.type("logs", job.id, "--rank", "0-2").code == 3
    for wrong in ("1-0", "0,", "-1", "0-", "a-b"):
        assert terminal.type("logs", job.id, "--rank", wrong).code == 2
    assert terminal.type("logs", job.id, "--rank", "2").code == 3
    assert terminal.type("logs", job.id, "--rank", "first").code == 2


@pytest.mark.parametrize(("failure", "code"), [(None, 0), (Failure(FailureClass.USER, "bad"), 1)])
def test_an_attached_submit_shows_all_ranks(
    queue: Queue, capsys: pytest.CaptureFixture[str], failure: Failure | None, code: int
) -> None:
    job = queue.start(queue.submit(distribution={"processes_per_node": 2, "backend": "gloo"}))
    for rank in (0, 1):
        name = f"azureml-logs/70_driver_log_{rank}.txt"
        queue.store_file(job, name, f"from {rank}\n".encode())
    done = Submitted(queue.finish(job, failure), created=True)
    assert stay(Settings(), queue.workspace, done) == code
    out, err = capsys.readouterr()
    assert out == "[rank 0] from 0\n[rank 1] from 1\n"
    assert f"submitted {job.id}" in err


@pytest.mark.long
def test_logs_of_several_jobs_name_the_job_of_each_line(queue: Queue, terminal: Terminal) -> None:
    jobs = [queue.completed(), queue.completed("other")]
    first, second = (job.id.rpartition("_")[2] for job in jobs)
    lines = terminal.type("logs", *(job.id for job in jobs), "-n", "1").out.splitlines()
    assert lines == [f"[{name}] three, without an end" for name in (first, second)]
    followed = terminal.type("logs", "-f", *(job.id for job in jobs), "--grep", "three")
    assert sorted(followed.out.splitlines()) == sorted(lines)
    assert terminal.type("logs", "--failed", *(job.id for job in jobs)).code == 2
    assert terminal.type("logs", *(job.id for job in jobs), "logs/x.txt").code == 2


@pytest.mark.long
def test_since_and_timestamps(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    queue.store_file(job, "azureml-logs/70_driver_log.txt", b"early\nlate\nlater\n")
    now = float(
        int(time.time())
    )  # notes have two decimals, which would round up to the next second
    notes = f"{now - 7200:.2f} 0 6\nno note\nnan 0 10\n1e300 0 10\n"
    notes += f"{now - 60:.2f} 0 11\n{now - 5:.2f} 0 17\n"
    queue.store_file(job, "azureml-setup/log_times.txt", notes.encode())
    queue.finish(job)
    assert terminal.type("logs", "--since", "10m", job.id).out == "late\nlater\n"
    at = datetime.fromtimestamp(now - 3600).strftime("%Y-%m-%d %H:%M")
    assert terminal.type("logs", "--since", at, job.id).out == "late\nlater\n"
    stamped = terminal.type("logs", "-t", job.id).out.splitlines()
    begin = datetime.fromtimestamp(now - 7200).strftime("%Y-%m-%d %H:%M:%S")
    assert stamped[0].startswith(begin) and stamped[0].endswith(" early")
    assert terminal.type("logs", "--since", "soon", job.id).code == 2
    assert terminal.type("logs", "-t", "-f", "--since", "10m", job.id).out.count("late") == 2


def test_a_log_of_an_earlier_rayjobs_has_no_times(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    queue.store_file(job, "azureml-logs/70_driver_log.txt", b"old\n")
    queue.finish(job)
    stamped = terminal.type("logs", "-t", job.id)
    assert stamped.out.split() == ["time", "unknown", "old"]
    assert "the times of its lines are unknown" in stamped.err
    assert terminal.type("logs", "--since", "1m", job.id).out == "old\n"


def test_equal_lines_of_ranks_are_shown_once_unless_raw(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit(distribution={"processes_per_node": 2, "backend": "gloo"}))
    for rank in (0, 1):
        name = f"azureml-logs/70_driver_log_{rank}.txt"
        queue.store_file(job, name, b"the same\n")
    queue.finish(job)
    assert terminal.type("logs", job.id, "--rank", "all").out == "[ranks 0-1] the same\n"
    raw = terminal.type("logs", job.id, "--rank", "all", "--raw").out
    assert raw == "[rank 0] the same\n[rank 1] the same\n"
    shown = terminal.type("show", "-v", job.id).out
    assert "1 × 2 (gloo)" in shown


def test_logs_failed_prints_the_lines_that_matter(queue: Queue, terminal: Terminal) -> None:
    done = terminal.type("logs", "--failed", queue.failed().id)
    assert done.out == "  File train.py, line 3\nValueError: no data\n"
    assert "rank 0" in done.err
    good = terminal.type("logs", "--failed", queue.completed("good").id)
    assert (good.code, good.out) == (0, "")


def test_logs_of_a_waiting_job_do_not_exist_yet(queue: Queue, terminal: Terminal) -> None:
    done = terminal.type("logs", queue.submit().id)
    assert done.code == 3
    assert "Queued" in done.err


def test_the_end_of_a_long_log_is_followed(
    queue: Queue, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayjobs.cli import following

    monkeypatch.setattr(following, "KEPT_BYTES", 1000)
    job = queue.start(queue.submit())
    text = "".join(f"line {number}\n" for number in range(100_000)) + "x" * 700_000 + "\nend\n"
    queue.store_file(job, "azureml-logs/70_driver_log.txt", text.encode())
    queue.finish(job)
    assert terminal.type("logs", "-f", "-n", "3", job.id).out == "\n".join(
        [*text.splitlines()[-3:], ""]
    )


def test_following_ends_with_how_each_job_ended(queue: Queue, terminal: Terminal) -> None:
    """On stderr, so that what a script prints is all that is on stdout; the exit code stays 0."""
    good, bad = queue.finish(queue.start(queue.submit("good"))), queue.failed(name="bad")
    done = terminal.type("logs", "-f", good.id)
    assert (done.code, done.err.splitlines()[-1]) == (0, "Completed")
    done = terminal.type("logs", "-f", bad.id)
    assert done.code == 0
    failed = "Failed (user): rank 0 exited with code 1: ValueError: no data"
    assert done.err.splitlines()[-1].replace("\\x1b[2J", "") == failed, done.err
    done = terminal.type("logs", "-f", good.id, bad.id)
    ends = done.err.splitlines()[-2:]
    assert [line.split()[0] for line in ends] == [one.id.rpartition("_")[2] for one in (good, bad)]
    assert ends[0].endswith("Completed")
    assert "Failed (user)" in ends[1]
    assert "The exit code is then 0 however the jobs ended" in " ".join(
        terminal.type("logs", "-h").out.split()
    )
