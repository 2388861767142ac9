"""Chooses whether this process uses a workspace's server or a folder.

Every command imports this module; the HTTP code is in `rayjobs.workspace.connection`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from rayjobs.core.errors import UsageError
from rayjobs.workspace.logins import Login, read_login

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

ADDRESS = "RAYJOBS_ADDRESS"
TOKEN = "RAYJOBS_TOKEN"


note: Callable[[str], None] = logging.getLogger(__name__).info
"""Called with messages for the user during a long request; set by the command line."""


_is_allowed: bool | None = None  # None: not set yet; `of_program` may set it
_active: Connection | None = None


def allow(allowed: bool = True) -> None:
    """Set whether this process is a client that may use a server.

    Processes of targets and servers never use one: a login on their machine is not theirs.
    """
    global _is_allowed, _active
    _is_allowed = allowed
    if not allowed:
        _active = None


def chosen() -> Login | None:
    """Return the server that `RAYJOBS_ADDRESS`, or else the stored login, names; or None.

    The stored login does not count if `RAYJOBS_WORKSPACE` names a folder.

    Raises:
        UsageError: an address is given without a token.
    """
    address = os.environ.get(ADDRESS)
    kept = read_login()
    if not address:
        return None if os.environ.get("RAYJOBS_WORKSPACE") else kept
    token = os.environ.get(TOKEN)
    ca_file = ""
    if kept is not None and kept.address.rstrip("/") == address.rstrip("/"):
        token, ca_file = token or kept.token, kept.ca_file
    if not token:
        raise UsageError(
            f"there is no token for {address}; run `rayjobs login {address}`, or export {TOKEN}"
        )
    return Login(address, token, ca_file)


def active() -> Connection | None:
    """Return the connection of this process to its server; None if it uses a folder."""
    global _active
    if not _is_allowed:
        return None
    if _active is None and (login := chosen()) is not None:
        # Everyday commands with a folder need neither http nor ssl.
        from rayjobs.workspace.connection import Connection

        _active = Connection(login, note=lambda text: note(text))
    return _active


def of_program() -> Connection | None:
    """Return the connection of a Python program to its server; None if it uses a folder.

    A job never uses its submitter's login: its workspace is the one to which it belongs.

    Raises:
        UsageError: an address is given without a token.
    """
    global _is_allowed
    if _is_allowed is None and "RAYJOBS_RUN_ID" not in os.environ and chosen() is not None:
        _is_allowed = True
    return active()


def refuse(what: str) -> None:
    """Refuse an operation that only works on the server's machine.

    Raises:
        UsageError: this process uses a server.
    """
    if (server := active()) is not None:
        raise UsageError(
            f"{what} only works on the server's own machine, not through {server.address}"
        )
