"""The task of one process of `conda_worker`, as stored in the file that it reads."""

from __future__ import annotations

from enum import StrEnum

from rayjobs.injob.lazydataclass import dataclass
from rayjobs.injob.messages import Message


class CondaWork(StrEnum):
    """What the process does."""

    SOLVE = "solve"  # specifications become a lock file
    INSTALL = "install"  # the packages of a lock file are installed into a prefix
    FETCH = "fetch"  # the packages of a lock file become a channel in a folder


@dataclass(frozen=True)
class CondaTask(Message):
    """The task; each kind of work reads its own fields.

    Attributes:
        lock: The lock file; `SOLVE` writes it.
        cache: The folder of packages and indexes.
        done: The process creates this empty file when the task is complete.
        stall_s: The longest silence of a channel during the download of a package, in seconds.
        index_s: The time limit for fetching all indexes and solving, in seconds.
        channels: Of `SOLVE`: addresses of channels, by decreasing priority.
        specs: Of `SOLVE`: match specifications.
        prefix: Of `INSTALL`: the new prefix.
        link_scripts: Of `INSTALL`: run the link scripts of the packages.
        channel: Of `FETCH`: the folder.
    """

    work: CondaWork
    lock: str
    cache: str
    done: str
    stall_s: float
    index_s: float
    channels: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    prefix: str = ""
    link_scripts: bool = False
    channel: str = ""
