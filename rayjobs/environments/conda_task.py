"""The task of one process of `conda_worker`, as stored in the file that it reads."""

from __future__ import annotations

from enum import StrEnum

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


class CondaWork(StrEnum):
    """What the process does."""

    SOLVE = "solve"  # make a lock file from specifications
    INSTALL = "install"  # install the packages of a lock file into a prefix
    FETCH = "fetch"  # make a channel in a folder from the packages of a lock file


@dataclass(frozen=True)
class CondaTask(Message):
    """A task of `conda_worker`; each kind of work reads its own fields.

    Attributes:
        work: What to do.
        lock: The lock file, which "solve" writes.
        cache: The folder of packages and indexes.
        done: An empty file that the worker creates once the task is complete.
        stall_s: The longest silence of a channel during the download of a package, in seconds.
        index_s: The time limit for fetching all indexes and solving, in seconds.
        channels: Addresses of the channels to solve with, by decreasing priority.
        specs: The match specifications to solve.
        prefix: Where to install: a new prefix.
        link_scripts: Whether to run the link scripts of the installed packages.
        channel: The folder for the channel of fetched packages.
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
