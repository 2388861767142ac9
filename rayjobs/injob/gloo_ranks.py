"""Ranks of Horovod's Gloo controller: forked like those of torch.distributed.

Node 0 also runs the server through which they find each other (`injob.gloo_rendezvous`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from rayjobs.injob import gloo_rendezvous, helpers
from rayjobs.injob.extras import HostExtras
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import ExtrasPlan
from rayjobs.injob.rank_forker import RankForker

_NAME = "the rendezvous server of Horovod's ranks"


class GlooHelper(HostExtras):
    """A host's extra work for the ranks of Horovod's Gloo controller."""

    def __init__(self, forker: RankForker, settings: ExtrasPlan) -> None:
        self._forker = forker
        self._settings = settings
        self._server: helpers.Helper | None = None

    def start(self) -> None:
        """Start the server, only on node 0; ranks may connect as soon as this returns.

        Raises:
            OSError: the port is taken, or no process can be made.
        """
        port = self._settings.port
        if not port:
            return
        plan = self._forker.plan
        # A helper enters the container as ranks do; the node's own Python does not exist there.
        python = plan.python if plan.container else sys.executable
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Otherwise the host's own reservation of the port, with this option, blocks the bind.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
            listener.listen(1024)
            self._server = helpers.start(
                helpers.Program(
                    _NAME,
                    [python, "-S", "-E", os.path.abspath(gloo_rendezvous.__file__)],
                    dict(plan.env, RAYJOBS_MARKER=plan.marker),
                ),
                log=os.path.join(plan.root, "host.log"),
                forker=self._forker,
                give=listener.fileno(),
            )
        finally:
            listener.close()

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Handle the end of a child that is not a rank."""
        if self._server is not None and self._server.identity.pid == pid:
            self._server.status, self._server.ended_at = status, at

    def look_for_an_end(self) -> None:
        """Begin the attempt's end if the server has died: ranks that have not met never will."""
        if self._server is not None and self._server.has_ended:
            self._forker.ending.begin(Outcome.HOST_ERROR, f"{_NAME} {self._server.end_in_words()}")

    def is_leaving(self) -> bool:
        """Kill the server, once the ranks have ended; return False: nothing ends by itself."""
        if self._server is not None and not self._server.has_ended:
            self._server.send(signal.SIGKILL)
        return False
