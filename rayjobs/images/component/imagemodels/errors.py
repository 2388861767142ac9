"""Errors in images, models and parameters; each message says what to do next."""

from __future__ import annotations


class ImageModelError(Exception):
    """Base class of errors in what the user gave."""


class InvalidModelDirectoryError(ImageModelError):
    """A folder is not a model that can be trained or scored."""


class NotLabeledDatasetError(ImageModelError):
    """An image directory has no folder per class."""


class InvalidDatasetError(ImageModelError):
    """The images or the categories of a dataset cannot be used."""


class UnreadableImageError(InvalidDatasetError):
    """One image cannot be decoded.

    Attributes:
        reason: What is wrong, to follow the image's name.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} {reason}; remove it, or let `rayjobs images convert` leave it out"
        )
        self.reason = reason


class ParameterOutOfRangeError(ImageModelError):
    """A parameter has a value outside its range."""


class DivergedError(ImageModelError):
    """The training loss is not a finite number."""
