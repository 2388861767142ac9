"""Calls of a job's script to its node's agent about runs and the workspace, and the answers.

One JSON object per line each way, on the socket `run.sock` in the attempt's folder. A call carries
the attempt's token. File contents do not cross the socket: a message names files in the attempt's
folder `exchange`, which both sides see.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Mapping, Optional, Tuple

from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message

SOCKET = "run.sock"
TOKEN_FILE = "run.token"
EXCHANGE = "exchange"
MAX_LINE_BYTES = 64 << 20  # size of a call or an answer


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
        value: The result; None after an error.
        error: One sentence, or None.
        kind: The error's class, such as ``NotFoundError``.
    """

    value: object = None
    error: Optional[str] = None
    kind: str = ""
    version: int = 1


@dataclass(frozen=True)
class Details(Message):
    """Request all details of a run."""

    NAME: ClassVar[str] = "details"
    run: str


@dataclass(frozen=True)
class Children(Message):
    """Request the children of a run, newest first; filters as in `Run.get_children`."""

    NAME: ClassVar[str] = "children"
    run: str
    recursive: bool = False
    tags: Mapping[str, object] = field(default_factory=dict)
    properties: Mapping[str, object] = field(default_factory=dict)
    kind: Optional[str] = None
    status: Optional[str] = None


@dataclass(frozen=True)
class Start(Message):
    """Start a child run of this attempt; repeated with the same id it changes nothing."""

    NAME: ClassVar[str] = "start"
    id: str
    parent: str
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class End(Message):
    """End a child run: ``completed``, ``failed`` or ``canceled``."""

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
class Log(Message):
    """Log values to a child run; known points are ignored."""

    NAME: ClassVar[str] = "log"
    run: str
    points: Tuple[Point, ...]


@dataclass(frozen=True)
class Change(Message):
    """Change a run's editable fields; None leaves a field unchanged, and removes a tag."""

    NAME: ClassVar[str] = "change"
    run: str
    tags: Mapping[str, object] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    display_name: Optional[str] = None
    description: Optional[str] = None


@dataclass(frozen=True)
class Metrics(Message):
    """Request a run's logged values: pairs of name and stored value."""

    NAME: ClassVar[str] = "metrics"
    run: str
    name: Optional[str] = None


@dataclass(frozen=True)
class Files(Message):
    """Request the names of a run's files, including logs."""

    NAME: ClassVar[str] = "files"
    run: str


@dataclass(frozen=True)
class Fetch(Message):
    """Request a file of a run; the answer names a file in `exchange`, which the caller removes."""

    NAME: ClassVar[str] = "fetch"
    run: str
    name: str


@dataclass(frozen=True)
class Keep(Message):
    """Store files of `exchange` with a child run under these names: all of them, or none."""

    NAME: ClassVar[str] = "keep"
    run: str
    names: Tuple[str, ...]
    files: Tuple[str, ...]


@dataclass(frozen=True)
class Snapshot(Message):
    """Request the code of a run as a zip file in `exchange`."""

    NAME: ClassVar[str] = "snapshot"
    run: str
    snapshot: Optional[str] = None


@dataclass(frozen=True)
class Records(Message):
    """Request the workspace's datastores, datasets, models or experiments."""

    NAME: ClassVar[str] = "records"
    of: str


@dataclass(frozen=True)
class FetchModel(Message):
    """Request a model's files; the answer names a folder in `exchange`."""

    NAME: ClassVar[str] = "fetch_model"
    READS_VERSION: ClassVar[Optional[int]] = None
    name: str
    version: Optional[int] = None


@dataclass(frozen=True)
class FetchDataset(Message):
    """Request a file dataset's files; the answer names a folder in `exchange`."""

    NAME: ClassVar[str] = "fetch_dataset"
    READS_VERSION: ClassVar[Optional[int]] = None
    name: str = ""
    version: Optional[int] = None
    id: Optional[str] = None


@dataclass(frozen=True)
class Method(Message):
    """Call a method of the workspace's ``store`` or ``catalogue``.

    Arguments and result are values of `rayjobs.protocol.values`.
    """

    NAME: ClassVar[str] = "method"
    part: str
    method: str
    args: object
    kwargs: object


@dataclass(frozen=True)
class KeepBlob(Message):
    """Store a file of `exchange` under a key of the blob store, or (None) under its digest."""

    NAME: ClassVar[str] = "keep_blob"
    file: str
    key: Optional[str] = None
    digest: Optional[str] = None


@dataclass(frozen=True)
class FetchBlob(Message):
    """Request a blob as a file in `exchange`."""

    NAME: ClassVar[str] = "fetch_blob"
    key: str
    digest: Optional[str] = None


@dataclass(frozen=True)
class HasBlob(Message):
    """Request the size of a blob in bytes; None: there is none."""

    NAME: ClassVar[str] = "has_blob"
    key: str
