"""Messages of sessions: a client's requests to a process next to a rank, or to a job's port."""

from __future__ import annotations

from typing import Optional, Tuple

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message

EXEC, PORT, READ, WRITE, RESIZE, SIGNAL, END = (
    "exec",
    "port",
    "read",
    "write",
    "resize",
    "signal",
    "end",
)


@dataclass(frozen=True)
class SessionStep(Message):
    """One request of a client about a session; each operation reads its own fields.

    Reads and writes name a position, so a request whose answer was lost can be sent again.

    Attributes:
        op: "exec" and "port" open a session; "read", "write", "resize", "signal" and "end" use one.
        session: Its name, which the client chooses: long and random.
        rank: The rank next to which it is opened.
        arguments: Of "exec", the program and its arguments; none: a shell.
        terminal: Of "exec", the kind of terminal; empty: pipes.
        size: Rows and columns of the terminal.
        number: The port, or the signal.
        at: Of "read", how many events the client has; of "write", how many bytes were sent before.
        data: Of "write", the bytes in Base64.
        is_last: Of "write", nothing follows.
        wait_s: Of "read", how long to wait for an event.
    """

    op: str
    session: str
    rank: int = 0
    arguments: Tuple[str, ...] = ()
    terminal: str = ""
    size: Optional[Tuple[int, int]] = None
    number: int = 0
    at: int = 0
    data: str = ""
    is_last: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True)
class SessionEvent(Message):
    """Output of a session for its client.

    Attributes:
        stream: 1 or 2, as of standard output and error; 0: the end.
        data: Bytes in Base64; of the end, a sentence or nothing.
        exit_code: Of the end of a process.
    """

    stream: int
    data: str = ""
    exit_code: Optional[int] = None


@dataclass(frozen=True)
class SessionReply(Message):
    """The answer to a step.

    Attributes:
        error: Why it was refused, as a sentence; empty: it was accepted.
        at: For a write, how many bytes were accepted in total.
        events: For a read, the events after those that the client has.
    """

    error: str = ""
    at: int = 0
    events: Tuple[SessionEvent, ...] = ()
