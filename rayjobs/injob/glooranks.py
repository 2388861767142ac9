"""Ranks of Horovod's Gloo controller: forked as those of torch.distributed.

Beside them, node 0 runs the server where they find each other (`injob.gloo_rendezvous`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Mapping

from rayjobs.injob import gloo_rendezvous, helpers
from rayjobs.injob.extras import Beside
from rayjobs.injob.outcomes import Outcome

if TYPE_CHECKING:
    from rayjobs.injob.host import Host

_NAME = "the meeting point of Horovod's ranks"


class GlooHelper(Beside):
    """What a host does besides forking the ranks of Horovod's Gloo controller."""

    def __init__(self, host: Host, settings: Mapping[str, Any]) -> None:
        self._host = host
        self._settings = settings
        self._server: helpers.Helper | None = None

    def start(self) -> None:
        """Start the server, on node 0 alone; ranks may connect as soon as this returns.

        Raises:
            OSError: the port is taken, or no process can be made.
        """
        port = self._settings.get("port")
        if not port:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # The host holds the port with the same option, so nobody else could take it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", int(port)))
            listener.listen(1024)
            self._server = helpers.start(
                _NAME,
                [sys.executable, "-S", "-E", os.path.abspath(gloo_rendezvous.__file__)],
                dict(self._host.plan.env, RAYJOBS_MARKER=self._host.plan.marker),
                folder="/",
                log=os.path.join(self._host.plan.root, "host.log"),
                host=self._host,
                give=listener.fileno(),
            )
        finally:
            listener.close()

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Take in the end of a child that is no rank."""
        if self._server is not None and self._server.identity.pid == pid:
            self._server.status, self._server.ended_at = status, at

    def look_for_an_end(self) -> None:
        """Begin the attempt's end when the server has died: who has not met never will."""
        if self._server is not None and self._server.has_ended:
            self._host.ending.begin(Outcome.HOST_ERROR, f"{_NAME} {self._server.end_in_words()}")

    def is_leaving(self) -> bool:
        """End the server, once the ranks have ended."""
        if self._server is not None and not self._server.has_ended:
            self._server.send(signal.SIGKILL)
        return False
