"""Reserves the rendezvous port of a job's ranks, so that no other job gets it."""

from __future__ import annotations

import socket
from typing import Tuple


def reserve(port: int = 0) -> Tuple[int, int]:
    """Bind a TCP port of this machine without listening; 0 takes a free one.

    While it is reserved, no process that requests any free port gets it. Rank 0 can still listen on
    it, since both share the address (SO_REUSEADDR).

    Returns:
        The descriptor that reserves it (closing it frees the port), and the port.

    Raises:
        OSError: Another process listens on it, or has bound it exclusively.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", port))
        number = int(held.getsockname()[1])
    except OSError:
        held.close()
        raise
    # A bare descriptor: garbage collection in a forked rank would close a socket object.
    return held.detach(), number
