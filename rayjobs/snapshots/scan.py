"""Scans a source directory for the content of its snapshot. Never follows links.

Opens only files that may be rayjobs' own records (`own_records`).
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import field
from enum import StrEnum
from pathlib import Path

from rayjobs.core.errors import SnapshotError
from rayjobs.core.hiding import hiding
from rayjobs.core.paths import VENDORED
from rayjobs.core.text import MIB, counted, size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.ignore import (
    ENVIRONMENT_SIGNS,
    IGNORE_FILES,
    LeftOut,
    Rules,
    Why,
    ignore_line,
)
from rayjobs.snapshots.limits import FILES_VARIABLE, SIZE_VARIABLE, Limits
from rayjobs.snapshots.links import leaves_tree
from rayjobs.snapshots.own_records import DOWNLOAD_MARK, OwnRecords

NAMED_AT_MOST = 20  # paths in one message
# A tree far above the limit is refused anyway; looking further would only take time.
SCAN_FACTOR = 10


class Kind(StrEnum):
    """What an entry of a snapshot is."""

    FOLDER = "folder"
    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or link of a snapshot.

    Attributes:
        path: Relative to the source directory.
        size: Bytes; 0 for folders and links.
        target: Where a link leads.
    """

    path: str
    kind: Kind
    size: int = 0
    executable: bool = False
    target: str = ""


@dataclass
class Scan:
    """The result of one walk.

    Attributes:
        entries: Sorted by the bytes of their paths.
        stats: Per file: size, mtime_ns, ctime_ns, inode; these identify an unchanged file.
        unreadable: ``path (reason)`` of unreadable entries.
        is_complete: False if the walk ended early, far above the limit.
    """

    root: Path
    entries: list[Entry] = field(default_factory=list)
    stats: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = True

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @property
    def files(self) -> int:
        """Number of files, without folders and links."""
        return len(self.stats)


def _whole_folder(
    own: OwnRecords, rules: Rules, folder: str, names: AbstractSet[str]
) -> LeftOut | None:
    """Return why a folder with these names in it is left out as a whole, or None."""
    if folder and DOWNLOAD_MARK in names:
        return LeftOut(folder + "/", Why.DOWNLOAD, f"{folder}/{DOWNLOAD_MARK}")
    if folder and VENDORED in names:
        return LeftOut(folder + "/", Why.VENDORED, f"{folder}/{VENDORED}")
    what = own.folder(folder, names)
    if what is not None:
        return LeftOut(folder + "/", Why.RECORDS, what)
    if folder and not names.isdisjoint(ENVIRONMENT_SIGNS):
        return rules.environment_reason(folder, folder.rpartition("/")[2])
    return None


def scan(root: Path, rules: Rules, limits: Limits) -> Scan:
    """Return the entries to pack from `root` (a resolved path)."""
    found = Scan(root)
    links: dict[str, str] = {}
    own = OwnRecords(root)
    pending = [""]
    seen = 0
    while pending:
        folder = pending.pop()
        listed = _list_folder(found, folder)
        left = _whole_folder(own, rules, folder, {entry.name for entry in listed})
        if left is not None:
            found.left_out.append(left)
            continue
        if folder:
            found.entries.append(Entry(folder, Kind.FOLDER))
        prefix = folder + "/" if folder else ""
        for entry in listed:
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            left = rules.reason(path, entry.name, is_folder=is_folder)
            if left is None and not folder and (what := own.file_at_top(entry.name)):
                left = LeftOut(path + "/" if is_folder else path, Why.RECORDS, what)
            if left is not None:
                found.left_out.append(left)
                continue
            seen += 1
            if is_folder:
                pending.append(path)
                continue
            _look_at(entry, path, found, own, links)
        if seen > limits.files * SCAN_FACTOR:
            found.is_complete = False
            break
    _keep_links(found, links)
    found.entries.sort(key=lambda entry: os.fsencode(entry.path))
    return found


def _look_at(
    entry: os.DirEntry[str], path: str, found: Scan, own: OwnRecords, links: dict[str, str]
) -> None:
    """Add a file or link to the scan, or note why it is left out."""
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # removed since it was listed
    except OSError as error:
        found.unreadable.append(f"{path} ({error.strerror})")
        return
    if stat.S_ISREG(info.st_mode):
        what = own.file(path, entry.name, info.st_size)
        if what is not None:
            found.left_out.append(LeftOut(path, Why.RECORDS, what))
            return
        is_executable = bool(info.st_mode & 0o100)
        found.entries.append(Entry(path, Kind.FILE, info.st_size, is_executable))
        found.stats[path] = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    elif stat.S_ISLNK(info.st_mode):
        target = _inside_target(found, path)
        if target is not None:
            links[path] = target
    else:
        found.left_out.append(LeftOut(path, Why.SPECIAL, _special_kind(info.st_mode)))


def _list_folder(found: Scan, folder: str) -> list[os.DirEntry[str]]:
    path = os.path.join(found.root, folder) if folder else str(found.root)  # noqa: PTH118 - speed
    try:
        with os.scandir(path) as listing:
            return sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except FileNotFoundError:
        return []  # removed since it was listed
    except OSError as error:
        found.unreadable.append(f"{folder or '.'}/ ({error.strerror})")
        return []


def _special_kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "FIFO"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"


# -- links: kept as links where they stay inside, left out with a warning where they do not ------


def _inside_target(found: Scan, path: str) -> str | None:
    """Return the link's target, relative; None when the link is left out."""
    full = found.root / path
    try:
        text = os.readlink(full)
        real = os.path.realpath(full)
        full.stat()
    except FileNotFoundError:
        pass  # dangling: kept if it stays inside
    except OSError as error:
        found.left_out.append(LeftOut(path, Why.LINK, f"leads nowhere ({error.strerror})"))
        return None
    root = str(found.root)
    if real != root and not real.startswith(root + "/"):
        found.left_out.append(LeftOut(path, Why.LINK, f"leads out of the folder, to {text}"))
        return None
    if text.startswith("/") or leaves_tree(path, {path: text}):
        return os.path.relpath(real, full.parent)
    return text


def _keep_links(found: Scan, links: dict[str, str]) -> None:
    # Rewriting one link may change others' targets, so repeat until nothing changes.
    while leaving := [path for path in links if leaves_tree(path, links)]:
        for path in leaving:
            full = found.root / path
            straight = os.path.relpath(os.path.realpath(full), full.parent)
            if links[path] == straight:
                del links[path]
                found.left_out.append(
                    LeftOut(path, Why.LINK, "leads out of the folder, or in a circle")
                )
            else:
                links[path] = straight
    packed = {entry.path for entry in found.entries} | set(links)
    for path in sorted(links):
        found.entries.append(Entry(path, Kind.LINK, target=links[path]))
        real = os.path.relpath(os.path.realpath(found.root / path), found.root)
        if real != "." and real not in packed:
            found.notes.append(f"the link {path} leads to {real}, which is not in the snapshot")


# -- what the scan means -----------------------------------------------------------------------


def refuse_unreadable(paths: Iterable[str], root: Path) -> None:
    """Raise SnapshotError, which names all paths, if there are any."""
    listed = sorted(paths)
    if listed:
        lines = "\n".join(f"  {printable(path)}" for path in listed)
        raise SnapshotError(
            f"{counted(len(listed), 'path')} of {root} cannot be read:\n"
            f"{lines}\nMake them readable, or leave them out by lines in {IGNORE_FILES[0]}",
            unreadable=tuple(listed),
        )


def refuse_missing_entry(found: Scan, entry: str, rules: Rules) -> None:
    """Raise SnapshotError with the reason if the snapshot would lack the entry script."""
    path = os.path.normpath(entry)
    if any(one.path == path and one.kind is not Kind.FOLDER for one in found.entries):
        return
    for left in found.left_out:
        if left.path == path or (left.path.endswith("/") and path.startswith(left.path)):
            what = f"{left.why}: {left.detail}" if left.detail else str(left.why)
            if left.why is Why.IGNORED:
                remedy = f"Change that line, or add the line `!{ignore_line(left.path)}` after it"
            elif left.why in (Why.LINK, Why.SPECIAL):
                remedy = "Put a plain file in its place"
            elif left.why is Why.RECORDS:
                remedy = "Records are never packed: move the script to a folder without them"
            elif left.why is Why.DOWNLOAD:
                remedy = f"To use it as code, remove {printable(left.detail)}"
            else:
                remedy = f"Add the line `!{ignore_line(left.path)}` to {IGNORE_FILES[0]}"
                if rules.name not in (None, IGNORE_FILES[0]):
                    remedy += f" (it replaces {rules.name}: copy the lines of that file)"
            raise SnapshotError(
                f"the entry script {entry} would be left out of the snapshot by "
                f"{printable(left.path)} ({what}). {remedy}"
            )
    raise SnapshotError(
        f"the entry script {entry} is not a file in {found.root}. Check its name; it is "
        f"relative to the source directory"
    )


def refuse_too_large(found: Scan, entry: str | None, rules: Rules, limits: Limits) -> None:
    """Raise SnapshotError above the limits, with the largest paths and the lines that help."""
    size, count = found.size, len(found.entries)
    if size <= limits.size and count <= limits.files and found.is_complete:
        return
    by_size = size > limits.size
    units: Counter[str] = Counter()
    within: Counter[str] = Counter()
    ancestors = _ancestors(os.path.normpath(entry)) if entry else set()
    for one in found.entries:
        if one.kind is Kind.FOLDER:
            continue
        unit = _unit(one.path, ancestors)
        units[unit] += one.size if by_size else 1
        within[unit] += 1
    excess = (size - limits.size) if by_size else (count - limits.files)
    over = size_text(excess) if by_size else f"{excess:,}"
    help_lines: list[str] = []
    for unit, weight in units.most_common(10):
        if excess <= 0:
            break
        if unit != (os.path.normpath(entry) if entry else None):
            help_lines.append(ignore_line(unit))
            excess -= weight

    def shown(unit: str, weight: int) -> str:
        amount = size_text(weight) if by_size else counted(weight, "file")
        return f"  {amount:>12}  {printable(unit)}" + (
            f" ({counted(within[unit], 'file')})" if by_size and unit.endswith("/") else ""
        )

    largest = "\n".join(shown(unit, weight) for unit, weight in units.most_common(10))
    files = sorted((one for one in found.entries if one.size), key=lambda one: -one.size)[:5]
    singles = "\n".join(f"  {size_text(one.size):>12}  {printable(one.path)}" for one in files)
    more = "more than " if not found.is_complete else ""
    have = size_text(size) if by_size else f"{count:,} files, folders and links"
    allowed = size_text(limits.size) if by_size else f"{limits.files:,}"
    variable = SIZE_VARIABLE if by_size else FILES_VARIABLE
    value = f"{-(-size // MIB)}" if by_size else f"{count}"
    where = IGNORE_FILES[0]
    if rules.name not in (None, where):
        where += f" (it replaces {rules.name}: copy the lines of that file into it)"
    raise SnapshotError(
        f"{found.root} has {more}{have}, which is {more}{over} above the limit of {allowed} for a "
        f"snapshot.\n"
        f"What makes it large:\n{largest}\n"
        + (f"Largest files:\n{singles}\n" if by_size else "")
        + f"To leave it out, add these lines to {where}:\n"
        + "\n".join(f"  {printable(line)}" for line in help_lines)
        + f"\nPut data in a datastore and use it as an input. If all of it is code, "
        f"set {variable}={value}",
        largest=tuple(units.most_common(10)),
        ignore_lines=tuple(help_lines),
    )


def _ancestors(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:length]) + "/" for length in range(1, len(parts))}


def _unit(path: str, ancestors: set[str]) -> str:
    """Return the topmost folder above `path` that does not contain the entry script."""
    parts = path.split("/")
    for length in range(1, len(parts)):
        folder = "/".join(parts[:length]) + "/"
        if folder not in ancestors:
            return folder
    return path


def warnings_of(found: Scan) -> list[str]:
    """Return sentences for the submitter about files that were left out."""
    warnings = []
    secrets = [left.path for left in found.left_out if left.why is Why.SECRET]
    if secrets:
        warnings.append(
            f"left out as likely secrets: {_some(secrets)}. A line such as "
            f"`!{ignore_line(secrets[0])}` in {IGNORE_FILES[0]} packs one anyway; "
            f"better pass secrets by reference (`secrets:`)"
        )
    special = [f"{left.path} ({left.detail})" for left in found.left_out if left.why is Why.SPECIAL]
    if special:
        warnings.append(f"left out, because they are not plain files: {_some(special)}")
    links = [f"{left.path} ({left.detail})" for left in found.left_out if left.why is Why.LINK]
    if links:
        warnings.append(
            f"links left out: {_some(links)}. Copy what the job needs into the source directory"
        )
    own = [
        f"{left.path} ({left.detail})"
        for left in found.left_out
        if left.why is Why.RECORDS and left.detail
    ]
    if own:
        warnings.append(f"records of rayjobs are never packed; left out: {_some(own)}")
    if why := hiding(found.root):
        warnings.append(why)
    downloads = [left for left in found.left_out if left.why is Why.DOWNLOAD]
    if downloads:
        warnings.append(
            f"files that `rayjobs download` fetched are left out: "
            f"{_some([left.path for left in downloads])}. Remove {printable(downloads[0].detail)} "
            "to pack them"
        )
    usual = (
        *(Why.VERSION_CONTROL, Why.VIRTUAL_ENVIRONMENT, Why.CACHE, Why.RECORDS),
        Why.VENDORED,
    )
    default = [
        left.path
        for why in usual
        for left in found.left_out
        if left.why is why
        and not (why is Why.RECORDS and left.detail)
        # Python writes these again wherever it runs.
        and not left.path.endswith(("__pycache__/", ".pyc"))
    ]
    if default:
        warnings.append(f"left out by default: {_some(default)}")
    warnings.extend(printable(note) for note in found.notes[:NAMED_AT_MOST])
    if any(entry.path.startswith("outputs/") for entry in found.entries):
        warnings.append(
            "outputs/ is not empty and is packed too, so the job stores these files again with its "
            f"own outputs. The line `/outputs/` in {IGNORE_FILES[0]} leaves it out"
        )
    return warnings


def printable(path: str) -> str:
    """Return a path that is safe on any terminal: undecodable bytes and controls are escaped."""
    if path.isprintable():
        return path
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in path
    )


def _some(paths: list[str]) -> str:
    more = len(paths) - NAMED_AT_MOST
    return ", ".join(printable(path) for path in paths[:NAMED_AT_MOST]) + (
        f" and {more} more" if more > 0 else ""
    )
