"""Messages of a parallel run: between its ranks, between a rank and its worker, and the journal.

Each is one JSON line. Most leave out entries that are not set: version 0.1.0, which ranks on other
nodes may run, tells messages apart by the entries that they have.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Tuple, Type, Union

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, MessageError


def _only_set(values: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: one for name, one in values.items() if one is not None and one is not False}


# -- between the ranks -----------------------------------------------------------------------------


@dataclass(frozen=True)
class MiniBatch(Message):
    """A mini-batch: files of an input, or rows of a table input.

    Attributes:
        number: Its place in the order of all mini-batches.
        input: Name of the input.
        items: How many items it has.
        files: Paths below the input's folder; "" for an input that is one file.
        rows: Of a table: the first row, and the row after the last one.
    """

    number: int
    input: str
    items: int
    files: Optional[Tuple[str, ...]] = None
    rows: Optional[Tuple[int, int]] = None

    def to_json(self) -> Dict[str, Any]:
        """Return the entries that are set, as plain JSON data."""
        return _only_set(super().to_json())


@dataclass(frozen=True)
class Assignment(Message):
    """Rank 0's answer to a rank: what to do next; empty after the other requests.

    Attributes:
        batch: Process this mini-batch.
        end: All mini-batches are done or given up.
        wait: Others work on all remaining mini-batches: ask again.
        stop: Why the run has stopped.
    """

    batch: Optional[MiniBatch] = None
    end: bool = False
    wait: bool = False
    stop: Optional[str] = None

    def to_json(self) -> Dict[str, Any]:
        """Return the entries that are set, as plain JSON data."""
        return _only_set(super().to_json())


@dataclass(frozen=True)
class TakeBatch(Message):
    """A rank requests a mini-batch."""

    call: str = "take"


@dataclass(frozen=True)
class BatchDone(Message):
    """A rank reports the result of a mini-batch.

    Attributes:
        rows: Its rows; none if the run does not append them.
        count: Items that succeeded.
    """

    number: int
    rows: Tuple[str, ...]
    count: int
    call: str = "done"


@dataclass(frozen=True)
class BatchFailed(Message):
    """A rank reports a failed try of a mini-batch."""

    number: int
    reason: str
    call: str = "failed"


@dataclass(frozen=True)
class StopBatches(Message):
    """A rank that cannot continue stops the run."""

    reason: str
    call: str = "stop"


RankRequest = Union[TakeBatch, BatchDone, BatchFailed, StopBatches]
_REQUESTS: Mapping[str, Type[RankRequest]] = {
    "take": TakeBatch,
    "done": BatchDone,
    "failed": BatchFailed,
    "stop": StopBatches,
}


def rank_request(line: bytes) -> RankRequest:
    """Return the request on a line from another rank.

    Raises:
        ValueError: the line is not such a request.
    """
    values = json.loads(line)
    kind = _REQUESTS.get(str(values.get("call"))) if isinstance(values, dict) else None
    if kind is None:
        raise MessageError(f"{line[:60]!r} is not a request of a rank")
    return kind.from_json(values)


@dataclass(frozen=True)
class SettledBatch(Message):
    """A line of the journal: a mini-batch that is done or given up.

    Attributes:
        count: Items that succeeded.
        rows: Its rows; none if the run does not append them.
        failed: It was given up after its last try.
    """

    number: int
    count: int = 0
    rows: Tuple[str, ...] = ()
    failed: bool = False

    def to_json(self) -> Dict[str, Any]:
        """Return the entries that are set, as plain JSON data."""
        return _only_set(super().to_json())


# -- between a rank and its worker -----------------------------------------------------------------


@dataclass(frozen=True)
class MeasureTable(Message):
    """Request the size of a table.

    Attributes:
        measure: Name of the input.
    """

    measure: str


@dataclass(frozen=True)
class RunBatch(Message):
    """Have the worker call ``run(mini_batch)``.

    Attributes:
        keep: Return the rows.
        input: Name of the input.
        paths: The files of the mini-batch.
        rows: Of a table: the first row, and the row after the last one.
    """

    keep: bool
    input: str
    paths: Optional[Tuple[str, ...]] = None
    rows: Optional[Tuple[int, int]] = None


@dataclass(frozen=True)
class WorkerAnswer(Message):
    """An answer of the worker without a result: ``init()`` has returned, or something failed.

    Attributes:
        error: The error's class and message; None: nothing failed.
    """

    error: Optional[str] = None

    def to_json(self) -> Dict[str, Any]:
        """Return the entries that are set, as plain JSON data."""
        return _only_set(super().to_json())


@dataclass(frozen=True)
class TableSize(WorkerAnswer):
    """The size of a table.

    Attributes:
        rows: How many rows it has.
        bytes: Their size in memory.
    """

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class BatchRows(WorkerAnswer):
    """The result of ``run(mini_batch)``.

    Attributes:
        rows: The rows, if the request has `keep`.
        count: How many items succeeded.
    """

    rows: Tuple[str, ...] = ()
    count: int = 0


def worker_request(line: bytes) -> Union[MeasureTable, RunBatch]:
    """Return the request on a line from the rank.

    Raises:
        ValueError: the line is not such a request.
    """
    values = json.loads(line)
    if isinstance(values, dict) and "measure" in values:
        return MeasureTable.from_json(values)
    return RunBatch.from_json(values)
