"""An attempt's PID namespace: its processes see only each other, and end with its init.

As a program, `python namespace.py`, it probes this machine and prints one JSON line:
`{"works": true, "why": ""}` or `{"works": false, "why": "..."}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys

if __name__ == "__main__":
    # Run by its path: take this folder, whose module names are general words, off the module path.
    _package_home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:1] = [_package_home]

from rayjobs.injob import kernel
from rayjobs.injob.identity import Identity, identity_of, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.processes import MARKER_VARIABLE

# Reads its standard input to the end; small, starts in a millisecond, installed everywhere.
_INITS = ("/bin/cat", "/usr/bin/cat")
_HARMLESS_BELOW_PROC = ("/proc/sys/fs/binfmt_misc",)


class NamespaceRefused(OSError):
    """This machine does not allow the namespace; nothing was changed."""


class Namespace:
    """The PID namespace of the calling process's later children.

    Its init is a program that reads a pipe whose other end only the caller holds: when the caller
    ends, however that happens, init does too, and the kernel then ends every process of the
    namespace. No process can leave it, change its init, or be hidden from it. Each child must
    `enter` to get a `/proc` that agrees with its pids. The caller must not start threads
    afterwards: the kernel refuses them to a process whose children are in another PID namespace.
    """

    def __init__(self, init: Identity, lifeline: int, *, own_users: bool) -> None:
        """Represent the namespace that `make` has made."""
        self.init = init
        self._lifeline = lifeline
        self._own_users = own_users

    @property
    def own_users(self) -> bool:
        """Whether it needed a user namespace, in which its maker has all rights."""
        return self._own_users

    @staticmethod
    def make(marker: str) -> Namespace:
        """Make a namespace for the attempt `marker`, owned by the calling process.

        Its init carries the marker, so that a scan finds it.

        Raises:
            NamespaceRefused: the machine does not allow it; nothing was changed.
            OSError: it was made, but its init cannot be started: this process can no longer fork.
        """
        _check_proc()
        own_users = unshare(kernel.CLONE_NEWPID, "PID namespaces")
        reader, writer = os.pipe()
        before = signal.getsignal(signal.SIGCHLD)
        # Stays ignored after the exec, so the kernel itself reaps the orphans that init gets.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            pid = os.posix_spawn(
                _init_program(),
                ["cat"],
                {MARKER_VARIABLE: marker},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except OSError:
            os.close(writer)
            raise
        finally:
            signal.signal(signal.SIGCHLD, before)
            os.close(reader)
        init = identity_of(pid)
        if init is None:
            raise OSError("the init of the attempt's PID namespace cannot be seen in /proc")
        return Namespace(init, writer, own_users=own_users)

    def enter(self, root: str | None = None) -> None:
        """Give the calling process, a fresh child of the maker, its own view of `/proc`.

        Later mounts from outside still appear; its own mounts do not propagate out.

        Args:
            root: The mounted root file system that becomes this process's own; None: none does.

        Raises:
            OSError: the kernel refused a step.
        """
        self._let_go()
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
        kernel.mount("proc", f"{root or ''}/proc", "proc", kernel.MS_PLAIN)
        if root is not None:
            kernel.pivot_into(root)
        if self._own_users:
            # The creator of a user namespace gets rights over its own files that it lacks outside.
            kernel.drop_capabilities()

    def kill(self) -> None:
        """End every process of the namespace at once. Idempotent."""
        send_signal(self.init, signal.SIGKILL)

    def close(self) -> None:
        """End init, and with it all remaining processes. The caller still has to reap init."""
        self.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _check_proc() -> None:
    # A container hides parts of /proc, such as foreign devices, below mounts. A new /proc would
    # uncover them.
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [line.split()[4] for line in file]
    except OSError as error:
        raise NamespaceRefused(f"/proc/self/mountinfo cannot be read: {error}") from error
    hidden = [
        point
        for point in points
        if point.startswith("/proc/") and not point.startswith(_HARMLESS_BELOW_PROC)
    ]
    if hidden:
        raise NamespaceRefused(
            f"{hidden[0]} is mounted over, as containers do, and a new /proc would uncover it"
        )


def unshare(kind: int, name: str) -> bool:
    """Make a namespace of a kind; return whether it also needed a user namespace.

    Raises:
        NamespaceRefused: the machine does not allow it; nothing was changed.
    """
    try:
        kernel.unshare(kind)
    except PermissionError as error:
        if os.geteuid() == 0:
            raise NamespaceRefused(
                "root has no CAP_SYS_ADMIN here, as in a container; in a user namespace it would "
                "lose its rights over other users' files"
            ) from error
    except OSError as error:
        raise NamespaceRefused(f"{name}: {error.strerror}") from error
    else:
        return False
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kind)
    except OSError as error:
        raise NamespaceRefused(
            f"user namespaces: {error.strerror} (see user.max_user_namespaces and "
            f"kernel.apparmor_restrict_unprivileged_userns in sysctl)"
        ) from error
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    return True


def _init_program() -> str:
    for path in _INITS:
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(2, "the program cat is not installed", _INITS[0])


def _try() -> None:
    """Make a namespace and check it from a process inside.

    Raises:
        OSError: a step was refused or had no effect.
    """
    _init_program()
    namespace = Namespace.make("probe")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            namespace.enter()
            agrees = os.readlink("/proc/self") == str(os.getpid()) and os.getpid() != 1
            os.write(writer, b"" if agrees else b"the new /proc does not agree with the pids")
        except BaseException as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    problem = os.read(reader, 4096)
    namespace.close()
    os.waitpid(namespace.init.pid, 0)
    if problem or status:
        raise OSError(problem.decode() or f"the process in it ended with status {status}")


@dataclass(frozen=True)
class NamespaceProbe(Message):
    """Tells whether an attempt can have a PID namespace on this machine, and why not."""

    works: bool
    why: str = ""


def probe() -> NamespaceProbe:
    """Try it in this process, which cannot start threads or other children afterwards."""
    try:
        _try()
    except OSError as error:
        return NamespaceProbe(False, error.strerror or str(error))
    return NamespaceProbe(True)


if __name__ == "__main__":
    print(json.dumps(probe().to_json()))
