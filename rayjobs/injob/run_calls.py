"""Calls of a job's script to its node's agent about runs and the workspace, and the answers.

One JSON object per line each way, on the socket `run.sock` in the attempt's folder. A call carries
the attempt's token. File contents do not cross the socket: a message names files in the attempt's
folder `exchange`, which both sides see.

Each request names the type of its answer's value. `Method`, `KeepBlob` and `FetchBlob` send and
return records of the workspace as plain JSON: `rayjobs.protocol.values` has their classes, which
the standard library alone cannot import.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Dict, Generic, Mapping, Optional, Tuple, Type, TypeVar, get_args

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, read_value

SOCKET = "run.sock"
TOKEN_FILE = "run.token"
EXCHANGE = "exchange"
MAX_LINE_BYTES = 64 << 20  # size of a call or an answer

Value = TypeVar("Value")


@dataclass(frozen=True)
class RunCall(Message):
    """A call: the attempt's token, the name of the call, and its message."""

    token: str
    name: str
    asked: Mapping[str, object]
    version: int = 1


@dataclass(frozen=True)
class RunAnswer(Message):
    """The answer to a call.

    Attributes:
        value: The result, which `Request.read_answer` reads; None after an error.
        error: One sentence, or None.
        kind: The error's class, such as ``NotFoundError``.
    """

    value: object = None
    error: Optional[str] = None
    kind: str = ""
    version: int = 1


class Request(Message, Generic[Value]):
    """Base of the requests; `Value` is the type of the answer's value."""

    __slots__ = ()
    NAME: ClassVar[str]

    @classmethod
    def read_answer(cls, value: object) -> Value:
        """Return the value of the answer to such a request, from its JSON.

        Raises:
            MessageError: it is not such a value.
        """
        found: Value = read_value(value_of(cls), value)
        return found


def value_of(kind: "Type[Request[Any]]") -> Any:
    """Return the type of the answer's value of a request's class."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# -- values of answers -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord(Message):
    """A run.

    Attributes:
        number: Its number in the order of submission.
        type: Its type in Azure ML's terms.
        kind: "job"; or another kind, such as "sweep" or "interactive".
        parent: Id of the run that it belongs to.
        reason: Why it is in its state.
        snapshot: The digest of its code; None: it has none.
    """

    id: str
    name: str = ""
    number: int = 0
    type: str = ""
    kind: str = ""
    experiment: str = ""
    parent: Optional[str] = None
    status: str = ""
    reason: Optional[str] = None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshot: Optional[str] = None


@dataclass(frozen=True)
class RunDetails(RunRecord):
    """A run with all its details.

    Attributes:
        details: What `Run.get_details` returns, under Azure ML's keys.
    """

    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkspaceRecord(Message):
    """A datastore, dataset, model or experiment; entries that its kind of record lacks are None.

    Attributes:
        kind: Of a datastore or dataset.
        version: Of a dataset or model.
        id: Of a dataset.
        run: Of a model: the run that made it; "" if a user uploaded it.
        tags: Of a model.
    """

    READS_VERSION: ClassVar[Optional[int]] = None
    name: str
    kind: Optional[str] = None
    version: Optional[int] = None
    id: Optional[str] = None
    run: Optional[str] = None
    tags: Optional[Mapping[str, str]] = None

    def to_json(self) -> Dict[str, Any]:
        """Return the entries that its kind of record has, as plain JSON data."""
        return {name: one for name, one in super().to_json().items() if one is not None}


# -- requests --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Details(Request[RunDetails]):
    """Request all details of a run."""

    NAME: ClassVar[str] = "details"
    run: str


@dataclass(frozen=True)
class Children(Request[Tuple[RunRecord, ...]]):
    """Request the children of a run, newest first; filters as in `Run.get_children`."""

    NAME: ClassVar[str] = "children"
    run: str
    recursive: bool = False
    tags: Mapping[str, Optional[str]] = field(default_factory=dict)
    properties: Mapping[str, Optional[str]] = field(default_factory=dict)
    kind: Optional[str] = None
    status: Optional[str] = None


def conditions_of(given: Any) -> Dict[str, Optional[str]]:
    """Return the tags or properties that a run must have, with their values; None: any value.

    Args:
        given: A name, a mapping of names to values, or nothing.
    """
    if not given:
        return {}
    if isinstance(given, str):
        return {given: None}
    return {str(key): None if value is None else str(value) for key, value in given.items()}


@dataclass(frozen=True)
class Start(Request[RunRecord]):
    """Start a child run of this attempt; repeated with the same id it changes nothing."""

    NAME: ClassVar[str] = "start"
    id: str
    parent: str
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class End(Request[str]):
    """End a child run: ``completed``, ``failed`` or ``canceled``; the answer is its state."""

    NAME: ClassVar[str] = "end"
    run: str
    outcome: str
    message: str = ""
    lines: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Point(Message):
    """A logged value: a line of a metric file, with its position in the curve."""

    kind: str
    name: str
    value: object
    step: Optional[int]
    sequence: int
    at_s: float


@dataclass(frozen=True)
class Log(Request[int]):
    """Log values to a child run; known points are ignored. The answer counts the new ones."""

    NAME: ClassVar[str] = "log"
    run: str
    points: Tuple[Point, ...]


@dataclass(frozen=True)
class Change(Request[RunRecord]):
    """Change a run's editable fields; None leaves a field unchanged, and removes a tag."""

    NAME: ClassVar[str] = "change"
    run: str
    tags: Mapping[str, Optional[str]] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    display_name: Optional[str] = None
    description: Optional[str] = None


@dataclass(frozen=True)
class Metrics(Request[Tuple[Tuple[str, object], ...]]):
    """Request a run's logged values: pairs of name and stored value."""

    NAME: ClassVar[str] = "metrics"
    run: str
    name: Optional[str] = None


@dataclass(frozen=True)
class Files(Request[Tuple[str, ...]]):
    """Request the names of a run's files, including logs."""

    NAME: ClassVar[str] = "files"
    run: str


@dataclass(frozen=True)
class Fetch(Request[str]):
    """Request a file of a run; the answer names a file in `exchange`, which the caller removes."""

    NAME: ClassVar[str] = "fetch"
    run: str
    name: str


@dataclass(frozen=True)
class Keep(Request[Tuple[str, ...]]):
    """Store files of `exchange` with a child run under these names: all of them, or none.

    The answer has the names that they got.
    """

    NAME: ClassVar[str] = "keep"
    run: str
    names: Tuple[str, ...]
    files: Tuple[str, ...]


@dataclass(frozen=True)
class Snapshot(Request[str]):
    """Request the code of a run as a zip file; the answer names it in `exchange`."""

    NAME: ClassVar[str] = "snapshot"
    run: str
    snapshot: Optional[str] = None


@dataclass(frozen=True)
class Records(Request[Tuple[WorkspaceRecord, ...]]):
    """Request the workspace's datastores, datasets, models or experiments."""

    NAME: ClassVar[str] = "records"
    of: str


@dataclass(frozen=True)
class FetchModel(Request[str]):
    """Request a model's files; the answer names a folder in `exchange`."""

    NAME: ClassVar[str] = "fetch_model"
    READS_VERSION: ClassVar[Optional[int]] = None
    name: str
    version: Optional[int] = None


@dataclass(frozen=True)
class FetchDataset(Request[str]):
    """Request a file dataset's files; the answer names a folder in `exchange`."""

    NAME: ClassVar[str] = "fetch_dataset"
    READS_VERSION: ClassVar[Optional[int]] = None
    name: str = ""
    version: Optional[int] = None
    id: Optional[str] = None


@dataclass(frozen=True)
class Method(Request[object]):
    """Call a method of the workspace's ``store`` or ``catalogue``.

    Arguments and result are values of `rayjobs.protocol.values`.
    """

    NAME: ClassVar[str] = "method"
    part: str
    method: str
    args: object
    kwargs: object


@dataclass(frozen=True)
class KeepBlob(Request[object]):
    """Store a file of `exchange` under a key of the blob store, or (None) under its digest."""

    NAME: ClassVar[str] = "keep_blob"
    file: str
    key: Optional[str] = None
    digest: Optional[str] = None


@dataclass(frozen=True)
class FetchBlob(Request[Tuple[str, object]]):
    """Request a blob; the answer names a file in `exchange`, and describes the blob."""

    NAME: ClassVar[str] = "fetch_blob"
    key: str
    digest: Optional[str] = None


@dataclass(frozen=True)
class HasBlob(Request[Optional[int]]):
    """Request the size of a blob in bytes; None: there is none."""

    NAME: ClassVar[str] = "has_blob"
    key: str
