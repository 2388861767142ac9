"""One image: every kind of file that cameras and tools write, and those that are damaged."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from rayjobs.images.component.imagemodels.decoding import (
    Preprocessing,
    decode,
    training_pixels,
    validation_pixels,
)
from rayjobs.images.component.imagemodels.errors import UnreadableImageError


def picture(width: int = 31, height: int = 20) -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, form: str = "JPEG", **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **more)
    return file.getvalue()


@pytest.mark.parametrize("size", [(300, 260), (260, 300), (500, 375), (375, 500), (90, 90)])
@pytest.mark.parametrize("wanted", [224, 100])
def test_a_jpeg_has_the_pixels_that_pil_and_torchvision_give(
    size: tuple[int, int], wanted: int
) -> None:
    data = encoded(picture(*size))
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(np.asarray(decode(data, "a.jpg")), np.asarray(expected))
    steps = [transforms.Resize(round(wanted * 256 / 224)), transforms.CenterCrop(wanted)]
    same = transforms.Compose(steps)(expected)
    mine = validation_pixels(decode(data, "a.jpg"), Preprocessing(image_size=wanted))
    assert np.array_equal(mine, np.asarray(same))


@pytest.mark.long
@pytest.mark.parametrize("data", [b"", encoded(picture())[:-60], b"not an image"])
def test_a_damaged_image_is_named(data: bytes) -> None:
    with pytest.raises(UnreadableImageError, match=r"cat/1\.jpg"):
        decode(data, "cat/1.jpg")


def test_a_png_of_16_bits_keeps_its_upper_8() -> None:
    values = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    found = np.asarray(decode(encoded(Image.fromarray(values), "PNG"), "a.png"))
    assert np.array_equal(found[..., 0], values >> 8)
    assert np.array_equal(found[..., 0], found[..., 2])


def test_a_palette_becomes_its_colors() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255] + [0] * 762)
    image.putpixel((1, 0), 1)
    found = np.asarray(decode(encoded(image, "PNG"), "a.png"))
    assert found.tolist() == [[[255, 0, 0], [0, 0, 255]]]


def test_a_rotated_photo_is_set_upright() -> None:
    image = picture()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    found = decode(encoded(image, "PNG", exif=exif), "a.png")
    assert np.array_equal(np.asarray(found), np.rot90(np.asarray(image), 3))


def test_a_random_crop_depends_on_seed_epoch_and_image_alone() -> None:
    how = Preprocessing(image_size=16)
    first = training_pixels(picture(), how, (1, 2, 3))
    assert first.shape == (16, 16, 3)
    assert np.array_equal(first, training_pixels(picture(), how, (1, 2, 3)))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(first, training_pixels(picture(), how, other))


def test_without_augmentation_all_of_an_image_is_kept() -> None:
    how = Preprocessing(image_size=20, augmentation="none")
    image = picture(20, 20)
    assert np.array_equal(training_pixels(image, how, (1, 1, 1)), np.asarray(image))
    assert torch.from_numpy(validation_pixels(picture(), how).copy()).shape == (20, 20, 3)


def test_preprocessing_survives_json() -> None:
    how = Preprocessing(image_size=99, augmentation="crop", mean=(0.1, 0.2, 0.3))
    assert Preprocessing.of_json(how.to_json()) == how
