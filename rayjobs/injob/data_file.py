"""The content of ``data.json``: an attempt's inputs, outputs and its node's holds on them."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Mapping, Optional, Tuple

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message

NAME = "data.json"


@dataclass(frozen=True)
class AttemptInput(Message):
    """One input.

    Attributes:
        path: Where the script finds it.
        mode: The mode that the job requested.
        how: How the node provided it.
        definition: File with the dataset itself, in direct mode; else None.
    """

    path: str
    mode: str = ""
    how: str = ""
    definition: Optional[str] = None


@dataclass(frozen=True)
class DatastoreSettings(Message):
    """A datastore: the `DatastoreRecord` of `rayjobs.datastore`."""

    name: str
    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputDestination(Message):
    """Where and how an output is stored: the `DataOutput` of `rayjobs.datastore`.

    Attributes:
        record: The datastore.
        path: The path in the datastore.
        source_globs: Only files that match one of them are stored; none: all files.
        path_on_compute: The path that the job requested for the script.
        mode: ``upload`` or ``mount``.
    """

    name: str
    record: DatastoreSettings
    path: str
    overwrite: bool = False
    source_globs: Tuple[str, ...] = ()
    path_on_compute: Optional[str] = None
    mode: str = "upload"


@dataclass(frozen=True)
class Registration(Message):
    """How a stored output is registered as a version of a dataset."""

    name: str
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptOutput(Message):
    """One output.

    Attributes:
        path: Where the script finds it.
        output: Where and how it is stored.
        folder: Where the files are; None: at `path`.
        register_as: How it is registered as a dataset; None: it is not.
    """

    path: str
    output: OutputDestination
    folder: Optional[str] = None
    register_as: Optional[Registration] = None


@dataclass(frozen=True)
class HeldInput(Message):
    """What the attempt holds on the node for an input: the `Materialised` of `rayjobs.datastore`.

    Attributes:
        how: linked, mounted, downloaded, copied or direct.
        bytes: Its size; None: not counted.
        files: How many files it has; None: not counted.
        said: Notes for the user.
        version: The version of the dataset.
        made: Paths to remove with the input.
        mount_folder: The mount's folder; "" without a mount.
        mount_token: The attempt's hold on that mount.
        read_only: Paths that the job may not change.
        overlays: Overlays to mount: folder, upper and work of each.
        shown: Folders to show read-only at another path: folder and path of each.
        why_open: Why the job can change the source through another path; "": it cannot.
    """

    READS_VERSION: ClassVar[Optional[int]] = None
    name: str
    path: str
    how: str
    bytes: Optional[int] = None
    files: Optional[int] = None
    said: Tuple[str, ...] = ()
    version: str = ""
    made: Tuple[str, ...] = ()
    mount_folder: str = ""
    mount_token: str = ""
    read_only: Tuple[str, ...] = ()
    overlays: Tuple[Tuple[str, str, str], ...] = ()
    shown: Tuple[Tuple[str, str], ...] = ()
    why_open: str = ""


@dataclass(frozen=True)
class DataFile(Message):
    """The data of one attempt on one node.

    Attributes:
        inputs: By name.
        outputs: By name.
        held: What the attempt holds for each input, so that any agent can release it.
        stored: Names of the stored outputs.
        refused: By output name, a sentence about why it is never stored.
    """

    job: str = ""
    attempt: int = 0
    node: int = 0
    inputs: Mapping[str, AttemptInput] = field(default_factory=dict)
    outputs: Mapping[str, AttemptOutput] = field(default_factory=dict)
    held: Tuple[HeldInput, ...] = ()
    stored: Tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
