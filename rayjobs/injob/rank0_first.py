"""Rank 0 goes first, so that no other rank connects before it listens.

A client of torch's store that is refused tries again only after half a second or more
(`TCPStore`, ExponentialBackoffWithJitter), which ranks that are forked at the same moment, with
torch imported, meet every other time.
"""

from __future__ import annotations

import errno
import socket
import time

from rayjobs.injob.extras import HostExtras
from rayjobs.injob.plan import ExtrasPlan
from rayjobs.injob.starter import Starter

LOOK_S = 0.002


class HeadStart(HostExtras):
    """Lets rank 0 run first, and the others when it listens, or after a moment."""

    def __init__(self, starter: Starter, settings: ExtrasPlan) -> None:
        """Take from the plan how long the others wait at most, and for which port of this node."""
        self._starter = starter
        self._port: int | None = settings.port
        self._until_s: float | None = time.monotonic() + settings.most_s

    def go_first(self, ranks: list[int]) -> list[int]:
        """See `HostExtras.go_first`."""
        return [rank for rank in ranks if rank == 0]

    @property
    def pause_s(self) -> float | None:
        """See `HostExtras.pause_s`."""
        return None if self._until_s is None else LOOK_S

    def turn(self) -> None:
        """See `HostExtras.turn`."""
        if self._until_s is None:
            return
        listens = self._port is not None and somebody_listens(self._port)
        if listens or time.monotonic() >= self._until_s or self._starter.ending.has_begun:
            self._until_s = None
            self._starter.let_go([item.rank for item in self._starter.plan.ranks if item.rank != 0])


def somebody_listens(port: int) -> bool:
    """Whether a process of this machine listens on a TCP port, as far as can be found out at once.

    Two may bind a port that both share (SO_REUSEADDR), but none may bind one that is listened
    on: asked that way, no connection is made that its server would have to serve.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
