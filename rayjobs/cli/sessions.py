"""The client's side of a session at a rank of a running job."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.cli.asking import ask_target
from rayjobs.core.errors import RayjobsError
from rayjobs.injob import session_steps as steps
from rayjobs.injob.session_steps import SessionEvent, SessionReply, SessionStep
from rayjobs.jobs.records import Job
from rayjobs.target.answers import SessionAnswer
from rayjobs.target.requests import TargetRequest

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

PIECE = 64 << 10
READ_S = 10.0
ANSWER_S = 60.0


class SessionRefusedError(RayjobsError):
    """The node refused a step of a session."""


class Session:
    """One session. Each thread that uses it has its own `channel`."""

    def __init__(self, job: Job, workspace: Path, rank: int, server: Connection | None) -> None:
        self._job = job
        self._workspace = workspace
        self._rank = rank
        self._server = server
        self._name = secrets.token_hex(16)

    def channel(self) -> Channel:
        """Return a channel to the session for one thread."""
        server = None if self._server is None else self._server.copy()
        return Channel(self._job, self._workspace, self._rank, self._name, server)


class Channel:
    """Sends steps of one session."""

    def __init__(
        self, job: Job, workspace: Path, rank: int, name: str, server: Connection | None
    ) -> None:
        self._job = job
        self._workspace = workspace
        self._rank = rank
        self._name = name
        self._server = server
        self._has = 0  # events received
        self._sent = 0  # bytes accepted

    def close(self) -> None:
        """Close the connection to the server."""
        if self._server is not None:
            self._server.close()

    def start(
        self,
        arguments: tuple[str, ...],
        *,
        terminal: str = "",
        size: tuple[int, int] | None = None,
    ) -> None:
        """Start a process.

        Args:
            terminal: The value of TERM; empty: no terminal.
            size: Lines and columns of the terminal.
        """
        self._ask(
            SessionStep(
                steps.EXEC,
                self._name,
                self._rank,
                arguments=arguments,
                terminal=terminal,
                size=size,
            )
        )

    def connect(self, port: int) -> None:
        """Connect to a port of the job."""
        self._ask(SessionStep(steps.PORT, self._name, self._rank, number=port))

    def read(self) -> tuple[SessionEvent, ...]:
        """Return what has arrived since the last call; wait up to `READ_S` for it."""
        step = SessionStep(steps.READ, self._name, self._rank, at=self._has, wait_s=READ_S)
        events = self._ask(step).events
        self._has += len(events)
        return events

    def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send input; return once it was accepted."""
        step = SessionStep(
            steps.WRITE,
            self._name,
            self._rank,
            at=self._sent,
            data=base64.b64encode(data).decode(),
            is_last=is_last,
        )
        self._sent = self._ask(step).at

    def resize(self, size: tuple[int, int]) -> None:
        """Change the size of the terminal: its lines and columns."""
        self._ask(SessionStep(steps.RESIZE, self._name, self._rank, size=size))

    def end(self) -> None:
        """End the session, and its process."""
        self._ask(SessionStep(steps.END, self._name, self._rank))

    def _ask(self, step: SessionStep) -> SessionReply:
        request = TargetRequest("session", step=step)
        reply = ask_target(
            self._job,
            self._workspace,
            request,
            SessionAnswer,
            timeout_s=ANSWER_S,
            server=self._server,
        ).reply
        if reply.error:
            raise SessionRefusedError(reply.error)
        return reply


def data_of(event: SessionEvent) -> bytes:
    """Return the bytes of an event."""
    return base64.b64decode(event.data)
