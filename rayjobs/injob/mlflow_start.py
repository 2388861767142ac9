"""A job's MLflow endpoint: a port of the attempt host, and a server that it starts on demand.

The host listens and sets ``MLFLOW_TRACKING_URI`` for the ranks. The first connection starts a
process that serves all connections; if it dies, the next connection starts another. So a job
without MLflow pays only for a socket.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import sys
from dataclasses import replace

from rayjobs.injob import detach, helpers, mlflow_server
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.rank_forker import RankForker

URI = "MLFLOW_TRACKING_URI"
RUN_ID = "MLFLOW_RUN_ID"
EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_NAME = "the MLflow server"
MOST_STARTS = 20


class MlflowPort:
    """The endpoint of one attempt on one node.

    Attributes:
        plan: The launch plan, with the variables of the endpoint.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        """Listen, unless the job names its own server or no port is free."""
        self.plan = plan
        self._listener: socket.socket | None = None
        self._server: helpers.Helper | None = None
        self._forker: RankForker | None = None
        self._selector: selectors.DefaultSelector | None = None
        self._starts = 0
        self._token = secrets.token_urlsafe(18)
        if URI in plan.env or "RAYJOBS_METRICS_DIR" not in plan.env:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            detach.note(f"no MLflow endpoint: {error}\n")
            return
        self._listener = listener
        named = {
            URI: f"http://127.0.0.1:{listener.getsockname()[1]}",
            mlflow_server.TOKEN: self._token,
            RUN_ID: plan.job,
            EXPERIMENT: plan.env.get("RAYJOBS_EXPERIMENT", ""),
        }
        self.plan = replace(plan, env={**named, **plan.env})

    def serve(self, forker: RankForker, selector: selectors.DefaultSelector) -> None:
        """Start a server as soon as a client connects."""
        self._forker, self._selector = forker, selector
        if self._listener is not None:
            selector.register(self._listener, selectors.EVENT_READ, self._start)

    def _start(self, _events: int) -> None:
        if self._listener is None or self._forker is None or self._selector is None:
            return
        self._selector.unregister(self._listener)
        self._starts += 1
        if self._starts > MOST_STARTS:
            detach.note(f"{_NAME} has ended {MOST_STARTS} times and is not started again\n")
            self._listener.close()
            self._listener = None
            return
        plan = self._forker.plan
        environment = dict(plan.env)
        environment["RAYJOBS_MARKER"] = plan.marker
        environment["RAYJOBS_NODE"] = str(plan.node)
        environment[mlflow_server.TOKEN] = self._token  # even if the job sets them
        try:
            self._listener.setblocking(True)
            self._server = helpers.start(
                helpers.Program(
                    _NAME,
                    [sys.executable, "-S", "-E", os.path.abspath(mlflow_server.__file__)],
                    environment,
                ),
                log=os.path.join(plan.root, "host.log"),
                forker=self._forker,
                give=self._listener.fileno(),
            )
        except OSError as error:
            detach.note(f"{_NAME} cannot be started: {error}\n")
            self._selector.register(self._listener, selectors.EVENT_READ, self._start)

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Handle the end of a child; after the server's end the next connection starts another."""
        if self._server is None or self._server.identity.pid != pid or self._server.has_ended:
            return
        self._server.status, self._server.ended_at = status, at
        detach.note(f"{_NAME} {self._server.end_in_words()}\n")
        if self._listener is not None and self._selector is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, self._start)

    def end(self) -> None:
        """End the server once the ranks have ended; every answered change is saved."""
        listener, self._listener = self._listener, None
        if listener is not None and self._selector is not None:
            if listener in self._selector.get_map():  # no server has it
                self._selector.unregister(listener)
            listener.close()
        if self._server is not None and not self._server.has_ended:
            self._server.send(signal.SIGKILL)

    def abandon(self) -> None:
        """Close the socket in a forked process."""
        # Unregistering would change the epoll set, which both processes share.
        if self._listener is not None:
            self._listener.close()
