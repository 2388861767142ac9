"""Shows an attempt its inputs as read-only folders and private layers in a mount namespace.

The host makes the namespace before it forks a rank, so all ranks of a node see the same files, and
the kernel removes it with its last process, however that ends. As a program, `python views.py
FOLDER`, it probes all of this below FOLDER and prints one JSON line: `{"read_only": true,
"overlay": true, "why": "", "why_no_overlay": ""}`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from typing import Tuple

if __name__ == "__main__":
    # Run by its path: take this folder, whose module names are general words, off the module path.
    _package_home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:1] = [_package_home]

from rayjobs.injob import kernel, namespace
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message

_ESCAPE = re.compile(r"\\([0-7]{3})")
_KEPT = {
    "nosuid": kernel.MS_NOSUID,
    "nodev": kernel.MS_NODEV,
    "noexec": kernel.MS_NOEXEC,
    "noatime": kernel.MS_NOATIME,
    "nodiratime": kernel.MS_NODIRATIME,
    "relatime": kernel.MS_RELATIME,
}


@dataclass(frozen=True)
class Views(Message):
    """The mounts of an attempt's namespace.

    Attributes:
        read_only: Files and folders that the attempt must not change by any path.
        writable: Folders that stay writable, even below one of `read_only`.
        overlays: (folder, upper, work): the folder gets a layer for all writes.
        shown: (folder, path): the folder appears read-only at the path; the folder itself is
            unchanged.
    """

    read_only: Tuple[str, ...] = ()
    writable: Tuple[str, ...] = ()
    overlays: Tuple[Tuple[str, str, str], ...] = ()
    shown: Tuple[Tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to mount."""
        return not self.read_only and not self.overlays and not self.shown

    def enter(self, *, has_own_users: bool = False) -> None:
        """Give the calling process, and its later children, these views.

        Later mounts from outside still appear; these mounts do not propagate out. Does nothing if
        there is nothing to mount.

        Args:
            has_own_users: The process already made a user namespace, and keeps its rights in it.

        Raises:
            OSError: the kernel refused a step.
        """
        if self.is_empty:
            return
        if has_own_users:
            kernel.unshare(kernel.CLONE_NEWNS)
            made_users = False
        else:
            made_users = namespace.unshare(kernel.CLONE_NEWNS, "mount namespaces")
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
        for at, upper, work in self.overlays:
            _overlay(at, upper, work, of_user=made_users or has_own_users)
        self._mount_read_only()
        if made_users:
            # The creator of a user namespace gets rights over its own files that it lacks outside.
            kernel.drop_capabilities()

    def _mount_read_only(self) -> None:
        """Mount `shown`, and make `shown` and `read_only` read-only, except what is `writable`."""
        points = {os.path.realpath(at) for _, at in self.shown}
        for folder, at in self.shown:
            kernel.mount(folder, at, None, kernel.MS_BIND | kernel.MS_REC)
        closed = {os.path.realpath(path) for path in self.read_only}
        # Parent folders first: a later parent mount would hide its child's.
        for path in sorted(closed):
            kernel.mount(path, path, None, kernel.MS_BIND | kernel.MS_REC)
        closed |= points
        opened = {os.path.realpath(path) for path in self.writable}
        for path in sorted(opened):
            if _holder(os.path.dirname(path), closed) is not None:
                kernel.mount(path, path, None, kernel.MS_BIND | kernel.MS_REC)
        for point, flags in _mounts():
            # Paths below a writable folder are writable too, unless named themselves.
            if _holder(point, closed | opened) in closed:
                kernel.mount(
                    None,
                    point,
                    None,
                    kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags,
                )


def _holder(path: str, folders: set[str]) -> str | None:
    """Return the innermost of `folders` that equals or contains `path`."""
    while True:
        if path in folders:
            return path
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above


def _mounts() -> list[tuple[str, int]]:
    """Return every mount point with the flags that a remount must keep."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    found = {}
    for fields in lines:
        point = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        options = fields[5].split(",")
        found[point] = sum(flag for name, flag in _KEPT.items() if name in options)
    return sorted(found.items())


def _overlay(at: str, upper: str, work: str, *, of_user: bool) -> None:
    for folder in (upper, work):
        os.makedirs(folder, exist_ok=True)
    # Renaming a folder of the lower layer needs this option; unprivileged overlays lack it.
    option = "userxattr" if of_user else "redirect_dir=on"
    layers = (f"lowerdir={escaped(at)}", f"upperdir={escaped(upper)}")
    kernel.mount(
        "overlay", at, "overlay", 0, ",".join([*layers, f"workdir={escaped(work)}", option])
    )


def escaped(path: str) -> str:
    """Return a path escaped for an overlay option."""
    return re.sub(r"([\\,:])", r"\\\1", path)


@dataclass(frozen=True)
class ViewsProbe(Message):
    """Tells whether views work on this machine.

    Attributes:
        why: Why nothing can be made read-only; empty if it can.
        why_no_overlay: Why no folder can get a private layer; empty if it can.
    """

    read_only: bool
    overlay: bool
    why: str = ""
    why_no_overlay: str = ""


def probe(folder: str) -> ViewsProbe:
    """Probe below `folder`, in children of this process."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".views-") as made:
        lower = os.path.join(made, "lower")
        layers = (lower, os.path.join(made, "upper"), os.path.join(made, "work"))
        file = os.path.join(lower, "file")
        os.mkdir(lower)
        with open(file, "w", encoding="ascii") as stream:
            stream.write("lower")
        why = _tried(Views(read_only=(lower,)), file, is_writable=False)
        why_no_overlay = _tried(Views(overlays=(layers,)), file, is_writable=True)
        with open(file, encoding="ascii") as stream:
            if stream.read() != "lower":
                why = why or "a read-only mount does not prevent writes"
                why_no_overlay = why_no_overlay or "a private layer does not prevent writes"
    return ViewsProbe(not why, not why_no_overlay, why, why_no_overlay)


def _tried(views: Views, file: str, *, is_writable: bool) -> str:
    """Return why these views cannot be set up or do not work; empty if they do."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        why = ""
        try:
            views.enter()
            if _can_write(file) != is_writable:
                why = f"the mounted folder is not {'private' if is_writable else 'read-only'}"
        except BaseException as error:
            why = getattr(error, "strerror", None) or str(error) or "it failed"
        os.write(writer, why.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    why = os.read(reader, 4096).decode(errors="replace")
    os.close(reader)
    return why


def _can_write(path: str) -> bool:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write("written")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1]).to_json()))
