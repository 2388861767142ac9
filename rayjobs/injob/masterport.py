"""The port at which the ranks of one job meet, held so that no other job is given it."""

from __future__ import annotations

import socket
from typing import Tuple


def hold(port: int = 0) -> Tuple[int, int]:
    """Bind a TCP port of this machine without listening; 0 takes a free one.

    While it is held, no process that asks for any port gets it, and rank 0 can still
    listen on it, since both ask to share the address (SO_REUSEADDR).

    Returns:
        The descriptor that holds it (closing that lets it go), and the port.

    Raises:
        OSError: Another process listens on it, or has it exclusively.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", port))
        number = int(held.getsockname()[1])
    except OSError:
        held.close()
        raise
    # A bare descriptor: an object would be closed in a forked rank when it is collected there.
    return held.detach(), number
