"""Makes image directories from folders and archives, and reports what cannot be read."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .decoding import decode
from .directory import is_hidden, is_image
from .errors import InvalidDatasetError, UnreadableImageError
from .loading import cores

REPORT = "convert.json"
AT_ONCE = 256
READ_BYTES = 1 << 20


class _Member(tarfile.TarInfo):
    """A member of a tar archive. `tarfile` takes a damaged header for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        """Return the next member.

        Raises:
            ReadError: the next block is neither a header nor the mark of the archive's end.
        """
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # missing in its stub
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(
                f"{error} at byte {archive.offset}: it is damaged or cut off"
            ) from error


@dataclass
class Converted:
    """The result of a conversion.

    Attributes:
        training: Number of images written for training; `validation` likewise.
        classes: Names of the classes, sorted; empty if the images have no labels.
        unreadable: Name of each image that was left out → why.
        ignored: Number of files without the suffix of an image.
    """

    training: int = 0
    validation: int = 0
    classes: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    ignored: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return dict(vars(self))


def convert(
    source: str,
    target: str,
    *,
    validation: str | None = None,
    share: float = 0.2,
    seed: int = 1,
    report: str | None = None,
) -> Converted:
    """Write an image directory from a folder, or from a zip or tar archive.

    The last folder above an image is its class; images without a folder have no label. Hidden files
    are ignored. The files' bytes are copied unchanged.

    Args:
        source: Folder or archive; a folder that contains only an archive stands for the archive.
        target: Folder for the images, new or empty.
        validation: Folder for the validation images; None means that all images go to `target`.
        share: The share of validation images in each class, between 0 and 1. The name of an image
            and the seed decide where it goes.
        seed: A different seed gives a different split.
        report: Path for a JSON report of the result; None writes none.

    Raises:
        InvalidDatasetError: `source` has no readable image, or a target is not empty.
    """
    if validation is not None and not 0 < share < 1:
        raise InvalidDatasetError(f"the validation share is {share!r}; it must be between 0 and 1")
    for folder in (target, validation):
        if folder is not None and os.path.isdir(folder) and os.listdir(folder):
            raise InvalidDatasetError(f"{folder} is not empty; name a new folder")
    done = Converted()
    kept = _copied(source, target, done)
    if not kept:
        raise InvalidDatasetError(
            f"{source} has no image that can be read: {len(done.unreadable)} unreadable, "
            f"{done.ignored} other files"
        )
    done.classes = sorted(name for name in kept if name)
    for folder, paths in kept.items():
        moved = [] if validation is None else _chosen(paths, share, seed)
        for path in moved:
            os.makedirs(os.path.join(str(validation), folder), exist_ok=True)
            _move(os.path.join(target, path), os.path.join(str(validation), path))
        done.training += len(paths) - len(moved)
        done.validation += len(moved)
    if report is not None:
        os.makedirs(os.path.dirname(report) or ".", exist_ok=True)
        with open(report, "w", encoding="utf-8") as written:
            json.dump(done.to_json(), written, indent=2, ensure_ascii=False)
    return done


def _copied(source: str, target: str, done: Converted) -> dict[str, list[str]]:
    """Copy all readable images below `target`; return their relative paths, by class."""
    kept: dict[str, list[str]] = {}
    names: set[str] = set()
    with ThreadPoolExecutor(cores()) as pool:
        members = _members(source, done)
        while block := list(islice(members, AT_ONCE)):
            for name, folder, data, problem in pool.map(_checked, block):
                if problem:
                    done.unreadable[name] = problem
                    continue
                path = os.path.join(folder, _free_name(names, folder, os.path.basename(name)))
                os.makedirs(os.path.join(target, folder), exist_ok=True)
                with open(os.path.join(target, path), "wb") as file:
                    file.write(data)
                kept.setdefault(folder, []).append(path)
    return kept


def _checked(one: tuple[str, Callable[[], bytes]]) -> tuple[str, str, bytes, str]:
    """Return an image's name, class and bytes, and the reason if it cannot be read."""
    name, read = one
    try:
        data = read()
    except OSError as error:
        return name, "", b"", f"cannot be read ({error.strerror or error})"
    try:
        decode(data, name)
    except UnreadableImageError as error:  # fault 185: an image that no decoder takes
        return name, "", b"", error.reason
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return name, parts[-2] if len(parts) > 1 else "", data, ""


def _chosen(paths: list[str], share: float, seed: int) -> list[str]:
    """Return the images of a class that are for validation; of two or more, each part gets one."""
    if len(paths) < 2:
        return []
    ordered = sorted(paths, key=lambda path: hashlib.sha256(f"{seed}/{path}".encode()).digest())
    return ordered[: min(len(paths) - 1, max(1, round(len(paths) * share)))]


def _move(old: str, new: str) -> None:
    try:
        os.rename(old, new)
    except OSError:  # another file system
        with open(old, "rb") as source, open(new, "wb") as target:
            target.write(source.read())
        os.unlink(old)


def _free_name(names: set[str], folder: str, name: str) -> str:
    """Return a name that no other image of the class has: archives may nest folders."""
    stem, suffix = os.path.splitext(name)
    number, found = 1, name
    while os.path.join(folder, found) in names:
        number += 1
        found = f"{stem}-{number}{suffix}"
    names.add(os.path.join(folder, found))
    return found


def _members(source: str, done: Converted) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield name and reader of each image, sorted by name (for tar, in the archive's order)."""
    if os.path.isdir(source):
        inside = [name for name in os.listdir(source) if not is_hidden(name)]
        only = os.path.join(source, inside[0]) if len(inside) == 1 else ""
        if not only or not _is_archive(only):
            yield from _of_folder(source, done)
            return
        source = only
    if zipfile.is_zipfile(source):
        yield from _of_zip(source, done)
    elif os.path.isfile(source) and tarfile.is_tarfile(source):
        yield from _of_tar(source, done)
    elif os.path.exists(source):
        raise InvalidDatasetError(f"{source} is neither a folder nor a zip or tar archive")
    else:
        raise InvalidDatasetError(f"there is no {source}; name a folder, or a zip or tar archive")


def _is_archive(path: str) -> bool:
    return os.path.isfile(path) and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def _is_wanted(name: str, done: Converted) -> bool:
    if any(is_hidden(part) for part in name.split("/") if part not in (".", "..")):
        return False
    if not is_image(name):
        done.ignored += 1
        return False
    return True


def _of_folder(source: str, done: Converted) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for folder, folders, files in os.walk(source, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for file in sorted(files):
            path = os.path.join(folder, file)
            name = os.path.relpath(path, source)
            if _is_wanted(name, done):
                yield name, lambda path=path: _bytes_of(path)  # type: ignore[misc]


def _of_zip(source: str, done: Converted) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with zipfile.ZipFile(source) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith("/") and _is_wanted(name, done):
                try:
                    data = archive.read(name)
                except Exception as error:  # of many classes: see `_damage`
                    done.unreadable[name] = _damage(error)
                    continue
                yield name, lambda data=data: data  # type: ignore[misc]


def _of_tar(source: str, done: Converted) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with tarfile.open(source, tarinfo=_Member) as archive:
        members = iter(archive)
        while True:
            try:
                member = next(members, None)
                if member is None:  # fault 185: a header of zeros looks like the end
                    _check_end(archive)
            except Exception as error:
                done.unreadable[f"the rest of {os.path.basename(source)}"] = _damage(error)
                return
            if member is None:
                return
            if member.isfile() and _is_wanted(member.name, done):
                try:
                    found = archive.extractfile(member)
                    data = b"" if found is None else found.read()
                except Exception as error:
                    done.unreadable[member.name] = _damage(error)
                    continue
                yield member.name, lambda data=data: data  # type: ignore[misc]


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise ReadError if something else than zeros is after the end of an archive."""
    assert archive.fileobj is not None
    while block := archive.fileobj.read(READ_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"its end is at byte {archive.offset}, but more data follows")


def _damage(error: Exception) -> str:
    """Return why a member of an archive is left out; each compression raises errors of its own."""
    return f"cannot be read from the archive ({str(error) or type(error).__name__})"


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
