"""Identifies a process by pid, start time and boot id, so that a reused pid never matches."""

from __future__ import annotations

import os
import signal
from typing import Any, Mapping, Optional, Union

from rayjobs.injob import open_files
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's sched.h


@dataclass(frozen=True)
class ProcessStat:
    """The fields of `/proc/PID/stat` used here; times are in clock ticks."""

    pid: int
    comm: str
    state: str
    parent: int
    session: int
    threads: int
    start_time: int
    cpu_ticks: int = 0
    flags: int = 0

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a part of the kernel, which has no command line and no environment."""
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def is_dead(self) -> bool:
        """Whether no part of it runs; a zombie leader with live threads is not dead."""
        return self.state in "ZX" and self.threads <= 1


@dataclass(frozen=True)
class Identity(Message):
    """A unique process: no two processes of a machine ever share all three values."""

    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with the boot id under its current key; mount records had ``boot``."""
        return {"boot_id": values["boot"], **values} if "boot" in values else values


class OfProcess:
    """A mixin of messages that name one process by three of their own entries.

    Such a message is made with ``**identity.to_json()``.
    """

    __slots__ = ()
    pid: Optional[int]
    start_time: Optional[int]
    boot_id: Optional[str]

    @property
    def identity(self) -> Identity:
        """The process.

        Raises:
            ValueError: The message names none.
        """
        found = _named_by(self)
        if found is None:
            raise ValueError("the message names no process")
        return found


class MaybeOfProcess:
    """A mixin of messages that may name one process by three of their own entries."""

    __slots__ = ()
    pid: Optional[int]
    start_time: Optional[int]
    boot_id: Optional[str]

    @property
    def identity(self) -> Optional[Identity]:
        """The process; None: the message names none."""
        return _named_by(self)


def _named_by(message: Union[OfProcess, MaybeOfProcess]) -> Optional[Identity]:
    pid, start_time, boot = message.pid, message.start_time, message.boot_id
    if pid is None or start_time is None or boot is None:
        return None
    return Identity(pid, start_time, boot)


def boot_id() -> str:
    """The id of this boot of the machine."""
    return open_files.patiently(lambda: _read("/proc/sys/kernel/random/boot_id")).decode().strip()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def stat_of(pid: int) -> ProcessStat | None:
    """Return the kernel's record of `pid`, or None if there is no such process.

    Raises:
        OSError: the file limit is reached, so the process may or may not exist.
    """
    try:
        text = open_files.patiently(lambda: _read(f"/proc/{pid}/stat")).decode("utf-8", "replace")
    except OSError as error:
        if error.errno in open_files.ERRORS:
            raise
        return None
    # The name may contain spaces and brackets, so search from the right.
    opening, closing = text.find("("), text.rfind(")")
    fields = text[closing + 2 :].split()
    if opening < 0 or len(fields) < 20:
        return None
    return ProcessStat(
        pid=pid,
        comm=text[opening + 1 : closing],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start_time=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        flags=int(fields[6]),
    )


def identity_of(pid: int) -> Identity | None:
    """The identity of the process that has `pid` now, or None."""
    stat = stat_of(pid)
    return None if stat is None else Identity(pid, stat.start_time, boot_id())


def own_identity() -> Identity:
    """The identity of the calling process."""
    found = identity_of(os.getpid())
    if found is None:
        raise RuntimeError("/proc does not show this process; mount /proc for this namespace")
    return found


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs; zombies and reused pids do not count."""
    stat = stat_of(identity.pid)
    return (
        stat is not None
        and stat.start_time == identity.start_time
        and not stat.is_dead
        and identity.boot_id == boot_id()
    )


def send_signal(identity: Identity, number: int) -> bool:
    """Send a signal to exactly this process.

    Returns:
        False if it no longer exists; another process that now has its pid gets no signal.

    Raises:
        PermissionError: The process belongs to another user.
    """
    open_descriptor = getattr(os, "pidfd_open", None)
    send = getattr(signal, "pidfd_send_signal", None)
    if open_descriptor is None or send is None:
        if not is_alive(identity):
            return False
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return False
        return True
    try:
        descriptor = open_descriptor(identity.pid)
    except ProcessLookupError:
        return False
    except OSError:
        if not is_alive(identity):
            return False
        os.kill(identity.pid, number)
        return True
    try:
        # Checked after opening: from here on the descriptor cannot refer to another process.
        if not is_alive(identity):
            return False
        send(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
