"""The data of events about the inputs and outputs of jobs, which other jobs and nodes read."""

from __future__ import annotations

from typing import ClassVar

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.jobs.events import EventData


@dataclass(frozen=True, kw_only=True)
class InputProvided(EventData):
    """An input is in place on the first node of an attempt.

    Attributes:
        name: The input's name.
        source: The source that was requested, with its exact version; empty: as the spec says.
        mode: The mode that was requested; empty: as the spec says.
        how: linked, mounted, downloaded, copied or direct.
        version: `name:version` of a dataset, the digest of a manifest, or empty for a folder
            without a manifest.
        dataset: `name:version` of a registered dataset, otherwise empty.
        dataset_id: The id of that version.
        files: How many files it has; null: not counted.
        bytes: Its size; null: not counted.
        took_s: How long it took to provide it.
    """

    KIND: ClassVar[str] = "input"

    name: str
    source: str = ""
    mode: str = ""
    how: str = ""
    version: str = ""
    dataset: str = ""
    dataset_id: str = ""
    files: int | None = None
    bytes: int | None = None
    took_s: float | None = None


@dataclass(frozen=True)
class InputProtected(EventData):
    """An input is in place on another node of an attempt, protected or not.

    Attributes:
        name: The input's name.
        node: The node's number in the attempt.
        why_open: Why the attempt could change the files there; empty: it could not.
    """

    KIND: ClassVar[str] = "input_protected"

    name: str
    node: int
    why_open: str


@dataclass(frozen=True)
class ChangedFile(Message):
    """A file of an input that changed.

    Attributes:
        path: Where it is.
        before: Its size in bytes, time of the last change in nanoseconds and inode at the start.
        now: The same at the end; null: it is gone.
        digest: The digest of its earlier content; empty: unknown.
        digest_now: The digest of its content at the end; empty: it was not read.
    """

    path: str
    before: tuple[int, int, int]
    now: tuple[int, int, int] | None = None
    digest: str = ""
    digest_now: str = ""


@dataclass(frozen=True)
class UnknownFile(Message):
    """A file of an input that could not be compared with its earlier state.

    Attributes:
        path: Where it is.
        why: Why it could not be examined.
    """

    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class InputChanged(EventData):
    """Files of an input changed while an attempt ran.

    Attributes:
        name: The input's name.
        version: The version that the attempt was given, as in `InputProvided`.
        by_job: false: the job certainly did not change them; null: unknown.
        count: How many files changed.
        changed: The first of them.
        unknown_count: How many files could not be compared.
        unknown: The first of them.
    """

    KIND: ClassVar[str] = "input_changed"

    name: str
    version: str = ""
    by_job: bool | None = None
    count: int = 0
    changed: tuple[ChangedFile, ...] = ()
    unknown_count: int = 0
    unknown: tuple[UnknownFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputStored(EventData):
    """A node has stored an output of a job.

    Attributes:
        name: The output's name.
        datastore: Where its files are.
        path: Their path in the datastore.
        files: How many files it has.
        bytes: Their size.
        pin: Digest of the manifest of these files; empty: they are not pinned.
        node: The node's number in the attempt.
        dataset: The dataset as whose version the files are registered; empty: they are not.
        version: The number of that version; null: they are not registered.
        dataset_id: The id of that version.
    """

    KIND: ClassVar[str] = "output"

    name: str
    datastore: str = ""
    path: str = ""
    files: int = 0
    bytes: int = 0
    pin: str = ""
    node: int = 0
    dataset: str = ""
    version: int | None = None
    dataset_id: str = ""
