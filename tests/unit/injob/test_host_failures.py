"""What a host does when it fails itself, or cannot signal a process or open a file."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.injob import detach, ending, host, open_files, processes, rank_forker, ranks
from rayjobs.injob.ending import Ending
from rayjobs.injob.exit_record import ExitRecord, MemoryUse, PidsLimit
from rayjobs.injob.identity import Identity, ProcessStat
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.rank_forker import RankForker

LEFT = ProcessStat(4711, "stuck", "D", 1, 4711, 1, 99)


def full(*_arguments: Any, **_values: Any) -> Any:
    raise OSError(errno.ENFILE, "Too many open files in system")


def ending_of(started: list[Any], **tree: Any) -> Ending:
    """Return the end of an attempt whose tree has these methods."""
    plan: Any = SimpleNamespace(
        grace_s=10.0, kind="command", job="j", attempt=1, node=0, marker="m", root="/nowhere"
    )
    memory: Any = SimpleNamespace(as_record=MemoryUse)
    fake: Any = SimpleNamespace(**{"kind": "subreaper", **tree})
    return Ending(
        plan,
        started,
        tree=fake,
        memory=memory,
        is_leaving=lambda: False,
        keep_outcome=lambda: None,
    )


def record_of_failed_host(monkeypatch: pytest.MonkeyPatch, **tree: Any) -> ExitRecord:
    """Return what a host writes that gives up."""
    written: list[ExitRecord] = []
    monkeypatch.setattr(detach, "note", lambda text: None)
    monkeypatch.setattr(host, "_GIVE_UP_S", 0.05, raising=False)
    monkeypatch.setattr(ending, "remove_cgroups_of", lambda marker: None)
    failing: Any = object.__new__(host.Host)
    failing.ending = ending_of([], **tree)
    failing.tree = failing.ending._tree
    failing._reap = lambda: False
    failing._finish = written.append
    failing._close = lambda: failing.ending.as_record(
        started_at=0.0, duration_s=0.0, processes=PidsLimit(), cold=None, usage=None, stacks=()
    )
    failing._give_up("KeyError: 'oh'")
    (record,) = written
    assert record.outcome is Outcome.HOST_ERROR
    return record


def test_failed_host_names_the_processes_that_it_could_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = record_of_failed_host(monkeypatch, kill=lambda: [LEFT], members=lambda: [LEFT])
    assert not record.leftovers.proven_dead
    assert [one.pid for one in record.leftovers.remaining] == [LEFT.pid]


def test_failed_host_that_cannot_list_processes_writes_its_record_without_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = record_of_failed_host(monkeypatch, kill=full, members=full)
    assert not record.leftovers.proven_dead


def test_failed_host_without_processes_proves_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of_failed_host(monkeypatch, kill=list, members=list)
    assert record.leftovers.proven_dead


def test_rank_that_became_another_users_does_not_keep_the_others_from_their_sigterm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def send(identity: Identity, number: int) -> bool:
        asked.append(identity.pid)
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(ending, "send_signal", send)
    started = [
        SimpleNamespace(has_ended=False, identity=Identity(pid, 1, "boot")) for pid in (7, 8)
    ]
    signaled: list[int] = []
    end = ending_of(
        started,
        members=lambda: [LEFT],
        signal=lambda found, number: signaled.append(number),
    )
    end.begin(Outcome.CANCELED, "a test")
    assert asked == [7, 8]
    assert len(signaled) == 2


@pytest.mark.parametrize(
    ("called", "function"),
    [
        (lambda: processes.all_pids(), "listdir"),
        (lambda: processes.children(os.getpid()), "listdir"),
        (lambda: processes.children(os.getpid()), "open"),
    ],
)
def test_momentary_lack_of_open_files_hides_no_process(
    monkeypatch: pytest.MonkeyPatch, called: Callable[[], object], function: str
) -> None:
    place = os if function == "listdir" else builtins
    works, failures = getattr(place, function), [1]

    def once(*arguments: Any, **values: Any) -> Any:
        return full() if failures and failures.pop() else works(*arguments, **values)

    monkeypatch.setattr(open_files, "PAUSE_S", 0.0)
    monkeypatch.setattr(place, function, once)
    assert called() is not None
    assert not failures


def test_rank_that_cannot_be_forked_for_lack_of_open_files_costs_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_forker, "fork_rank", full)
    end = ending_of([])
    item: Any = SimpleNamespace(rank=0)
    nothing: Any = None
    forker = RankForker(
        nothing,
        {},
        None,
        selector=nothing,
        tree=nothing,
        memory=nothing,
        processes=nothing,
        ending=end,
        abandon=lambda: None,
    )
    assert forker.fork([item]) is None
    assert (end.outcome, end.out_of_files) == (Outcome.HOST_ERROR, True)


def test_fork_without_a_second_pipe_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    first = os.pipe()
    left = [first]
    monkeypatch.setattr(os, "pipe", lambda: left.pop() if left else full())
    nothing: Any = None
    with pytest.raises(OSError, match="Too many open files"):
        ranks.fork_rank(nothing, nothing, {}, None, abandon=lambda: None, tree=nothing)
    for descriptor in first:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
