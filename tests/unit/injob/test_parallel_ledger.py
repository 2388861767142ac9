"""The mini-batches of a parallel run: each counts once despite crashes, with its rows in order."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob import checkpoint, parallel_ledger
from rayjobs.injob.parallel_ledger import Ledger
from rayjobs.injob.parallel_messages import Assignment, MiniBatch
from rayjobs.injob.parallel_settings import Settings, table_bytes_of
from rayjobs.injob.parallel_worker import elements
from rayjobs.spec.model import ParallelRun

OPEN: list[Ledger] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ledger(
    folder: Path,
    count: int = 3,
    clock: Clock | None = None,
    say: Callable[[str, str], None] = lambda _level, _text: None,
    **changes: Any,
) -> Ledger:
    spec = ParallelRun(**{"inputs": ("data",), "output": "made", **changes})
    settings = Settings.from_json(spec.model_dump_json())
    batches = [MiniBatch(n, "data", 2, files=(f"{n}a", f"{n}b")) for n in range(count)]
    made = Ledger(batches, settings, str(folder), say, clock or Clock())
    OPEN.append(made)
    return made


def taken(one: Ledger, holder: object = "me") -> int:
    batch = one.take(holder).batch
    assert batch is not None
    return batch.number


def rows(one: Ledger, folder: Path) -> list[str]:
    one.write_rows(str(folder / "rows.txt"))
    assert not list(folder.glob(".*rows.txt*"))  # no draft is left
    return (folder / "rows.txt").read_text().splitlines()


def test_rows_are_in_the_order_of_the_mini_batches(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    for number in (taken(one), taken(one), taken(one))[::-1]:
        one.done(number, [f"row {number}", "x"], 2)
    assert one.take("me") == Assignment(end=True)
    assert rows(one, tmp_path) == ["row 0", "x", "row 1", "x", "row 2", "x"]
    assert one.summary() == "3 mini-batches of 6 items: 6 succeeded, 0 failed"


def test_items_of_a_dead_worker_are_processed_once_by_another(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    first, other = object(), object()
    number = taken(one, first)
    one.lost(first)
    assert [taken(one, other) for _ in range(3)] == [1, 2, number]
    for each in (0, 1, 2):
        one.done(each, [f"row {each}"], 2)
    one.done(number, ["late"], 2)  # the first worker was slow, not dead
    assert rows(one, tmp_path) == ["row 0", "row 1", "row 2"]


def test_result_of_an_abandoned_worker_counts_once(tmp_path: Path) -> None:
    one = ledger(tmp_path, count=1)
    number = taken(one)
    one.failed(number, "it took too long")
    one.done(number, ["row"], 2)  # before the retry
    assert one.take("me") == Assignment(end=True)
    assert rows(one, tmp_path) == ["row"]


def test_a_mini_batch_fails_after_its_last_try(tmp_path: Path) -> None:
    one = ledger(tmp_path, count=1, run_max_try=2)
    for _ in range(2):
        one.failed(taken(one), "broken")
    assert one.take("me") == Assignment(end=True)
    assert one.failed_items == 2
    assert rows(one, tmp_path) == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"error_threshold": 2}, "3 items failed, and the error threshold is 2"),
        ({"error_threshold": 0}, "1 item failed, and the error threshold is 0"),
        ({"allowed_failed_count": 0}, "1 mini-batch failed; at most 0 may fail"),
        ({"allowed_failed_percent": 20}, "1 of 3 mini-batches failed; at most 20 % may fail"),
        ({}, None),
        ({"error_threshold": 3}, None),
        ({"allowed_failed_count": 1, "allowed_failed_percent": 34}, None),
    ],
)
def test_too_many_failures_stop_all_workers(
    tmp_path: Path, asked: dict[str, Any], reason: str | None
) -> None:
    one = ledger(tmp_path, run_max_try=1, **asked)
    one.done(taken(one), ["one of two"], 1)
    if one.stop_reason is None:
        one.failed(taken(one), "broken")
    assert one.stop_reason == reason
    assert one.take("me").stop == reason


def test_waiting_request_is_notified_of_returned_items(tmp_path: Path) -> None:
    one = ledger(tmp_path, count=1)
    number = taken(one, "first")
    found: list[Assignment] = []
    waiting = threading.Thread(target=lambda: found.append(one.take("second")))
    waiting.start()
    one.failed(number, "broken")
    waiting.join(timeout=30)
    # The request either waited and was notified, or came later and found the mini-batch.
    assert found[0].batch is not None and found[0].batch.number == number


def test_attempt_continues_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_OUTPUTS", str(tmp_path / "outputs"))
    clock = Clock()
    first = ledger(tmp_path, clock=clock)
    clock.now_s = parallel_ledger.CHECKPOINT_EVERY_S
    first.done(taken(first), ["row 0"], 2)
    first.done(taken(first), ["row 1, after the checkpoint"], 2)
    saved = checkpoint.latest()
    assert saved is not None and saved.step == 1
    messages: list[tuple[str, str]] = []
    again = ledger(tmp_path, clock=clock, say=lambda *message: messages.append(message))
    assert [taken(again), taken(again)] == [1, 2]
    for number in (1, 2):
        again.done(number, [f"row {number}"], 2)
    assert rows(again, tmp_path) == ["row 0", "row 1", "row 2"]
    assert messages == [("INFO", "1 mini-batch was done by an earlier attempt")]
    other = ledger(tmp_path, count=4, clock=clock)  # other inputs: nothing is reused
    assert taken(other) == 0


def test_files_written_by_the_script_are_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_OUTPUTS", str(tmp_path / "outputs"))
    clock = Clock()
    one = ledger(tmp_path, clock=clock, output_action="summary_only")
    clock.now_s = 1000.0
    one.done(taken(one), [], 2)
    assert checkpoint.latest() is None


class Frame:
    """The part of a data frame that is needed."""

    columns = ("a", "b")

    def __len__(self) -> int:
        return 2

    def to_csv(self, *, sep: str, header: bool, index: bool) -> str:
        assert (header, index) == (False, False)
        return f"1{sep}x\n2{sep}y\n"


def test_accepted_return_values_of_run() -> None:
    assert elements(["a", 2]) == (["a", "2"], 2)
    assert elements([]) == ([], 0)
    assert elements(Frame()) == (["1 x", "2 y"], 2)
    for wrong in (None, "text", {"a": 1}, 3):
        with pytest.raises(TypeError, match="return a list"):
            elements(wrong)


def test_sizes_of_tables() -> None:
    found = [table_bytes_of(text) for text in (1024, "1024", "10KB", "2 mb", "1GB", "5B")]
    assert found == [1024, 1024, 10240, 2 * 2**20, 2**30, 5]
    with pytest.raises(ValueError):
        table_bytes_of("much")


def test_the_journal_is_one_object_a_line(tmp_path: Path) -> None:
    one = ledger(tmp_path, count=1)
    one.done(taken(one), ["two\nlines"], 2)
    (line,) = (tmp_path / parallel_ledger.JOURNAL).read_text().splitlines()
    assert json.loads(line) == {"number": 0, "count": 2, "rows": ["two\nlines"]}


def test_list_of_mini_batches_has_the_identity_of_version_0_1_0(tmp_path: Path) -> None:
    listed = [{"input": "data", "files": ["0a", "0b"], "items": 2}]
    expected = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
    assert ledger(tmp_path, count=1).identity == expected


def test_given_up_mini_batch_is_a_line_of_the_journal(tmp_path: Path) -> None:
    one = ledger(tmp_path, count=1, run_max_try=1)
    one.failed(taken(one), "broken")
    (line,) = (tmp_path / parallel_ledger.JOURNAL).read_text().splitlines()
    assert json.loads(line) == {"number": 0, "count": 0, "rows": [], "failed": True}
