"""Decodes an image file into an array of the size that the network takes."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from .errors import UnreadableImageError

AUGMENTATIONS = ("none", "crop", "crop-flip")
# Short side before the center crop, as a multiple of the crop: 256/224, as usual for ImageNet.
MARGIN = 256 / 224
ORIENTATION = 0x0112


@dataclass(frozen=True)
class Preprocessing:
    """What happens to an image before the network sees it; stored with each model.

    Attributes:
        image_size: Height and width in pixels.
        augmentation: For training images: none, crop (random part and proportions), or crop-flip.
        mean: Per channel (red, green, blue), in units of 0 to 1.
        std: Standard deviation per channel.
    """

    image_size: int = 224
    augmentation: str = "crop-flip"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def to_json(self) -> dict[str, Any]:
        """Return the preprocessing as JSON data."""
        return asdict(self)

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing from data of `to_json`."""
        return cls(
            image_size=int(data["image_size"]),
            augmentation=str(data["augmentation"]),
            mean=tuple(data["mean"]),
            std=tuple(data["std"]),
        )


def decode(data: bytes, name: str) -> Image.Image:
    """Return an image in RGB, upright.

    16-bit gray values keep their upper 8 bits. Palettes become their colors; transparency is
    dropped, as PIL's ``convert("RGB")`` does. The EXIF orientation is applied.

    Raises:
        UnreadableImageError: the bytes are not a whole image.
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(data))
        image.load()
        if image.getexif().get(ORIENTATION, 1) != 1:  # fault 181: a rotated photo
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # fault 182: convert() would clip values above 255 to white
            values = np.asarray(image).astype(np.int64) >> 8
            image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
        return image if image.mode == "RGB" else image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if not data:
            reason = "is empty"
        elif isinstance(error, UnidentifiedImageError):  # its message is the address of a buffer
            reason = "cannot be decoded (its format is unknown)"
        else:
            reason = f"cannot be decoded ({error})"
        raise UnreadableImageError(name, reason) from error


def training_pixels(
    image: Image.Image, how: Preprocessing, key: tuple[int, int, int]
) -> np.ndarray[Any, Any]:
    """Return a training image as uint8 of the shape (height, width, 3).

    Args:
        image: In RGB.
        how: Size and augmentation.
        key: Seed, epoch and number of the image. They alone decide the random part, so that
            neither the order nor the number of threads matters.
    """
    if how.augmentation == "none":
        return validation_pixels(image, how)
    chance = random.Random("/".join(map(str, key)))  # noqa: S311 (not for secrets)
    size = (how.image_size, how.image_size)
    box = random_box(image.width, image.height, chance)
    image = image.resize(size, Image.Resampling.BILINEAR, box=box)
    if how.augmentation == "crop-flip" and chance.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def validation_pixels(image: Image.Image, how: Preprocessing) -> np.ndarray[Any, Any]:
    """Return an image as uint8 of the shape (height, width, 3): resized and center-cropped.

    With the augmentation ``none``, the whole image is resized, without a crop.
    """
    size = how.image_size
    if how.augmentation == "none":
        if image.size == (size, size):
            return np.asarray(image)
        return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
    short = round(size * MARGIN)
    # As torchvision's Resize and CenterCrop do, pixel for pixel.
    if image.width <= image.height:
        width, height = short, int(short * image.height / image.width)
    else:
        width, height = int(short * image.width / image.height), short
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def random_box(width: int, height: int, chance: random.Random) -> tuple[int, int, int, int]:
    """Return a random part with 8 % to 100 % of the area and an aspect ratio of 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1.0)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = chance.randint(0, width - wide), chance.randint(0, height - high)
            return left, top, left + wide, top + high
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
