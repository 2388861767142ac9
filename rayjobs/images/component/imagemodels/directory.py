"""Image directories: one folder per class, or a folder of images without labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import InvalidDatasetError, NotLabeledDatasetError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SHOWN = 5


@dataclass(frozen=True)
class ImageDirectory:
    """Images with their classes.

    Attributes:
        root: The folder.
        classes: Names of the classes, sorted; empty if the images have no labels.
        files: Paths of the images relative to `root`, sorted.
        labels: For each file, the index of its class in `classes`; empty without labels.
    """

    root: str
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def path(self, index: int) -> str:
        """Return the path of an image."""
        return os.path.join(self.root, self.files[index])

    def read(self, index: int) -> bytes:
        """Return the bytes of an image's file.

        Raises:
            InvalidDatasetError: the file is gone.
            OSError: the storage cannot be read.
        """
        path = self.path(index)
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:  # fault 180: an image was removed
            raise InvalidDatasetError(
                f"{path} was there when the images were listed and has been removed since; keep "
                f"the folder unchanged during a run, or give a registered dataset"
            ) from None


def open_labeled(root: str) -> ImageDirectory:
    """Return the image directory in a folder with one folder per class.

    Hidden files and folders are ignored, as are files without the suffix of an image.

    Raises:
        NotLabeledDatasetError: there is no folder with images.
        InvalidDatasetError: there is no such folder, or a class has no image.
    """
    classes = sorted(entry.name for entry in _entries(root) if entry.is_dir())
    if not classes:
        raise NotLabeledDatasetError(
            f"{root} has no folder per class, so its images have no labels; make one folder per "
            f"class (`rayjobs images convert` reads folders and archives)"
        )
    files: list[str] = []
    labels: list[int] = []
    empty: list[str] = []
    for number, name in enumerate(classes):
        found = _images_below(root, name)
        if not found:
            empty.append(name)
        files += found
        labels += [number] * len(found)
    if len(empty) == len(classes):
        raise NotLabeledDatasetError(
            f"{root} has {len(classes)} folders and no image in them; it needs one folder of "
            f"images per class"
        )
    if empty:
        raise InvalidDatasetError(
            f"{_some(empty)} of {root} has no image; add images, or remove the folder"
        )
    return ImageDirectory(root, tuple(classes), tuple(files), tuple(labels))


def open_any(root: str) -> ImageDirectory:
    """Return a folder's images: labeled if it has one folder per class, else without labels.

    Raises:
        InvalidDatasetError: there is no image, or a class has none.
    """
    try:
        return open_labeled(root)
    except NotLabeledDatasetError:
        pass
    files = tuple(_images_below(root, ""))
    if not files:
        raise InvalidDatasetError(f"{root} has no image; known suffixes: {', '.join(SUFFIXES)}")
    return ImageDirectory(root, (), files, ())


def check_same_classes(training: ImageDirectory, validation: ImageDirectory) -> None:
    """Check that training and validation images have the same categories.

    Raises:
        InvalidDatasetError: they differ.
    """
    first, second = set(training.classes), set(validation.classes)
    if first == second:
        return
    parts = []
    if first - second:
        parts.append(f"only the training images have {_some(sorted(first - second))}")
    if second - first:
        parts.append(f"only the validation images have {_some(sorted(second - first))}")
    raise InvalidDatasetError(
        f"the categories of training ({len(first)}) and validation ({len(second)}) differ: "
        f"{'; '.join(parts)}. Give both the same folders"
    )


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is not part of the data."""
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Return whether a file has the suffix of an image."""
    return name.lower().endswith(SUFFIXES)


def _entries(root: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(root) as found:
            return [entry for entry in found if not is_hidden(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidDatasetError(f"{root} is not a folder; give a folder of images") from None


def _images_below(root: str, folder: str) -> list[str]:
    found: list[str] = []
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        for entry in _entries(os.path.join(root, current)):
            path = os.path.join(current, entry.name)
            if entry.is_dir():
                waiting.append(path)
            elif is_image(entry.name):
                found.append(path)
    return sorted(found)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ("class " if len(names) == 1 else "classes ") + shown + more
