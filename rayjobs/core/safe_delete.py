"""Deletes below one of our folders by directory handle; never follows links or enters mounts.

A joined path changes its meaning when a part of it becomes a link or a mount. So every step starts
from an open folder, and a victim is first renamed within its folder: a program that swaps files
under the old name finds nothing to swap.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from rayjobs.core.errors import RayjobsError
from rayjobs.injob.lazy_dataclass import dataclass

ASIDE = ".removing-"
_ASIDE_NAME = re.compile(r"\.removing-[0-9a-f]{16}-(.+)", re.DOTALL)
# The depth limit of `measure`, which holds a folder open for each level.
_DEEPEST = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)


class UnsafeDeletionError(RayjobsError):
    """The path to delete may not be ours; it was left untouched."""


@dataclass
class Removed:
    """The items that were removed, or would be.

    Attributes:
        bytes: Bytes of the removed files; a file with another hard link frees nothing.
        spared: Number of items put back because they were in use again.
        kept: Sentences that say why items were left in place.
    """

    files: int = 0
    folders: int = 0
    bytes: int = 0
    spared: int = 0
    kept: list[str] = field(default_factory=list)

    def add(self, other: Removed) -> None:
        """Add the counts of another call."""
        self.files += other.files
        self.folders += other.folders
        self.bytes += other.bytes
        self.spared += other.spared
        self.kept += other.kept

    def count(self, info: os.stat_result) -> None:
        """Count one file."""
        self.files += 1
        self.bytes += info.st_size if info.st_nlink == 1 else 0


class OwnFolder:
    """One of our folders, kept open; as a context manager it is closed at the end.

    Names are relative, with ``/`` between their parts; ``..`` and links as folders are refused.

    Raises:
        UnsafeDeletionError: it is a link, or belongs to another user.
        FileNotFoundError: it does not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self._handle = os.open(root, _FOLDER)
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            raise UnsafeDeletionError(
                f"{root} is a link or not a folder: nothing is deleted through it. Put the real "
                f"folder in its place"
            ) from error
        info = os.fstat(self._handle)
        if info.st_uid != os.geteuid():
            os.close(self._handle)
            raise UnsafeDeletionError(
                f"{root} belongs to user {info.st_uid}, and this is user {os.geteuid()}: nothing "
                f"is deleted there. Run the command as its owner"
            )
        self._mount = _mount_of(self._handle)

    def __enter__(self) -> OwnFolder:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._handle)

    def entries(self, relative: str = "") -> list[tuple[str, os.stat_result]]:
        """Return names and status (of links themselves) in a folder; empty if it is not one."""
        try:
            with self._folder(relative) as handle:
                return list(_entries(handle))
        except FileNotFoundError:
            return []

    def walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the relative names and status of all regular files; links are skipped."""
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name, info in self.entries(folder):
                relative = f"{folder}/{name}" if folder else name
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(relative)
                elif stat.S_ISREG(info.st_mode):
                    yield relative, info

    def measure(self, relative: str) -> Removed:
        """Return what `remove` would remove; changes nothing. Stops at a depth of 64 levels."""
        found = Removed()
        with self._recording(relative, found), self._parent_of(relative) as (parent, name):
            self._refuse_mounts(relative)
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                found.folders += 1
                self._count_below(os.open(name, _FOLDER, dir_fd=parent), found, 0)
            else:
                found.count(info)
        return found

    def remove(
        self, relative: str, *, only_if: Callable[[os.stat_result], bool] | None = None
    ) -> Removed:
        """Remove a file, a link (never its target), or a folder with its content.

        A missing path is not an error. A folder that contains a mount is not touched.

        Args:
            only_if: Called once the victim is renamed; if it returns False, the victim gets its
                old name back.
        """
        removed = Removed()
        with self._recording(relative, removed), self._parent_of(relative) as (parent, name):
            self._refuse_mounts(relative)
            aside = name if original_name(name) else _aside_name(name)
            if aside != name:
                os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
            info = os.stat(aside, dir_fd=parent, follow_symlinks=False)
            if only_if is None or only_if(info):
                self._delete(parent, aside, relative, removed)
            else:
                _put_back(parent, aside, original_name(aside) or name, info)
                removed.spared += 1
        return removed

    def remove_if_empty(self, relative: str) -> bool:
        """Remove an empty folder; False if it is not empty or not a folder."""
        try:
            with self._parent_of(relative) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except (OSError, UnsafeDeletionError):
            return False
        return True

    @contextmanager
    def _recording(self, relative: str, removed: Removed) -> Iterator[None]:
        """Record why an item stays; missing items are ignored."""
        try:
            yield
        except FileNotFoundError:
            return
        except UnsafeDeletionError as error:
            removed.kept.append(error.message)
        except OSError as error:
            removed.kept.append(f"{self.root / relative} was left: {error.strerror}")

    # -- opening folders -----------------------------------------------------------------------

    @contextmanager
    def _folder(self, relative: str) -> Iterator[int]:
        handle = os.dup(self._handle)
        try:
            for part in _parts(relative) if relative else ():
                handle = self._descend(handle, part, relative)
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def _parent_of(self, relative: str) -> Iterator[tuple[int, str]]:
        *folders, name = _parts(relative)
        with self._folder("/".join(folders)) as handle:
            yield handle, name

    def _descend(self, handle: int, part: str, relative: str) -> int:
        """Open the folder `part` in `handle`, and close `handle` unless this raises."""
        try:
            below = os.open(part, _FOLDER, dir_fd=handle)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise UnsafeDeletionError(
                    f"{self.root / relative}: {part!r} on the way there is a link or not a folder"
                ) from error
            raise
        if _mount_of(below) != self._mount:
            os.close(below)
            raise UnsafeDeletionError(f"{self.root / relative}: {part!r} is a mount")
        os.close(handle)
        return below

    def _refuse_mounts(self, relative: str) -> None:
        """Refuse a folder that contains a mount, before touching it."""
        absolute = f"{os.readlink(f'/proc/self/fd/{self._handle}')}/{relative}"
        for point in _mount_points():
            if point == absolute or point.startswith(absolute + "/"):
                raise UnsafeDeletionError(
                    f"{self.root / relative} was left: something is mounted at {point}. "
                    f"Unmount it first (`fusermount3 -u {point}`, or `umount {point}`)"
                )

    # -- walking ---------------------------------------------------------------------------------

    def _count_below(self, handle: int, found: Removed, depth: int) -> None:
        """Count what is in an open folder, which is closed here."""
        try:
            if _mount_of(handle) != self._mount:
                return
            for name, info in _entries(handle):
                if not stat.S_ISDIR(info.st_mode):
                    found.count(info)
                    continue
                found.folders += 1
                if depth < _DEEPEST:
                    try:
                        below = os.open(name, _FOLDER, dir_fd=handle)
                    except OSError:
                        continue  # swapped, removed or made inaccessible meanwhile
                    self._count_below(below, found, depth + 1)
        finally:
            os.close(handle)

    def _delete(self, parent: int, name: str, relative: str, removed: Removed) -> None:
        """Delete `name` in `parent`.

        Each folder below is moved up into the victim itself before it is emptied: no depth needs
        more than a few open folders, and a process that is killed leaves one name in `parent`.
        """
        if _unlink_unless_folder(parent, name, removed):
            return
        with self._to_empty(parent, name, relative) as top:
            waiting = _unlink_files(top, removed)
            while waiting:
                folder = waiting.pop()
                with self._to_empty(top, folder, relative) as handle:
                    for below in _unlink_files(handle, removed):
                        with self._to_empty(handle, below, relative):
                            pass  # moving a folder needs write permission on it
                        waiting.append(_aside_name("deep"))
                        os.rename(below, waiting[-1], src_dir_fd=handle, dst_dir_fd=top)
                os.rmdir(folder, dir_fd=top)
                removed.folders += 1
        os.rmdir(name, dir_fd=parent)
        removed.folders += 1

    @contextmanager
    def _to_empty(self, parent: int, name: str, relative: str) -> Iterator[int]:
        """Open a folder to delete its content; change its permissions if necessary."""
        try:
            by_name = os.open(name, _NAME_ONLY, dir_fd=parent)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise UnsafeDeletionError(
                    f"{self.root / relative}: {name!r} in it was swapped for something else"
                ) from error
            raise
        try:
            if _mount_of(by_name) != self._mount:
                raise UnsafeDeletionError(
                    f"{self.root / relative} was left in part: something is mounted at {name!r}"
                )
            info = os.fstat(by_name)
            if info.st_uid == os.geteuid() and info.st_mode & 0o700 != 0o700:
                # By handle: the name may now be a link.
                Path(f"/proc/self/fd/{by_name}").chmod(0o700)
            # "." of an open folder is that folder, whatever its name refers to now.
            handle = os.open(".", _FOLDER, dir_fd=by_name)
        finally:
            os.close(by_name)
        try:
            yield handle
        finally:
            os.close(handle)


def original_name(name: str) -> str | None:
    """Return the original name of a renamed victim; None for other names."""
    found = _ASIDE_NAME.fullmatch(name)
    return found[1] if found else None


def _aside_name(name: str) -> str:
    fresh = f"{ASIDE}{secrets.token_hex(8)}-"
    longest = 255 - len(fresh)
    return fresh + (name if len(os.fsencode(name)) <= longest else "long")


def _put_back(parent: int, aside: str, name: str, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
        return
    try:
        os.link(aside, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        pass  # another process has written the file again meanwhile: drop this one
    os.unlink(aside, dir_fd=parent)


def _parts(relative: str) -> list[str]:
    parts = relative.split("/")
    if not relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise UnsafeDeletionError(f"{relative!r} is not a name below a folder")
    return parts


def _entries(handle: int) -> Iterator[tuple[str, os.stat_result]]:
    for name in sorted(os.listdir(handle)):
        try:
            yield name, os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            continue  # another process removed it


def _unlink_unless_folder(parent: int, name: str, removed: Removed) -> bool:
    """Remove a file or link, if it exists; False if it is a folder."""
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            return False
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    removed.count(info)
    return True


def _unlink_files(handle: int, removed: Removed) -> list[str]:
    """Remove the files and links in an open folder; return the names of its folders."""
    return [
        name for name, _ in _entries(handle) if not _unlink_unless_folder(handle, name, removed)
    ]


def _mount_of(handle: int) -> str:
    """Return the mount id of a folder; it differs between bind mounts of one disk too."""
    text = Path(f"/proc/self/fdinfo/{handle}").read_text(encoding="ascii")
    for line in text.splitlines():
        if line.startswith("mnt_id:"):
            return line.partition(":")[2].strip()
    return str(os.fstat(handle).st_dev)


def _mount_points() -> Iterator[str]:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.splitlines():
        # The kernel writes space, tab, newline and backslash as three octal digits.
        yield re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ")[4])
