"""Targets of a workspace that several machines use: finds their owners, and wakes remote ones.

A target belongs to the home that has claimed it in the workspace's store. All other machines wake
it through the store, and never start their own.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core import ids
from rayjobs.core.errors import RayjobsError, ServedElsewhereError, TargetError
from rayjobs.core.version import __version__
from rayjobs.jobs.serving import Claimant, Serving
from rayjobs.workspace import server_choice
from rayjobs.workspace.folder import store_address

if TYPE_CHECKING:
    from rayjobs.store.sql import SqlStore

log = logging.getLogger(__name__)

RECORD = "machine.json"
_stores: dict[tuple[str, int], SqlStore] = {}
_guard = threading.Lock()


def claimant(home: Path) -> Claimant:
    """Return the claimant for targets of this home.

    Raises:
        TargetError: the home cannot be written.
    """
    path = home / RECORD
    try:
        value = str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        value = _new_id(path)
    # A home that was copied with its machine's image, or is shared over a network file system,
    # counts as a different one on each machine.
    owner = f"{value}-{hashlib.sha256(_machine().encode()).hexdigest()[:8]}"
    return Claimant(owner=owner, host=socket.gethostname(), home=str(home), version=__version__)


def find(workspace: Path | str, target: str, *, home: Path) -> Serving | None:
    """Return the claim of a target that belongs to another home; None: it may run here.

    Also None for a client of a server: the path is on the server's machine, and the server knows
    the owner.

    Raises:
        StoreError: the workspace's store cannot be reached.
        TargetError: the home cannot be written.
    """
    if server_choice.active() is not None:
        return None
    address = store_address(workspace)
    if address is None:
        return None
    found = _store(address).serving(target)
    return None if found is None or found.claimant.owner == claimant(home).owner else found


def find_quietly(workspace: Path | str, target: str, *, home: Path) -> Serving | None:
    """Like `find`, but None if the store is unreachable: callers that need it report that."""
    try:
        return find(workspace, target, home=home)
    except RayjobsError as error:
        log.info("the owner of target %s is unknown: %s", target, error)
        return None


def wake(workspace: Path | str, serving: Serving) -> None:
    """Wake a target of another home.

    Raises:
        ServedElsewhereError: it does not run; the message has the remedy.
        StoreError: the workspace's store cannot be reached.
    """
    if not serving.is_live:
        raise ServedElsewhereError(f"{serving.sentence}")
    address = store_address(workspace)
    if address is not None:
        _store(address).wake_target(serving.target)


def _store(address: str) -> SqlStore:
    """Return this process's open store; it stays open, since callers may need it every second."""
    from rayjobs.store.sql import SqlStore

    key = (address, os.getpid())
    with _guard:
        if key not in _stores:
            _stores[key] = SqlStore(address)
        return _stores[key]


def close_all() -> None:
    """Close the connections of this process."""
    with _guard:
        for (_, pid), store in [*_stores.items()]:
            if pid == os.getpid():
                store.close()
        _stores.clear()


atexit.register(close_all)


def _new_id(path: Path) -> str:
    from rayjobs.core.files import locked, write_atomic

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path.with_name(f".{RECORD}.lock")):
            try:
                return str(json.loads(path.read_text(encoding="utf-8"))["id"])
            except (OSError, ValueError, KeyError, TypeError):
                value = ids.token()
                write_atomic(path, json.dumps({"id": value}) + "\n", durable=True, mode=0o600)
                return value
    except OSError as error:
        raise TargetError(f"{path} cannot be written: {error.strerror}") from error


def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return socket.gethostname()
