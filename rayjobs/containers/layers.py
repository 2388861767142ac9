"""Applies the layers of an image to a root file system, and never touches anything outside it.

Source: OCI image specification, "Image Layer Filesystem Changeset" (whiteouts, opaque whiteouts).
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import IO

from rayjobs.core.text import GIB, counted, size_text
from rayjobs.injob.lazy_dataclass import dataclass

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
MOST_ENTRIES = 5_000_000
MOST_BYTES = 100 * GIB  # total of all layers
_MOST_HEADER = 2**20  # maximum bytes of a long name or of the extra fields of a member
_MOST_LINKS = 40
_CHUNK = 1024 * 1024
# Containers use the node's own device files. A set-user-ID program would also work on the node.
_DROPPED_BITS = stat.S_ISUID | stat.S_ISGID


class BadImageError(Exception):
    """An image is unsafe to unpack, or incomplete; the text says what is wrong."""


def unreadable(name: str, error: Exception) -> BadImageError:
    """Return a one-line refusal of an archive; tarfile's text lists each format that it tried."""
    reason = str(error).partition(":\n")[0].strip() or "it ends too early"
    return BadImageError(f"{name} is not a readable archive: {reason}")


def too_large(most_bytes: int) -> BadImageError:
    """Return the refusal of an image that would fill the node's disk."""
    return BadImageError(
        f"it unpacks to more than {size_text(most_bytes)}. If it may be that large, set "
        f"RAYJOBS_IMAGE_MOST_GIB where the target starts"
    )


class _Member(tarfile.TarInfo):
    """A member whose own headers, which are kept in memory, have a limited size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        has_text = self.type in (*tarfile.GNU_TYPES, tarfile.XHDTYPE, tarfile.XGLTYPE)
        if has_text and self.type != tarfile.GNUTYPE_SPARSE and self.size > _MOST_HEADER:
            raise BadImageError(f"one of its members has a header of {size_text(self.size)}")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


class _Written:
    """The paths that a layer has written: its whiteouts only apply to lower layers."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._above: set[str] = set()

    def add(self, path: str) -> None:
        self._paths.add(path)
        above = os.path.dirname(path)
        while above not in self._above:
            self._above.add(above)
            above = os.path.dirname(above)

    def discard(self, path: str) -> None:
        self._paths.discard(path)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def is_below(self, path: str) -> bool:
        """Whether a path below `path` was written."""
        return path in self._above


@dataclass
class Counts:
    """Statistics of unpacking an image.

    Attributes:
        entries: Members of all layers.
        set_user_id: Files that lost their set-user-ID or set-group-ID bit.
        devices: Device files that were left out.
        removed: Paths that whiteouts removed.
        bytes: Size of the files of all layers, including files that a later layer removes.
    """

    entries: int = 0
    set_user_id: int = 0
    devices: int = 0
    removed: int = 0
    bytes: int = 0

    def sentence(self) -> str:
        """Return notices for the user; empty if there are none."""
        notices = []
        if self.set_user_id:
            notices.append(f"{counted(self.set_user_id, 'program')} without the set-user-ID bit")
        if self.devices:
            notices.append(f"{counted(self.devices, 'device file')} left out")
        return ", ".join(notices)


class Root:
    """A root file system to which layers are applied, one after the other.

    Nothing else may write to it in the meantime. Links are followed as by a process with this root.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        """Begin with an empty folder; the total of all layers' files is limited to `most_bytes`."""
        self.path = path
        self._most_bytes = most_bytes
        self.counts = Counts()
        self._as_owner = os.geteuid() == 0
        self._folders: dict[str, str] = {}  # folder of an archive → its known real location
        self._modes: dict[str, tuple[int, float]] = {}  # folder modes, set after the last write

    def apply(self, stream: IO[bytes], name: str) -> None:
        """Apply the layer in `stream`, an uncompressed tar.

        Raises:
            BadImageError: a member leaves the root, the archive is damaged, or the image is too
                large.
            OSError: a file cannot be written.
        """
        written = _Written()
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # else it keeps them all
                    self.counts.entries += 1
                    if self.counts.entries > MOST_ENTRIES:
                        raise BadImageError(f"the image has more than {MOST_ENTRIES} files")
                    self._member(archive, member, written, name)
        except tarfile.TarError as error:
            raise unreadable(name, error) from error
        except EOFError as error:
            raise BadImageError(f"{name} ends in the middle of a file") from error

    def finish(self) -> None:
        """Set the modes and times of folders, after the last write."""
        for path, (mode, mtime) in sorted(self._modes.items(), reverse=True):
            folder = self._opened(path)
            if folder is None:
                continue
            try:
                os.fchmod(folder, mode)
                os.utime(folder, (mtime, mtime))
            finally:
                os.close(folder)

    def _opened(self, path: str) -> int | None:
        """Open a folder of the root without following links; None if it is no longer a folder."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self.path, flags)
        for part in Path(path).relative_to(self.path).parts:
            try:
                inner = os.open(part, flags, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
                return None
            finally:
                os.close(folder)
            folder = inner
        return folder

    # -- members ----------------------------------------------------------------------------------

    def _member(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, written: _Written, layer: str
    ) -> None:
        parts = _parts(member.name, layer)
        if not parts:
            if member.isdir():
                self._modes[str(self.path)] = (self._mode(member), member.mtime)
            return
        above = self._folder(parts[:-1])
        base = parts[-1]
        if base == OPAQUE:
            self._empty(above, written)
            return
        if base.startswith(WHITEOUT):
            hidden = base[len(WHITEOUT) :]
            if hidden in ("", ".", ".."):
                raise BadImageError(
                    f"{layer} has the whiteout {member.name!r}, which names no file"
                )
            self._remove_lower(os.path.join(above, hidden), written)
            return
        at = os.path.join(above, base)
        written.add(at)
        if member.isdir():
            self._make_folder(at, member)
            return
        self._make_way(at)
        if member.issym():
            self._folders.clear()
            os.symlink(member.linkname, at)
        elif member.islnk():
            self._hard_link(at, member, layer)
            return
        elif member.isfile():
            self._file(archive, member, at, layer)
        elif member.isfifo():
            os.mkfifo(at, self._mode(member))
        else:
            self.counts.devices += 1
            written.discard(at)
            return
        self._own(at, member)

    def _make_folder(self, at: str, member: tarfile.TarInfo) -> None:
        if not os.path.isdir(at) or os.path.islink(at):
            self._make_way(at)
            os.mkdir(at, 0o700)
        self._own(at, member)
        self._modes[at] = (self._mode(member) | 0o700, member.mtime)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, at: str, layer: str) -> None:
        # A sparse file is larger than its data in the archive.
        self.counts.bytes += member.size
        if self.counts.bytes > self._most_bytes:
            raise too_large(self._most_bytes)
        source = archive.extractfile(member)
        assert source is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(at, flags, 0o600), "wb") as file:
            left = member.size
            while left:
                chunk = source.read(min(_CHUNK, left))
                if not chunk:
                    raise BadImageError(f"{layer} ends in the middle of {member.name!r}")
                file.write(chunk)
                left -= len(chunk)
            if member.mode & _DROPPED_BITS:
                self.counts.set_user_id += 1
            file.flush()
            if self._as_owner:
                os.fchown(file.fileno(), member.uid, member.gid)
            os.fchmod(file.fileno(), self._mode(member) | (0 if self._as_owner else 0o400))
        os.utime(at, (member.mtime, member.mtime), follow_symlinks=False)

    def _hard_link(self, at: str, member: tarfile.TarInfo, layer: str) -> None:
        parts = _parts(member.linkname, layer)
        if not parts:
            raise BadImageError(f"{layer} has a hard link to the root: {member.name!r}")
        source = os.path.join(self._folder(parts[:-1]), parts[-1])
        try:
            kind = os.lstat(source).st_mode
        except FileNotFoundError:
            raise BadImageError(
                f"{layer} has a hard link {member.name!r} to {member.linkname!r}, which the image "
                f"does not have"
            ) from None
        if stat.S_ISDIR(kind):
            raise BadImageError(f"{layer} has a hard link to a folder: {member.linkname!r}")
        os.link(source, at, follow_symlinks=False)

    def _own(self, at: str, member: tarfile.TarInfo) -> None:
        if self._as_owner and not member.isfile():
            os.chown(at, member.uid, member.gid, follow_symlinks=False)

    def _mode(self, member: tarfile.TarInfo) -> int:
        mode = member.mode & 0o7777 & ~_DROPPED_BITS
        # Users other than root must be able to read it, and to remove it later.
        return mode if self._as_owner else mode | (0o700 if member.isdir() else 0o400)

    # -- paths ------------------------------------------------------------------------------------

    def _folder(self, parts: tuple[str, ...]) -> str:
        """Return the real location of an archive's folder inside the root, created if missing."""
        key = "/".join(parts)
        known = self._folders.get(key)
        if known is None:
            known = self._folders[key] = self._resolved(parts)
        return known

    def _resolved(self, parts: tuple[str, ...]) -> str:
        root, done, todo, links = str(self.path), list[str](), list(parts), 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                del done[-1:]
                continue
            here = os.path.join(root, *done, part)
            try:
                info = os.lstat(here)
            except FileNotFoundError:
                os.mkdir(here, 0o755)
                done.append(part)
                continue
            if stat.S_ISLNK(info.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise BadImageError(f"{'/'.join(parts)!r} is a loop of symbolic links")
                target = os.readlink(here)
                if target.startswith("/"):
                    done = []
                todo = [one for one in target.split("/") if one and one != "."] + todo
                continue
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(here)  # a later layer replaces it with a folder
                os.mkdir(here, 0o755)
            done.append(part)
        return os.path.join(root, *done)

    def _make_way(self, at: str) -> None:
        try:
            info = os.lstat(at)
        except FileNotFoundError:
            return
        self._folders.clear()
        if stat.S_ISDIR(info.st_mode):
            # Another folder or a link may replace it, to which these modes do not apply.
            for folder, _, _ in os.walk(at):
                self._modes.pop(folder, None)
            shutil.rmtree(at)
        else:
            os.unlink(at)

    def _remove_lower(self, at: str, written: _Written) -> None:
        if at in written:
            return
        if written.is_below(at) and os.path.isdir(at) and not os.path.islink(at):
            self._empty(at, written)
            return
        if os.path.lexists(at):
            self.counts.removed += 1
            self._make_way(at)

    def _empty(self, folder: str, written: _Written) -> None:
        """Remove a folder's content that comes from lower layers."""
        for name in os.listdir(folder):
            self._remove_lower_tree(os.path.join(folder, name), written)

    def _remove_lower_tree(self, at: str, written: _Written) -> None:
        if os.path.isdir(at) and not os.path.islink(at):
            if at in written or written.is_below(at):
                self._empty(at, written)
                return
        elif at in written:
            return
        self.counts.removed += 1
        self._make_way(at)


def _parts(name: str, layer: str) -> tuple[str, ...]:
    """Return the parts of a member's name; refuse a name that leaves the root."""
    if name.startswith("/"):
        raise BadImageError(f"{layer} has the absolute path {name!r}")
    parts = tuple(part for part in name.split("/") if part and part != ".")
    if ".." in parts:
        raise BadImageError(f"{layer} has the path {name!r}, which leads out of the image")
    return parts
