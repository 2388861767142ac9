"""Helper programs of an attempt host: mpirun, orted, a rendezvous server."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from typing import Mapping, Sequence

from rayjobs.injob import detach, kernel, open_files, startup
from rayjobs.injob.identity import Identity, identity_of, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.rank_forker import RankForker
from rayjobs.injob.wait_status import WaitStatus

_NOT_STARTED = 127


@dataclass
class Helper(WaitStatus):
    """A program that was started; `status` is its wait status once it has ended."""

    name: str
    identity: Identity
    status: int | None = None
    ended_at: float | None = None

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self.has_ended:
            send_signal(self.identity, number)

    def end_in_words(self) -> str:
        """How it ended: ``ended with code 3``, ``was ended by SIGKILL``."""
        if self.signal is not None:
            return f"was ended by {signal_name(self.signal)}"
        return f"ended with code {self.exit_code}"


def signal_name(number: int) -> str:
    """The signal's name, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Program:
    """A program to start.

    Attributes:
        name: What messages call it.
        arguments: The program, looked up in the PATH of `env`, and its arguments.
        folder: Its working directory.
    """

    name: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    folder: str = "/"


def start(
    program: Program,
    *,
    log: str,
    forker: RankForker,
    give: int | None = None,
    files: Sequence[int] = (),
    is_terminal: bool = False,
) -> Helper:
    """Start a program that dies with this process; what it prints is appended to `log`.

    Args:
        forker: Adds it to the attempt's processes.
        give: A descriptor that becomes its standard input; None: its standard input is empty.
        files: Descriptors that become its standard input, output and error, instead of `log`.
        is_terminal: The first of `files` is a terminal, which becomes the program's own.

    Raises:
        OSError: no process can be made. A missing program ends with code 127.
    """
    parent = os.getpid()
    # Signals stay blocked while the child still has the caller's handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        identity = identity_of(pid)
        if identity is None:
            raise OSError(f"the new process of {program.name} does not appear in /proc")
        forker.contain(pid)
        return Helper(program.name, identity)
    try:
        startup.restore_signals(as_python=False)
        kernel.die_with_parent(signal.SIGKILL)
        forker.tree.enter()
        if os.getppid() not in (parent, 0):  # 0: the host is outside the PID namespace
            os._exit(1)
        os.setsid()
        given = None if give is None else os.dup(give)
        kept = [os.dup(one) for one in files]
        forker.abandon()
        detach.point_output(log)
        if given is not None:
            os.dup2(given, 0)
        for number, one in enumerate(kept):
            os.dup2(one, number)
        if is_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(program.folder)
        if files:
            open_files.give_back(forker.plan.soft_files)
            if forker.plan.container is not None:
                from rayjobs.injob import container

                container.set_limits(forker.plan.container)
        os.umask(forker.plan.umask)
        startup.close_descriptors(keep=())
        os.execvpe(program.arguments[0], list(program.arguments), dict(program.env))
    except OSError as error:
        os.write(2, f"{program.arguments[0]} cannot be started: {error.strerror}\n".encode())
    except BaseException as error:
        os.write(2, f"{program.arguments[0]} cannot be started: {error!r}\n".encode())
    os._exit(_NOT_STARTED)
