"""Starts rank 0 first, so that no other rank connects before it listens.

A refused client of torch's store retries only after half a second or more (`TCPStore`,
ExponentialBackoffWithJitter). Ranks that are forked at the same moment, with torch imported, are
refused about half of the time.
"""

from __future__ import annotations

import errno
import socket
import time

from rayjobs.injob.extras import HostExtras
from rayjobs.injob.plan import ExtrasPlan
from rayjobs.injob.rank_forker import RankForker

LOOK_S = 0.002


class RankZeroFirst(HostExtras):
    """Releases rank 0 first, and the others once it listens or a short time has passed."""

    def __init__(self, forker: RankForker, settings: ExtrasPlan) -> None:
        """Read the maximum wait of the other ranks, and this node's port, from the plan."""
        self._forker = forker
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
        if listens or time.monotonic() >= self._until_s or self._forker.ending.has_begun:
            self._until_s = None
            self._forker.let_go([item.rank for item in self._forker.plan.ranks if item.rank != 0])


def somebody_listens(port: int) -> bool:
    """Whether a process of this machine seems to listen on a TCP port, without waiting.

    Processes may share a bound port (SO_REUSEADDR), but a port with a listener cannot be bound.
    Binding tests this without a connection that the server would have to serve.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


HeadStart = RankZeroFirst  # the name by which a host of an earlier version imports it
