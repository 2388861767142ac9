"""What an attempt sees of its inputs: read-only folders and private layers in its mount namespace.

The host makes the namespace before it forks a rank, so all ranks of a node see the same, and the
kernel takes it away with the last of them, however they end. As a program, `python views.py
FOLDER`, it tries all of it below FOLDER and prints one JSON line: `{"read_only": true, "overlay":
true, "why": "", "why_no_overlay": ""}`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from typing import Tuple

if __name__ == "__main__":
    # Run by its path: this folder, whose module names are general words, is not on the module path.
    _package_home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:1] = [_package_home]

from rayjobs.injob import kernel, namespace
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
    """What is mounted in an attempt's namespace.

    Attributes:
        read_only: Files and folders that the attempt must not change, by whatever path.
        writable: Folders that stay as they are, even below one of `read_only`.
        overlays: (folder, upper, work): the folder gets a layer that takes all that is written.
        shown: (folder, place): the folder appears read-only at the place, and stays what it is.
    """

    read_only: Tuple[str, ...] = ()
    writable: Tuple[str, ...] = ()
    overlays: Tuple[Tuple[str, str, str], ...] = ()
    shown: Tuple[Tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be mounted."""
        return not self.read_only and not self.overlays and not self.shown

    def enter(self, *, has_own_users: bool = False) -> None:
        """Give the calling process, and its later children, these views.

        Mounts that are made outside later still arrive; none of these leave. Does nothing if
        nothing is to be mounted.

        Args:
            has_own_users: The process made a user namespace already, and keeps its rights in it.

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
        self._close()
        if made_users:
            # Being the first of a user namespace gives rights over one's own files that a user
            # does not have outside.
            kernel.drop_capabilities()

    def _close(self) -> None:
        places = {os.path.realpath(at) for _, at in self.shown}
        for folder, at in self.shown:
            kernel.mount(folder, at, None, kernel.MS_BIND | kernel.MS_REC)
        closed = {os.path.realpath(path) for path in self.read_only}
        # The folder that holds another one first: its mount would hide the other's.
        for path in sorted(closed):
            kernel.mount(path, path, None, kernel.MS_BIND | kernel.MS_REC)
        closed |= places
        opened = {os.path.realpath(path) for path in self.writable}
        for path in sorted(opened):
            if _holder(os.path.dirname(path), closed) is not None:
                kernel.mount(path, path, None, kernel.MS_BIND | kernel.MS_REC)
        for point, flags in _mounts():
            # What lies below a writable folder is as that folder is, unless it is named itself.
            if _holder(point, closed | opened) in closed:
                kernel.mount(
                    None,
                    point,
                    None,
                    kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags,
                )


def _holder(path: str, folders: set[str]) -> str | None:
    """Return the innermost of `folders` that is `path` or holds it."""
    while True:
        if path in folders:
            return path
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above


def _mounts() -> list[tuple[str, int]]:
    """Return every mount point with the flags that a change of it has to keep."""
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
    # Without it a folder of the lower layer cannot be renamed; a user's own layer cannot have it.
    option = "userxattr" if of_user else "redirect_dir=on"
    layers = (f"lowerdir={escaped(at)}", f"upperdir={escaped(upper)}")
    kernel.mount(
        "overlay", at, "overlay", 0, ",".join([*layers, f"workdir={escaped(work)}", option])
    )


def escaped(path: str) -> str:
    """Return a path as an option of an overlay has it."""
    return re.sub(r"([\\,:])", r"\\\1", path)


@dataclass(frozen=True)
class ViewsProbe(Message):
    """Whether views work on this machine.

    Attributes:
        why: Why nothing can be made read-only; empty if it can.
        why_no_overlay: Why no folder can get a private layer; empty if it can.
    """

    read_only: bool
    overlay: bool
    why: str = ""
    why_no_overlay: str = ""


def probe(folder: str) -> ViewsProbe:
    """Try it below `folder`, in children of this process."""
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
                why = why or "a read-only mount does not keep writes away"
                why_no_overlay = why_no_overlay or "a private layer does not keep writes away"
    return ViewsProbe(not why, not why_no_overlay, why, why_no_overlay)


def _tried(views: Views, file: str, *, is_writable: bool) -> str:
    """Return why these views cannot be set up or do not work; empty if they do."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            views.enter()
            if _can_write(file) != is_writable:
                said = f"what should be {'private' if is_writable else 'read-only'} is not"
        except BaseException as error:
            said = getattr(error, "strerror", None) or str(error) or "it failed"
        os.write(writer, said.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    said = os.read(reader, 4096).decode(errors="replace")
    os.close(reader)
    return said


def _can_write(path: str) -> bool:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write("written")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1]).to_json()))
