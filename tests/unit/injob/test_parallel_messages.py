"""The lines of a parallel run have the entries of version 0.1.0, which ranks elsewhere may run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayjobs.injob.messages import Message, MessageError
from rayjobs.injob.parallel_messages import (
    Assignment,
    BatchDone,
    BatchFailed,
    BatchRows,
    MeasureTable,
    MiniBatch,
    RunBatch,
    SettledBatch,
    StopBatches,
    TableSize,
    TakeBatch,
    WorkerAnswer,
    rank_request,
    worker_request,
)

FILES = {"number": 0, "input": "data", "items": 2, "files": ["a", "b"]}
ROWS = {"number": 1, "input": "table", "items": 5, "rows": [0, 5]}


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (Assignment(batch=MiniBatch(0, "data", 2, files=("a", "b"))), {"batch": FILES}),
        (Assignment(batch=MiniBatch(1, "table", 5, rows=(0, 5))), {"batch": ROWS}),
        (Assignment(end=True), {"end": True}),
        (Assignment(wait=True), {"wait": True}),
        (Assignment(stop="why"), {"stop": "why"}),
        (Assignment(), {}),
        (SettledBatch(0, 2, ("a",)), {"number": 0, "count": 2, "rows": ["a"]}),
        (TableSize(rows=3, bytes=99), {"rows": 3, "bytes": 99}),
        (BatchRows(rows=("a",), count=1), {"rows": ["a"], "count": 1}),
        (WorkerAnswer("ValueError: odd"), {"error": "ValueError: odd"}),
    ],
)
def test_answers_have_only_the_entries_that_are_set(
    message: Message, values: dict[str, Any]
) -> None:
    assert json.loads(json.dumps(message.to_json())) == values
    assert type(message).from_json(values) == message


def test_answers_of_an_earlier_worker_and_journal_are_read() -> None:
    assert WorkerAnswer.from_json({"ready": True}) == WorkerAnswer()
    assert BatchRows.from_json({"error": "ValueError: odd"}).error == "ValueError: odd"
    assert SettledBatch.from_json({"number": 3, "failed": True}) == SettledBatch(3, failed=True)


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (TakeBatch(), {"call": "take"}),
        (BatchDone(1, ("a",), 2), {"call": "done", "number": 1, "rows": ["a"], "count": 2}),
        (BatchFailed(1, "odd"), {"call": "failed", "number": 1, "reason": "odd"}),
        (StopBatches("odd"), {"call": "stop", "reason": "odd"}),
    ],
)
def test_request_of_a_rank_is_found_by_its_call(message: Message, values: dict[str, Any]) -> None:
    assert message.to_json() == values
    assert rank_request(json.dumps(values).encode()) == message


@pytest.mark.parametrize("line", [b"[]", b'{"call": "other"}', b'{"call": []}', b"{}"])
def test_other_lines_are_no_request_of_a_rank(line: bytes) -> None:
    with pytest.raises(MessageError, match="is not a request of a rank"):
        rank_request(line)


@pytest.mark.parametrize(
    "message",
    [MeasureTable("t"), RunBatch(True, "data", paths=("a",)), RunBatch(False, "t", rows=(0, 2))],
)
def test_worker_reads_the_requests_of_its_rank(message: Message) -> None:
    assert worker_request(json.dumps(message.to_json()).encode()) == message


def test_worker_reads_the_request_of_an_earlier_rank() -> None:
    line = b'{"keep": true, "input": "t", "rows": [0, 2]}'
    assert worker_request(line) == RunBatch(True, "t", rows=(0, 2))
