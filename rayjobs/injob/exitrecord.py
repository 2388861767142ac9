"""Writing and reading the exit record, the one truth about how an attempt ended."""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Mapping

from rayjobs.injob import recordfiles

NAME = "exit.json"
# How the attempt ended, known before it is proven that nothing of it is left.
OUTCOME = "outcome.json"
_RESERVE = ".reserve"
_RESERVE_BYTES = 64 * 1024


def make_reserve(root: str) -> None:
    """Occupy some room that the exit record can take when the disk is full."""
    try:
        with open(os.path.join(root, _RESERVE), "wb") as file:
            # Not zeros: a file system that compresses would keep no room for those.
            file.write(os.urandom(_RESERVE_BYTES))
    except OSError:
        return  # already full: writing the record is then tried without it


def write_file(path: str, values: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is there whole and for good, or not at all.

    Raises:
        OSError: the disk is full or broken; an older file of that name is untouched.
    """
    temporary = f"{path}.new-{os.getpid()}"
    try:
        with recordfiles.create_file(temporary) as file:
            file.write(json.dumps(values).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(root: str, record: Mapping[str, Any]) -> None:
    """Write the exit record, on a full disk into the room that was reserved for it.

    Raises:
        OSError: even that was not possible.
    """
    path = os.path.join(root, NAME)
    try:
        write_file(path, record)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        release_reserve(root)
        write_file(path, record)
    release_reserve(root)


def write_outcome(root: str, outcome: Mapping[str, Any]) -> None:
    """Keep how the attempt ended, should its host not live to write the exit record.

    What is there already stays: the first to know was right. A disk that refuses keeps nothing.

    Args:
        outcome: Entries of the exit record; ``marker``, ``outcome`` and ``reason`` at least.
    """
    path = os.path.join(root, OUTCOME)
    try:
        if not os.path.lexists(path):
            write_file(path, outcome)
    except OSError:
        return  # the exit record has room of its own; this is for the case that none comes


def read_outcome(root: str, marker: str) -> dict[str, Any] | None:
    """What `write_outcome` kept of the attempt `marker`; None where there is nothing."""
    try:
        values = recordfiles.read_json(root, OUTCOME)
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict) or values.get("marker") != marker:
        return None
    return values if isinstance(values.get("outcome"), str) else None


def release_reserve(root: str) -> None:
    """Give the reserved room back."""
    _remove(os.path.join(root, _RESERVE))


def read(root: str) -> dict[str, Any] | None:
    """The exit record below an attempt's directory, or None while there is none.

    Raises:
        ValueError: the file is there but is no record; it is never written in part by us.
        OSError: a link, FIFO, folder or device is in its place, or it cannot be read.
    """
    try:
        values = recordfiles.read_json(root, NAME)
    except FileNotFoundError:
        return None
    if not isinstance(values, dict) or "outcome" not in values:
        raise ValueError(f"{os.path.join(root, NAME)} is not an exit record")
    return values


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # not there
