"""Starts a process that outlives its caller, in its own session."""

from __future__ import annotations

import os
import sys

from rayjobs.injob.answers import StartAnswer
from rayjobs.injob.control import encode
from rayjobs.injob.identity import own_identity


def fork_detached(*, twice: bool = True) -> int | None:
    """Fork a process in its own session, whose parent is init (or the nearest subreaper).

    Args:
        twice: False skips the intermediate process, which doubles the cost. Only for callers that
            ignore SIGCHLD and so leave no zombies. The new process then stays their child, and does
            not notice their end.

    Returns:
        In the caller, the end of a pipe on which the new process reports its start (see `report`);
        in the new process, None; `report` writes to the other end of the pipe.
    """
    global _report_to
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(writer)
        if twice:
            os.waitpid(child, 0)
        return reader
    try:
        os.close(reader)
        os.setsid()
        if twice and os.fork():
            os._exit(0)
    except BaseException:
        os._exit(1)
    _report_to = writer
    return None


_report_to: int | None = None


def report(answer: StartAnswer | None = None) -> None:
    """Report this process's identity, or `answer`, once to the process that forked it."""
    global _report_to
    if _report_to is None:
        return
    descriptor, _report_to = _report_to, None
    try:
        os.write(descriptor, encode(answer or StartAnswer.of(own_identity())))
    except OSError:
        pass  # the caller is gone; the socket and host.json have the same facts
    os.close(descriptor)


def report_descriptors() -> frozenset[int]:
    """The descriptor that `report` will write to, if it has not yet."""
    return frozenset(() if _report_to is None else (_report_to,))


def read_report(descriptor: int) -> bytes:
    """The line that the detached process sent; empty if it died first."""
    chunks = []
    while True:
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        chunks.append(chunk)
        if chunk.endswith(b"\n"):
            break
    os.close(descriptor)
    return b"".join(chunks)


def note(text: str) -> None:
    """Write to this process's own log; never raises, since the disk may be full."""
    try:
        os.write(2, text.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        return


def point_output(log: str) -> None:
    """Set stdin to /dev/null, and append stdout and stderr to the file `log`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in {nothing, output} - {0, 1, 2}:
        os.close(descriptor)
