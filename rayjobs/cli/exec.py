"""`rayjobs exec`: a command or a shell next to a rank of a running job."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Any

import click

from rayjobs.cli.asking import check_running
from rayjobs.cli.naming import newest_named
from rayjobs.cli.params import job_argument
from rayjobs.cli.sessions import PIECE, Channel, Session, SessionRefusedError, data_of
from rayjobs.cli.settings import Settings, common_options
from rayjobs.core.errors import NotFoundError, RayjobsError

ATTEMPT_ENDED = 128 + signal.SIGKILL

EPILOG = """\b
Examples:
  rayjobs exec 1f3c                             a shell
  rayjobs exec 1f3c -- nvidia-smi
  rayjobs exec 1f3c --rank 3 -- python -c 'import torch; print(torch.__version__)'
  rayjobs exec 1f3c -- tar c outputs | tar x

The process has the rank's environment, folder, namespaces and limits, and ends with the attempt.
The exit code is that of the command; 137: the attempt ended before it.
"""


@click.command("exec", epilog=EPILOG)
@job_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, help="Run at this rank."
)
@click.option(
    "--terminal/--no-terminal",
    default=None,
    help="Give the command a terminal (default: if this is one).",
)
@common_options
@click.pass_obj
def exec_(
    settings: Settings, job: str, command: tuple[str, ...], rank: int, terminal: bool | None
) -> int:
    """Run a command next to a rank of a running job; without one, a shell."""
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    wants = has_terminal if terminal is None else terminal
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        check_running(found)
        session = Session(found, workspace.path, rank, workspace.server)
        channel = session.channel()
        channel.start(
            command,
            terminal=os.environ.get("TERM", "xterm") if wants else "",
            size=_size() if wants and has_terminal else None,
        )
        is_over = False
        try:
            with _raw(wants and has_terminal):
                _Input(session.channel(), follows_size=wants and has_terminal).start()
                code = _print_all(channel)
                is_over = True
        finally:
            if not is_over:
                with contextlib.suppress(RayjobsError):
                    channel.end()
            channel.close()
    return code


def _print_all(channel: Channel) -> int:
    """Print the output of the session; return the exit code."""
    while True:
        try:
            events = channel.read()
        except NotFoundError as error:  # the job ended, and its target has forgotten it
            click.echo(f"error: {error.message}", err=True)
            return ATTEMPT_ENDED
        for event in events:
            if event.stream == 0:
                if event.data:
                    click.echo(f"error: {event.data}", err=True)
                with contextlib.suppress(RayjobsError):
                    channel.end()
                return ATTEMPT_ENDED if event.exit_code is None else event.exit_code
            stream = sys.stdout.buffer if event.stream == 1 else sys.stderr.buffer
            stream.write(data_of(event))
            stream.flush()


class _Input(threading.Thread):
    """Sends this process's standard input, and the size of its terminal."""

    def __init__(self, channel: Channel, *, follows_size: bool) -> None:
        super().__init__(daemon=True)  # it may wait for a key when the process ends
        self._channel = channel
        self._resized, resized = os.pipe()
        if follows_size:
            signal.signal(signal.SIGWINCH, lambda *_: os.write(resized, b"r"))

    def run(self) -> None:
        """Send until the input ends or the other side accepts no more."""
        try:
            while True:
                readable, _, _ = select.select([0, self._resized], [], [])
                if self._resized in readable:
                    os.read(self._resized, 4096)
                    self._channel.resize(_size())
                if 0 in readable:
                    data = os.read(0, PIECE)
                    self._channel.write(data, is_last=not data)
                    if not data:
                        return
        except (RayjobsError, SessionRefusedError, OSError):
            return  # the other thread sees the end, and reports it


def _size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return 24, 80
    return size.lines, size.columns


@contextlib.contextmanager
def _raw(on: bool) -> Iterator[None]:
    """Pass each key to the session unchanged."""
    if not on:
        yield
        return
    before: list[Any] = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # keeps what was typed while the session began
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
