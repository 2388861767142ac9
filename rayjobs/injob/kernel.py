"""Linux calls that Python lacks: prctl, namespaces, punching holes, the environment block."""

from __future__ import annotations

import ctypes
import os
from typing import Iterator, Tuple

from rayjobs.injob.processes import MARKER_VARIABLE

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_MADV_COLLAPSE = 25
_HUGE_BYTES = 2 * 1024 * 1024

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWIPC = 0x08000000
MNT_DETACH = 2
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 0x4000
MS_SLAVE = 1 << 19
MS_RELATIME = 1 << 21
MS_PLAIN = MS_NOSUID | MS_NODEV | MS_NOEXEC
_CAPABILITY_VERSION_3 = 0x20080522
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
CAP_DAC_READ_SEARCH = 2
CAP_SYS_PTRACE = 19
CAP_SYS_ADMIN = 21
# The C library has no function for it.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217, "riscv64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int, name: str) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send `signal_number` when the *thread* that forked this process ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "PR_SET_PDEATHSIG")


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def set_name(name: str) -> None:
    """Set the name that `ps -o comm` shows; the kernel keeps 15 bytes of it."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    if _libc.prctl(_PR_SET_NAME, buffer, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"PR_SET_NAME: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process (with CLONE_NEWPID its later children) into new namespaces.

    Raises:
        OSError: the kernel does not allow it.
    """
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def mount(
    source: str | None, point: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    """Mount, change a mount, or change the propagation of mounts below `point`.

    Args:
        options: Passed to the file system itself.

    Raises:
        OSError: the kernel does not allow it.
    """
    texts = [None if text is None else os.fsencode(text) for text in (source, point, kind, options)]
    if _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {point}: {os.strerror(number)}")


def unmount(point: str) -> None:
    """Detach `point` and all mounts below it; they are unmounted when they are no longer in use.

    Raises:
        OSError: it is not a mount, or the kernel does not allow it.
    """
    if _libc.umount2(os.fsencode(point), MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"umount {point}: {os.strerror(number)}")


def pivot_into(root: str) -> None:
    """Make the mount at `root` the root of this process's mount namespace; remove the old one.

    Raises:
        OSError: the kernel does not allow it, or its system call on this machine is unknown.
    """
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root on {os.uname().machine} is unknown")
    os.chdir(root)
    # The old root is stacked on the new one and unmounted there, so it needs no folder.
    if _libc.syscall(ctypes.c_long(number), b".", b".") != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"pivot_root {root}: {os.strerror(error)}")
    unmount(".")
    os.chdir("/")


def drop_for_good(capabilities: Tuple[int, ...]) -> None:
    """Drop capabilities of this process and of all programs that it starts, even as root.

    Ignores those that it does not have.

    Raises:
        OSError: the kernel refused.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable; then their upper bits
    if _libc.capget(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capget: {os.strerror(number)}")
    mask = sum(1 << one for one in capabilities)  # all of them are below 32
    if not data[1] & mask:
        return
    for one in capabilities:
        # A program that root starts regains the capabilities of the bounding set.
        if _libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(one), 0, 0, 0) == 1:
            _prctl(_PR_CAPBSET_DROP, one, f"dropping capability {one}")
    for at in range(3):
        data[at] &= ~mask & 0xFFFFFFFF
    if _libc.capset(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def drop_capabilities() -> None:
    """Drop every capability of this process.

    Raises:
        OSError: the kernel refused.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Return the blocks of a byte range to the file system; the file's size stays.

    Raises:
        OSError: the file system cannot (EOPNOTSUPP), or the call failed.
    """
    punch = _libc.fallocate
    punch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    flags = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    while punch(descriptor, flags, offset, length) != 0:
        number = ctypes.get_errno()
        if number != 4:  # EINTR
            raise OSError(number, f"fallocate: {os.strerror(number)}")


def huge_page_addresses() -> Iterator[int]:
    """Return addresses in this process's memory that could become huge pages; empty if disabled."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            if "[never]" in file.read():
                return
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 5)
        if fields[1] != "rw-p" or fields[5:] not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in fields[0].split("-"))
        first = (begin + _HUGE_BYTES - 1) // _HUGE_BYTES * _HUGE_BYTES
        yield from range(first, end - _HUGE_BYTES + 1, _HUGE_BYTES)


def make_huge_page(address: int) -> bool:
    """Turn the small pages at `address` into a huge page; False if the kernel refuses."""
    advise = _libc.madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(advise(address, _HUGE_BYTES, _MADV_COLLAPSE) == 0)


def write_marker(marker: str) -> None:
    """Overwrite the padded marker variable in this process's own environment block.

    `/proc/PID/environ` shows the block made at exec, so a variable set after a fork is invisible
    to a scan. The interpreter must have been started with `RAYJOBS_MARKER` at least this long.

    Raises:
        ValueError: the block has no marker variable, or less space than `marker` needs.
    """
    with open("/proc/self/stat", "rb") as file:
        text = file.read()
    fields = text[text.rfind(b")") + 2 :].split()
    start, end = int(fields[47]), int(fields[48])
    block = ctypes.string_at(start, end - start)
    name = MARKER_VARIABLE.encode() + b"="
    position = 0 if block.startswith(name) else block.find(b"\0" + name) + 1
    if not block.startswith(name, position):
        raise ValueError(
            f"the interpreter was started without {MARKER_VARIABLE}; start it with a padded value"
        )
    position += len(name)
    capacity = block.index(b"\0", position) - position
    value = marker.encode()
    if len(value) > capacity:
        raise ValueError(
            f"the marker is {len(value)} bytes long, but the environment block has space for "
            f"{capacity}; start the warm interpreter with a larger --marker-pad"
        )
    ctypes.memmove(start + position, value + b"\0" * (capacity - len(value)), capacity)
